"""Ending a batch: ``open`` is deleted in the transaction that enqueues what follows, once no member is left in it.

Whoever takes the last member off ends the batch; a crash or a lost connection in between leaves an empty ``open``,
which the same client's next look, a waiter, the burial of a dead consumer or a clean-up deletes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.slots import OpenSegment
from airflow_provider_zkmq.engine.core.model.buckets import index_path
from airflow_provider_zkmq.engine.core.model.records import dump, load
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Children,
    Create,
    Delete,
    Exists,
    Failure,
    GetMany,
    Multi,
    Node,
    Outcome,
    Pipeline,
    Procedure,
    SetData,
    Stat,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, never, transact
from airflow_provider_zkmq.engine.core.protocol.tries import Races
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configure import read_conf
from airflow_provider_zkmq.engine.core.writing.draft import due_of, scheduled_index, unpack
from airflow_provider_zkmq.engine.core.writing.place import known_bucket, may_reopen, open_segment, remember_opened
from airflow_provider_zkmq.engine.errors import CorruptRecord, TransportError, ZkmqError

T = TypeVar("T")


def load_batch(path: str, data: bytes) -> dict[str, Any]:
    """A batch's record. Raises `CorruptRecord`."""
    record = load(path, data)
    total, texts = record.get("total", 0), [record.get(name) for name in ("then", "refused", "nonce")]
    if isinstance(total, bool) or not isinstance(total, int) or not all(isinstance(it, str | None) for it in texts):
        msg = f"{path} does not hold a batch"
        raise CorruptRecord(msg)
    return record


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
        context.report(context.paths.batch(name), str(error))
    except BaseException:
        _remember(context, name)
        raise


def leaving(context: Context, name: str | None, procedure: Procedure[T]) -> Procedure[T]:
    """Carry out a write that may take the last member off a batch.

    Where it is cut off, or its outcome stays unknown, the batch is remembered for `close_pending`: the write may have
    happened, and its caller may never ask again.
    """
    try:
        return (yield from procedure)
    except BaseException:
        _remember(context, name)
        raise


def _remember(context: Context, name: str | None) -> None:
    if name is not None:
        context.debts.batches.add(name)
        context.run.pay()


def close_pending(context: Context) -> Procedure[None]:
    """End the batches that this client could not end when it took their last member off."""
    for name in list(context.debts.batches):
        context.debts.batches.discard(name)
        yield from close_after(context, name)


def close_batches(context: Context) -> Procedure[None]:
    """End what a crash left without an end. What cannot be read is reported and stepped over."""
    names = (yield Children(context.paths.at("batches"))) or ()
    stats: list[Stat | None] = yield Pipeline(tuple(Exists(context.paths.batch(name, "open")) for name in names))
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
    races = Races()
    while (end := (yield from _end(context, name))) is not None:
        outcome = yield from transact(end.multi, partial(_closed, context, name))
        remember_opened(context, end.multi, outcome)
        if outcome.committed and end.lost:
            context.report(f"{end.base}/then", end.lost)
        if outcome.committed or races.lost(outcome, end.multi) or not (yield from _again(context, end, outcome)):
            return


@dataclass(frozen=True, slots=True)
class _End:
    """The transaction that ends a batch: its record, the segments and the indexes that it writes to."""

    base: str
    record: dict[str, Any]
    ops: tuple[WriteOp, ...]
    indexes: tuple[str, ...]
    slots: list[OpenSegment] = field(default_factory=list)
    lost: str | None = None
    """Why the task that should follow cannot be read."""

    @property
    def multi(self) -> Multi:
        return Multi(self.ops)


def _end(context: Context, name: str) -> Procedure[_End | None]:
    """How to end a batch as it stands now; None where it is not there any more."""
    base = context.paths.batch(name)
    nodes: list[Node | None] = yield GetMany((base, f"{base}/then"))
    if nodes[0] is None:
        return None
    now = yield from server_time(context)
    index = index_path("batches-done", now, name)
    yield from known_bucket(context, index)
    end = yield from _following(context, _End(base, load_batch(base, nodes[0].data), (), (index,)), nodes[1])
    done = dump(end.record | {"done": now} | ({"refused": end.lost} if end.lost else {}))
    closing = (Delete(f"{base}/open"), SetData(base, done, nodes[0].stat.version))
    return replace(end, ops=(*closing, *end.ops, Create(context.paths.at(index))))


def _following(context: Context, end: _End, node: Node | None) -> Procedure[_End]:
    """What enqueues the task that follows; only its notice is deleted where its id is in use or it cannot be read."""
    path, then = f"{end.base}/then", end.record.get("then")
    if node is None:
        return replace(end, lost=f"{path} is missing: task {then!r} cannot follow the batch" if then else None)
    drop = Delete(path)
    if end.record.get("refused"):
        return replace(end, ops=(drop,))
    try:
        tree = unpack(context, path, node.data)
    except CorruptRecord as error:
        return replace(end, ops=(drop,), lost=f"{error}; nothing follows the batch")
    tree.stamp = context.marks.stamp()
    if tree.delay:
        due = yield from due_of(context, tree.delay)
        index = yield from scheduled_index(context, tree.task_id, due)
        ops = tree.ops(context, f"{tree.lane.name}//{tree.entry}", index, due)
        return replace(end, ops=(drop, *ops), indexes=(*end.indexes, index))
    slot = yield from open_segment(context, tree.lane)
    ops = tree.ops(context, f"{slot.lane.name}/{slot.segment}/{tree.entry}", None, None)
    return replace(end, ops=(drop, *slot.ops, *ops), slots=[slot])


def _closed(context: Context, name: str) -> Procedure[Outcome | None]:
    gone = (yield Exists(context.paths.batch(name, "open"))) is None
    return Outcome(committed=True) if gone else None


def _again(context: Context, end: _End, outcome: Outcome) -> Procedure[bool]:
    """Whether another try makes sense: the record changed, a bucket or a segment came or went meanwhile."""
    path = failed_at(outcome, end.multi)
    if path == end.base:
        return outcome.failure is Failure.BAD_VERSION
    if path in {context.paths.at(index) for index in end.indexes} and outcome.failure is Failure.NO_NODE:
        context.slots.buckets.discard(path.rpartition("/")[0])
        return True
    return may_reopen(context, end.slots, end.multi, outcome) or (yield from _then_is_in_use(context, end, outcome))


def _then_is_in_use(context: Context, end: _End, outcome: Outcome) -> Procedure[bool]:
    """The id of the task that follows is another task's: note it, and end the batch without it."""
    task_id = end.record.get("then")
    met = outcome.failure is Failure.NODE_EXISTS and bool(task_id)
    if not met or failed_at(outcome, end.multi) != context.paths.task(str(task_id)):
        return False
    why = f"task {task_id!r}, which should follow the batch, was not enqueued: its id is in use"
    context.report(end.base, why)
    yield from transact(Multi((SetData(end.base, dump(end.record | {"refused": why})),)), never)
    return True
