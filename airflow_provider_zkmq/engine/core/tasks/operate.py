"""What an operator does to tasks: cancel, redrive, replace, drop, clear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.lanes import Lane
from airflow_provider_zkmq.engine.core.model.paths import check_name, entry_name
from airflow_provider_zkmq.engine.core.model.records import TaskState, encode_data
from airflow_provider_zkmq.engine.core.model.states import Event, State, step
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Delete,
    Exists,
    Get,
    GetMany,
    Multi,
    Node,
    Outcome,
    Procedure,
    SetData,
    Sync,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, never, transact
from airflow_provider_zkmq.engine.core.protocol.tries import Tries
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configure import read_conf
from airflow_provider_zkmq.engine.core.reading.inspect import as_state, task_ids
from airflow_provider_zkmq.engine.core.tasks.batches import membership
from airflow_provider_zkmq.engine.core.writing.closing import close_after, leaving
from airflow_provider_zkmq.engine.core.writing.moves import (
    Moving,
    departure,
    move,
    move_to_lane,
    moved,
    tree_deletes,
    written,
)
from airflow_provider_zkmq.engine.errors import CorruptRecord, IllegalTransition, TaskNotFound

CHUNK: Final = 128


def read_state(context: Context, task_id: str) -> Procedure[tuple[TaskState, Node]]:
    """A task's record. Raises `ConfigError` for a bad id, `TaskNotFound`, `CorruptRecord`."""
    path = context.paths.task(check_name("task id", task_id), "state")
    node: Node | None = yield Get(path)
    if node is None:
        yield Sync(path)  # the server that we read from may lag behind the one that was written to
        node = yield Get(path)
    if node is None:
        msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    return TaskState.decode(path, node.data), node


def cancel(context: Context, task_id: str) -> Procedure[None]:
    """Withdraw a task that is pending or claimed; its consumer is told, and can settle it no more.

    Raises `TaskNotFound`, or `IllegalTransition` when it has ended.
    """
    tries = Tries(f"cancel of task {task_id!r}")
    while True:
        state, node = yield from read_state(context, task_id)
        now = yield from server_time(context)
        before = state
        if state.state is State.CLAIMED:
            before = state.with_attempt("cancelled", now, None)
        after = replace(moved(context, task_id, before, Event.CANCEL, now=now), requeue=False)
        extra = yield from _notice(context, task_id, state)
        gone = yield from _claim_gone(context, task_id, state)
        outcome, multi = yield from move(context, Moving(task_id, node.stat.version, before, extra, gone), after)
        if outcome.committed:
            return
        yield from tries.refused(outcome, multi, node.stat.mzxid)


def _claim_gone(context: Context, task_id: str, state: TaskState) -> Procedure[bool]:
    """Whether the claim's ephemeral has vanished with its session, and nobody has rescued the task yet."""
    return state.state is State.CLAIMED and (yield Exists(context.paths.task(task_id, "claim"))) is None


def _notice(context: Context, task_id: str, state: TaskState) -> Procedure[list[WriteOp]]:
    """Drop the run in escrow, and tell the consumer, which watches this znode; a dead one needs no telling."""
    ops: list[WriteOp] = [Delete(context.paths.task(task_id, "requeue"))] if state.requeue else []
    if state.state is State.CLAIMED:
        path = context.paths.consumer(state.consumer or "", "current")
        if (yield Exists(path)) is not None:
            ops.append(SetData(path, b""))
    return ops


def redrive(
    context: Context, task_id: str, version: int | None = None, data: bytes | str | None = None
) -> Procedure[None]:
    """Put a dead or cancelled task at the end of its lane, its attempts reset, its history kept.

    `version`: only if the task is still what was read as `Task.version`. `data` replaces the payload in the same
    transaction. Raises `TaskNotFound`, `TaskTooLarge`, or `IllegalTransition` for a task in any other state or version.
    """
    payload = None if data is None else encode_data("data", data)
    tries = Tries(f"redrive of task {task_id!r}")
    while True:
        state, node = yield from _read_as(context, task_id, version)
        step(task_id, state.state, Event.REDRIVE)

        def after(place: str, state: TaskState = state) -> TaskState:
            fresh = moved(context, task_id, state, Event.REDRIVE)
            return replace(fresh, place=place, attempt=0, error=None, claimed=None, ended=None, rank=None, batch=None)

        it = Moving(task_id, node.stat.version, state, _new_data(context, task_id, payload))
        lane = Lane(state.priority, dict(state.filters))
        yield from read_conf(context)
        outcome, multi = yield from move_to_lane(context, it, lane, entry_name(context.marks.stamp(), task_id), after)
        if outcome.committed:
            return
        yield from tries.refused(outcome, multi, node.stat.mzxid)


def _read_as(context: Context, task_id: str, version: int | None) -> Procedure[tuple[TaskState, Node]]:
    """A task's record, if it is still of a version. Raises what `read_state` does, and `IllegalTransition`."""
    state, node = yield from read_state(context, task_id)
    if version is not None and node.stat.mzxid != version:
        msg = f"task {task_id!r} has changed since it was read: it is {state.state} by now, attempt {state.attempt}"
        raise IllegalTransition(msg)
    return state, node


