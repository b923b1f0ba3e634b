"""Rows of Arrow tables as dictionaries and back; their times are whole microseconds since 1970, days whole days."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import pyarrow as pa

Row: TypeAlias = dict[str, Any]
DAY_US: Final = 86_400_000_000


def plain(table: pa.Table) -> list[Row]:
    """The rows of a table."""
    rows: list[Row] = table.cast(_numbers(table.schema)).to_pylist()
    return rows


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Rows as a table with these columns."""
    return pa.Table.from_pylist(list(rows), _numbers(schema)).cast(schema)


def _numbers(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(column.name, _number(column.type)) for column in schema])


def _number(kind: pa.DataType) -> pa.DataType:
    """The type of a column with numbers for its times."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(_number(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(at).name, _number(kind.field(at).type)) for at in range(kind.num_fields)])
    return kind


def first_known(*values: Any) -> Any:
    """The first value that is not None, if there is one."""
    return next((value for value in values if value is not None), None)


def milliseconds_between(begin: int | None, end: int | None) -> int | None:
    """The whole milliseconds from one time to another, or 0 if that is before it; None where one is not known."""
    return None if begin is None or end is None else max(0, end // 1000 - begin // 1000)
