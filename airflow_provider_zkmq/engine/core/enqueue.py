"""Enqueue: the whole tree of a task and its pending entry, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_zkmq.engine.core.configure import optional_seconds, read_conf
from airflow_provider_zkmq.engine.core.context import Conf, Context
from airflow_provider_zkmq.engine.core.filters import parse_filters
from airflow_provider_zkmq.engine.core.lanes import (
    MAX_LANES,
    SEGMENT_ENTRIES,
    Lane,
    check_priority,
    next_segment,
    parse_lane,
)
from airflow_provider_zkmq.engine.core.ops import (
    Children,
    Create,
    Exists,
    Failure,
    Get,
    Multi,
    Node,
    Outcome,
    Pipeline,
    Procedure,
    WriteOp,
    request_size,
)
from airflow_provider_zkmq.engine.core.paths import check_name, entry_name
from airflow_provider_zkmq.engine.core.records import Message, TaskState, encode_data, encode_metadata
from airflow_provider_zkmq.engine.core.schedule import index_path
from airflow_provider_zkmq.engine.core.states import State, derive_status
from airflow_provider_zkmq.engine.core.transact import ensure_bucket, failed_at, reconnect, refused, server_time
from airflow_provider_zkmq.engine.errors import ConfigError, DuplicateTask, OutcomeUnknown, TaskTooLarge, ZkmqError

#: ZooKeeper's default ``jute.maxbuffer`` is 1 048 575 bytes for a whole request; a larger one is answered by a
#: dropped connection, which would look like an outage. Some room is left for the server's own framing.
MAX_REQUEST: Final = 1_040_000
TREES_PER_MULTI: Final = 20
BATCH_BYTES: Final = 256_000
WINDOW: Final = 8


@dataclass(slots=True)
class Tree:
    """A validated message, ready to be written."""

    task_id: str
    generated: bool
    data: bytes
    metadata: bytes
    filters: dict[str, str]
    lane: Lane
    delay: float
    policy: dict[str, Any] | None
    nonce: str
    stamp: str

    def ops(self, context: Context, place: str, index: str | None, due: int | None) -> list[WriteOp]:
        """The transaction that writes the tree and its entry."""
        at, paths = self.task_id, context.paths
        state = TaskState(
            State.INSERTED,
            place,
            self.nonce,
            priority=self.lane.priority,
            filters=self.filters,
            due=due,
            index=index,
            policy=self.policy,
        )
        return [
            Create(paths.task(at)),
            Create(paths.task(at, "data"), self.data),
            Create(paths.task(at, "metadata"), self.metadata),
            Create(paths.task(at, "filters")),
            *(Create(paths.task(at, "filters", name), value.encode()) for name, value in self.filters.items()),
            Create(paths.task(at, "state"), state.encode()),
            Create(paths.at(index) if index else paths.entry(place)),
        ]


def prepare(context: Context, conf: Conf, message: Message) -> Tree:
    """Validate a message against the queue. Raises `ConfigError` or `TaskTooLarge`; nothing is written."""
    if not isinstance(message, Message):
        msg = f"enqueue_many takes Message objects, not {type(message).__name__}"
        raise ConfigError(msg)
    filters = parse_filters(conf.types, message.filters)
    generated = message.task_id is None
    tree = Tree(
        task_id=context.new_task_id() if generated else check_name("task id", message.task_id),
        generated=generated,
        data=encode_data("data", message.data),
        metadata=encode_metadata(message.metadata),
        filters=filters,
        lane=Lane(check_priority(message.priority), filters),
        delay=optional_seconds("delay", message.delay) or 0.0,
        policy=None if message.policy is None else _plain(message.policy),
        nonce=context.nonce(),
        stamp=context.stamp(),
    )
    _check_size(context, tree)
    return tree


def _plain(policy: Any) -> dict[str, Any]:
    return {"attempts": policy.attempts, "factor": policy.factor} | {
        "min_backoff": policy.min_backoff,
        "max_backoff": policy.max_backoff,
    }


def _check_size(context: Context, tree: Tree) -> None:
    """Refuse what ZooKeeper would answer by dropping the connection."""
    size = request_size(tree.ops(context, "x" * 300, None, None)) + 600
    if size > MAX_REQUEST:
        msg = (
            f"task {tree.task_id!r} needs {size:,} bytes, ZooKeeper takes {MAX_REQUEST:,} in one request "
            f"(data: {len(tree.data):,} bytes); store large data elsewhere and enqueue its address"
        )
        raise TaskTooLarge(msg)


def enqueue(context: Context, message: Message) -> Procedure[str]:
    """Write one task; returns its id when it is durable."""
    ids = yield from enqueue_many(context, [message])
    return ids[0]


def enqueue_many(context: Context, messages: Sequence[Message]) -> Procedure[list[str]]:
    """Write many tasks, several trees a transaction and several transactions in flight; returns their ids in order.

    Every message is validated before the first is written. Each task is all or nothing; the call as a whole is
    not: `DuplicateTask` tells which ids were refused and which tasks were written.
    """
    conf = yield from read_conf(context, create=True)
    trees = [prepare(context, conf, message) for message in messages]
    _refuse_twins(trees)
    done: list[str] = []
    refused_ids: list[tuple[str, str | None]] = []
    batches = _batches(context, trees)
    for start in range(0, len(batches), WINDOW):
        yield from _write(context, batches[start : start + WINDOW], done, refused_ids)
    if refused_ids:
        raise _duplicates(refused_ids, done)
    return [tree.task_id for tree in trees]


def _refuse_twins(trees: Sequence[Tree]) -> None:
    ids = [tree.task_id for tree in trees]
    if len(set(ids)) != len(ids):
        twin = next(task_id for at, task_id in enumerate(ids) if task_id in ids[:at])
        msg = f"task id {twin!r} stands twice in the same call; nothing was written"
        raise ConfigError(msg)


def _duplicates(refused_ids: list[tuple[str, str | None]], done: list[str]) -> DuplicateTask:
    first, status = refused_ids[0]
    more = f" (and {len(refused_ids) - 1} more)" if len(refused_ids) > 1 else ""
    msg = f"task id {first!r}{more} is in use (status: {status}); choose another or wait until it is collected"
    return DuplicateTask(msg, status=status, duplicates=[task_id for task_id, _ in refused_ids], enqueued=done)


def _batches(context: Context, trees: Sequence[Tree]) -> list[list[Tree]]:
    """Trees grouped into transactions. Tasks with ids of the caller's go alone: one duplicate refuses its whole group."""
    batches: list[list[Tree]] = []
    room = 0
    for tree in trees:
        size = request_size(tree.ops(context, "x" * 300, None, None))
        if not batches or not tree.generated or room < size or len(batches[-1]) >= TREES_PER_MULTI:
            batches.append([])
            room = BATCH_BYTES if tree.generated else 0
        batches[-1].append(tree)
        room -= size
    return batches


