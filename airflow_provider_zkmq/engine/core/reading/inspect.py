"""Looking at tasks and queues without changing them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import bucket_start
from airflow_provider_zkmq.engine.core.model.lanes import is_lane, segments_of
from airflow_provider_zkmq.engine.core.model.paths import SEPARATOR, check_name, entry_task
from airflow_provider_zkmq.engine.core.model.records import Attempt, TaskState, load
from airflow_provider_zkmq.engine.core.model.selectors import Selector, as_selector
from airflow_provider_zkmq.engine.core.model.states import ENDED, State, Status, derive_status
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Children,
    Exists,
    GetMany,
    Node,
    Pipeline,
    Procedure,
    Stat,
    Sync,
)
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configure import read_conf
from airflow_provider_zkmq.engine.core.reading.trees import PARTS, WHOLE_AT_ONCE, at_once, read_trees
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, TaskNotFound

CHUNK: Final = WHOLE_AT_ONCE


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it was read. Times are the server's, in milliseconds since 1970; ``version`` is the record's zxid.

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

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued."""
        return datetime.fromtimestamp(self.enqueued_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The znodes of a task that tell about it."""

    state: Node
    data: Node | None
    metadata: Node | None
    result: Node | None
    claim: Node | None


def _build(context: Context, task_id: str, tree: _Tree, state: TaskState, status: Status) -> Task:
    stat = tree.state.stat
    came = stat if tree.data is None else tree.data.stat  # the data's znode is made anew for each run of the same id
    claim = {} if tree.claim is None else load(context.paths.task(task_id, "claim"), tree.claim.data)
    return Task(
        id=task_id,
        state=state.state,
        status=status,
        attempt=state.attempt,
        priority=state.priority,
        filters=dict(state.filters),
        metadata={} if tree.metadata is None else load(context.paths.task(task_id, "metadata"), tree.metadata.data),
        data=b"" if tree.data is None else tree.data.data,
        result=None if tree.result is None else tree.result.data,
        error=state.error,
        consumer=state.consumer,
        enqueued_ms=came.ctime,
        claimed_ms=state.claimed,
        ended_ms=stat.mtime if state.state in ENDED else None,
        due_ms=state.due,
        history=state.history,
        version=stat.mzxid,
        progress=claim.get("progress"),
        note=claim.get("note"),
        dedupe_ms=state.dedupe,
        batch=state.batch,
    )


def status_of(context: Context, state: TaskState) -> Procedure[Status]:
    """Carmine's word for a record; a dedupe window is judged by the server's clock."""
    window = state.dedupe is not None and state.dedupe > context.clock.certainly_past((yield from server_time(context)))
    return derive_status(state.state, scheduled=state.due is not None, requeue=state.requeue, window=window)


def read_task(context: Context, task_id: str) -> Procedure[Task]:
    """One task. Raises `ConfigError` for a bad id, `TaskNotFound`, `CorruptRecord`."""
    check_name("task id", task_id)
    found = yield from read_many(context, [task_id], strict=True)
    if not found:
        yield Sync(context.paths.task(task_id))  # the server that we read from may lag behind
        found = yield from read_many(context, [task_id], strict=True)
    if not found:
        msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    return found[0]


def read_many(
    context: Context, ids: Sequence[str], *, strict: bool = False, parts: Collection[str] = PARTS
) -> Procedure[list[Task]]:
    """The tasks among `ids` that exist, in order; malformed ones are reported and left out (`strict`: raised)."""
    tasks: list[Task] = []
    size = at_once(parts)
    for start in range(0, len(ids), size):
        for task_id, nodes in (yield from read_trees(context, ids[start : start + size], parts)):
            try:
                task = yield from _assemble(context, task_id, nodes)
            except CorruptRecord as error:
                if strict:
                    raise
                context.report(context.paths.task(task_id), str(error))
                continue
            if task is not None:
                tasks.append(task)
    return tasks


def _assemble(context: Context, task_id: str, nodes: list[Node | None]) -> Procedure[Task | None]:
    node = nodes[0]
    if node is None:
        return None
    state = TaskState.decode(context.paths.task(task_id, "state"), node.data)
    status = yield from status_of(context, state)
    return _build(context, task_id, _Tree(node, *nodes[1:]), state, status)


def list_tasks(
    context: Context,
    *,
    state: State | str | None = None,
    selector: Selector | str | None = None,
    limit: int | None = None,
) -> Procedure[list[Task]]:
    """Tasks in `state` (default: any) that `selector` accepts, at most `limit`. Not a snapshot of one moment.

    Raises `ConfigError` for an unknown state or selector, or where the queue does not exist.
    """
    wanted = as_state(state)
    conf = yield from read_conf(context)
    chosen = None if selector is None else as_selector(selector).bind(conf.types)
    ids = yield from task_ids(context, wanted)
    tasks: list[Task] = []
    for start in range(0, len(ids), CHUNK):
        for task in (yield from read_many(context, ids[start : start + CHUNK])):
            if (wanted is None or task.state is wanted) and (
                chosen is None or chosen.matches(task.filters, conf.types)
            ):
                tasks.append(task)
        if limit is not None and len(tasks) >= limit:
            return tasks[:limit]
    return tasks


def as_state(state: State | str | None) -> State | None:
    """A state by its name, None staying None. Raises `ConfigError`."""
    try:
        return None if state is None else State(state)
    except ValueError:
        msg = f"state {state!r} is unknown: use one of {', '.join(State)}"
        raise ConfigError(msg) from None


def task_ids(context: Context, state: State | None) -> Procedure[list[str]]:
    """The ids of the tasks in a state, from where they are listed; all of them without one."""
    match state:
        case None:
            return sorted((yield Children(context.paths.at("tasks"))) or ())
        case State.DEAD:
            return sorted((yield Children(context.paths.at("dlq"))) or ())
        case State.FINISHED:
            requeued = yield from _two_levels(context, "requeued")
            return _tasks_of([*(yield from _two_levels(context, "finished")), *requeued])
        case State.CANCELLED:
            return _tasks_of((yield from _two_levels(context, "cancelled")))
        case State.CLAIMED:
            return (yield from _claimed_ids(context))
        case State.INSERTED:
            pending = yield from _pending_entries(context)
            scheduled = yield from _two_levels(context, "scheduled")
            return _tasks_of([*pending, *scheduled])


def _tasks_of(entries: Iterable[str]) -> list[str]:
    return [task for task in map(entry_task, entries) if task is not None]


def _two_levels(context: Context, index: str) -> Procedure[list[str]]:
    buckets = yield from _parts(context, index)
    found = yield Pipeline(tuple(Children(context.paths.at(index, bucket)) for bucket in buckets))
    return [name for names in found for name in sorted(names or ())]


def _parts(context: Context, index: str) -> Procedure[list[str]]:
    """The buckets of an index, or the segments of a lane; what is neither is not looked into."""
    names: list[str] = (yield Children(context.paths.at(index))) or []
    ours = segments_of(names) if index.startswith("queue/") else [it for it in names if bucket_start(it) is not None]
    return sorted(ours)


def _pending_entries(context: Context) -> Procedure[list[str]]:
    lanes = sorted(filter(is_lane, (yield Children(context.paths.at("queue"))) or ()))
    found: list[str] = []
    for lane in lanes:
        found += yield from _two_levels(context, f"queue/{lane}")
    return found


def _claimed_ids(context: Context) -> Procedure[list[str]]:
    consumers = sorted((yield Children(context.paths.at("consumers"))) or ())
    notes = yield Pipeline(tuple(Children(context.paths.consumer(name, "current")) for name in consumers))
    leases = (yield Children(context.paths.at("leases"))) or ()
    leased = [name.rpartition(SEPARATOR)[0] for name in leases]
    return sorted({task for names in notes for task in names or ()} | set(filter(None, leased)))


def counts(context: Context) -> Procedure[dict[str, int]]:
    """How many tasks are in each state, ``scheduled`` being the part of ``inserted`` that waits for its time.

    Read from Stats, in requests that grow with lanes and consumers, not with tasks. Raises `ConfigError` where
    the queue does not exist.
    """
    yield from read_conf(context)
    pending = yield from _count_lanes(context)
    scheduled = yield from _count_two(context, "scheduled")
    finished = (yield from _count_two(context, "finished")) + (yield from _count_two(context, "requeued"))
    cancelled = yield from _count_two(context, "cancelled")
    consumers = sorted((yield Children(context.paths.at("consumers"))) or ())
    stats = yield Pipeline(tuple(Exists(context.paths.consumer(name, "current")) for name in consumers))
    dlq, leases = yield Pipeline((Exists(context.paths.at("dlq")), Exists(context.paths.at("leases"))))
    return {
        "inserted": pending + scheduled,
        "scheduled": scheduled,
        "claimed": _sum(stats) + _sum([leases]),
        "finished": finished,
        "dead": _sum([dlq]),
        "cancelled": cancelled,
    }


def _sum(stats: Iterable[Stat | None]) -> int:
    return sum(stat.children for stat in stats if stat is not None)


def _count_two(context: Context, index: str) -> Procedure[int]:
    buckets = yield from _parts(context, index)
    return _sum((yield Pipeline(tuple(Exists(context.paths.at(index, bucket)) for bucket in buckets))))


def _count_lanes(context: Context) -> Procedure[int]:
    lanes = sorted(filter(is_lane, (yield Children(context.paths.at("queue"))) or ()))
    total = 0
    for lane in lanes:
        total += yield from _count_two(context, f"queue/{lane}")
    return total


@dataclass(frozen=True, slots=True)
class Znode:
    """One znode of a task's tree: its size and the transactions that created and last changed it."""

    path: str
    bytes: int
    czxid: int
    mzxid: int


def read_tree(context: Context, task_id: str) -> Procedure[list[Znode]]:
    """Every znode of a task, to see what one enqueue wrote: equal czxids are one transaction."""
    base = context.paths.task(check_name("task id", task_id))
    parts = sorted((yield Children(base)) or ())
    filters = sorted((yield Children(f"{base}/filters")) or ())
    paths = (base, *(f"{base}/{part}" for part in parts), *(f"{base}/filters/{name}" for name in filters))
    nodes: list[Node | None] = yield GetMany(paths)
    return [
        Znode(path, len(node.data), node.stat.czxid, node.stat.mzxid)
        for path, node in zip(paths, nodes, strict=True)
        if node is not None
    ]
