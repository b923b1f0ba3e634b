"""Looking at tasks and queues without changing them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.letters import Letter
from airflow_provider_zkmq.engine.core.model.moments import moment_of, optional_moment_of
from airflow_provider_zkmq.engine.core.model.numbers import optional_whole_number
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.records import Attempt, TaskState, claimed_before, load_claim
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.model.states import ENDED, State, Status, derive_status
from airflow_provider_zkmq.engine.core.model.stored import load
from airflow_provider_zkmq.engine.core.protocol.ops import Node, Procedure, Stat, Sync
from airflow_provider_zkmq.engine.core.reading.chosen import chosen
from airflow_provider_zkmq.engine.core.reading.counts import task_ids
from airflow_provider_zkmq.engine.core.reading.lapsed import Lapsed, lapsed_among, status_of
from airflow_provider_zkmq.engine.core.reading.members import member_ids
from airflow_provider_zkmq.engine.core.reading.nodes import chunked, unless_corrupt
from airflow_provider_zkmq.engine.core.reading.trees import PARTS, WHOLE_AT_ONCE, at_once, read_trees
from airflow_provider_zkmq.engine.errors import TaskNotFound

if TYPE_CHECKING:
    from pendulum import DateTime

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
        """When the handler began that finished it, or that has it: later than the claim of what was claimed ahead.

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


def task_of_letter(path: str, letter: Letter) -> Task:
    """A run that has left what listed it, as the task that it was. Raises `CorruptRecord`."""
    record = Node(b"", Stat(letter.version, letter.version, letter.ended, letter.ended, 0, 0, 0))
    data = Node(letter.data, Stat(letter.version, letter.version, letter.enqueued, letter.enqueued, 0, 0, 0))
    content = _Content(letter.state, {}, load(path, letter.metadata.encode()))
    result = None if letter.result is None else data._replace(data=letter.result)
    status = derive_status(letter.state.state, scheduled=False)
    return _build(letter.task_id, _Tree(record, data, None, result, None), content, status)


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
        read = yield from read_many(context, chunk)
        tasks += [task for task in read if wanted.accepts(task.state, task.filters) and batch in {None, task.batch}]
        if most is not None and len(tasks) >= most:
            return tasks[:most]
    return tasks