def _write(
    context: Context, batches: list[list[Tree]], done: list[str], refused_ids: list[tuple[str, str | None]]
) -> Procedure[None]:
    """One window of transactions in flight together; each that did not commit at once is carried on singly."""
    multis = []
    opened: set[str] = set()  # requests of one session are carried out in order: the first one opens for all
    for batch in batches:
        ops = yield from _batch_ops(context, batch, opened)
        multis.append(Multi(tuple(ops)))
    outcomes: list[Outcome] = yield Pipeline(tuple(multis))
    for batch, multi, outcome in zip(batches, multis, outcomes, strict=True):
        status = yield from _settle_batch(context, batch, multi, outcome)
        if status is None:
            done.extend(tree.task_id for tree in batch)
        else:
            refused_ids.append((batch[0].task_id, status))


def _batch_ops(context: Context, batch: list[Tree], opened: set[str]) -> Procedure[list[WriteOp]]:
    ops: list[WriteOp] = []
    for tree in batch:
        ops.extend((yield from _tree_ops(context, tree, opened)))
    return ops


def _tree_ops(context: Context, tree: Tree, opened: set[str]) -> Procedure[list[WriteOp]]:
    """The tree's operations, preceded by those that open its lane or segment where they are not there yet."""
    if tree.delay > 0:
        now = yield from server_time(context)
        due = now + int(tree.delay * 1000)
        index = index_path("scheduled", due, tree.task_id)
        bucket = context.paths.at(index.rpartition("/")[0])
        if bucket not in context.buckets:
            yield from ensure_bucket(bucket)
            context.buckets.add(bucket)
        place = f"{tree.lane.name}//{entry_name(tree.stamp, tree.task_id)}"
        return tree.ops(context, place, index, due)
    lane, segment, creates = yield from open_segment(context, tree.lane)
    fresh = [op for op in creates if op.path not in opened]
    opened.update(op.path for op in creates)
    place = f"{lane.name}/{segment}/{entry_name(tree.stamp, tree.task_id)}"
    return [*fresh, *tree.ops(context, place, None, None)]


