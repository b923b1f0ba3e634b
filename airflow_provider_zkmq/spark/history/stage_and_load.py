"""Rows of tables, loaded and staged: as DataFrames where they are many, else in this process by Arrow; and times."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...delta_tables import Staged, Table, added
from ...location import Location
from .parquet_files import WATERMARK, WRITTEN, Batches, Written, dataset, reader, stored, wanted, write, writer
from .queue_reader import DAY_MS

#: What a step counted, by what that is.
Counts: TypeAlias = dict[str, int]
#: A step that has no more rows to work on than these does it in this process; Spark, which takes seconds to begin with
#: anything, does it where they are more.
FEW: Final = 100_000


def are_few(rows: int) -> bool:
    """Whether so many rows are worked on in this process."""
    return rows <= FEW


# --- Columns and times. Times are compared as whole milliseconds since 1970, which have no zone and are not rounded.

_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def columns(text: str) -> pa.Schema:
    """A table's columns, from their names and types in SQL's words."""
    pairs = (column.split() for column in text.split(", "))
    return pa.schema([(name, _TYPES[kind]) for name, kind in pairs])


def with_day(schema: pa.Schema) -> pa.Schema:
    """These columns, and the day."""
    return schema.append(pa.field("day", pa.date32()))


def milliseconds(name: str) -> Column:
    """A column's moment as milliseconds since 1970, whatever the session's time zone."""
    return f.unix_millis(f.col(name))


def day_of(name: str) -> Column:
    """The day of a moment in UTC, whatever the session's time zone."""
    return f.date_from_unix_date(f.floor(milliseconds(name) / DAY_MS).cast("int"))


# --- Rows of tables, and files that wait for their commit.

_PATTERN: Final = re.compile(r"[][{}*?\\]")


def stage(table: Table, schema: pa.Schema, frame: DataFrame, watermark: int | None = None) -> Staged:
    """Have Spark write a frame with the columns of `schema` and ``day``."""
    names = [name for name in schema.names if name != "day"]
    return stage_by(table, schema, frame.select(*names, "day"), watermark)


def stage_by(table: Table, schema: pa.Schema, frame: DataFrame, watermark: int | None, read: Batches = iter) -> Staged:
    """Have Spark's Python workers write what `read` makes of a frame's rows."""
    rows = frame.mapInArrow(writer(table.location, schema, watermark, read), WRITTEN).collect()
    return _staged(schema, [Written(*row) for row in rows], watermark)


def stage_here(table: Table, schema: pa.Schema, rows: Iterable[pa.Table], watermark: int | None = None) -> Staged:
    """Write tables of rows with the columns of `schema` and ``day``, as `stage` does."""
    return _staged(schema, list(write(table.location, schema, rows, watermark)), watermark)


def _staged(schema: pa.Schema, files: list[Written], watermark: int | None) -> Staged:
    spelt = spark_columns(with_day(stored(schema, watermark is not None))).json()
    return Staged(
        spelt,
        tuple(added((file.path, file.day, file.size, file.statistics) for file in files)),
        sum(file.rows for file in files),
    )


def spark_columns(schema: pa.Schema) -> StructType:
    """Columns in Spark's words."""
    return from_arrow_schema(schema)


def load(
    spark: SparkSession, location: Location, schema: pa.Schema, files: list[str], moment: str, newer: int = 0
) -> DataFrame:
    """The rows of files that are newer than a watermark, with the columns of `schema` and the ``day`` of `moment`."""
    plain = stored(schema, watermark=False)
    if not files:  # Spark sees that it is empty, and leaves it out
        rows = spark.createDataFrame([], spark_columns(plain)).where(f.lit(False))
    elif location.folder is None:  # Arrow reads: Spark needs no JARs for S3, and its plan has no keys
        paths = spark.sparkContext.parallelize([(path,) for path in files], len(files))
        frame = spark.createDataFrame(paths, "path string")
        rows = frame.mapInArrow(reader(location, plain, newer), spark_columns(plain))
    else:
        literal = [_PATTERN.sub(r"\\\g<0>", path) for path in files]  # what Spark would take for a pattern is escaped
        rows = spark.read.schema(spark_columns(stored(schema, watermark=newer > 0))).parquet(*literal)
        rows = rows.where(f.col(WATERMARK) > newer).drop(WATERMARK) if newer else rows
    return rows.withColumn("day", day_of(moment))


def load_here(
    location: Location, schema: pa.Schema, files: list[str], newer: int = 0, where: ds.Expression | None = None
) -> pa.Table:
    """The rows of files that are newer than a watermark, and for which `where` holds, with the columns of `schema`."""
    if not files:
        return schema.empty_table()
    with location.explained():
        return dataset(location, schema, files).to_table(schema.names, filter=wanted(newer, where))
