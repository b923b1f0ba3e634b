"""Reads: the columns of tasks, what a read asks for, batch reads."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa
from pyarrow import compute
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_type

from ... import engine
from ...engine import AnyClient, AnyQueue, Attempt, ConfigError, QueueNotFound, Scanned, State
from ...engine.queue_internals import internals
from . import connecting
from . import options as access
from .errors import SourceError, plainly, unknown
from .options import SourceOptions

# --- The columns of the data source: their names, their types, and how they are made of tasks.

_STRING, _INT, _LONG, _TIME = types.StringType(), types.IntegerType(), types.LongType(), types.TimestampType()
_BINARY: Final = types.BinaryType()
#: A delivery that ended.
_DELIVERY: Final = {
    "number": _INT,
    "consumer": _STRING,
    "claimed_at": _TIME,
    "ended_at": _TIME,
    "outcome": _STRING,
    "error": _STRING,
    "started_at": _TIME,
}
_HISTORY: Final = types.ArrayType(types.StructType([types.StructField(*each) for each in _DELIVERY.items()]))
_FILTERS: Final = types.MapType(_STRING, _STRING)
#: What was scanned of many tasks: lists by the names of what they are in a task.
Lists: TypeAlias = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's type, and what of tasks it is made of: `make` is given lists."""

    spark: types.DataType
    parts: tuple[str, ...] = ()
    make: Callable[..., Any] = lambda values: values


