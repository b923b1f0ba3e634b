"""Tasks as callers see them: how many, by id, by state, and why nobody takes one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from msgspec import structs

from ...errors import ConfigError, CorruptRecord, TaskNotFound
from .. import zk_operations as zk
from ..client_state import Claimed, Context
from ..model import znode_names
from ..model.filters import EVERYTHING, FilterTypes, Selector, as_selector, parse_selector
from ..model.records import Attempt, HistoryEntry, TaskState, claimed_before, load_claim
from ..model.settings import Conf, Limit
from ..model.states import ENDED, STATE_OF, State, Status, derive_status
from ..model.values import load, moment_of, optional_moment_of, optional_whole_number, spell_duration
from ..zk_operations import Children, Get, Node, Pipeline, Procedure, Stat, Sync, Watch
from . import bulk_read
from .claim_status import DEADLINES, Lapsed, lapsed_among, lapsed_of, lapsed_tasks, recent_claims, status_of
from .configuration import read_conf
from .queue_existence import refuse_missing
from .server_clock import certainly_past, server_time

if TYPE_CHECKING:
    from pendulum import DateTime

# --- How many tasks are in each state, and where they are listed.


def as_state(state: State | str | None) -> State | None:
    """A state by its name, None staying None. Raises `ConfigError`."""
    try:
        return None if state is None else State(state)
    except ValueError:
        raise ConfigError(f"state {state!r} is unknown: use one of {', '.join(State)}") from None


def as_status(status: Status | str | None) -> Status | None:
    """A status by its name, None staying None. Raises `ConfigError`."""
    try:
        return None if status is None else Status(status)
    except ValueError:
        raise ConfigError(f"status {status!r} is unknown: use one of {', '.join(Status)}") from None


def task_ids(context: Context, state: State | None) -> Procedure[list[str]]:
    """The ids of the tasks in a state, as they are now (`lapsed_tasks`); all of them without one."""
    listed = yield from listed_ids(context, state)
    if state not in {State.INSERTED, State.CLAIMED, State.DEAD}:
        return listed
    lapsed = yield from lapsed_tasks(context)
    others = [task_id for task_id in listed if task_id not in lapsed]
    return others + [task_id for task_id, now in lapsed.items() if now.state is state]


def listed_ids(context: Context, state: State | None) -> Procedure[list[str]]:
    """The ids of the tasks whose records have a state, from where they are listed; all of them without one.

    A state's lists are read in the order in which tasks go from one to the other, so that none is missed on its way.
    """
    entries: list[str] = []
    match state:
        case None:
            return sorted((yield Children(context.paths.at("tasks"))) or ())
        case State.DEAD:
            return sorted((yield Children(context.paths.at("dlq"))) or ())
        case State.CLAIMED:
            consumers = sorted((yield Children(context.paths.at("consumers"))) or ())
            notes = yield from bulk_read.list_children([context.paths.consumer(name, "current") for name in consumers])
            leases = (yield Children(context.paths.at("leases"))) or ()
            leased = [name.rpartition(znode_names.SEPARATOR)[0] for name in leases]
            return sorted({task for names in notes for task in names} | set(filter(None, leased)))
        case State.FINISHED:
            entries += yield from _two_levels(context, "finished")
            entries += yield from _two_levels(context, "requeued")
        case State.CANCELLED:
            entries += yield from _two_levels(context, "cancelled")
        case State.INSERTED:
            scheduled = yield from _two_levels(context, "scheduled")
            for lane in sorted(filter(znode_names.is_lane, (yield Children(context.paths.at("queue"))) or ())):
                entries += yield from _two_levels(context, f"queue/{lane}")
            entries += scheduled
    # Each once, also one that was listed twice on its way.
    return list(dict.fromkeys(task for task in map(znode_names.entry_task, entries) if task is not None))


def _two_levels(context: Context, index: str) -> Procedure[list[str]]:
    buckets = yield from _parts(context, index)
    listings = yield from bulk_read.list_children([context.paths.at(index, bucket) for bucket in buckets])
    return [name for names in listings for name in names]


def _parts(context: Context, index: str) -> Procedure[list[str]]:
    """The buckets of an index, or the segments of a lane; what is neither is not looked into."""
    names: list[str] = (yield Children(context.paths.at(index))) or []
    if index.startswith("queue/"):
        return sorted(znode_names.segments_of(names))
    return sorted(name for name in names if znode_names.bucket_start(name) is not None)


def counts(context: Context) -> Procedure[dict[str, int]]:
    """How many tasks are in each state, ``scheduled`` being the part of ``inserted`` that waits for its time.

    Read from Stats, in requests that grow with lanes and consumers, not with tasks; but of claims with a deadline each
    is read once, and again when it may have ended: what has is counted as what follows it. Raises `ConfigError` where
    the queue does not exist.
    """
    yield from read_conf(context)
    pending = 0
    for lane in sorted(filter(znode_names.is_lane, (yield Children(context.paths.at("queue"))) or ())):
        pending += yield from _count_two(context, f"queue/{lane}")
    return (yield from counts_beside(context, pending))


def counts_beside(context: Context, pending: int) -> Procedure[dict[str, int]]:
    """As `counts`, of a queue whose lanes hold so many tasks."""
    delayed, scheduled = yield from _count_scheduled(context, (yield from _parts(context, "scheduled")))
    finished = (yield from _count_two(context, "finished")) + (yield from _count_two(context, "requeued"))
    cancelled = yield from _count_two(context, "cancelled")
    consumers = sorted((yield Children(context.paths.at("consumers"))) or ())
    stats = yield from bulk_read.read_stats([context.paths.consumer(name, "current") for name in consumers])
    dlq, leases = yield from bulk_read.read_stats((context.paths.at("dlq"), context.paths.at("leases")))
    lapsed = Counter(now.state for now in (yield from lapsed_tasks(context)).values())
    return {
        "inserted": pending + delayed + lapsed[State.INSERTED],
        "scheduled": scheduled,
        "claimed": _sum(stats) + _sum([leases]) - lapsed.total(),
        "finished": finished,
        "dead": _sum([dlq]) + lapsed[State.DEAD],
        "cancelled": cancelled,
    }


def _sum(stats: Iterable[Stat | None]) -> int:
    return sum(stat.children for stat in stats if stat is not None)


def _count_two(context: Context, index: str) -> Procedure[int]:
    buckets = yield from _parts(context, index)
    return _sum((yield from bulk_read.read_stats([context.paths.at(index, bucket) for bucket in buckets])))


def _count_scheduled(context: Context, buckets: Sequence[str]) -> Procedure[tuple[int, int]]:
    """How many tasks are listed as scheduled in these buckets, and how many of them are not due yet."""
    if not buckets:
        return 0, 0
    past = yield from certainly_past(context)
    path = {name: context.paths.at("scheduled", name) for name in buckets}
    begun = {name for name in buckets if (znode_names.bucket_start(name) or 0) <= past}
    over = {name for name in begun if (znode_names.bucket_start(name) or 0) + znode_names.BUCKET_MS <= past}
    whole = [name for name in buckets if name in over or name not in begun]
    stats = dict(zip(whole, (yield from bulk_read.read_stats([path[name] for name in whole])), strict=True))
    listed = [
        name for names in (yield from bulk_read.list_children([path[each] for each in begun - over])) for name in names
    ]
    counted = {name: 0 if stat is None else stat.children for name, stat in stats.items()}
    later = sum(count for name, count in counted.items() if name not in over)
    return sum(counted.values()) + len(listed), later + sum(
        (znode_names.entry_time(name) or 0) > past for name in listed
    )


# --- How many tasks are pending, for who asks again and again: under watches, so that it costs by what has changed.

T = TypeVar("T")


def pending(context: Context) -> Procedure[int]:
    """How many tasks are pending, as `counts` tells it; nothing is asked of the server while nothing has changed.

    Of what lists tasks only the number of names is remembered, as a queue may be deep. Raises `QueueNotFound`.
    """
    yield from read_conf(context)
    at, seen = context.paths.at, set[str]()
    tops = [at(name) for name in ("queue", "scheduled", *DEADLINES)]
    names, scheduled, *deadlines = yield from _below(context, tops, sorted, seen)
    lanes = [at("queue", lane) for lane in filter(znode_names.is_lane, names)]
    segments = yield from _below(context, lanes, znode_names.segments_of, seen)
    lists = [f"{lane}/{name}" for lane, found in zip(lanes, segments, strict=True) for name in found]
    lists += [at("scheduled", name) for name in scheduled if znode_names.bucket_start(name) is not None]
    listed = yield from _below(context, lists, len, seen)
    for path in context.sizes.readings.keys() - seen:
        context.sizes.readings.pop(path, None)
    held = [f"{top}/{name}" for top, found in zip(tops[2:], deadlines, strict=True) for name in found]
    lapsed = yield from lapsed_of(context, held)
    return sum(listed) + sum(now.state is State.INSERTED for now in lapsed.values())


def _below(
    context: Context, paths: Sequence[str], made: Callable[[list[str]], T], seen: set[str]
) -> Procedure[list[T]]:
    """What is made of the names below each path; those that have changed are listed anew, in flight together."""
    seen.update(paths)
    known: dict[str, T] = {path: entry.value for path in paths if (entry := context.sizes.at(path)).fresh}
    stale = [path for path in paths if path not in known]
    watches = [Watch(context.sizes.at(path).signal) for path in stale]
    if stale:
        listings = yield Pipeline(tuple(Children(path, watch) for path, watch in zip(stale, watches, strict=True)))
        for path, watch, names in zip(stale, watches, listings, strict=True):
            entry, known[path] = context.sizes.at(path), made(names or [])
            entry.value, entry.watch = known[path], None if names is None else watch
    return [known[path] for path in paths]


def member_id(batch: str, number: int) -> str:
    """The id of a member that was given none."""
    return f"{batch}.{number:06d}"


def member_ids(context: Context, batch: str) -> Procedure[list[str]]:
    """The members of a batch that are there, sorted; those that were collected, dropped or cleared are not.

    The batch itself names those that are open or have failed. Of the others it knows how many there are: the names
    that members get are tried first, and the record of each task is read only where these are not all of them.
    Raises `TaskNotFound` for a batch that does not exist.
    """
    base = context.paths.batch(znode_names.check_name("batch", batch))
    node: Node | None = yield Get(base)
    if node is None:
        yield Sync(base)  # the server that we read from may lag behind
        node = yield Get(base)
    if node is None:
        raise TaskNotFound(f"batch {batch!r} is not in queue {context.queue!r}: never enqueued, or collected")
    total = load(base, node.data).get("total")
    named = set((yield Children(f"{base}/open")) or ())
    named.update((yield Children(f"{base}/failed")) or ())
    there = yield from task_ids(context, None)
    if isinstance(total, int):
        named.update(member_id(batch, number) for number in range(min(total, len(there))))
    members: list[str] = []
    for ids in (sorted(named.intersection(there)), [each for each in there if each not in named]):
        for chunk in bulk_read.chunked(ids):
            records = yield from bulk_read.read_records(context, chunk)
            members += [
                each.task_id for each in records if isinstance(each, bulk_read.Record) and each.state.batch == batch
            ]
        if len(members) == total:
            break
    return sorted(members)


# --- Looking at tasks and queues without changing them.


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it is, by the server's clock. Times are the server's; ``version`` is the record's zxid.

    A backoff that is over is none, and a claim whose lease or lock has ended is what follows it (`lapsed_tasks`).

    ``enqueued_ms``, ``claimed_ms``, ``started_ms``, ``ended_ms`` and ``due_ms`` (it is not, or was not, to be handled
    before) are milliseconds since 1970; ``enqueued_at``, ``claimed_at``, ``started_at``, ``ended_at`` and ``due_at``
    the same as pendulum's DateTime, in UTC.

    ``history``: the deliveries that have ended, the last ten that failed and the one that succeeded, also those of
    earlier runs of the same id. ``progress`` (0 to 1) and ``note`` are what its handler reported last;
    ``dedupe_ms``: until when an enqueue of the same id is refused although it is finished; ``batch``: the batch it was
    enqueued with.
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


def ended_ms(record: TaskState, stat: Stat) -> int | None:
    """When a run ended: when its handler did, else when its record was written, but not once more for another run."""
    if record.state not in ENDED:
        return None
    own = record.started is not None or record.ended_zxid is not None
    return (record.ended if own else None) or stat.mtime


class RunTimes(NamedTuple):
    """When a run was claimed, when its handler began and when it ended; None for what is not known, or has not come."""

    claimed: int | None
    started: int | None
    ended: int | None


@dataclass
class Row:
    """What was read of a task; ``enqueued``: when its present run was, ``claim``: what its claim says."""

    id: str
    record: TaskState
    stat: Stat
    data: bytes = b""
    result: bytes | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    claim: Mapping[str, Any] = field(default_factory=dict)
    enqueued: int = 0
    status: Status | None = None
    lapsed: bool = False
    """Its claim has ended by its deadline, and nobody has given it back yet."""

    @cached_property
    def times(self) -> RunTimes:
        """The times of its run; of a finished one whose handler nobody told of, it began when it was claimed."""
        record, ended = self.record, None if self.lapsed else ended_ms(self.record, self.stat)
        claimed = claimed_before(record.claimed, ended)
        began = claimed if record.started is None and record.state is State.FINISHED else record.started
        return RunTimes(claimed, began, ended)

    @property
    def history(self) -> tuple[Attempt, ...]:
        """The deliveries that have ended, also the one that finished the run, which its record tells of by itself."""
        record, (claimed, _, ended) = self.record, self.times
        if record.state is not State.FINISHED or claimed is None or ended is None:
            return record.history
        last = Attempt(record.attempt, record.consumer or "", claimed, ended, "finished", None, record.started)
        return (*record.history, last)

    def lapse(self, now: Lapsed) -> None:
        """Make it what follows its claim, which has ended by its deadline."""
        self.lapsed, self.claim, self.status = True, {}, derive_status(now.state, scheduled=False)
        self.record = structs.replace(self.record, **now._asdict(), consumer=None, claimed=None)

    def task(self) -> Task:
        """The task, of which all columns are known."""
        values = {name: value(self) for name, value in COLUMNS.items()}
        return Task(**values, progress=self.claim.get("progress"), note=self.claim.get("note"))


#: By the names of what they are in `Task`.
COLUMNS: Final[dict[str, Callable[[Row], Any]]] = {
    "id": lambda row: row.id,
    "state": lambda row: row.record.state,
    "status": lambda row: row.status,
    "attempt": lambda row: row.record.attempt,
    "priority": lambda row: row.record.priority,
    "filters": lambda row: dict(row.record.filters),
    "metadata": lambda row: row.metadata,
    "data": lambda row: row.data,
    "result": lambda row: row.result,
    "error": lambda row: row.record.error,
    "consumer": lambda row: row.record.consumer,
    "enqueued_ms": lambda row: row.enqueued,
    "claimed_ms": lambda row: row.times.claimed,
    "started_ms": lambda row: row.times.started,
    "ended_ms": lambda row: row.times.ended,
    "due_ms": lambda row: row.record.was_due if row.record.due is None else row.record.due,
    "history": lambda row: row.history,
    "version": lambda row: row.stat.mzxid,
    "dedupe_ms": lambda row: row.record.dedupe,
    "batch": lambda row: row.record.batch,
}
#: What of a task's tree some are made of besides its record.
PART_OF = {"metadata": "metadata", "data": "data", "result": "result", "enqueued_ms": "enqueued", "status": "clock"}


def checked_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The names of columns, each once. Raises `ConfigError` naming those that are unknown."""
    if isinstance(names, str) or not names or not COLUMNS.keys() >= set(names):
        raise ConfigError(f"columns {names!r} are not understood: a list of some of {', '.join(COLUMNS)}")
    return tuple(dict.fromkeys(names))


