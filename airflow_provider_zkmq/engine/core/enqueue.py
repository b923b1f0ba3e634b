"""Enqueue: the whole tree of a task and its pending entry, in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from airflow_provider_zkmq.engine.core import again
from airflow_provider_zkmq.engine.core.batch import open_batch, seal_batch
from airflow_provider_zkmq.engine.core.configure import read_conf
from airflow_provider_zkmq.engine.core.context import Context, OpenSegment
from airflow_provider_zkmq.engine.core.ops import Failure, Multi, Outcome, Pipeline, Procedure, WriteOp, request_size
from airflow_provider_zkmq.engine.core.paths import check_name
from airflow_provider_zkmq.engine.core.place import may_reopen, open_segment, remember_opened, slot_ops
from airflow_provider_zkmq.engine.core.records import Message
from airflow_provider_zkmq.engine.core.transact import failed_at, reconnect, refused
from airflow_provider_zkmq.engine.core.tree import Tree, due_of, prepare, scheduled_index
from airflow_provider_zkmq.engine.errors import ConfigError, DuplicateTask, ZkmqError

TREES_PER_MULTI: Final = 20
BATCH_BYTES: Final = 256_000
WINDOW: Final = 8


def enqueue(context: Context, message: Message) -> Procedure[str]:
    """Write one task; returns its id when it is durable."""
    ids = yield from enqueue_many(context, [message])
    return ids[0]


def enqueue_many(context: Context, messages: Sequence[Message]) -> Procedure[list[str]]:
    """Write many tasks, several trees a transaction and several transactions in flight; returns their ids in order.

    Every message is validated before the first is written. Each task is all or nothing; the call as a whole is
    not: `DuplicateTask` tells which ids were refused and which tasks were written.
    """
    trees = yield from prepare_many(context, messages)
    return (yield from write_trees(context, trees))


def enqueue_all(
    context: Context, messages: Sequence[Message], batch: str | None, then: Message | None
) -> Procedure[list[str]]:
    """Write many tasks, as a batch where it has a name."""
    if batch is not None:
        return (yield from enqueue_batch(context, messages, batch, then))
    if then is not None:
        msg = "then= needs batch=: it follows when the last task of a batch has ended"
        raise ConfigError(msg)
    return (yield from enqueue_many(context, messages))


def enqueue_batch(
    context: Context, messages: Sequence[Message], batch: str, then: Message | None = None
) -> Procedure[list[str]]:
    """Write many tasks as one batch, which is done when each of them has ended; `then` is enqueued at that moment.

    Members without an id of the caller's are named ``<batch>.<number>``, so that a call that was interrupted can be
    repeated: what it wrote already is not written twice. Raises `DuplicateTask` for a batch that is complete already,
    and for a member whose id is in use, by another message or another batch; then the batch waits to be repeated.
    The id of `then`, if it has one, must be free at the end; else the batch ends without it, see `Batch.refused`.
    """
    if not messages:
        msg = f"batch {batch!r} has no tasks"
        raise ConfigError(msg)
    name = check_name("batch", batch)
    named = [_member(name, number, message) for number, message in enumerate(messages)]
    trees = yield from prepare_many(context, named, name)
    following = None if then is None else (yield from prepare_many(context, [then]))[0]
    if any(tree.update or tree.requeue for tree in (*trees, *filter(None, [following]))):
        msg = f"batch {name!r}: neither its tasks nor the one that follows can update or requeue another"
        raise ConfigError(msg)
    fresh = yield from open_batch(context, name, following)
    for tree, message in zip(trees, messages, strict=True):
        tree.generated = fresh and isinstance(message, Message) and message.task_id is None
    ids = yield from write_trees(context, trees)
    yield from seal_batch(context, name, len(ids))
    return ids


def _member(batch: str, number: int, message: Message) -> Message:
    if not isinstance(message, Message) or message.task_id is not None:
        return message
    return replace(message, task_id=f"{batch}.{number:06d}")


def prepare_many(context: Context, messages: Sequence[Message], batch: str | None = None) -> Procedure[list[Tree]]:
    """Validate every message. Raises `ConfigError`, `TaskTooLarge`; nothing is written."""
    conf = yield from read_conf(context, create=True)
    trees = [prepare(context, conf, message, batch) for message in messages]
    _refuse_twins(trees)
    return trees


def write_trees(context: Context, trees: Sequence[Tree]) -> Procedure[list[str]]:
    """Write validated trees; see `enqueue_many`."""
    done: list[str] = []
    refused_ids: list[tuple[str, str | None]] = []
    batches = _batches(context, trees)
    for start in range(0, len(batches), WINDOW):
        yield from _write(context, batches[start : start + WINDOW], done, refused_ids)
    if refused_ids:
        raise _duplicates(refused_ids, done)
    return [tree.task_id for tree in trees]


def _refuse_twins(trees: Sequence[Tree]) -> None:
    times = Counter(tree.task_id for tree in trees)
    twin, most = times.most_common(1)[0] if times else ("", 0)
    if most > 1:
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
    written = []
    opened: set[str] = set()  # requests of one session are carried out in order: the first one opens for all
    for batch in batches:
        written.append((yield from _batch_ops(context, batch, opened)))
    outcomes: list[Outcome] = yield Pipeline(tuple(it.multi for it in written))
    for batch, it, outcome in zip(batches, written, outcomes, strict=True):
        status = yield from _settle_batch(context, batch, it, outcome)
        if status is None:
            done.extend(tree.task_id for tree in batch)
        else:
            refused_ids.append((batch[0].task_id, status))


@dataclass(slots=True)
class _Written:
    """A transaction of several trees, and the segments it writes to."""

    multi: Multi
    slots: list[OpenSegment]
    buckets: bool


def _batch_ops(context: Context, batch: list[Tree], opened: set[str]) -> Procedure[_Written]:
    ops: list[WriteOp] = []
    slots: list[OpenSegment] = []
    for tree in batch:
        if tree.delay > 0:
            due = yield from due_of(context, tree.delay)
            index = yield from scheduled_index(context, tree.task_id, due)
            ops += tree.ops(context, f"{tree.lane.name}//{tree.entry}", index, due)
        else:
            slot = yield from open_segment(context, tree.lane)
            slots.append(slot)
            checked = [op for op in slot_ops(slot, opened) if op not in ops]
            ops += [*checked, *tree.ops(context, f"{slot.lane.name}/{slot.segment}/{tree.entry}", None, None)]
    return _Written(Multi(tuple(ops)), slots, any(tree.delay > 0 for tree in batch))


def _settle_batch(context: Context, batch: list[Tree], it: _Written, outcome: Outcome) -> Procedure[str | None]:
    """Carry a batch to its end: None when it is written, or the status of the task that holds its first id."""
    uncertain = False
    first = batch[0]
    while True:
        remember_opened(context, it.multi, outcome)
        if outcome.committed:
            return None
        path = failed_at(outcome, it.multi)
        if outcome.unknown:
            uncertain = True
            yield from reconnect()
        elif outcome.failure is Failure.NODE_EXISTS and path == context.paths.task(first.task_id):
            met = yield from again.meet(context, first, uncertain=uncertain)
            if met is not again.Met.GONE:
                return met if isinstance(met, str) else None
        elif may_reopen(context, it.slots, it.multi, outcome) or _bucket_gone(context, it, path, outcome):
            it = yield from _batch_ops(context, batch, set())
        else:
            raise _refusal(context, outcome, it.multi)
        outcome = yield it.multi


def _bucket_gone(context: Context, it: _Written, path: str, outcome: Outcome) -> bool:
    """Whether a bucket of scheduled tasks was cleared away meanwhile."""
    inside = it.buckets and path.startswith(context.paths.at("scheduled") + "/")
    if inside and outcome.failure is Failure.NO_NODE:
        context.buckets.clear()
        return True
    return False


def _refusal(context: Context, outcome: Outcome, multi: Multi) -> ZkmqError:
    path = failed_at(outcome, multi)
    if outcome.failure is Failure.NO_NODE and path.startswith(context.paths.at("batches") + "/"):
        return ConfigError(f"the batch of {path} was deleted while its tasks were written")
    if outcome.failure is Failure.NO_NODE:
        context.conf_watch = None
        msg = f"queue {context.queue!r} was deleted under {context.root!r}; configure() creates it anew"
        return ConfigError(msg)
    return refused("enqueue", outcome, multi)
