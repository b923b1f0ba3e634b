"""The end of a batch: its last member closes it; a redriven one opens it again."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model import codec
from airflow_provider_zkmq.engine.core.model.codec import corrupt_unless_read, dump, load
from airflow_provider_zkmq.engine.core.model.names import index_path
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Children,
    Create,
    Delete,
    Exists,
    Failure,
    Get,
    Multi,
    Node,
    Outcome,
    Procedure,
    SetData,
    Stat,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.protocol.transact import never, transact
from airflow_provider_zkmq.engine.core.read.configuration import read_conf
from airflow_provider_zkmq.engine.core.read.nodes import read_nodes, read_stats, unless_corrupt
from airflow_provider_zkmq.engine.core.read.server_clock import ordering_time, server_time
from airflow_provider_zkmq.engine.core.write.commit import Change, Plan, Refusal, Why, commit, known_bucket
from airflow_provider_zkmq.engine.core.write.new_task import insert, listed_at, unpack
from airflow_provider_zkmq.engine.core.write.record import Current
from airflow_provider_zkmq.engine.errors import CorruptRecord, TransportError, ZkmqError

# --- Ending a batch: ``open`` is deleted in the transaction that enqueues what follows, once no member is left in it.
#
# Whoever takes the last member off ends the batch; a crash or a lost connection in between leaves an empty
# ``open``, which the same client's next look, a waiter, the rescue of a dead consumer or a clean-up deletes.

_FIELDS: Final[dict[str, codec.Check[Any]]] = {
    "total": codec.count,
    "then": codec.optional(codec.part),
    "refused": codec.optional(codec.shown),
    "nonce": codec.optional(codec.text),
}


def load_batch(path: str, data: bytes) -> dict[str, Any]:
    """A batch's record. Raises `CorruptRecord`."""
    record = load(path, data)
    with corrupt_unless_read(path, "a batch"):
        return record | {name: check(record[name]) for name, check in _FIELDS.items() if name in record}


def close_after(context: Context, name: str | None) -> Procedure[None]:
    """End a batch after a write that is committed and must not be told to have failed.

    Where the connection is lost, or the call is broken off, the batch is remembered for `close_pending`.
    """
    if name is None:
        return
    try:
        yield from close_batch(context, name)
    except TransportError:
        _remember(context, name)
    except ZkmqError as error:
        context.report(context.paths.batch(name), str(error), damage=str(error))
    except BaseException:
        _remember(context, name)
        raise


def _remember(context: Context, name: str | None) -> None:
    if name is not None:
        context.pending.batches.add(name)
        context.run.finish_later()


def close_pending(context: Context) -> Procedure[None]:
    """End the batches that this client could not end when it took their last member off."""
    for name in list(context.pending.batches):
        context.pending.batches.discard(name)
        yield from close_after(context, name)


def close_batches(context: Context) -> Procedure[None]:
    """End what a crash left without an end. What cannot be read is reported and stepped over."""
    names = (yield Children(context.paths.at("batches"))) or ()
    stats = yield from read_stats([context.paths.batch(name, "open") for name in names])
    for name, stat in zip(names, stats, strict=True):
        if stat is not None and not stat.children:
            yield from close_after(context, name)


def close_batch(context: Context, name: str | None) -> Procedure[None]:
    """End a batch if the last of its members has ended. Raises `CorruptRecord` for a record that cannot be read."""
    if name is None:
        return
    stat: Stat | None = yield Exists(context.paths.batch(name, "open"))
    if stat is None or stat.children:
        return
    yield from read_conf(context)
    plan = yield from _ending(context, name)
    if plan is not None:
        yield from commit(plan, partial(_anew, context, name))


def _ending(context: Context, name: str) -> Procedure[Plan | None]:
    """How to end a batch as it stands now; None where it is not there any more."""
    base = context.paths.batch(name)
    node, follow_up = yield from read_nodes((base, f"{base}/then"))
    if node is None:
        return None
    record = load_batch(base, node.data)
    following, lost = yield from _following(context, base, record, follow_up)
    now = yield from server_time(context)
    index = index_path("batches-done", now, name)
    yield from known_bucket(context, index)
    done = dump(record | {"done": now} | ({"refused": lost} if lost else {}))
    closing = Change(context, name, [Delete(f"{base}/open"), SetData(base, done, node.stat.version)])
    closing.proof = partial(_closed, context, name)
    closing.preconditions[base] = frozenset({Failure.BAD_VERSION})
    if lost:
        closing.on_commit = partial(_notify, context, f"{base}/then", lost)
    return Plan([closing, *following, listed_at(context, name, index)])