def task_of_history_entry(path: str, entry: HistoryEntry) -> Task:
    """A run that has left what listed it, as the task that it was. Raises `CorruptRecord`."""
    stat = Stat(entry.version, entry.version, entry.ended, entry.ended, 0, 0, 0)
    metadata, status = load(path, entry.metadata.encode()), derive_status(entry.state.state, scheduled=False)
    row = Row(entry.task_id, entry.state, stat, entry.data, entry.result, metadata, {}, entry.enqueued, status)
    return row.task()


def task_of_claim(context: Context, claimed: Claimed) -> Task:
    """The task of a claim, as it was handed out."""
    state = claimed.state
    return Task(
        id=claimed.task_id,
        state=State.CLAIMED,
        status=derive_status(State.CLAIMED, scheduled=False),
        attempt=state.attempt,
        priority=state.priority,
        filters=dict(state.filters),
        metadata=claimed.metadata or {},
        data=claimed.data,
        result=None,
        error=state.error,
        consumer=state.consumer,
        enqueued_ms=claimed.created,
        claimed_ms=state.claimed,
        ended_ms=None,
        due_ms=state.was_due,
        history=state.history,
        version=claimed.token,
        batch=state.batch,
        started_ms=None if claimed.began is None else context.clock.at(claimed.began),
    )


