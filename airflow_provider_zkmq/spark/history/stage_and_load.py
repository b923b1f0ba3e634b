"""Rows of tables, loaded and staged: as DataFrames where they are many, else in this process by Arrow; and times."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import compute
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...delta_tables import Staged, Table, added, sync
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

#: Of each row of bronze and silver: how far its table came by the commit that brought it.
WATERMARK: Final = "watermark"
#: Rows in memory before they are written, in bytes.
PIECE: Final = 64 << 20
_PATTERN: Final = re.compile(r"[][{}*?\\]")


def _stored(schema: pa.Schema, watermark: bool) -> pa.Schema:
    """The columns that stand in files, where the day is a folder's name."""
    kept = [column for column in schema if column.name != "day"]
    return pa.schema([*kept, (WATERMARK, pa.int64())] if watermark else kept)


def stage(table: Table, schema: pa.Schema, frame: DataFrame, watermark: int | None = None) -> Staged:
    """Write a frame with the columns of `schema` and ``day`` to a folder of its own below the table's."""
    if watermark is not None:
        frame = frame.withColumn(WATERMARK, f.lit(watermark).cast("bigint"))
    folder = table.path / os.urandom(8).hex()
    conf, times = frame.sparkSession.conf, "spark.sql.parquet.outputTimestampType"
    before = conf.get(times)
    conf.set(times, "TIMESTAMP_MICROS")  # as others read them, and as Delta asks for: Spark would write 96-bit numbers
    try:
        writer = frame.select(*_stored(schema, watermark is not None).names, "day").write.partitionBy("day")
        writer.option("compression", "zstd").parquet(str(folder))
    finally:
        conf.set(times, before)
    return _staged(table, schema, folder, watermark)


def stage_here(table: Table, schema: pa.Schema, rows: Iterable[pa.Table], watermark: int | None = None) -> Staged:
    """Write tables of rows with the columns of `schema` and ``day``, as `stage` does."""
    folder, stored = table.path / os.urandom(8).hex(), _stored(schema, watermark is not None)
    for number, piece in enumerate(_pieces(rows)):
        if watermark is not None:
            piece = piece.append_column(WATERMARK, pa.repeat(watermark, piece.num_rows))
        ordered, at = piece.sort_by("day"), 0
        days = compute.run_end_encode(ordered["day"].combine_chunks())
        for day, end in zip(days.values.to_pylist(), days.run_ends.to_pylist(), strict=True):
            path = folder / f"day={day}" / f"{number}.zstd.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            part = ordered.slice(at, end - at).select(stored.names).cast(stored)
            pq.write_table(part, path, compression="zstd")
            at = end
    return _staged(table, schema, folder, watermark)


def _pieces(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of about `PIECE` bytes."""
    held, size = list[pa.Table](), 0
    for each in rows:
        held.append(each)
        size += each.nbytes
        if size >= PIECE:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _staged(table: Table, schema: pa.Schema, folder: Path, watermark: int | None) -> Staged:
    """The files of a folder, brought to the disk."""
    files = [(path, pq.read_metadata(path).num_rows) for path in sorted(folder.glob("day=*/*.parquet"))]
    for path in (*folder.rglob("*"), folder) if files else ():
        sync(path)
    spelt = spark_columns(with_day(_stored(schema, watermark is not None))).json()
    return Staged(spelt, tuple(added(table.path, files, watermark)), sum(rows for _, rows in files))


def spark_columns(schema: pa.Schema) -> StructType:
    """Columns in Spark's words."""
    return from_arrow_schema(schema)


def load(spark: SparkSession, schema: pa.Schema, files: list[str], moment: str, newer: int = 0) -> DataFrame:
    """The rows of files that are newer than a watermark, with the columns of `schema` and the ``day`` of `moment`."""
    if not files:  # Spark sees that it is empty, and leaves it out
        rows = spark.createDataFrame([], spark_columns(_stored(schema, watermark=False))).where(f.lit(False))
        return rows.withColumn("day", day_of(moment))
    literal = [_PATTERN.sub(r"\\\g<0>", path) for path in files]  # what Spark would take for a pattern is escaped
    rows = spark.read.schema(spark_columns(_stored(schema, watermark=newer > 0))).parquet(*literal)
    rows = rows.where(f.col(WATERMARK) > newer).drop(WATERMARK) if newer else rows
    return rows.withColumn("day", day_of(moment))


def load_here(schema: pa.Schema, files: list[str], newer: int = 0, where: ds.Expression | None = None) -> pa.Table:
    """The rows of files that are newer than a watermark, and for which `where` holds, with the columns of `schema`."""
    if not files:
        return schema.empty_table()
    rows = ds.dataset(files, schema=schema.append(pa.field(WATERMARK, pa.int64())), format="parquet")
    wanted = [*([ds.field(WATERMARK) > newer] if newer else []), *([] if where is None else [where])]
    return rows.to_table(schema.names, filter=reduce(and_, wanted) if wanted else None)
