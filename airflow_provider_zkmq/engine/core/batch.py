"""Batches: tasks enqueued together, waited for at the cost of one watch, and followed by one more task.

Each member that has not ended stands under ``batches/<batch>/open``; the transaction that ends it takes it off.
Whoever takes the last one off then deletes ``open`` itself, in the transaction that enqueues the task that follows:
that deletion is what waiters watch. A crash in between leaves an empty ``open``, which the next waiter, the rescue
of the crashed consumer or the next clean-up deletes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_zkmq.engine.core.configure import optional_seconds, read_conf
from airflow_provider_zkmq.engine.core.context import Context, OpenSegment, shared_nodes, unsubscribe
from airflow_provider_zkmq.engine.core.ops import (
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
    Wait,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.paths import check_name
from airflow_provider_zkmq.engine.core.place import may_reopen, open_segment, remember_opened
from airflow_provider_zkmq.engine.core.records import TaskState, dump, load
from airflow_provider_zkmq.engine.core.schedule import index_path
from airflow_provider_zkmq.engine.core.states import ENDED, State
from airflow_provider_zkmq.engine.core.transact import ensure_bucket, failed_at, refused, server_time, transact
from airflow_provider_zkmq.engine.core.tree import Tree, due_of, pack, scheduled_index, unpack
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


def leaves_batch(before: TaskState, after: TaskState) -> bool:
    """Whether a change of state ends a task's part in its batch."""
    pending = before.state in {State.INSERTED, State.CLAIMED}
    return before.batch is not None and pending and (after.state in ENDED or after.batch is None)


def membership(context: Context, task_id: str, state: TaskState, *, failed: bool = False) -> list[WriteOp]:
    """What takes a task off its batch's open ones; `failed`: it ended dead or cancelled."""
    if state.batch is None or state.state in ENDED:
        return []
    ops: list[WriteOp] = [Delete(context.paths.batch(state.batch, "open", task_id))]
    if failed:
        ops.append(Create(context.paths.batch(state.batch, "failed", task_id)))
    return ops


def open_batch(context: Context, name: str, then: Tree | None) -> Procedure[bool]:
    """Create a batch; False if it is there and was never written to its end, which may be done now.

    Raises `DuplicateTask` for one that was.
    """
    nonce, base = context.nonce(), context.paths.batch(name)
    record = dump({"v": 1, "nonce": nonce, "then": None if then is None else then.task_id})
    ops: list[WriteOp] = [Create(base, record), *(Create(f"{base}/{part}") for part in ("open", "failed"))]
    ops.append(Create(f"{base}/open/{WRITING}"))
    if then is not None:
        ops.append(Create(f"{base}/then", pack(then)))
    multi = Multi(tuple(ops))

    def ours() -> Procedure[Outcome | None]:
        nodes: list[Node | None] = yield GetMany((base,))
        mine = nodes[0] is not None and load(base, nodes[0].data).get("nonce") == nonce
        return Outcome(committed=True) if mine else None

    outcome = yield from transact(multi, ours)
    if outcome.committed:
        return True
    if outcome.failure is not Failure.NODE_EXISTS:
        raise refused(f"creating batch {name!r}", outcome, multi)
    if (yield Exists(f"{base}/open/{WRITING}")) is None:
        msg = f"batch {name!r} exists in queue {context.queue!r}; give each batch a name of its own"
        raise DuplicateTask(msg)
    return False


def seal_batch(context: Context, name: str, total: int) -> Procedure[None]:
    """All members are written: from now on the batch is done when the last of them has ended."""
    base = context.paths.batch(name)
    nodes: list[Node | None] = yield GetMany((base,))
    record = load(base, nodes[0].data) if nodes[0] is not None else {}
    multi = Multi((Delete(f"{base}/open/{WRITING}"), SetData(base, dump(record | {"total": total}))))

    def ours() -> Procedure[Outcome | None]:
        nodes: list[Node | None] = yield GetMany((base,))
        sealed = nodes[0] is not None and "total" in load(base, nodes[0].data)
        return Outcome(committed=True) if sealed else None

    outcome = yield from transact(multi, ours)
    if not outcome.committed and outcome.failure is not Failure.NO_NODE:  # another call wrote the same batch
        raise refused(f"sealing batch {name!r}", outcome, multi)
    yield from close_batch(context, name)