def _following(
    context: Context, base: str, record: dict[str, Any], node: Node | None
) -> Procedure[tuple[list[Change], str | None]]:
    """What enqueues the task that follows, or why it cannot; then only its notice is deleted."""
    path, follow_up = f"{base}/then", record.get("then")
    if node is None:
        return [], f"{path} is missing: task {follow_up!r} cannot follow the batch" if follow_up else None
    drop = Change(context, str(follow_up), [Delete(path)])
    if record.get("refused"):
        return [drop], None
    try:
        new = unpack(context, path, node.data)
    except CorruptRecord as error:
        return [drop], f"{error}; nothing follows the batch"
    new.stamp = context.marks.stamp((yield from ordering_time(context)))
    return [drop, (yield from insert(context, new))], None


def _notify(context: Context, path: str, why: str) -> Procedure[None]:
    context.report(path, why)
    return
    yield  # pragma: no cover


def _closed(context: Context, name: str) -> Procedure[Outcome | None]:
    gone = (yield Exists(context.paths.batch(name, "open"))) is None
    return Outcome(committed=True) if gone else None


def _anew(context: Context, name: str, refusal: Refusal) -> Procedure[Plan | None]:
    """The plan made anew where its record changed or a segment came or went; without a follow-up whose id is in use."""
    if refusal.why in {Why.CHANGED, Why.PLACE} or (yield from _follow_up_is_in_use(context, name, refusal)):
        return (yield from _ending(context, name))
    return None


def _follow_up_is_in_use(context: Context, name: str, refusal: Refusal) -> Procedure[bool]:
    """The id of the task that follows is another task's: note it, and end the batch without it."""
    base, task_id = context.paths.batch(name), refusal.change.task_id
    taken = refusal.outcome.failure is Failure.NODE_EXISTS and refusal.path == context.paths.task(task_id)
    if not taken:
        return False
    node: Node | None = yield Get(base)
    if node is None:
        return False
    why = f"task {task_id!r}, which should follow the batch, was not enqueued: its id is in use"
    context.report(base, why)
    yield from transact(Multi((SetData(base, dump(load_batch(base, node.data) | {"refused": why})),)), never)
    return True


# --- A redriven task is a member of its batch again: the batch waits for it, and opens again if it was done.
#
# Whoever waits for the batch from then on waits for this member, too, and is told how it ended this time. The task
# that follows the batch was enqueued when it was done first, and is not enqueued again.


def rejoin(context: Context, current: Current) -> Procedure[list[Change]]:
    """What makes a task that has ended an open member of its batch again; nothing where that is gone by now.

    It stands under the batch's znodes as they were read: where the batch ends at the same moment, this is refused.
    """
    if current.state.batch is None:
        return []
    base, task_id = context.paths.batch(current.state.batch), current.task_id
    paths = (base, f"{base}/open", f"{base}/open/{task_id}", f"{base}/failed/{task_id}")
    batch, members, member, failed = yield from read_nodes(paths)
    creates = [] if members is not None else (yield from _reopening(context, current.state.batch, batch))
    if batch is None or creates is None:
        return []
    ops: list[WriteOp] = [] if failed is None else [Delete(paths[3])]
    if member is None:  # one that is there was left by somebody else, and holds up nothing
        ops.append(Create(paths[2]))
    return [Change(context, task_id, [*creates, *ops])]


def _reopening(context: Context, name: str, batch: Node | None) -> Procedure[list[WriteOp] | None]:
    """What opens a batch that is done; None for one that is gone, or was given up before it was written to its end."""
    base = context.paths.batch(name)
    record = None if batch is None else unless_corrupt(context, base, partial(load_batch, base, batch.data))
    if batch is None or record is None or "total" not in record:
        return None
    done = record.pop("done", None)
    ops: list[WriteOp] = [SetData(base, dump(record | {"then": None}), batch.stat.version), Create(f"{base}/open")]
    listed = context.paths.at(index_path("batches-done", done, name)) if isinstance(done, int) else None
    if listed is not None and (yield Exists(listed)) is not None:
        ops.append(Delete(listed))
    return ops
