"""Spark's side of a table: its rows as a DataFrame, a DataFrame as files that wait for their commit, and times."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DateType, LongType, StructType

from ...delta_tables import Staged, Table, added, sync
from ...engine import ConfigError
from .queue_reader import DAY_MS

#: What a step counted, by what that is.
Counts: TypeAlias = dict[str, int]

# --- Times in tables are whole milliseconds since 1970, so that neither time zones nor rounding come in.


def milliseconds(name: str) -> Column:
    """A column's moment as milliseconds since 1970, whatever the session's time zone."""
    return f.unix_millis(f.col(name))


def day_of(name: str) -> Column:
    """The day of a moment in UTC, whatever the session's time zone."""
    return f.date_from_unix_date(f.floor(milliseconds(name) / DAY_MS).cast("int"))


def names(schema: str) -> list[str]:
    """The names of the columns that a schema's text declares."""
    return [str(name) for name in StructType.fromDDL(schema).names]


# --- Rows of tables as DataFrames, and DataFrames as files that wait for their commit.

#: Of each row of bronze and silver: how far its table came by the commit that brought it.
WATERMARK: Final = "watermark"
_PATTERN: Final = re.compile(r"[][{}*?\\]")


def check_writable(directory: str | Path) -> None:
    """Make the archive's folder if it is not there. Raises `ConfigError` where files cannot be written to it."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise ConfigError(f"the archive's folder {directory} cannot be written to: {error}") from None


def stage(table: Table, schema: str, frame: DataFrame, watermark: int | None = None) -> Staged:
    """Write a frame with the columns of `schema` and ``day`` to a folder of its own below the table's."""
    columns = _columns(schema)
    if watermark is not None:
        columns = columns.add(WATERMARK, LongType())
        frame = frame.withColumn(WATERMARK, f.lit(watermark).cast("bigint"))
    columns = columns.add("day", DateType())
    folder = table.path / os.urandom(8).hex()
    conf, times = frame.sparkSession.conf, "spark.sql.parquet.outputTimestampType"
    before = conf.get(times)
    conf.set(times, "TIMESTAMP_MICROS")  # as others read them, and as Delta asks for: Spark would write 96-bit numbers
    try:
        writer = frame.select(*columns.names).write.partitionBy("day").option("compression", "zstd")
        writer.parquet(str(folder))
    finally:
        conf.set(times, before)
    files = [(path, pq.read_metadata(path).num_rows) for path in sorted(folder.glob("day=*/*.parquet"))]
    for path in (*folder.rglob("*"), folder):
        sync(path)
    return Staged(columns.json(), tuple(added(table.path, files, watermark)), sum(rows for _, rows in files))


def _columns(schema: str) -> StructType:
    """The columns that stand in files, where the day is a folder's name."""
    return StructType([column for column in StructType.fromDDL(schema) if column.name != "day"])


def load(spark: SparkSession, schema: str, files: list[str], moment: str, newer: int = 0) -> DataFrame:
    """The rows of files that are newer than a watermark, with the columns of `schema` and the ``day`` of `moment`."""
    columns = _columns(schema)
    if not files:  # Spark sees that it is empty, and leaves it out
        return spark.createDataFrame([], columns).where(f.lit(False)).withColumn("day", day_of(moment))
    literal = [_PATTERN.sub(r"\\\g<0>", path) for path in files]  # what Spark would take for a pattern is escaped
    rows = spark.read.schema(columns.add(WATERMARK, LongType()) if newer else columns).parquet(*literal)
    rows = rows.where(f.col(WATERMARK) > newer).drop(WATERMARK) if newer else rows
    return rows.withColumn("day", day_of(moment))
