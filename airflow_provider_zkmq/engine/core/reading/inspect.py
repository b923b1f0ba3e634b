"""Looking at tasks and queues without changing them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.letters import Letter
from airflow_provider_zkmq.engine.core.model.moments import moment_of, optional_moment_of
from airflow_provider_zkmq.engine.core.model.numbers import optional_whole_number
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.records import Attempt, TaskState, load, load_claim
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.model.states import ENDED, State, Status, derive_status
from airflow_provider_zkmq.engine.core.protocol.ops import Node, Procedure, Stat, Sync
from airflow_provider_zkmq.engine.core.reading.chosen import chosen
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.counts import task_ids
from airflow_provider_zkmq.engine.core.reading.nodes import chunked, unless_corrupt
from airflow_provider_zkmq.engine.core.reading.trees import PARTS, WHOLE_AT_ONCE, at_once, read_trees
from airflow_provider_zkmq.engine.errors import TaskNotFound

if TYPE_CHECKING:
    from pendulum import DateTime

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it was read. Times are the server's; ``version`` is the record's zxid.

    ``enqueued_ms``, ``claimed_ms``, ``ended_ms`` and ``due_ms`` (it is not to be handled before) are milliseconds since
    1970; ``enqueued_at``, ``claimed_at``, ``ended_at`` and ``due_at`` the same as pendulum's DateTime, in UTC.

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
    def enqueued_at(self) -> DateTime:
        """When it was enqueued; of an id that was enqueued again, when that was."""
        return moment_of(self.enqueued_ms)

    @property
    def claimed_at(self) -> DateTime | None:
        """When the delivery under way was claimed, or the one that finished it; None for any other task."""
        return optional_moment_of(self.claimed_ms)

    @property
    def ended_at(self) -> DateTime | None:
        """When it ended; None until then."""
        return optional_moment_of(self.ended_ms)

    @property
    def due_at(self) -> DateTime | None:
        """Before when it is not to be handled; None where it may be at once."""
        return optional_moment_of(self.due_ms)


@dataclass(frozen=True, slots=True)
class _Tree:
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


def _content(context: Context, task_id: str, tree: _Tree, *, strict: bool) -> _Content | None:
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


def _build(task_id: str, tree: _Tree, content: _Content, status: Status) -> Task:
    stat, state = tree.state.stat, content.state
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
        claimed_ms=state.claimed,
        ended_ms=ended_ms(state.state, state.ended, state.ended_zxid, stat),
        due_ms=state.due,
        history=state.history,
        version=stat.mzxid,
        progress=content.claim.get("progress"),
        note=content.claim.get("note"),
        dedupe_ms=state.dedupe,
        batch=state.batch,
    )


def task_of_letter(path: str, letter: Letter) -> Task:
    """A run that has left what listed it, as the task that it was. Raises `CorruptRecord`."""
    record = Node(b"", Stat(letter.version, letter.version, letter.ended, letter.ended, 0, 0, 0))
    data = Node(letter.data, Stat(letter.version, letter.version, letter.enqueued, letter.enqueued, 0, 0, 0))
    content = _Content(letter.state, {}, load(path, letter.metadata.encode()))
    result = None if letter.result is None else data._replace(data=letter.result)
    status = derive_status(letter.state.state, scheduled=False)
    return _build(letter.task_id, _Tree(record, data, None, result, None), content, status)


def ended_ms(state: State, ended: int | None, ended_zxid: int | None, stat: Stat) -> int | None:
    """When a run ended: when its record was written, unless that was written once more for a run in escrow."""
    if state not in ENDED:
        return None
    return stat.mtime if ended_zxid is None else ended or stat.mtime


def status_of(context: Context, state: TaskState) -> Procedure[Status]:
    """Carmine's word for a record; a dedupe window is judged by the server's clock."""
    past = 0 if state.dedupe is None else (yield from certainly_past(context))
    return status_at(past, state.state, state.due, state.dedupe, requeue=state.requeue)


def certainly_past(context: Context) -> Procedure[int]:
    """A time of the server's clock that has certainly come."""
    now = yield from server_time(context)
    return context.clock.certainly_past(now)


def status_at(past: int, state: State, due: int | None, dedupe: int | None, *, requeue: bool) -> Status:
    """Carmine's word for what a record says, by the server's clock."""
    window = dedupe is not None and dedupe > past
    return derive_status(state, scheduled=due is not None, requeue=requeue, window=window)


def read_task(context: Context, task_id: str) -> Procedure[Task]:
    """One task. Raises `ConfigError` for a bad id, `TaskNotFound`, `CorruptRecord`."""
    check_name("task id", task_id)
    tasks = yield from read_many(context, [task_id], strict=True)
    if not tasks:
        yield Sync(context.paths.task(task_id))  # the server that we read from may lag behind
        tasks = yield from read_many(context, [task_id], strict=True)
    if not tasks:
        msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    return tasks[0]


def read_many(
    context: Context, ids: Sequence[str], *, strict: bool = False, parts: Collection[str] = PARTS
) -> Procedure[list[Task]]:
    """The tasks among `ids` that exist, in order; what is malformed is reported and left out (`strict`: raised)."""
    tasks: list[Task] = []
    for chunk in chunked(ids, at_once(parts)):
        for task_id, nodes in (yield from read_trees(context, chunk, parts)):
            task = yield from assemble(context, task_id, nodes, strict=strict)
            if task is not None:
                tasks.append(task)
    return tasks


def assemble(context: Context, task_id: str, nodes: list[Node | None], *, strict: bool) -> Procedure[Task | None]:
    """The task of which these znodes were read; None where it is not there, or malformed, which is reported."""
    record, *others = nodes
    if record is None:
        return None
    tree = _Tree(record, *others)
    content = _content(context, task_id, tree, strict=strict)
    if content is None:
        return None
    return _build(task_id, tree, content, (yield from status_of(context, content.state)))


def list_tasks(
    context: Context,
    *,
    state: State | str | None = None,
    selector: Selector | str | None = None,
    limit: int | None = None,
) -> Procedure[list[Task]]:
    """Tasks in `state` (default: any) that `selector` accepts, at most `limit`. Not a snapshot of one moment.

    Raises `ConfigError` for an unknown state or selector, a negative limit, or where the queue does not exist.
    """
    most = optional_whole_number("limit", limit)
    wanted = yield from chosen(context, state, selector)
    tasks: list[Task] = []
    for chunk in chunked((yield from task_ids(context, wanted.state)), WHOLE_AT_ONCE):
        read = yield from read_many(context, chunk)
        tasks += [task for task in read if wanted.accepts(task.state, task.filters)]
        if most is not None and len(tasks) >= most:
            return tasks[:most]
    return tasks
