"""Tasks as callers see them, by id or by state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.codec import load, optional_whole_number
from airflow_provider_zkmq.engine.core.model.names import check_name
from airflow_provider_zkmq.engine.core.model.records import Attempt, HistoryEntry, TaskState, claimed_before, load_claim
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.model.states import ENDED, State, Status, derive_status
from airflow_provider_zkmq.engine.core.model.time import moment_of, optional_moment_of
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Get, Node, Procedure, Stat, Sync
from airflow_provider_zkmq.engine.core.read.counts import chosen, task_ids
from airflow_provider_zkmq.engine.core.read.leases import Lapsed, lapsed_among, status_at, status_of
from airflow_provider_zkmq.engine.core.read.nodes import (
    PARTS,
    WHOLE_AT_ONCE,
    Part,
    Record,
    at_once,
    checked_parts,
    chunked,
    read_records,
    read_trees,
    refuse_missing,
    unless_corrupt,
)
from airflow_provider_zkmq.engine.errors import ConfigError, TaskNotFound

if TYPE_CHECKING:
    from pendulum import DateTime

# --- Which tasks are the members of a batch.


def member_id(batch: str, number: int) -> str:
    """The id of a member that was given none."""
    return f"{batch}.{number:06d}"


def member_ids(context: Context, batch: str) -> Procedure[list[str]]:
    """The members of a batch that are there, sorted; those that were collected, dropped or cleared are not.

    The batch itself names those that are open or have failed. Of the others it knows how many there are: the names
    that members get are tried first, and the record of each task is read only where these are not all of them.
    Raises `TaskNotFound` for a batch that does not exist.
    """
    base = context.paths.batch(check_name("batch", batch))
    node: Node | None = yield Get(base)
    if node is None:
        yield Sync(base)  # the server that we read from may lag behind
        node = yield Get(base)
    if node is None:
        msg = f"batch {batch!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    total = load(base, node.data).get("total")
    named = set((yield Children(f"{base}/open")) or ())
    named.update((yield Children(f"{base}/failed")) or ())
    there = yield from task_ids(context, None)
    if isinstance(total, int):
        named.update(member_id(batch, number) for number in range(min(total, len(there))))
    members = yield from _of(context, batch, sorted(named.intersection(there)))
    if len(members) != total:
        members += yield from _of(context, batch, [each for each in there if each not in named])
    return sorted(members)


def _of(context: Context, batch: str, ids: Sequence[str]) -> Procedure[list[str]]:
    """Those of these tasks that are the batch's."""
    members: list[str] = []
    for chunk in chunked(ids):
        records = yield from read_records(context, chunk)
        members += [each.task_id for each in records if isinstance(each, Record) and each.state.batch == batch]
    return members


