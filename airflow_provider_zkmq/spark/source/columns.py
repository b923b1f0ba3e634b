"""The columns of the data source: their names, their types in Spark and in Arrow, which must agree; their making."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyarrow import compute

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
        ("started_at", TIME),
    ]
)
HISTORY: Final = (
    "array<struct<number: int, consumer: string, claimed_at: timestamp, ended_at: timestamp, outcome: string, "
    "error: string, started_at: timestamp>>"
)
#: What was scanned of many tasks: lists by the names of what they are in a task.
Lists: TypeAlias = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's type in Spark's words and in Arrow's, and what of tasks it is made of: `make` is given lists."""

    spark: str
    arrow: pa.DataType
    parts: tuple[str, ...] = ()
    make: Callable[..., Any] | None = None

    def array(self, lists: Lists) -> pa.Array:
        """The column, from what was scanned."""
        values = [lists[part] for part in self.parts]
        return pa.array(values[0] if self.make is None else self.make(*values), self.arrow)


def moment(milliseconds: int) -> int:
    """A time of the server's as Arrow has it: microseconds since 1970."""
    return milliseconds * 1_000


def _times(milliseconds: Sequence[int | None]) -> pa.Array:
    return pa.array(milliseconds, pa.timestamp("ms", tz="UTC")).cast(TIME)


def _spans(begins: Sequence[int | None], ends: Sequence[int | None]) -> pa.Array:
    return compute.subtract(pa.array(ends, pa.int64()), pa.array(begins, pa.int64()))


def _begun(starts: Sequence[int | None], claims: Sequence[int | None]) -> list[int | None]:
    """When handlers began; of a task under way nobody has told, but when it was claimed."""
    return [claimed if start is None else start for start, claimed in zip(starts, claims, strict=True)]


def _waits(enqueued: Sequence[int | None], starts: Sequence[int | None], claims: Sequence[int | None]) -> pa.Array:
    return _spans(enqueued, _begun(starts, claims))


def _runs(starts: Sequence[int | None], claims: Sequence[int | None], ends: Sequence[int | None]) -> pa.Array:
    return _spans(_begun(starts, claims), ends)


def json_text(metadata: Mapping[str, Any]) -> str:
    """JSON text that can be encoded: of what callers may put into metadata, lone surrogates stay escaped."""
    if not metadata:
        return "{}"
    return json.dumps(metadata, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _texts(metadata: Sequence[Mapping[str, Any]]) -> list[str]:
    return [json_text(each) for each in metadata]


def _histories(histories: Sequence[Sequence[Attempt]]) -> list[list[dict[str, object]]]:
    return [_history(attempts) if attempts else [] for attempts in histories]


def _history(attempts: Sequence[Attempt]) -> list[dict[str, object]]:
    return [
        {
            "number": each.number,
            "consumer": each.consumer,
            "claimed_at": moment(each.claimed),
            "ended_at": moment(each.ended),
            "outcome": each.outcome,
            "error": each.error,
            "started_at": None if each.started is None else moment(each.started),
        }
        for each in attempts
    ]


def _items(filters: Sequence[Mapping[str, str]]) -> list[list[tuple[str, str]]]:
    return [list(each.items()) for each in filters]


#: In the order in which they come. The queue's name is the same for all that is scanned together.
COLUMNS: Final[dict[str, Column]] = {
    "queue": Column("string", pa.string(), ("queue",)),
    "task_id": Column("string", pa.string(), ("id",)),
    "state": Column("string", pa.string(), ("state",)),
    "status": Column("string", pa.string(), ("status",)),
    "attempt": Column("int", pa.int32(), ("attempt",)),
    "priority": Column("int", pa.int32(), ("priority",)),
    "filters": Column("map<string,string>", pa.map_(pa.string(), pa.string()), ("filters",), _items),
    "metadata": Column("string", pa.string(), ("metadata",), _texts),
    "enqueued_at": Column("timestamp", TIME, ("enqueued_ms",), _times),
    "claimed_at": Column("timestamp", TIME, ("claimed_ms",), _times),
    "started_at": Column("timestamp", TIME, ("started_ms",), _times),
    "ended_at": Column("timestamp", TIME, ("ended_ms",), _times),
    "wait_ms": Column("bigint", pa.int64(), ("enqueued_ms", "started_ms", "claimed_ms"), _waits),
    "run_ms": Column("bigint", pa.int64(), ("started_ms", "claimed_ms", "ended_ms"), _runs),
    "consumer": Column("string", pa.string(), ("consumer",)),
    "data": Column("binary", pa.binary(), ("data",)),
    "result": Column("binary", pa.binary(), ("result",)),
    "error": Column("string", pa.string(), ("error",)),
    "history": Column(HISTORY, pa.list_(ATTEMPT), ("history",), _histories),
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