def open_segment(context: Context, wanted: Lane) -> Procedure[tuple[Lane, str, list[WriteOp]]]:
    """Where the next entry of a lane goes, and what must be created for it in the same transaction."""
    memory = context.open_segments.get(wanted.name)
    if memory is not None and memory[2] < SEGMENT_ENTRIES:
        memory[2] += 1
        lane, segment, _, creates = memory
        return lane, segment, creates
    lane = yield from _bounded(context, wanted)
    segment, count, creates = yield from _last_segment(context, lane)
    context.open_segments[wanted.name] = [lane, segment, count + 1, creates]
    return lane, segment, creates


def _bounded(context: Context, wanted: Lane) -> Procedure[Lane]:
    """The lane itself while there are few, else its priority's mixed lane."""
    if not wanted.filters:
        return wanted
    names = yield Children(context.paths.at("queue"))
    known = set(names or ())
    if wanted.name in known or sum(parse_lane(name) is not None for name in known) < MAX_LANES:
        return wanted
    return wanted.mixed()


def _last_segment(context: Context, lane: Lane) -> Procedure[tuple[str, int, list[WriteOp]]]:
    """The newest segment with room, else a new one."""
    path = context.paths.at("queue", lane.name)
    names = yield Children(path)
    if names:
        newest = max(names)
        stat = yield Exists(f"{path}/{newest}")
        if stat is not None and stat.children < SEGMENT_ENTRIES:
            return newest, stat.children, []
    segment = next_segment(names or [])
    creates: list[WriteOp] = [Create(f"{path}/{segment}")]
    if names is None:
        creates.insert(0, Create(path, lane.encode()))
    return segment, 0, creates


def _settle_batch(context: Context, batch: list[Tree], multi: Multi, outcome: Outcome) -> Procedure[str | None]:
    """Carry a batch to its end: None when it is written, or the status of the task that holds its first id."""
    uncertain = False
    first = batch[0]
    while True:
        _remember_opened(context, multi, outcome)
        if outcome.committed:
            return None
        path = failed_at(outcome, multi)
        if outcome.unknown:
            uncertain = True
            yield from reconnect()
        elif outcome.failure is Failure.NODE_EXISTS and path == context.paths.task(first.task_id):
            return (yield from _holder(context, first, uncertain=uncertain))
        elif _may_reopen(context, path, outcome):
            multi = Multi(tuple((yield from _batch_ops(context, batch, set()))))
        else:
            raise _refusal(context, outcome, multi)
        outcome = yield multi


def _remember_opened(context: Context, multi: Multi, outcome: Outcome) -> None:
    """Segments that now exist need no create; those of a refused transaction are looked up again."""
    touched = {op.path for op in multi.ops}
    for name, memory in list(context.open_segments.items()):
        if not any(op.path in touched for op in memory[3]):
            continue
        if outcome.committed:
            memory[3] = []
        else:
            context.open_segments.pop(name, None)


def _may_reopen(context: Context, path: str, outcome: Outcome) -> bool:
    """Whether the refusal is a segment that came or went meanwhile, so that another try makes sense."""
    inside = path.startswith((context.paths.at("queue") + "/", context.paths.at("scheduled") + "/"))
    if inside and outcome.failure in {Failure.NO_NODE, Failure.NODE_EXISTS}:
        context.open_segments.clear()
        context.buckets.clear()
        return True
    return False


def _refusal(context: Context, outcome: Outcome, multi: Multi) -> ZkmqError:
    if outcome.failure is Failure.NO_NODE:
        context.conf_watch = None
        msg = f"queue {context.queue!r} was deleted under {context.root!r}; configure() creates it anew"
        return ConfigError(msg)
    return refused("enqueue", outcome, multi)


def _holder(context: Context, tree: Tree, *, uncertain: bool) -> Procedure[str | None]:
    """Who holds the id: None for our own lost try, else the status of the other task.

    The entry's name, which a task keeps for its whole life, holds our stamp.
    """
    path = context.paths.task(tree.task_id, "state")
    node: Node | None = yield Get(path)
    if node is None and uncertain:
        msg = f"task {tree.task_id!r} was written or not, and what stood there has been collected meanwhile"
        raise OutcomeUnknown(msg)
    if node is None:
        return "collected meanwhile"
    state = TaskState.decode(path, node.data)
    if uncertain and state.place.endswith("/" + entry_name(tree.stamp, tree.task_id)):
        return None
    return str(derive_status(state.state, scheduled=state.due is not None))
