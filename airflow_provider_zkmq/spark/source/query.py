"""What a read asks for, and the columns it returns."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import pyarrow as pa
from pyarrow import compute

from airflow_provider_zkmq.engine import (
    AnyClient,
    AnyQueue,
    Attempt,
    ConfigError,
    QueueNotFound,
    State,
    parse_duration,
    parse_moment,
    parse_selector,
)
from airflow_provider_zkmq.spark.source.options import SourceError, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# --- The columns of the data source: their names, their types in Spark and in Arrow, which must agree; their making.

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


# --- What is there, from where tasks are listed: their ids, and, where nobody asks for more, the states they are in.

#: Columns for which no record need be read: a task is listed by its state.
LISTED: Final = frozenset({"queue", "task_id", "state"})


def list_ids(queue: AnyQueue, states: Sequence[str]) -> list[str]:
    """The ids of the tasks in these states, in any of them without; each once.

    What each is in by the time it is read decides.
    """
    return list(_seen(queue, states)) if states else queue.ids()


def list_states(queue: AnyQueue, states: Sequence[str]) -> dict[str, str]:
    """The tasks in these states, in any of them without, and the state of each; each once.

    Of those that were on their way from one list to another the records are read.
    """
    seen = _seen(queue, states or [str(state) for state in State])
    if not states:  # what was on its way the other direction is in none of the lists
        seen = {each: seen.get(each) for each in queue.ids()}
    doubtful = [each for each, state in seen.items() if state is None]
    scanned = queue.scan(doubtful, ["id", "state"], states=states or None).columns if doubtful else {}
    now = dict(zip(scanned.get("id", ()), map(str, scanned.get("state", ())), strict=True))
    return {each: state or now[each] for each, state in seen.items() if state is not None or each in now}


def _seen(queue: AnyQueue, states: Collection[str]) -> dict[str, str | None]:
    """The tasks that are listed by these states, and by which; None for several.

    The states are in the order in which tasks go through them, so that one that goes on meanwhile is met; those that
    come back, from a claim or by a redrive, are looked for once more.
    """
    seen: dict[str, str | None] = {}
    order = [str(state) for state in State if state in states]
    for state in order:
        for each in queue.ids(state):
            seen[each] = state if each not in seen else None
    if State.INSERTED in order and len(order) > 1:
        for each in queue.ids(State.INSERTED):
            seen.setdefault(each, None)
    return seen


# --- What a read asks for: its options, checked where the query is planned, before anything is read.

#: So many multi-reads are on their way together, unless the option says otherwise.
IN_FLIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Query:
    """Which tasks, and what of them. ``states``: all where it is empty; ``since``: enqueued then or later.

    ``partitions``: about how many; 0: as many as seem good.
    """

    columns: tuple[str, ...]
    states: tuple[str, ...]
    selector: str | None
    since: datetime | None
    in_flight: int
    partitions: int

    @property
    def listed(self) -> bool:
        """Whether all that is asked for is told by where tasks are listed."""
        return self.selector is None and self.since is None and LISTED.issuperset(self.columns)

    @classmethod
    def of(cls, options: SourceOptions, columns: Sequence[str] | None = None) -> Self:
        """What the options ask for; `columns`: of a schema that was given. Raises `SourceError`."""
        chosen = _known("column", options.names("columns") or columns or list(COLUMNS), COLUMNS)
        states = _known("state", options.names("states"), [str(state) for state in State])
        selector = options.text("selector")
        with _named("selector"):
            if selector is not None:
                parse_selector(selector)
        since = _since(options.text("since"))
        in_flight, partitions = options.count("maxRequestsInFlight", IN_FLIGHT), options.count("numPartitions", 0)
        return cls(chosen, states, selector, since, in_flight, partitions)


def queues_of(options: SourceOptions, client: AnyClient) -> list[str]:
    """The queues asked for, else all there are. Raises `SourceError` for one that is not there."""
    names = client.queues()
    wanted = options.names("queues") or names
    for name in wanted:
        if name not in names:
            raise QueueNotFound.among(name, f"under {client.queue(name).root!r}", names)
    return wanted


def columns_of(schema: StructType) -> list[str]:
    """The columns of a schema, which may be some of ours. Raises `SourceError` for what is not.

    Spark takes rows only if they are of the very schema that it was given.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    names = _known("column", schema.fieldNames(), COLUMNS)
    for column in schema.fields:
        wanted = COLUMNS[column.name].spark.replace(" ", "")
        if column.dataType.simpleString() != wanted:
            raise SourceError(f"column {column.name!r} is of type {wanted}, not {column.dataType.simpleString()}")
    if to_arrow_schema(schema, timezone="UTC") != arrow_schema(names):
        raise SourceError("columns cannot be NOT NULL, nor what is in them: leave that out of the schema")
    return list(names)


def _known(kind: str, names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise SourceError(f"unknown {kind} {name!r}: {hint}known are {', '.join(known)}")
    return tuple(names)


def _since(text: str | None) -> datetime | None:
    """A moment in ISO 8601 with a zone, or a duration that is counted back from now."""
    if text is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except (ConfigError, OverflowError):
        with _named("since"):
            return parse_moment(text)


@contextmanager
def _named(option: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise SourceError(f"option {option}: {error}") from None
