"""The columns of the data source: their names, Spark's types and Arrow's, which must agree exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
_ATTEMPT: Final = pa.struct(
    [
        ("number", pa.int32()),
        ("consumer", pa.string()),
        ("claimed_at", TIME),
        ("ended_at", TIME),
        ("outcome", pa.string()),
        ("error", pa.string()),
    ]
)
_HISTORY: Final = (
    "array<struct<number: int, consumer: string, claimed_at: timestamp, ended_at: timestamp, outcome: string, "
    "error: string>>"
)
#: Each column's type in Spark's words and in Arrow's, in the order in which they come.
COLUMNS: Final[dict[str, tuple[str, pa.DataType]]] = {
    "queue": ("string", pa.string()),
    "task_id": ("string", pa.string()),
    "state": ("string", pa.string()),
    "status": ("string", pa.string()),
    "attempt": ("int", pa.int32()),
    "priority": ("int", pa.int32()),
    "filters": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    "metadata": ("string", pa.string()),
    "enqueued_at": ("timestamp", TIME),
    "claimed_at": ("timestamp", TIME),
    "ended_at": ("timestamp", TIME),
    "wait_ms": ("bigint", pa.int64()),
    "run_ms": ("bigint", pa.int64()),
    "consumer": ("string", pa.string()),
    "data": ("binary", pa.binary()),
    "result": ("binary", pa.binary()),
    "error": ("string", pa.string()),
    "history": (_HISTORY, pa.list_(_ATTEMPT)),
    "batch": ("string", pa.string()),
    "version": ("bigint", pa.int64()),
}


def schema(columns: Sequence[str]) -> str:
    """The columns in Spark's words."""
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The columns in Arrow's words."""
    return pa.schema([(name, COLUMNS[name][1]) for name in columns])
