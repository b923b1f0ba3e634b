"""Batches: tasks enqueued together, waited for at the cost of one watch, and followed by one more task.

Each member that has not ended stands under ``batches/<batch>/open``; the transaction that ends it takes it off.
Whoever takes the last one off then deletes ``open`` itself, in the transaction that enqueues the task that follows:
that deletion is what waiters watch (`core.write.transitions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ...errors import DuplicateTask, TaskNotFound, WaitTimeout
from .. import zk_operations as zk
from ..client_state import Context, Deadline
from ..model.values import Duration, dump
from ..model.znode_names import check_name
from ..read import bulk_read, queue_existence, watch_cache, watch_tasks
from ..transaction_retries import Holds, Tries, failed_at, refused, transact
from ..write.batch_end import close_after, close_batch, load_batch
from ..write.new_task import WRITING, NewTask, pack, stamped
from ..zk_operations import Procedure

DELETES_PER_MULTI: Final = 500


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it was read: how many tasks it has, how many have not ended, which ended in failure.

    ``failed``: those that are dead or cancelled, or were dropped or cleared before they had ended. A member that is
    redriven has not ended any more and has not failed: the batch waits for it, and one that was ``done`` is open again
    until it has ended once more. ``written`` is False while it is being written, by one call or by
    several writers; if that was interrupted, repeat it. ``refused``: why the task that should follow was not enqueued.
    """

    name: str
    total: int
    open: int
    failed: tuple[str, ...]
    done: bool
    written: bool = True
    refused: str | None = None


class Opened(Enum):
    """How a batch stands that a call is about to write."""

    FRESH = "fresh"
    UNFINISHED = "unfinished"
    SEALED = "sealed"


def open_batch(context: Context, name: str, then: NewTask | None, nonce: str) -> Procedure[Opened]:
    """Create a batch; it may be there from a call that was broken off, and be written to its end now.

    `nonce` is the call's: by it a call made again knows what it has written to its end already. Raises
    `DuplicateTask` for a batch that another call wrote.
    """
    base = context.paths.batch(name)
    if then is not None:
        yield from stamped(context, then)
    record = dump({"nonce": nonce, "then": None if then is None else then.task_id})
    paths = (f"{base}/open", f"{base}/failed", f"{base}/open/{WRITING}")
    ops = [
        zk.Create(base, record),
        *map(zk.Create, paths),
        *([] if then is None else [zk.Create(f"{base}/then", pack(then))]),
    ]
    multi = zk.Multi(tuple(ops))

    tries = Tries(f"creating batch {name!r}")
    while True:
        outcome = yield from transact(multi, Holds(((base, nonce.encode()),)))
        if outcome.committed:
            return Opened.FRESH
        if outcome.failure is zk.Failure.NO_NODE and (yield from queue_existence.restored(context, base)):
            continue
        if outcome.failure is not zk.Failure.NODE_EXISTS:
            raise refused(f"creating batch {name!r}", outcome, multi)
        opened = yield from _as_it_stands(context, name, nonce)
        if opened is not None:
            return opened
        yield from tries.refused(outcome, multi, None)


def _read_parts(base: str) -> Procedure[list[zk.Node | None]]:
    """A batch's own znode, that of its open members, and the marker among these, as long as they are being written."""
    return bulk_read.read_nodes((base, f"{base}/open", f"{base}/open/{WRITING}"))


def _as_it_stands(context: Context, name: str, nonce: str) -> Procedure[Opened | None]:
    """How a batch stands that is there already; None: it is not any more. Raises `DuplicateTask` for another call's."""
    base = context.paths.batch(name)
    node, members, marker = yield from _read_parts(base)
    if node is None:
        return None
    if marker is not None:
        return Opened.UNFINISHED
    record = load_batch(base, node.data)
    if "total" not in record and members is None:
        # Never written to its end, and without open members: a clean-up gave it up, and was cut off before the rest.
        yield from delete_batch(context, None, base)
        return None
    if record.get("nonce") == nonce:
        return Opened.SEALED
    msg = f"batch {name!r} exists in queue {context.queue!r}; give each batch a name of its own"
    raise DuplicateTask(msg)


def is_sealed(context: Context, name: str) -> Procedure[bool]:
    """Whether a batch is there and was written to its end. Raises `CorruptRecord`."""
    base = context.paths.batch(name)
    yield zk.Sync(base)
    return "total" in (yield from _record(base))


def _record(base: str) -> Procedure[dict[str, Any]]:
    """A batch's record; empty where there is no such batch. Raises `CorruptRecord`."""
    node: zk.Node | None = yield zk.Get(base)
    return {} if node is None else load_batch(base, node.data)


