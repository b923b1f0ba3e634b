"""Batches: tasks enqueued together, waited for at the cost of one watch, and followed by one more task.

Each member that has not ended stands under ``batches/<batch>/open``; the transaction that ends it takes it off.
Whoever takes the last one off then deletes ``open`` itself, in the transaction that enqueues the task that follows:
that deletion is what waiters watch (`core.closing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import optional_seconds
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.records import dump
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Get, Node, Procedure, Sync, Wait
from airflow_provider_zkmq.engine.core.protocol.transact import refused, transact
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, Failure, Multi, Outcome, SetData, WriteOp
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes
from airflow_provider_zkmq.engine.core.reading.watched import shared_nodes, unsubscribe
from airflow_provider_zkmq.engine.core.writing.closing import close_after, close_batch, load_batch
from airflow_provider_zkmq.engine.core.writing.draft import Tree, pack
from airflow_provider_zkmq.engine.errors import DuplicateTask, TaskNotFound, WaitTimeout

#: Stands among the open members while they are being written; no task can have this name.
WRITING: Final = "~writing"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it was read: how many tasks it has, how many have not ended, which ended dead or cancelled.

    ``written`` is False while the call that enqueues it has not come to its end; if it was interrupted, repeat it.
    ``refused``: why the task that should follow was not enqueued.
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


def open_batch(context: Context, name: str, then: Tree | None, nonce: str) -> Procedure[Opened]:
    """Create a batch; it may be there from a call that was broken off, and be written to its end now.

    `nonce` is the call's: by it a call made again knows what it has written to its end already. Raises
    `DuplicateTask` for a batch that another call wrote.
    """
    base = context.paths.batch(name)
    record = dump({"v": 1, "nonce": nonce, "then": None if then is None else then.task_id})
    ops: list[WriteOp] = [Create(base, record), *(Create(f"{base}/{part}") for part in ("open", "failed"))]
    ops.append(Create(f"{base}/open/{WRITING}"))
    if then is not None:
        ops.append(Create(f"{base}/then", pack(then)))
    multi = Multi(tuple(ops))

    def ours() -> Procedure[Outcome | None]:
        return Outcome(committed=True) if (yield from _is_of(base, nonce)) else None

    outcome = yield from transact(multi, ours)
    if outcome.committed:
        return Opened.FRESH
    if outcome.failure is not Failure.NODE_EXISTS:
        raise refused(f"creating batch {name!r}", outcome, multi)
    if (yield Exists(f"{base}/open/{WRITING}")) is not None:
        return Opened.UNFINISHED
    if (yield from _is_of(base, nonce)):
        return Opened.SEALED
    msg = f"batch {name!r} exists in queue {context.queue!r}; give each batch a name of its own"
    raise DuplicateTask(msg)


def _is_of(base: str, nonce: str) -> Procedure[bool]:
    """Whether a batch was created by the call that has this nonce."""
    return ((yield from _record(base)) or {}).get("nonce") == nonce


def _record(base: str) -> Procedure[dict[str, Any] | None]:
    """A batch's record; None where there is no such batch. Raises `CorruptRecord`."""
    node: Node | None = yield Get(base)
    return None if node is None else load_batch(base, node.data)


def seal_batch(context: Context, name: str, total: int) -> Procedure[None]:
    """All members are written: from now on the batch is done when the last of them has ended."""
    base = context.paths.batch(name)
    record = (yield from _record(base)) or {}
    multi = Multi((Delete(f"{base}/open/{WRITING}"), SetData(base, dump(record | {"total": total}))))

    def ours() -> Procedure[Outcome | None]:
        sealed = "total" in ((yield from _record(base)) or {})
        return Outcome(committed=True) if sealed else None

    outcome = yield from transact(multi, ours)
    if not outcome.committed and outcome.failure is not Failure.NO_NODE:  # another call wrote the same batch
        raise refused(f"sealing batch {name!r}", outcome, multi)
    yield from close_after(context, name)


def read_batch(context: Context, name: str) -> Procedure[Batch]:
    """How a batch stands. Raises `TaskNotFound` for one that does not exist or was collected."""
    base = context.paths.batch(check_name("batch", name))
    paths = (base, f"{base}/open", f"{base}/open/{WRITING}")
    nodes = yield from read_nodes(paths)
    if nodes[0] is None:
        yield Sync(base)  # the server that we read from may lag behind
        nodes = yield from read_nodes(paths)
    record, left, writing = nodes
    if record is None:
        msg = f"batch {name!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    told = load_batch(base, record.data)
    failed = yield Children(f"{base}/failed")
    still = 0 if left is None else left.stat.children - (writing is not None)
    ended = tuple(sorted(failed or ()))
    return Batch(name, told.get("total", 0), still, ended, left is None, writing is None, told.get("refused"))


def _not_done(context: Context, batch: Batch) -> Procedure[WaitTimeout]:
    names = sorted((yield Children(context.paths.batch(batch.name, "open"))) or ())
    left = [name for name in names if name != WRITING]
    why = f"{len(left)} task(s) open" if batch.written else "it was never written to its end: repeat its enqueue_many"
    msg = f"batch {batch.name!r} of queue {context.queue!r} was not done in time: {why}"
    return WaitTimeout(msg, left=left)


def wait_batch(context: Context, name: str, timeout: object = None) -> Procedure[Batch]:
    """Wait until every task of a batch has ended, whichever way; one watch, however many tasks.

    Raises `WaitTimeout`, which names what has not ended, and `TaskNotFound` for a batch that does not exist.
    """
    span = optional_seconds("timeout", timeout)
    deadline = None if span is None else context.run.monotonic() + span
    batch = yield from read_batch(context, name)
    path, mine = context.paths.batch(name, "open"), context.run.new_signal()
    try:
        while not batch.done:
            seen = mine.count
            nodes = yield from shared_nodes(context, [path], mine)
            if nodes[0] is not None:
                yield from close_batch(context, name)  # whoever ended the last one may have died before this
            if nodes[0] is not None and mine.count == seen:
                pause = None if deadline is None else deadline - context.run.monotonic()
                if pause is not None and pause <= 0:
                    raise (yield from _not_done(context, batch))
                yield Wait(mine, seen, pause)
            batch = yield from read_batch(context, name)
    finally:
        unsubscribe(context, [path], mine)
    return batch