def close_batch(context: Context, name: str | None) -> Procedure[None]:
    """End a batch if the last of its members has ended."""
    if name is None:
        return
    stat: Stat | None = yield Exists(context.paths.batch(name, "open"))
    if stat is None or stat.children:
        return
    yield from read_conf(context)
    while not (yield from _close(context, name)):
        pass


def close_batches(context: Context) -> Procedure[None]:
    """End what a crash left without an end."""
    names = (yield Children(context.paths.at("batches"))) or ()
    stats: list[Stat | None] = yield Pipeline(tuple(Exists(context.paths.batch(name, "open")) for name in names))
    for name, stat in zip(names, stats, strict=True):
        if stat is not None and not stat.children:
            yield from close_batch(context, name)


def _close(context: Context, name: str) -> Procedure[bool]:
    """Delete ``open``, and enqueue what follows; False to try again."""
    base = context.paths.batch(name)
    nodes: list[Node | None] = yield GetMany((base, f"{base}/then"))
    if nodes[0] is None:
        return True
    record = load(base, nodes[0].data)
    now = yield from server_time(context)
    index = index_path("batches-done", now, name)
    yield from ensure_bucket(context.paths.at(index.rpartition("/")[0]))
    slots: list[OpenSegment] = []
    following = yield from _following(context, record, nodes[1], f"{base}/then", slots)
    done = SetData(base, dump(record | {"done": now}), nodes[0].stat.version)
    multi = Multi((Delete(f"{base}/open"), done, *following, Create(context.paths.at(index))))
    outcome = yield from transact(multi, lambda: _closed(context, name))
    remember_opened(context, multi, outcome)
    bucket_gone = failed_at(outcome, multi) == context.paths.at(index) and outcome.failure is Failure.NO_NODE
    return bool(outcome.committed) or not (
        bucket_gone
        or may_reopen(context, slots, multi, outcome)
        or (yield from _then_is_in_use(context, base, record, multi, outcome))
    )


def _closed(context: Context, name: str) -> Procedure[Outcome | None]:
    gone = (yield Exists(context.paths.batch(name, "open"))) is None
    return Outcome(committed=True) if gone else None


def _following(
    context: Context, record: dict[str, Any], node: Node | None, path: str, slots: list[OpenSegment]
) -> Procedure[list[WriteOp]]:
    """What enqueues the task that follows; nothing where there is none, or where its id is in use."""
    if node is None or record.get("refused"):
        return [] if node is None else [Delete(path)]
    tree = unpack(path, node.data)
    tree.stamp, tree.nonce = context.stamp(), context.nonce()
    if tree.delay > 0:
        due = yield from due_of(context, tree.delay)
        index = yield from scheduled_index(context, tree.task_id, due)
        return [Delete(path), *tree.ops(context, f"{tree.lane.name}//{tree.entry}", index, due)]
    slot = yield from open_segment(context, tree.lane)
    slots.append(slot)
    place = f"{slot.lane.name}/{slot.segment}/{tree.entry}"
    return [Delete(path), *slot.ops, *tree.ops(context, place, None, None)]


def _then_is_in_use(
    context: Context, base: str, record: dict[str, Any], multi: Multi, outcome: Outcome
) -> Procedure[bool]:
    """The id of the task that follows is another task's: note it, and end the batch without it."""
    task_id = record.get("then")
    if task_id is None or failed_at(outcome, multi) != context.paths.task(task_id):
        return False
    why = f"task {task_id!r}, which should follow the batch, was not enqueued: its id is in use"
    context.run.report(base, why)
    yield from transact(Multi((SetData(base, dump(record | {"refused": why})),)), _not_ours)
    return True


def _not_ours() -> Procedure[Outcome | None]:
    return None
    yield  # pragma: no cover


def read_batch(context: Context, name: str) -> Procedure[Batch]:
    """How a batch stands. Raises `TaskNotFound` for one that does not exist or was collected."""
    base = context.paths.batch(check_name("batch", name))
    nodes: list[Node | None] = yield GetMany((base, f"{base}/open", f"{base}/open/{WRITING}"))
    record, left, writing = nodes
    if record is None:
        msg = f"batch {name!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    told = load(base, record.data)
    failed = yield Children(f"{base}/failed")
    still = 0 if left is None else left.stat.children - (writing is not None)
    ended = tuple(sorted(failed or ()))
    return Batch(name, int(told.get("total", 0)), still, ended, left is None, writing is None, told.get("refused"))


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
