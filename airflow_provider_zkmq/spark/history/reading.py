"""The archive as a DataFrame."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from airflow_provider_zkmq.spark.history.manifest import read_manifest
from airflow_provider_zkmq.spark.history.rows import SCHEMA

POINTS: Final = (0.5, 0.9, 0.99)


def read_history(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    queue: str | None = None,
    *,
    since: date | None = None,
    until: date | None = None,
) -> DataFrame:
    """Return the archived tasks of `queue` (default: of every queue), each run of one once.

    ``history`` holds the deliveries that ended before, the last ten, also those of earlier runs of the same id; null in
    rows of an older version. A row whose state is ``dead`` is a dead letter that was redriven, dropped or cleared.
    `since` and `until`, both included, leave out whole days (UTC, by the end of the task) without reading them.
    Columns as in `rows.SCHEMA`. Raises `CorruptRecord` for a manifest that is none.
    """
    root = Path(directory).absolute()
    homes = [root / queue] if queue is not None else sorted(path for path in root.glob("*") if path.is_dir())
    runs = [home / run.path for home in homes for run in read_manifest(home).runs]
    days = [str(day) for run in runs for day in sorted(run.glob("day=*")) if _within(day.name[4:], since, until)]
    if not days:
        return spark.createDataFrame([], SCHEMA)
    columns = spark.createDataFrame([], SCHEMA).schema
    stored = StructType([column for column in columns if column.name != "day"])
    frame = spark.read.schema(stored).option("recursiveFileLookup", "true").parquet(*days)
    day = f.to_date(f.to_utc_timestamp("ended_at", f.current_timezone()))
    return frame.withColumn("day", day).select(columns.names)


def _within(day: str, since: date | None, until: date | None) -> bool:
    return (since is None or day >= since.isoformat()) and (until is None or day <= until.isoformat())


def percentiles(frame: DataFrame, by: str) -> DataFrame:
    """Return waiting and running times per value of the filter `by`: p50, p90 and p99 in milliseconds.

    Waiting is from the enqueue to the claim of the last attempt, running from there to the end. One row per
    value, in its order as text; tasks without the filter have the value null.
    """
    spans = [
        f.round(f.percentile(f"{span}_ms", f.lit(point)), 1).alias(f"{span}_p{point * 100:.0f}")
        for span in ("wait", "run")
        for point in POINTS
    ]
    return frame.groupBy(f.col("filters")[by].alias(by)).agg(f.count("*").alias("tasks"), *spans).orderBy(by)