def _new_data(context: Context, task_id: str, payload: bytes | None) -> list[WriteOp]:
    return [] if payload is None else [SetData(context.paths.task(task_id, "data"), payload)]


def replace_data(context: Context, task_id: str, data: bytes | str, version: int | None = None) -> Procedure[None]:
    """Replace the payload of a pending task, which keeps its place; see `redrive` for `version`.

    Raises `TaskNotFound`, `TaskTooLarge`, or `IllegalTransition` for a task that is not pending any more.
    """
    payload = encode_data("data", data)
    tries = Tries(f"new data for task {task_id!r}")
    while True:
        state, node = yield from _read_as(context, task_id, version)
        after = moved(context, task_id, state, Event.UPDATE, due=state.due)
        record = SetData(context.paths.task(task_id, "state"), after.encode(), node.stat.version)
        multi = Multi((record, *_new_data(context, task_id, payload)))
        outcome = yield from transact(multi, partial(written, context, task_id, after.nonce))
        if outcome.committed:
            return
        yield from tries.refused(outcome, multi, node.stat.mzxid)


def drop(context: Context, task_id: str, version: int | None = None) -> Procedure[None]:
    """Delete a task that is not claimed, whole and unarchived; see `redrive` for `version`.

    Raises `TaskNotFound`, or `IllegalTransition` for a claimed task or another version.
    """
    tries = Tries(f"drop of task {task_id!r}")
    while True:
        state, node = yield from _read_as(context, task_id, version)
        if state.state is State.CLAIMED:
            msg = f"task {task_id!r} is claimed: it cannot be dropped; cancel it first"
            raise IllegalTransition(msg)
        deletes = _tree(context, task_id, state, node.stat.version)
        outcome, multi = yield from _past_batch(context, state, deletes, partial(_dropped, context, task_id))
        if outcome.committed:
            yield from close_after(context, state.batch)
            return
        yield from tries.refused(outcome, multi, node.stat.mzxid)


def _dropped(context: Context, task_id: str) -> Procedure[Outcome | None]:
    gone = (yield Exists(context.paths.task(task_id))) is None
    return Outcome(committed=True) if gone else None


def _past_batch(
    context: Context, state: TaskState, deletes: list[WriteOp], ours: Callable[[], Procedure[Outcome | None]]
) -> Procedure[tuple[Outcome, Multi]]:
    """Delete a task; also where it is no member of its batch any more."""
    multi = Multi(tuple(deletes))
    outcome = yield from leaving(context, state.batch, transact(multi, ours))
    path = failed_at(outcome, multi)
    if state.batch is None or not path.startswith(context.paths.batch(state.batch) + "/"):
        return outcome, multi
    multi = Multi(tuple(op for op in deletes if op.path != path))
    return (yield from leaving(context, state.batch, transact(multi, ours))), multi


def _tree(context: Context, task_id: str, state: TaskState, version: int, *, claim_gone: bool = False) -> list[WriteOp]:
    """The deletes of a task and of all that lists it."""
    ops = tree_deletes(context, task_id, state, version)
    return [
        ops[0],  # the record first: if that is another by now, the refusal says so
        *departure(context, task_id, state, claim_gone=claim_gone),
        *ops[1:],
        *membership(context, task_id, state),
    ]


def clear(context: Context, state: State | str | None = None) -> Procedure[int]:
    """Delete every task of the queue, or every one in a state, whatever is being done with it; returns how many.

    Nothing is archived. A consumer that has one in hand loses its claim. Configuration and consumers stay.
    """
    yield from read_conf(context)
    wanted = as_state(state)
    count = 0
    ids = yield from task_ids(context, wanted)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        paths = tuple(context.paths.task(task_id, "state") for task_id in chunk)
        nodes: list[Node | None] = yield GetMany(paths)
        for task_id, node in zip(chunk, nodes, strict=True):
            count += yield from _delete_task(context, task_id, node, wanted)
    context.listings.restock_all()
    return count


def _delete_task(context: Context, task_id: str, node: Node | None, wanted: State | None) -> Procedure[bool]:
    """Delete one tree with all that lists it; again if it changed meanwhile."""
    path = context.paths.task(task_id, "state")
    tries = Tries(f"deletion of task {task_id!r}")
    if node is None and (yield Exists(context.paths.task(task_id))) is not None:
        context.report(context.paths.task(task_id), "has no state: it is no task of ours; it is kept")
    while node is not None:
        try:
            state = TaskState.decode(path, node.data)
            if wanted is not None and state.state is not wanted:
                return False
            gone = yield from _claim_gone(context, task_id, state)
            deletes = _tree(context, task_id, state, node.stat.version, claim_gone=gone)
            outcome, multi = yield from _past_batch(context, state, deletes, never)
            if outcome.committed:
                yield from close_after(context, state.batch)
                return True
            yield from tries.refused(outcome, multi, node.stat.mzxid)
        except CorruptRecord as error:
            context.report(path, f"{error}; it is kept")
            return False
        node = yield Get(path)
    return False
