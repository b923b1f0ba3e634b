"""Enqueue: one message, many, or a batch of them; each task's tree and its entry are written in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Procedure
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.members import member_id
from airflow_provider_zkmq.engine.core.tasks.batches import Opened, open_batch, seal_batch
from airflow_provider_zkmq.engine.core.tasks.bulk import write_trees
from airflow_provider_zkmq.engine.core.tasks.repeat import Call, begin, check_written, told
from airflow_provider_zkmq.engine.core.writing.draft import Tree, prepare
from airflow_provider_zkmq.engine.errors import ConfigError, Unavailable


def enqueue(context: Context, message: Message) -> Procedure[str]:
    """Write one task; returns its id when it is durable."""
    ids = yield from enqueue_many(context, [message])
    return ids[0]


def enqueue_many(context: Context, messages: Sequence[Message]) -> Procedure[list[str]]:
    """Write many tasks, several trees a transaction and several transactions in flight; returns their ids in order.

    Every message is validated before the first is written. Each task is all or nothing; the call as a whole is
    not: `DuplicateTask` tells which ids were refused and which tasks were written.

    `OutcomeUnknown`: the connection was lost, and the messages were written or not, under the ids in its `task_ids`, in
    their order. The same messages with these ids, enqueued again by the same client, are the same tasks, each written
    once: what was written is found by its stamp, and what comes late is refused. See `core.tasks.repeat`.
    """
    trees = yield from prepare_many(context, messages)
    call = begin(context, trees)
    return (yield from told(context, call, write_trees(context, trees, call)))


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
    call = begin(context, trees, following, name)
    return (yield from told(context, call, _write_batch(context, call, messages, name, following)))


def _write_batch(
    context: Context, call: Call, messages: Sequence[Message], name: str, then: Tree | None
) -> Procedure[list[str]]:
    trees, before, call.opened = call.trees, call.opened, True
    try:
        opened = yield from open_batch(context, name, then, call.nonce)
    except Unavailable:
        call.opened = before  # nothing was sent now
        raise
    if opened is not Opened.SEALED:
        for tree, message in zip(trees, messages, strict=True):
            tree.generated = opened is Opened.FRESH and message.task_id is None
        if opened is Opened.UNFINISHED:
            ended = set((yield Children(context.paths.batch(name, "failed"))) or ())
            call.done(tree for tree in trees if tree.task_id in ended)  # whatever became of it since, it has ended
        yield from write_trees(context, trees, call)
        check_written(context, call)
        yield from seal_batch(context, name, len(trees))
    return [tree.task_id for tree in trees]


def _member(batch: str, number: int, message: Message) -> Message:
    if not isinstance(message, Message) or message.task_id is not None:
        return message
    return replace(message, task_id=member_id(batch, number))


def prepare_many(context: Context, messages: Sequence[Message], batch: str | None = None) -> Procedure[list[Tree]]:
    """Validate every message. Raises `ConfigError`, `TaskTooLarge`; nothing is written."""
    conf = yield from read_conf(context, create=True)
    trees = [prepare(context, conf, message, batch) for message in messages]
    refuse_twins(trees)
    return trees


def refuse_twins(trees: Sequence[Tree]) -> None:
    """Raise `ConfigError` for an id that stands twice among what one call is to write."""
    times = Counter(tree.task_id for tree in trees)
    twin, most = times.most_common(1)[0] if times else ("", 0)
    if most > 1:
        msg = f"task id {twin!r} stands twice in the same call; nothing was written"
        raise ConfigError(msg)