def seal_batch(context: Context, name: str, total: int, version: int = -1) -> Procedure[bool]:
    """All members are written: from now on the batch is done when the last of them has ended.

    `version`: the marker's when `total` was counted; False, with nothing done, where members were added since.
    """
    base = context.paths.batch(name)
    record = yield from _record(base)
    multi = zk.Multi((zk.Delete(f"{base}/open/{WRITING}", version), zk.SetData(base, dump(record | {"total": total}))))
    outcome = yield from transact(multi, Holds(((base, b'"total":'),)))
    if outcome.failure is zk.Failure.BAD_VERSION:
        return False
    if not outcome.committed and outcome.failure is not zk.Failure.NO_NODE:  # another call wrote the same batch
        raise refused(f"sealing batch {name!r}", outcome, multi)
    yield from close_after(context, name)
    return True


def read_batch(context: Context, name: str) -> Procedure[Batch]:
    """How a batch stands. Raises `TaskNotFound` for one that does not exist or was collected."""
    base = context.paths.batch(check_name("batch", name))
    record, left, writing = yield from _read_parts(base)
    if record is None:
        yield zk.Sync(base)  # the server that we read from may lag behind
        record, left, writing = yield from _read_parts(base)
    if record is None:
        msg = f"batch {name!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    fields, failed = load_batch(base, record.data), sorted((yield zk.Children(f"{base}/failed")) or ())
    members = 0 if left is None else left.stat.children - (writing is not None)
    total, refusal = fields.get("total", 0), fields.get("refused")
    return Batch(name, total, members, tuple(failed), left is None, writing is None, refusal)


def wait_batch(context: Context, name: str, timeout: Duration | None = None) -> Procedure[Batch]:
    """Wait until every task of a batch has ended, whichever way; one watch, however many tasks.

    `Batch.failed` names those that ended in failure: dead, cancelled, or dropped or cleared before they had ended. Once
    one of them is redriven the batch is open again, and can be waited for again; what follows it comes once only.
    Raises `WaitTimeout`, which names what has not ended, and `TaskNotFound` for a batch that does not exist.
    """
    deadline = yield from Deadline.after(context, timeout)
    batch = yield from read_batch(context, name)
    path, mine = context.paths.batch(name, "open"), context.run.new_signal()
    try:
        while not batch.done:
            seen = mine.count
            nodes = yield from watch_cache.shared_nodes(context, [path], mine)
            if nodes[0] is not None:
                yield from close_batch(context, name)  # whoever ended the last one may have died before this
            if nodes[0] is not None and mine.count == seen:
                if deadline.passed:
                    names = sorted((yield zk.Children(path)) or ())
                    left = [each for each in names if each != WRITING]
                    failed = sorted((yield zk.Children(context.paths.batch(name, "failed"))) or ())
                    unwritten = "it was never written to its end: repeat what writes it"
                    why = f"{len(left)} task(s) open" if batch.written else unwritten
                    msg = f"batch {name!r} of queue {context.queue!r} was not done within {deadline}"
                    raise WaitTimeout(f"{msg}: {why}{watch_tasks.failed_too(failed)}", left=left)
                yield from deadline.wait(mine, seen)
            batch = yield from read_batch(context, name)
    finally:
        watch_cache.unsubscribe(context, [path], mine)
    return batch


def delete_batch(context: Context, entry: str | None, base: str) -> Procedure[None]:
    """Delete what is kept of a batch that is over, and the entry that lists it, if it is listed.

    Under the version of its record: one that a redriven member opens again meanwhile is kept, with all that it tells.
    """
    stat: zk.Stat | None = yield zk.Exists(base)
    same = zk.Check(base, -1 if stat is None else stat.version)
    for names in bulk_read.chunked((yield zk.Children(f"{base}/failed")) or (), DELETES_PER_MULTI):
        yield zk.Multi((same, *(zk.Delete(f"{base}/failed/{name}") for name in names)))
    listed = [] if entry is None else [zk.Delete(entry)]
    multi = zk.Multi((same, zk.Delete(f"{base}/failed"), zk.Delete(base), *listed))
    outcome = yield from transact(multi)
    if outcome.committed:
        return
    if entry is not None and (yield zk.Exists(base)) is None:  # the batch itself is gone: then its entry goes as well
        yield zk.Multi((zk.Delete(entry),))
        return
    if outcome.failure is zk.Failure.NOT_EMPTY:
        context.report(failed_at(outcome, multi), "holds znodes that are not ours; the batch is kept")