def read_task(context: Context, task_id: str) -> Procedure[Task]:
    """One task. Raises `ConfigError` for a bad id, `TaskNotFound`, `CorruptRecord`."""
    znode_names.check_name("task id", task_id)
    tasks = yield from read_tasks(context, [task_id], strict=True)
    if not tasks:
        yield Sync(context.paths.task(task_id))  # the server that we read from may lag behind
        tasks = yield from read_tasks(context, [task_id], strict=True)
    if not tasks:
        raise TaskNotFound(f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected")
    return tasks[0]


def read_tasks(
    context: Context, ids: Sequence[str], *, strict: bool = False, parts: Collection[str] = bulk_read.PARTS
) -> Procedure[list[Task]]:
    """The tasks among `ids` that exist, in order; what is malformed is reported and left out (`strict`: raised)."""
    tasks: list[Task] = []
    for chunk in bulk_read.chunked(ids, bulk_read.at_once(parts)):
        rows: list[Row] = []
        for task_id, nodes in (yield from bulk_read.read_trees(context, chunk, parts)):
            row = yield from assemble(context, task_id, nodes, strict=strict)
            rows += [] if row is None else [row]
        lapsed = yield from lapsed_among(context, {row.id: row.record for row in rows})
        for row in rows:
            if row.id in lapsed:
                row.lapse(lapsed[row.id])
        tasks += [row.task() for row in rows]
    return tasks


def assemble(context: Context, task_id: str, nodes: list[Node | None], *, strict: bool) -> Procedure[Row | None]:
    """What these znodes hold of a task; None without a record. What is corrupt is reported, or with `strict` raised."""
    record, data, metadata, result, claim = nodes

    def read(part: str, node: Node | None, decode: Callable[[str, bytes], T]) -> T | None:
        if node is None:
            return None
        path = context.paths.task(task_id, part)
        look = partial(decode, path, node.data)
        return look() if strict else bulk_read.unless_corrupt(context, path, look)

    if record is None:
        return None
    state = read("state", record, TaskState.decode)
    progress, of_caller = read("claim", claim, load_claim) or {}, read("metadata", metadata, load) or {}
    if state is None:
        return None
    status = yield from status_of(context, state)
    row = Row(task_id, state, record.stat, metadata=of_caller, claim=progress, status=status)
    row.data, row.result = b"" if data is None else data.data, None if result is None else result.data
    row.enqueued = (record if data is None else data).stat.ctime  # data are made anew for each run of the same id
    return row


# --- Tasks by their ids, by what they are, or both.


def list_tasks(
    context: Context,
    *,
    ids: Sequence[str] | None = None,
    state: State | str | None = None,
    status: Status | str | None = None,
    selector: Selector | str | None = None,
    batch: str | None = None,
    parts: Collection[bulk_read.Part] = bulk_read.PARTS,
    limit: int | None = None,
) -> Procedure[list[Task]]:
    """The tasks that every given argument accepts, at most `limit`. Not a snapshot of one moment.

    - `ids`: only these, each once, in the order of the ids; one that was never enqueued, or has been collected, is left
      out.
    - `state` and `status`: words such as ``"inserted"`` and ``"queued-with-backoff"``. `selector`: about filters.
    - `batch`: only its members, in the order of their ids; those that were collected or dropped are gone.
    - `parts`: which of ``data``, ``metadata``, ``result`` and ``progress`` (with its note) are read; what is not is
      empty in the tasks (``b""``, ``{}``, None), and costs nothing but, for ``data``, one small request for each task.

    All tasks are in memory together: read many large ones in several calls. A task whose record cannot be read is
    reported in the log and left out. A requeue that waits for the run before it, and a batch's ``then``, are no tasks
    yet.

    Raises `ConfigError` for a bad id, an unknown state, status, selector or part, or a negative limit; `QueueNotFound`;
    `TaskNotFound` for a batch that does not exist.
    """
    most, read = optional_whole_number("limit", limit), bulk_read.checked_parts(parts)
    named, exact = None if ids is None else checked_ids(ids), as_status(status)
    wanted, bound = as_state(state), as_selector(EVERYTHING)
    types: FilterTypes = {}
    if named is None or selector is not None:  # else no filter types are needed
        types = (yield from read_conf(context)).types
        bound = EVERYTHING if selector is None else as_selector(selector).bind(types)

    def matches(task: Task) -> bool:
        fits = wanted in {None, task.state} and batch in {None, task.batch} and exact in {None, task.status}
        return fits and bound.matches(task.filters, types)

    if named is not None:
        return list(filter(matches, (yield from _named(context, named, read))))[:most]
    if batch is not None:
        listed = yield from member_ids(context, batch)
    else:
        listed = yield from task_ids(context, STATE_OF[exact] if wanted is None and exact else wanted)
    tasks: list[Task] = []
    for chunk in bulk_read.chunked(listed, bulk_read.at_once(read)):
        tasks += filter(matches, (yield from read_tasks(context, chunk, parts=read)))
        if most is not None and len(tasks) >= most:
            return tasks[:most]
    return tasks


def _named(context: Context, ids: Sequence[str], parts: Collection[str]) -> Procedure[list[Task]]:
    """Those of these tasks that exist, in the order of the ids. Raises `QueueNotFound`."""
    tasks = yield from read_tasks(context, ids, parts=parts)
    known = {task.id: task for task in tasks}
    missing = [each for each in ids if each not in known]
    if missing:
        yield Sync(context.paths.at("tasks"))  # the server that we read from may lag behind
        known |= {task.id: task for task in (yield from read_tasks(context, missing, parts=parts))}
    if not known:
        yield from refuse_missing(context)
    return [known[each] for each in ids if each in known]


def checked_ids(task_ids: Sequence[str]) -> list[str]:
    """Each id once, in order. Raises `ConfigError` for one text instead of a list, and for what is no id."""
    if isinstance(task_ids, str):
        raise ConfigError(f"a list of task ids belongs here, not the text {task_ids!r}")
    return [znode_names.check_name("task id", each) for each in dict.fromkeys(task_ids)]


def list_ids(context: Context, state: State | str | None = None) -> Procedure[list[str]]:
    """The ids of the tasks in `state` (default: any). Not a snapshot of one moment.

    In the order in which they are listed: pending ones by lane, ended ones by time, the others by name. No task is
    read; one that has just changed its state may be named still. Raises `ConfigError` for an unknown state, or where
    the queue does not exist.
    """
    wanted = as_state(state)
    yield from read_conf(context)
    return (yield from task_ids(context, wanted))


# --- Why is nobody taking this task? Consumers announce what they accept, so that the question has an answer.


@dataclass(frozen=True, slots=True)
class ConsumerMatch:
    """A live consumer and a task: ``refuses`` names the condition that keeps it from it; None: it accepts it."""

    consumer: str
    accepts: tuple[str, ...]
    refuses: str | None
    in_hand: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task is where it is: ``reasons`` of the task and the queue, then each live consumer's verdict."""

    task_id: str
    status: str
    reasons: tuple[str, ...]
    consumers: tuple[ConsumerMatch, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The explanation for people, a line each."""
        yield f"task {self.task_id} is {self.status}"
        yield from (f"  {reason}" for reason in self.reasons)
        for matched in self.consumers:
            busy = f" ({matched.in_hand} in hand)" if matched.in_hand else ""
            yield f"  consumer {matched.consumer}{busy}: {matched.refuses or 'accepts it'}"


def explain(context: Context, task_id: str) -> Procedure[Explanation]:
    """Why nobody handles a task: pause, backoff, dedupe window, or whose filter refuses it.

    Raises `TaskNotFound`.
    """
    conf = yield from read_conf(context)
    task: Task = yield from read_task(context, task_id)
    now = yield from server_time(context)
    matches: tuple[ConsumerMatch, ...] = ()
    limited: str | None = None
    if task.state is State.INSERTED:
        matches = yield from _matches(context, conf, task)
        limited = yield from _limited(context, conf.limit, task, now)
    reasons = list(_reasons(conf, task, now, matches, limited))
    if task.state is State.CLAIMED and (yield zk.Exists(context.paths.task(task.id, "claim"))) is None:
        reasons.append("that consumer's session has ended: the next consumer to claim anything gives the task back")
    return Explanation(task.id, str(task.status), tuple(reasons), matches)


def _limited(context: Context, limit: Limit | None, task: Task, now: int) -> Procedure[str | None]:
    """Why the queue's limit has no room for a task; None: it has."""
    key = None if limit is None else limit.key(task.filters)
    if limit is None or key is None:
        return None
    whose = "the queue" if limit.by is None else f"{limit.by} {task.filters[limit.by]!r}"
    (held,) = yield from bulk_read.list_children([context.paths.at("slots", key)])
    if limit.concurrency is not None and len(held) >= limit.concurrency:
        return f"{whose} has {len(held)} in hand, and its limit is {limit.concurrency} at once"
    node: Node | None = yield zk.Get(context.paths.at("rates", key))
    if limit.rate is None or node is None:
        return None
    since = now - limit.period
    recent = [each for each in recent_claims(context, limit, key, node) if each[0] >= since]
    if sum(count for _, count in recent) < limit.rate:
        return None
    wait = _span(recent[0][0] - since)
    return f"{whose} has had its {limit.rate} claims per {spell_duration(limit.per)}; the next may follow in {wait}"


def _reasons(
    conf: Conf, task: Task, now: int, matches: tuple[ConsumerMatch, ...], limited: str | None
) -> Iterator[str]:
    match task.state:
        case State.CLAIMED:
            yield f"it is with consumer {task.consumer}, attempt {task.attempt}"
        case State.FINISHED if task.status is Status.DONE_WITH_REQUEUE:
            yield f"it is finished; another run is held in escrow for {_span((task.dedupe_ms or now) - now)}"
        case State.FINISHED if task.dedupe_ms is not None and task.dedupe_ms > now:
            yield f"it is finished; its id is refused for another {_span(task.dedupe_ms - now)} (dedupe window)"
        case State.FINISHED:
            yield "it is finished"
        case State.DEAD:
            yield f"it is dead after attempt {task.attempt}: {task.error}; redrive puts it back"
        case State.CANCELLED:
            yield "it was cancelled; redrive puts it back"
        case State.INSERTED:
            yield from _waiting(conf, task, now, matches, limited)


def _waiting(
    conf: Conf, task: Task, now: int, matches: tuple[ConsumerMatch, ...], limited: str | None
) -> Iterator[str]:
    if conf.paused:
        yield "the queue is paused; resume hands out tasks again"
    if task.status is Status.QUEUED_WITH_BACKOFF:
        why = f"backoff after: {task.error}" if task.error else "its delay"
        yield f"it is not to be handled for another {_span((task.due_ms or now) - now)} ({why})"
    if limited is not None:
        yield limited
    if not matches:
        yield "no live consumer is registered"
    elif all(matched.refuses for matched in matches):
        yield "no live consumer accepts it"
    elif not (conf.paused or limited) and task.status is Status.QUEUED:
        yield "it waits for its turn"


def _span(milliseconds: int) -> str:
    span = max(0, milliseconds) / 1000
    return spell_duration(span if span < 1 else round(span))


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a live consumer has announced: the selectors of which each makes a task acceptable to it."""

    consumer: str
    texts: tuple[str, ...]
    in_hand: int
    unreadable: str | None = None

    def refusal(self, filters: Mapping[str, str], types: FilterTypes) -> str | None:
        """Why it accepts no task with these filters; None: it does."""
        if self.unreadable is not None:
            return f"what it accepts cannot be read: {self.unreadable}"
        if not self.texts:
            return "it has announced nothing that it accepts"
        try:
            refusals = [parse_selector(text).refusal(filters, types) for text in self.texts]
        except ConfigError as error:
            return f"what it accepts cannot be read: {error}"
        refusing = [why for why in refusals if why is not None]
        return "; ".join(refusing) if len(refusing) == len(refusals) else None


def live_consumers(context: Context) -> Procedure[list[Accepts]]:
    """The consumers that live, by their names, and what each has announced that it accepts."""
    live = sorted((yield Children(context.paths.at("live"))) or ())
    parts = [(context.paths.consumer(name), context.paths.consumer(name, "current")) for name in live]
    nodes = yield from bulk_read.read_nodes([path for both in parts for path in both])
    announced: list[Accepts] = []
    for name, record, current in zip(live, nodes[::2], nodes[1::2], strict=True):
        if record is None:
            continue
        in_hand = 0 if current is None else current.stat.children
        try:
            written: Any = load(context.paths.consumer(name), record.data).get("accepts", [])
            texts = tuple(text for text in written if isinstance(text, str))
            announced.append(Accepts(name, texts, in_hand))
        except (CorruptRecord, TypeError) as error:
            announced.append(Accepts(name, (), in_hand, str(error)))
    return announced


def _matches(context: Context, conf: Conf, task: Task) -> Procedure[tuple[ConsumerMatch, ...]]:
    announced = yield from live_consumers(context)
    return tuple(
        ConsumerMatch(each.consumer, each.texts, each.refusal(task.filters, conf.types), each.in_hand)
        for each in announced
    )


@dataclass(frozen=True, slots=True)
class Znode:
    """One znode of a task's tree: its size and the transactions that created and last changed it."""

    path: str
    bytes: int
    czxid: int
    mzxid: int


def read_tree(context: Context, task_id: str) -> Procedure[list[Znode]]:
    """Every znode of a task, to see what one enqueue wrote: equal czxids are one transaction."""
    base = context.paths.task(znode_names.check_name("task id", task_id))
    parts = sorted((yield zk.Children(base)) or ())
    filters = sorted((yield zk.Children(f"{base}/filters")) or ())
    paths = (base, *(f"{base}/{part}" for part in parts), *(f"{base}/filters/{name}" for name in filters))
    nodes = yield from bulk_read.read_nodes(paths)
    if nodes[0] is None:
        yield from refuse_missing(context)
    return [
        Znode(path, len(node.data), node.stat.czxid, node.stat.mzxid)
        for path, node in zip(paths, nodes, strict=True)
        if node is not None
    ]


#: The znodes of a task that its enqueue does not write.
_LATER: Final = ("claim", "result", "requeue")


def enqueue_transactions(tree: Sequence[Znode]) -> int:
    """In how many transactions the znodes of a task were created: 1, as a task is written whole.

    The data of an id that was enqueued again is written anew, in one more transaction.
    """
    base = min((node.path for node in tree), key=len, default="")
    later = {f"{base}/{part}" for part in _LATER}
    return len({node.czxid for node in tree if node.path not in later})