# --- Looking at tasks and queues without changing them.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it is, by the server's clock. Times are the server's; ``version`` is the record's zxid.

    A backoff that is over is none, and a claim whose lease or lock has ended is what follows it (`reading.lapsed`).

    ``enqueued_ms``, ``claimed_ms``, ``started_ms``, ``ended_ms`` and ``due_ms`` (it is not, or was not, to be handled
    before) are milliseconds since 1970; ``enqueued_at``, ``claimed_at``, ``started_at``, ``ended_at`` and ``due_at``
    the same as pendulum's DateTime, in UTC.

    ``history``: the deliveries that have ended, the last ten that failed and the one that succeeded, also those of
    earlier runs of the same id.

    ``progress`` (0 to 1) and ``note`` are what its handler reported last; ``dedupe_ms``: until when an enqueue of
    the same id is refused although it is finished; ``batch``: the batch it was enqueued with.
    """

    id: str
    state: State
    status: Status
    attempt: int
    priority: int
    filters: dict[str, str]
    metadata: dict[str, Any]
    data: bytes
    result: bytes | None
    error: str | None
    consumer: str | None
    enqueued_ms: int
    claimed_ms: int | None
    ended_ms: int | None
    due_ms: int | None
    history: tuple[Attempt, ...]
    version: int
    progress: float | None = None
    note: str | None = None
    dedupe_ms: int | None = None
    batch: str | None = None
    started_ms: int | None = None

    @property
    def enqueued_at(self) -> DateTime:
        """When it was enqueued; of an id that was enqueued again, when that was."""
        return moment_of(self.enqueued_ms)

    @property
    def claimed_at(self) -> DateTime | None:
        """When the delivery under way was claimed, or the one that finished it; None for any other task."""
        return optional_moment_of(self.claimed_ms)

    @property
    def started_at(self) -> DateTime | None:
        """When the handler began that finished it, or that has it: later than the claim of what was prefetched.

        None for any other task, and while others have it, who tell when they are done. Of what was completed without
        a handler, when it was claimed. It is the server's time as far as the consumer's client knew it.
        """
        return optional_moment_of(self.started_ms)

    @property
    def ended_at(self) -> DateTime | None:
        """When it ended, of a finished task when its handler did; None until then."""
        return optional_moment_of(self.ended_ms)

    @property
    def due_at(self) -> DateTime | None:
        """Before when it is not, or was not, to be handled; None where it could be at once."""
        return optional_moment_of(self.due_ms)


@dataclass(frozen=True, slots=True)
class _TaskNodes:
    """The znodes of a task that tell about it."""

    state: Node
    data: Node | None
    metadata: Node | None
    result: Node | None
    claim: Node | None


class _Content(NamedTuple):
    """What the records in a task's tree say."""

    state: TaskState
    claim: dict[str, Any]
    metadata: dict[str, Any]


def _content(context: Context, task_id: str, tree: _TaskNodes, *, strict: bool) -> _Content | None:
    """What a task's tree says; None where its record cannot be read, which is reported.

    Of what else cannot be read, that is reported, and nothing is known. `strict`: raises `CorruptRecord` instead.
    """

    def read(part: str, node: Node | None, decode: Callable[[str, bytes], T]) -> T | None:
        if node is None:
            return None
        path = context.paths.task(task_id, part)
        look = partial(decode, path, node.data)
        return look() if strict else unless_corrupt(context, path, look)

    state = read("state", tree.state, TaskState.decode)
    claim, metadata = read("claim", tree.claim, load_claim), read("metadata", tree.metadata, load)
    return None if state is None else _Content(state, claim or {}, metadata or {})


def _build(task_id: str, tree: _TaskNodes, content: _Content, status: Status) -> Task:
    stat, state = tree.state.stat, content.state
    ended = ended_ms(state.state, state.started, state.ended, state.ended_zxid, stat)
    claimed = claimed_before(state.claimed, ended)
    success = (state.attempt, state.consumer, claimed, state.started, ended)
    came = stat if tree.data is None else tree.data.stat  # the data's znode is made anew for each run of the same id
    return Task(
        id=task_id,
        state=state.state,
        status=status,
        attempt=state.attempt,
        priority=state.priority,
        filters=dict(state.filters),
        metadata=content.metadata,
        data=b"" if tree.data is None else tree.data.data,
        result=None if tree.result is None else tree.result.data,
        error=state.error,
        consumer=state.consumer,
        enqueued_ms=came.ctime,
        claimed_ms=claimed,
        ended_ms=ended,
        due_ms=state.was_due if state.due is None else state.due,
        history=with_success(state.state, state.history, success),
        version=stat.mzxid,
        progress=content.claim.get("progress"),
        note=content.claim.get("note"),
        dedupe_ms=state.dedupe,
        batch=state.batch,
        started_ms=started_ms(state.state, state.started, claimed),
    )


def task_of_history_entry(path: str, history_entry: HistoryEntry) -> Task:
    """A run that has left what listed it, as the task that it was. Raises `CorruptRecord`."""
    record = Node(
        b"", Stat(history_entry.version, history_entry.version, history_entry.ended, history_entry.ended, 0, 0, 0)
    )
    data = Node(
        history_entry.data,
        Stat(history_entry.version, history_entry.version, history_entry.enqueued, history_entry.enqueued, 0, 0, 0),
    )
    content = _Content(history_entry.state, {}, load(path, history_entry.metadata.encode()))
    result = None if history_entry.result is None else data._replace(data=history_entry.result)
    status = derive_status(history_entry.state.state, scheduled=False)
    return _build(history_entry.task_id, _TaskNodes(record, data, None, result, None), content, status)


