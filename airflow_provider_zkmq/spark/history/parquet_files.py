"""Parquet files below a table's folder: rows written, one file for each day, and read.

Executors import this: they need no more than `py_files` ships, and pyarrow. Whoever commits needs `deltalake`, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import and_
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import compute

from ...location import Location, sync

#: Of each row of bronze and silver: how far its table came by the commit that brought it.
WATERMARK: Final = "watermark"
#: Rows in memory before they are written, in bytes.
PIECE: Final = 64 << 20
#: What Spark is given for ``mapInArrow``.
Batches: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Written(NamedTuple):
    """A file that no commit names yet: its path below the table's folder, its day, its size, its statistics, its rows.

    The size is in bytes; the statistics are JSON, as a commit of Delta has them.
    """

    path: str
    day: str
    size: int
    statistics: str
    rows: int


#: The same as Spark says it.
WRITTEN: Final = "path string, day string, size bigint, statistics string, rows bigint"
#: So much of a text is in the statistics.
SIGNS: Final = 64
_LAST: Final = "\U0010ffff"


def stored(schema: pa.Schema, watermark: bool) -> pa.Schema:
    """The columns that stand in files, where the day is a folder's name."""
    kept = [column for column in schema if column.name != "day"]
    return pa.schema([*kept, (WATERMARK, pa.int64())] if watermark else kept)


def write(table: Location, schema: pa.Schema, rows: Iterable[pa.Table], watermark: int | None) -> Iterator[Written]:
    """Write tables of rows with the columns of `schema` and ``day`` to a folder of its own below the table's.

    Files and folders are on the disk when this ends.
    """
    columns, files, folder = stored(schema, watermark is not None), table.files(), os.urandom(8).hex()
    for number, piece in enumerate(_pieces(rows)):
        if watermark is not None:
            piece = piece.append_column(WATERMARK, pa.repeat(watermark, piece.num_rows))
        ordered, at = piece.sort_by("day"), 0
        days = compute.run_end_encode(ordered["day"].combine_chunks())
        for day, end in zip(days.values.to_pylist(), days.run_ends.to_pylist(), strict=True):
            path = f"{folder}/day={day}/{number}.zstd.parquet"
            part, at = ordered.slice(at, end - at).select(columns.names).cast(columns), end
            with table.explained():
                if table.folder is not None:
                    files.create_dir(f"{table.path}/{folder}/day={day}")
                with files.open_output_stream(f"{table.path}/{path}") as stream:
                    pq.write_table(part, stream, compression="zstd")
                    size = stream.tell()
            yield Written(path, str(day), size, statistics(part), part.num_rows)
    if table.folder is not None and (own := table.folder / folder).exists():
        for each in (*own.rglob("*"), own):
            sync(each)


def statistics(rows: pa.Table) -> str:
    """The bounds of each column that Delta knows an order of, and how many values it has none of."""
    lowest, highest, nulls = dict[str, object](), dict[str, object](), dict[str, int]()
    for column in rows.schema:
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            continue
        nulls[column.name] = rows[column.name].null_count
        bounds = compute.min_max(rows[column.name])
        if bounds["min"].is_valid:
            lowest[column.name], highest[column.name] = (
                _spelt(bounds["min"], above=False),
                _spelt(bounds["max"], above=True),
            )
    return json.dumps({"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


def _spelt(value: pa.Scalar, *, above: bool) -> object:
    """A bound as Delta spells it: texts are cut, times have milliseconds; `above`: it is no less than the value."""
    if pa.types.is_timestamp(value.type):
        milliseconds = -(-value.value // 1000) if above else value.value // 1000
        return compute.strftime(pa.scalar(milliseconds, pa.timestamp("ms")), "%Y-%m-%dT%H:%M:%SZ").as_py()
    plain = value.as_py()
    if not isinstance(plain, str) or len(plain) <= SIGNS:
        return plain
    begin, rest = plain[:SIGNS], plain[SIGNS:]
    return begin + _LAST * (1 + len(rest) - len(rest.lstrip(_LAST))) if above else begin


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


def writer(table: Location, schema: pa.Schema, watermark: int | None, read: Batches = iter) -> Batches:
    """Make the function for Spark's workers that writes rows and tells of the files.

    `read` is applied first; what is large need not go through Spark then.
    """

    def batches(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (pa.Table.from_batches([batch]) for batch in read(given) if batch.num_rows)
        if files := list(write(table, schema, rows, watermark)):
            yield pa.RecordBatch.from_pylist([file._asdict() for file in files])

    return batches


def dataset(location: Location, schema: pa.Schema, paths: list[str]) -> ds.Dataset:
    """The rows of files with the columns of `schema` and `WATERMARK`, which need not be in each."""
    columns = schema.append(pa.field(WATERMARK, pa.int64()))
    return ds.dataset(paths, schema=columns, format="parquet", filesystem=location.files())


def wanted(newer: int, where: ds.Expression | None = None) -> ds.Expression | None:
    """The condition that a row is newer than a watermark, and that `where` holds; None where each row meets it."""
    both = [*([ds.field(WATERMARK) > newer] if newer else []), *([] if where is None else [where])]
    return reduce(and_, both) if both else None


def reader(location: Location, schema: pa.Schema, newer: int) -> Batches:
    """Make the function for Spark's workers that reads the files whose paths it is given."""

    def batches(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for path in batch.column(0).to_pylist():
                rows = dataset(location, schema, [path])
                with location.explained():
                    yield from rows.to_batches(columns=schema.names, filter=wanted(newer), batch_size=1_000)

    return batches