def _times(milliseconds: Sequence[int | None]) -> pa.Array:
    return pa.array(milliseconds, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _spans(begins: Sequence[Sequence[int | None]], ends: Sequence[Sequence[int | None]]) -> pa.Array:
    """The time between two moments, for each of which the first of some lists that knows it says when it was."""
    first, last = (compute.coalesce(*(pa.array(each, pa.int64()) for each in lists)) for lists in (begins, ends))
    return compute.subtract(last, first)


def _delivery(attempt: Attempt) -> dict[str, object]:
    """A delivery that ended, as Arrow takes it, which has times in microseconds."""
    known = {name: getattr(attempt, name) for name in ("number", "consumer", "outcome", "error")}
    started = None if attempt.started is None else attempt.started * 1_000
    return known | {"claimed_at": attempt.claimed * 1_000, "started_at": started, "ended_at": attempt.ended * 1_000}


#: In the order in which they come. The queue's name is the same for all that is scanned together.
COLUMNS: Final[dict[str, Column]] = {
    "queue": Column(_STRING, ("queue",)),
    "task_id": Column(_STRING, ("id",)),
    "state": Column(_STRING, ("state",)),
    "status": Column(_STRING, ("status",)),
    "attempt": Column(_INT, ("attempt",)),
    "priority": Column(_INT, ("priority",)),
    "filters": Column(_FILTERS, ("filters",), lambda values: [list(each.items()) for each in values]),
    "metadata": Column(
        _STRING, ("metadata",), lambda values: [json.dumps(each or {}, ensure_ascii=False) for each in values]
    ),
    "enqueued_at": Column(_TIME, ("enqueued_ms",), _times),
    "claimed_at": Column(_TIME, ("claimed_ms",), _times),
    "started_at": Column(_TIME, ("started_ms",), _times),
    "ended_at": Column(_TIME, ("ended_ms",), _times),
    # When handlers began nobody has told of a task under way, but when it was claimed.
    "wait_ms": Column(_LONG, ("enqueued_ms", "started_ms", "claimed_ms"), lambda came, *begun: _spans([came], begun)),
    "run_ms": Column(_LONG, ("ended_ms", "started_ms", "claimed_ms"), lambda ended, *begun: _spans(begun, [ended])),
    "consumer": Column(_STRING, ("consumer",)),
    "data": Column(_BINARY, ("data",)),
    "result": Column(_BINARY, ("result",)),
    "error": Column(_STRING, ("error",)),
    "history": Column(
        _HISTORY, ("history",), lambda values: [[_delivery(each) for each in attempts] for attempts in values]
    ),
    "batch": Column(_STRING, ("batch",)),
    "version": Column(_LONG, ("version",)),
}


def arrow_schema(columns: Sequence[str], known: Mapping[str, Column] = COLUMNS) -> pa.Schema:
    """The columns in Arrow's words."""
    return pa.schema([(name, to_arrow_type(known[name].spark, timezone="UTC")) for name in columns])


def parts(columns: Sequence[str], known: Mapping[str, Column] = COLUMNS) -> list[str]:
    """What has to be scanned of tasks for these columns; the ids always are."""
    return list(dict.fromkeys(["id", *(part for name in columns for part in known[name].parts if part != "queue")]))


def batch(queue: str, columns: Sequence[str], lists: Lists, known: Mapping[str, Column] = COLUMNS) -> pa.RecordBatch:
    """What was scanned of a queue as rows. The lists are those of `parts`."""
    whole = {**lists, "queue": [queue] * len(lists["id"])}
    kinds, arrays = arrow_schema(columns, known), []
    for column in kinds:
        values = [whole[part] for part in known[column.name].parts]
        arrays.append(pa.array(known[column.name].make(*values), column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)


# --- What is there, from where tasks are listed: their ids, and, where nobody asks for more, the states they are in.

#: Columns for which no record need be read: a task is listed by its state.
LISTED: Final = frozenset({"queue", "task_id", "state"})


def list_ids(queue: AnyQueue, states: Sequence[str]) -> list[str]:
    """The ids of the tasks that are listed by these states, by any of them without; each once."""
    return list(_seen(queue, states)) if states else internals(queue).ids()


def list_states(queue: AnyQueue, states: Sequence[str]) -> dict[str, str]:
    """The tasks in these states, in any of them without, and the state of each; each once."""
    seen = _seen(queue, states or [str(state) for state in State])
    if not states:  # what was on its way the other direction is in none of the lists
        seen = {each: seen.get(each) for each in internals(queue).ids()}
    doubtful = [each for each, state in seen.items() if state is None]
    scanned = internals(queue).scan(doubtful, ["id", "state"], states=states or None).columns if doubtful else {}
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
        for each in internals(queue).ids(state):
            seen[each] = state if each not in seen else None
    if State.INSERTED in order and len(order) > 1:
        for each in internals(queue).ids(State.INSERTED):
            seen.setdefault(each, None)
    return seen


# --- What a read asks for: its options, checked where the query is planned, before anything is read.


@dataclass(frozen=True, slots=True)
class Query:
    """Which tasks, and what of them; `states` may be empty for all, and `partitions` 0 for as many as seem good."""

    columns: tuple[str, ...]
    states: tuple[str, ...]
    selector: str | None
    since: datetime | None
    partitions: int

    @classmethod
    def of(cls, options: SourceOptions, columns: Sequence[str] | None = None) -> Self:
        """What the options ask for; `columns`: of a schema that was given. Raises `SourceError`."""
        chosen = _known("column", columns or options.names("columns") or list(COLUMNS), COLUMNS)
        states = _known("state", options.names("states"), [str(state) for state in State])
        selector = options.text("selector")
        if selector is not None:
            with _named("selector"):
                engine.parse_selector(selector)
        moment, since = options.text("since"), None
        if moment is not None:
            try:
                since = datetime.now(UTC) - timedelta(seconds=engine.parse_duration(moment))
            except (ConfigError, OverflowError):
                with _named("since"):
                    since = engine.parse_moment(moment)
        return cls(chosen, states, selector, since, options.count("numPartitions", 0))


def queues_of(options: SourceOptions, client: AnyClient, selector: str | None) -> list[str]:
    """The queues asked for, else all there are. Refuses one that is not there, and a selector that one cannot do."""
    names = client.queues()
    wanted = options.queues() or names
    for name in wanted:
        if name not in names:
            raise QueueNotFound.among(name, f"under {client.queue(name).root!r}", names)
    for name in wanted if selector is not None else ():
        internals(client.queue(name)).check_wanted(selector=selector)
    return wanted


def columns_of(schema: types.StructType) -> list[str]:
    """The columns of a schema, which may be some of ours, of the very types. Raises `SourceError` for what is not."""
    names = _known("column", schema.fieldNames(), COLUMNS)
    for column in schema.fields:
        wanted, given = COLUMNS[column.name].spark, column.dataType
        if given.simpleString() != wanted.simpleString():
            raise SourceError(f"column {column.name!r} is of type {wanted.simpleString()}, not {given.simpleString()}")
        if given != wanted or not column.nullable:
            raise SourceError("columns cannot be NOT NULL, nor what is in them: leave that out of the schema")
    return list(names)


def _known(kind: str, names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise unknown(f"{kind} {name!r}", name, known)
    return tuple(names)


@contextlib.contextmanager
def _named(option: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise SourceError(f"option {option}: {error}") from None


# --- Batch reads: ids are listed once, where the query is planned, and each partition reads its share of the tasks.

_LOG: Final = logging.getLogger(__name__)
#: A partition has at most so many tasks, and not many fewer while there are not enough partitions for all processors.
MOST, LEAST = 25_000, 2_000
#: Tasks in a batch of rows: the first of a partition, where nobody knows yet how large tasks are, and the largest.
FIRST, LARGEST = 256, 4_096
#: What a batch of rows is to have at most, in bytes, if the next tasks are as large as the last.
BATCH_BYTES: Final = 8 << 20


@dataclass
class Share(InputPartition):
    """The tasks of one partition. ``states``: those that they are listed by, where nothing has to be read."""

    queue: str
    ids: Sequence[str]
    states: Sequence[str] | None = None


class TaskReader(DataSourceReader):
    """Reads tasks, a row for each. It is pickled into Spark's plan, and holds no credentials."""

    def __init__(self, schema: types.StructType, options: SourceOptions) -> None:
        options.check(access.READ, "reads")
        self.options = options
        self.query = Query.of(options, columns_of(schema))

    def partitions(self) -> Sequence[InputPartition]:
        """The ids of the tasks there are now, in shares."""
        with plainly(), connecting.connect(self.options) as client:
            known = self.query.selector is None and self.query.since is None and LISTED.issuperset(self.query.columns)
            listed = []
            if not self.options.queues():
                connecting.all_queues(client)  # what is read of none of them would be nothing
            for name in queues_of(self.options, client, self.query.selector):
                if known:  # all that is asked for is told by where tasks are listed
                    states = list_states(client.queue(name), self.query.states)
                    listed.append(Share(name, list(states), list(states.values())))
                else:
                    listed.append(Share(name, list_ids(client.queue(name), self.query.states)))
        return shares(listed, self.query.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        if not isinstance(partition, Share) or not partition.ids:
            return
        with plainly():
            name = partition.queue
            missing: dict[str, list[str]] = {"vanished": [], "corrupt": []}
            if partition.states is None:
                scans = _scans_in_turn(connecting.cached(self.options).queue(name), partition.ids, self.query)
            else:
                scans = iter([Scanned({"id": list(partition.ids), "state": list(partition.states)}, (), ())])
            for scanned in scans:
                rows = batch(name, self.query.columns, scanned.columns)
                missing["vanished"] += scanned.vanished
                missing["corrupt"] += scanned.corrupt
                if rows.num_rows:
                    yield rows
            for kind, why in (("vanished", "vanished before they were read"), ("corrupt", "cannot be read")):
                if ids := missing[kind]:
                    named = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
                    _LOG.warning("queue %s: %d task(s) %s and are no rows: %s", name, len(ids), why, named)


def shares(listed: Sequence[Share], wanted: int) -> list[InputPartition]:
    """The tasks of each queue in partitions; `wanted`: how many about, 0 for as many as seem good."""
    total = sum(len(whole.ids) for whole in listed)
    many = wanted or max(-(-total // MOST), min(os.cpu_count() or 1, -(-total // LEAST)))
    size = max(1, -(-total // max(1, many)))
    made = list[InputPartition]()
    for whole in listed:
        for at in range(0, len(whole.ids), size):
            states = None if whole.states is None else whole.states[at : at + size]
            made.append(Share(whole.queue, whole.ids[at : at + size], states))
    return made or [Share("", ())]


def _scans_in_turn(queue: AnyQueue, ids: Sequence[str], query: Query) -> Iterator[Scanned]:
    """Scans of so many tasks at a time as make a bearable batch; the next one is under way while one is used."""
    with ThreadPoolExecutor(1) as pool:
        begin, size = 0, FIRST
        next_scan: Future[Scanned] | None = pool.submit(_scan, queue, ids[:size], query)
        while next_scan is not None:
            scanned, begin = next_scan.result(), begin + size
            size = _next_size(size, scanned)
            next_scan = pool.submit(_scan, queue, ids[begin : begin + size], query) if begin < len(ids) else None
            yield scanned


def _scan(queue: AnyQueue, ids: Sequence[str], query: Query) -> Scanned:
    """What is there of these tasks; where the queue was deleted since they were listed, all have vanished."""
    try:
        return internals(queue).scan(
            ids,
            parts(query.columns),
            states=query.states or None,
            selector=query.selector,
            since=query.since,
        )
    except QueueNotFound:
        return Scanned({part: [] for part in parts(query.columns)}, tuple(ids), ())


def _next_size(size: int, scanned: Scanned) -> int:
    """How many tasks to read next: twice as many, but no more than make a batch of the size that is wanted."""
    payloads = (scanned.columns.get(name, ()) for name in ("data", "result"))
    total = sum(len(payload) for values in payloads for payload in values if payload is not None)
    return max(1, min(LARGEST, size * 2, size * BATCH_BYTES // max(1, total)))