#: What a finished record tells of the delivery that succeeded: number, consumer, when it was claimed, begun and ended.
Success: TypeAlias = tuple[int, str | None, int | None, int | None, int | None]


def with_success(state: State, history: tuple[Attempt, ...], success: Success) -> tuple[Attempt, ...]:
    """The deliveries that have ended, also the one that finished the run, which its record tells of by itself."""
    number, consumer, claimed, started, ended = success
    if state is not State.FINISHED or claimed is None or ended is None:
        return history
    return (*history, Attempt(number, consumer or "", claimed, ended, "finished", None, started))


def started_ms(state: State, started: int | None, claimed: int | None) -> int | None:
    """When the handler of a finished run began; where nobody told, when it was claimed."""
    return claimed if started is None and state is State.FINISHED else started


def ended_ms(state: State, started: int | None, ended: int | None, ended_zxid: int | None, stat: Stat) -> int | None:
    """When a run ended: when its handler did, else when its record was written, though not once more for another run.

    The settlements of handlers may wait for each other, and for a server.
    """
    if state not in ENDED:
        return None
    own = started is not None or ended_zxid is not None
    return (ended if own else None) or stat.mtime


def read_task(context: Context, task_id: str) -> Procedure[Task]:
    """One task. Raises `ConfigError` for a bad id, `TaskNotFound`, `CorruptRecord`."""
    check_name("task id", task_id)
    tasks = yield from read_tasks(context, [task_id], strict=True)
    if not tasks:
        yield Sync(context.paths.task(task_id))  # the server that we read from may lag behind
        tasks = yield from read_tasks(context, [task_id], strict=True)
    if not tasks:
        msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    return tasks[0]


def read_tasks(
    context: Context, ids: Sequence[str], *, strict: bool = False, parts: Collection[str] = PARTS
) -> Procedure[list[Task]]:
    """The tasks among `ids` that exist, in order; what is malformed is reported and left out (`strict`: raised)."""
    tasks: list[Task] = []
    for chunk in chunked(ids, at_once(parts)):
        held: dict[str, TaskState] = {}
        read: list[Task] = []
        for task_id, nodes in (yield from read_trees(context, chunk, parts)):
            task = yield from assemble(context, task_id, nodes, strict=strict)
            if task is not None:
                read.append(task)
            if task is not None and task.state is State.CLAIMED and nodes[0] is not None:
                held[task_id] = TaskState.decode(task_id, nodes[0].data)
        lapsed = yield from lapsed_among(context, held)
        tasks += [_lapsed(task, lapsed[task.id]) if task.id in lapsed else task for task in read]
    return tasks


def _lapsed(task: Task, now: Lapsed) -> Task:
    """A task whose claim has ended by its deadline, as what it is now."""
    task = replace(task, consumer=None, claimed_ms=None, progress=None, note=None)
    return replace(task, **now._asdict(), status=derive_status(now.state, scheduled=False))


def assemble(context: Context, task_id: str, nodes: list[Node | None], *, strict: bool) -> Procedure[Task | None]:
    """The task of which these znodes were read; None where it is not there, or malformed, which is reported."""
    record, *others = nodes
    if record is None:
        return None
    tree = _TaskNodes(record, *others)
    content = _content(context, task_id, tree, strict=strict)
    if content is None:
        return None
    return _build(task_id, tree, content, (yield from status_of(context, content.state)))


