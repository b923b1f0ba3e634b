"""The columns of the data source: their names, their types in Spark and in Arrow, which must agree; their making."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from airflow_provider_zkmq.engine import Attempt

TIME: Final = pa.timestamp("us", tz="UTC")
#: A delivery that ended, in Arrow's words and in Spark's.
ATTEMPT: Final = pa.struct(
    [
        ("number", pa.int32()),
        ("consumer", pa.string()),
        ("claimed_at", TIME),
        ("ended_at", TIME),
        ("outcome", pa.string()),
        ("error", pa.string()),
    ]
)
HISTORY: Final = (
    "array<struct<number: int, consumer: string, claimed_at: timestamp, ended_at: timestamp, outcome: string, "
    "error: string>>"
)
#: What was scanned of many tasks: lists by the names of what they are in a task.
Lists: TypeAlias = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's type in Spark's words and in Arrow's, and what of tasks it is made of, a value for each."""

    spark: str
    arrow: pa.DataType
    parts: tuple[str, ...] = ()
    make: Callable[..., Any] | None = None

    def array(self, lists: Lists) -> pa.Array:
        """The column, from what was scanned."""
        values = [lists[part] for part in self.parts]
        made = values[0] if self.make is None else list(map(self.make, *values))
        return pa.array(made, self.arrow)


def moment(milliseconds: int | None) -> int | None:
    """A time of the server's as Arrow has it: microseconds since 1970."""
    return None if milliseconds is None else milliseconds * 1_000


def _span(begin: int | None, end: int | None) -> int | None:
    return None if begin is None or end is None else end - begin


def json_text(metadata: Mapping[str, Any]) -> str:
    """JSON text that can be encoded: of what callers may put into metadata, lone surrogates stay escaped."""
    if not metadata:
        return "{}"
    return json.dumps(metadata, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _history(attempts: Sequence[Attempt]) -> list[dict[str, object]]:
    return [
        {
            "number": each.number,
            "consumer": each.consumer,
            "claimed_at": moment(each.claimed),
            "ended_at": moment(each.ended),
            "outcome": each.outcome,
            "error": each.error,
        }
        for each in attempts
    ]


def _items(filters: Mapping[str, str]) -> list[tuple[str, str]]:
    return list(filters.items())


#: In the order in which they come. The queue's name is the same for all that is scanned together.
COLUMNS: Final[dict[str, Column]] = {
    "queue": Column("string", pa.string(), ("queue",)),
    "task_id": Column("string", pa.string(), ("id",)),
    "state": Column("string", pa.string(), ("state",)),
    "status": Column("string", pa.string(), ("status",)),
    "attempt": Column("int", pa.int32(), ("attempt",)),
    "priority": Column("int", pa.int32(), ("priority",)),
    "filters": Column("map<string,string>", pa.map_(pa.string(), pa.string()), ("filters",), _items),
    "metadata": Column("string", pa.string(), ("metadata",), json_text),
    "enqueued_at": Column("timestamp", TIME, ("enqueued_ms",), moment),
    "claimed_at": Column("timestamp", TIME, ("claimed_ms",), moment),
    "ended_at": Column("timestamp", TIME, ("ended_ms",), moment),
    "wait_ms": Column("bigint", pa.int64(), ("enqueued_ms", "claimed_ms"), _span),
    "run_ms": Column("bigint", pa.int64(), ("claimed_ms", "ended_ms"), _span),
    "consumer": Column("string", pa.string(), ("consumer",)),
    "data": Column("binary", pa.binary(), ("data",)),
    "result": Column("binary", pa.binary(), ("result",)),
    "error": Column("string", pa.string(), ("error",)),
    "history": Column(HISTORY, pa.list_(ATTEMPT), ("history",), _history),
    "batch": Column("string", pa.string(), ("batch",)),
    "version": Column("bigint", pa.int64(), ("version",)),
}


def schema(columns: Sequence[str]) -> str:
    """The columns in Spark's words."""
    return ", ".join(f"{name} {COLUMNS[name].spark}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The columns in Arrow's words."""
    return pa.schema([(name, COLUMNS[name].arrow) for name in columns])


def parts(columns: Sequence[str]) -> list[str]:
    """What has to be scanned of tasks for these columns; the ids always are."""
    return list(dict.fromkeys(["id", *(part for name in columns for part in COLUMNS[name].parts if part != "queue")]))


def batch(queue: str, columns: Sequence[str], lists: Lists) -> pa.RecordBatch:
    """What was scanned of a queue as rows. The lists are those of `parts`."""
    whole = {**lists, "queue": [queue] * len(lists["id"])}
    return pa.RecordBatch.from_arrays([COLUMNS[name].array(whole) for name in columns], schema=arrow_schema(columns))
