"""The tables as DataFrames."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...delta_tables import open_for_reading
from .gold import CONSUMERS, HOURLY
from .queue_reader import SCHEMA
from .silver import DELIVERIES, RUNS
from .stage_and_load import load

Directory: TypeAlias = str | os.PathLike[str]
Day: TypeAlias = date | None


def read_history(
    spark: SparkSession, directory: Directory, queue: str | None = None, *, since: Day = None, until: Day = None
) -> DataFrame:
    """Return the archived tasks of `queue` (default: of every queue), each run of one once.

    ``history`` holds the deliveries that ended, also those of earlier runs of the same id. A row whose state is
    ``dead`` is a run that died; what became of it since is another row.
    `since` and `until`, both included, leave out whole days (UTC, by the end of the task) without reading them.
    Columns as in `rows.SCHEMA`. Raises `CorruptRecord` for a table that cannot be read.
    """
    files = _files(directory, queue, "bronze", since, until)
    return load(spark, SCHEMA, files, "ended_at").select(SCHEMA.names)


def read_runs(
    spark: SparkSession, directory: Directory, queue: str | None = None, *, since: Day = None, until: Day = None
) -> DataFrame:
    """Return silver's runs: a row for each run that ended, without payload and result. Otherwise as `read_history`."""
    return load(spark, RUNS, _files(directory, queue, "runs", since, until), "ended_at")


def read_deliveries(
    spark: SparkSession, directory: Directory, queue: str | None = None, *, since: Day = None, until: Day = None
) -> DataFrame:
    """Return silver's deliveries, each once; of a run with more than ten those that its history still had.

    `since` and `until` go by the end of the delivery. Otherwise as `read_history`.
    """
    return load(spark, DELIVERIES, _files(directory, queue, "deliveries", since, until), "ended_at")


def read_hourly(
    spark: SparkSession, directory: Directory, queue: str | None = None, *, since: Day = None, until: Day = None
) -> DataFrame:
    """Return gold's numbers of each filter class in each hour. Days are those of the hours, in UTC."""
    return load(spark, HOURLY, _files(directory, queue, "hourly", since, until), "hour")


def read_consumers(
    spark: SparkSession, directory: Directory, queue: str | None = None, *, since: Day = None, until: Day = None
) -> DataFrame:
    """Return gold's numbers of each consumer in each hour. Days are those of the hours, in UTC."""
    return load(spark, CONSUMERS, _files(directory, queue, "consumers", since, until), "hour")


def _files(directory: Directory, queue: str | None, kind: str, since: Day, until: Day) -> list[str]:
    """The files with what a queue's table, or every queue's, holds of these days."""
    root = Path(directory).absolute()
    folders = [root / queue] if queue is not None else sorted(path for path in root.glob("*") if path.is_dir())
    first, last = "" if since is None else since.isoformat(), "9999" if until is None else until.isoformat()
    return [file for home in folders for file in open_for_reading(home, kind).files(first, last)]


def percentiles(frame: DataFrame, by: str) -> DataFrame:
    """Return waiting and running times per value of the filter `by`: p50, p90 and p99 in milliseconds.

    Waiting is from the enqueue to the claim of the last attempt, running from there to the end. One row per
    value, in its order as text; tasks without the filter have the value null.
    """
    spans = [
        f.round(f.percentile(f"{span}_ms", f.lit(point)), 1).alias(f"{span}_p{point * 100:.0f}")
        for span in ("wait", "run")
        for point in (0.5, 0.9, 0.99)
    ]
    return frame.groupBy(f.col("filters")[by].alias(by)).agg(f.count("*").alias("tasks"), *spans).orderBy(by)