def list_tasks(
    context: Context,
    *,
    state: State | str | None = None,
    selector: Selector | str | None = None,
    batch: str | None = None,
    limit: int | None = None,
) -> Procedure[list[Task]]:
    """Tasks in `state` (default: any) that `selector` accepts, at most `limit`. Not a snapshot of one moment.

    `batch`: only its members, in the order of their ids; those that were collected or dropped are gone.
    Raises `ConfigError` for an unknown state or selector, a negative limit, or where the queue does not exist;
    `TaskNotFound` for a batch that does not exist.
    """
    most = optional_whole_number("limit", limit)
    wanted = yield from chosen(context, state, selector)
    tasks: list[Task] = []
    ids = (yield from task_ids(context, wanted.state)) if batch is None else (yield from member_ids(context, batch))
    for chunk in chunked(ids, WHOLE_AT_ONCE):
        read = yield from read_tasks(context, chunk)
        tasks += [task for task in read if wanted.accepts(task.state, task.filters) and batch in {None, task.batch}]
        if most is not None and len(tasks) >= most:
            return tasks[:most]
    return tasks


# --- The ids of tasks, from where the tasks are listed.


def ids(
    context: Context, state: State | str | None = None, selector: Selector | str | None = None
) -> Procedure[list[str]]:
    """The ids of the tasks in `state` (default: any) that `selector` accepts. Not a snapshot of one moment.

    In the order in which they are listed: pending ones by lane, ended ones by time, the others by name. Without a
    selector no task is read, and one that has just changed its state may be named still; with one each task's record
    is read, and what cannot be read is reported in the log and left out.
    Raises `ConfigError` for an unknown state or selector, or where the queue does not exist.
    """
    wanted = yield from chosen(context, state, selector)
    listed = yield from task_ids(context, wanted.state)
    if wanted.selector is None:
        return listed
    matching: list[str] = []
    for chunk in chunked(listed):
        records = [record for record in (yield from read_records(context, chunk)) if isinstance(record, Record)]
        now = yield from lapsed_among(context, {each.task_id: each.state for each in records})
        for each in records:
            state = now[each.task_id].state if each.task_id in now else each.state.state
            matching += [each.task_id] if wanted.accepts(state, each.state.filters) else []
    return matching


# --- Many tasks by their ids.


def read_many(context: Context, task_ids: Sequence[str], *, parts: Collection[Part] = PARTS) -> Procedure[list[Task]]:
    """The tasks among `task_ids` that exist, each once, in the order of the ids. Not a snapshot of one moment.

    A task that was never enqueued, or has been collected, is left out; so is one whose record cannot be read, which
    is reported in the log. `parts`: which of ``data``, ``metadata``, ``result`` and ``progress`` (with its note) are
    read; what is not is empty in the tasks (``b""``, ``{}``, None), and costs nothing but, for ``data``, one small
    request for each task. All tasks are in memory together: read many large ones in several calls.
    Raises `ConfigError` for a bad id or an unknown part, and `QueueNotFound`.
    """
    ids = checked_ids(task_ids)
    chosen = checked_parts(parts)
    tasks = yield from read_tasks(context, ids, parts=chosen)
    known = {task.id: task for task in tasks}
    missing = [each for each in ids if each not in known]
    if missing:
        yield Sync(context.paths.at("tasks"))  # the server that we read from may lag behind
        known |= {task.id: task for task in (yield from read_tasks(context, missing, parts=chosen))}
    if not known:
        yield from refuse_missing(context)
    return [known[each] for each in ids if each in known]


def checked_ids(task_ids: Sequence[str]) -> list[str]:
    """Each id once, in order. Raises `ConfigError` for one text instead of a list, and for what is no id."""
    if isinstance(task_ids, str):
        raise ConfigError(f"a list of task ids belongs here, not the text {task_ids!r}")
    return [check_name("task id", each) for each in dict.fromkeys(task_ids)]


# --- The columns of a scan: what each is made of, and how.


@dataclass(slots=True)
class Row:
    """What was read of a task: the fields of its record that were asked for, and what else was.

    ``past``: a time of the server's clock that has certainly come, where it is needed. ``enqueued``: when its present
    run was enqueued.
    """

    id: str
    record: dict[str, Any]
    stat: Stat
    data: bytes = b""
    result: bytes | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    enqueued: int = 0
    past: int = 0
    lapsed: bool = False
    """Its claim has ended by its deadline, and nobody has given it back yet."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's value, the fields of the record that it is made of, and what else of the task's tree."""

    value: Callable[[Row], Any]
    fields: tuple[str, ...] = ()
    part: str | None = None


def _field(name: str) -> Column:
    return Column(lambda row: row.record[name], (name,))


def _ended_ms(row: Row) -> int | None:
    record = row.record
    if row.lapsed:
        return None
    return ended_ms(record["state"], record["started"], record["ended"], record["ended_zxid"], row.stat)


def _claimed_ms(row: Row) -> int | None:
    return claimed_before(row.record["claimed"], _ended_ms(row))


def _started_ms(row: Row) -> int | None:
    return started_ms(row.record["state"], row.record["started"], _claimed_ms(row))


def _history(row: Row) -> object:
    record = row.record
    times = (_claimed_ms(row), record["started"], _ended_ms(row))
    return with_success(record["state"], record["history"], (record["attempt"], record["consumer"], *times))


def _due_ms(row: Row) -> object:
    due = row.record["due"]
    return row.record["was_due"] if due is None else due


def _status(row: Row) -> object:
    record = row.record
    return status_at(row.past, record["state"], record["due"], record["dedupe"], requeue=record["requeue"])


#: What tells when a run ended.
_ENDED: Final = ("state", "started", "ended", "ended_zxid")
#: By the names of what they are in `Task`.
COLUMNS: Final[dict[str, Column]] = {
    "id": Column(lambda row: row.id),
    "state": _field("state"),
    "status": Column(_status, ("state", "due", "dedupe", "requeue")),
    "attempt": _field("attempt"),
    "priority": _field("priority"),
    "filters": Column(lambda row: dict(row.record["filters"]), ("filters",)),
    "metadata": Column(lambda row: row.metadata, part="metadata"),
    "data": Column(lambda row: row.data, part="data"),
    "result": Column(lambda row: row.result, part="result"),
    "error": Column(lambda row: row.record["error"], ("error", "consumer")),
    "consumer": _field("consumer"),
    "enqueued_ms": Column(lambda row: row.enqueued, part="enqueued"),
    "claimed_ms": Column(_claimed_ms, ("claimed", *_ENDED)),
    "started_ms": Column(_started_ms, ("claimed", *_ENDED)),
    "ended_ms": Column(_ended_ms, _ENDED),
    "due_ms": Column(_due_ms, ("due", "was_due")),
    "history": Column(_history, ("history", "attempt", "consumer", "claimed", *_ENDED)),
    "version": Column(lambda row: row.stat.mzxid),
    "dedupe_ms": _field("dedupe"),
    "batch": _field("batch"),
}


def checked_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The names of columns, each once. Raises `ConfigError` naming those that are unknown."""
    if isinstance(names, str) or not names or not COLUMNS.keys() >= set(names):
        raise ConfigError(f"columns {names!r} are not understood: a list of some of {', '.join(COLUMNS)}")
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a scan reads: fields of the records, and parts of the tasks' trees."""

    fields: tuple[str, ...]
    parts: frozenset[str]

    @classmethod
    def of(cls, names: Collection[str]) -> Self:
        """What these columns take. The state is always read, and what may have ended it: what has none is no task's."""
        columns = [COLUMNS[name] for name in names]
        fields = dict.fromkeys(["state", "lease", *(field for column in columns for field in column.fields)])
        return cls(tuple(fields), frozenset(column.part for column in columns if column.part is not None))

    @property
    def znodes(self) -> tuple[str, ...]:
        """The znodes of each task. When it was enqueued is told by its metadata, too, which are seldom large."""
        timed = "enqueued" in self.parts and "data" not in self.parts
        parts = self.parts | {"metadata"} if timed else self.parts
        return ("state", *(name for name in ("data", "metadata", "result") if name in parts))
