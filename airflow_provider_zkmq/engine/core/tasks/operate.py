"""What an operator does to tasks: cancel, redrive, replace, drop, clear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.messages import encode_data
from airflow_provider_zkmq.engine.core.model.paths import check_name, entry_name
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import Event, State, step
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get, Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.protocol.tries import Tries
from airflow_provider_zkmq.engine.core.protocol.writes import Delete, SetData, WriteOp
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.counts import as_state, task_ids
from airflow_provider_zkmq.engine.core.reading.nodes import Record, Unread, chunked, read_beside, read_whole
from airflow_provider_zkmq.engine.core.writing import transitions
from airflow_provider_zkmq.engine.core.writing.commit import anew, commit
from airflow_provider_zkmq.engine.core.writing.letters import with_letter
from airflow_provider_zkmq.engine.core.writing.plan import Plan
from airflow_provider_zkmq.engine.core.writing.record import Current, next_record
from airflow_provider_zkmq.engine.core.writing.rejoining import rejoin
from airflow_provider_zkmq.engine.errors import CorruptRecord, IllegalTransition, TaskNotFound

#: What becomes of a corrupt task, for the report.
_KEPT: Final = "it is kept"
#: Makes the plan for a task as it was just read.
Build: TypeAlias = Callable[[Current], Procedure[Plan]]


def read_current(context: Context, task_id: str) -> Procedure[tuple[Current, int]]:
    """A task's record, and the transaction that wrote it.

    Raises `ConfigError` for a bad id, `TaskNotFound`, `CorruptRecord`.
    """
    path = context.paths.task(check_name("task id", task_id), "state")
    node: Node | None = yield Get(path)
    if node is None:
        yield Sync(path)  # the server that we read from may lag behind the one that was written to
        node = yield Get(path)
    if node is None:
        msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    state = TaskState.decode(path, node.data)
    return Current(task_id, node.stat.version, state, zxid=node.stat.mzxid), node.stat.mzxid


def _change(context: Context, task_id: str, what: str, build: Build, version: int | None = None) -> Procedure[None]:
    """Read a task, and commit what `build` makes of it; read it again while it changes under our eyes.

    `version`: only if it is still what was read as `Task.version`; else `IllegalTransition`.
    """
    tries = Tries(f"{what} task {task_id!r}")
    while True:
        current, mzxid = yield from read_current(context, task_id)
        if version is not None and mzxid != version:
            raise _changed(current)
        verdict = yield from commit((yield from build(current)), anew(partial(build, current)))
        if verdict.refusal is None:
            return
        yield from tries.refused(verdict.refusal.outcome, verdict.refusal.multi, mzxid)


def _changed(current: Current) -> IllegalTransition:
    now = f"it is {current.state.state} by now, attempt {current.state.attempt}"
    return IllegalTransition(f"task {current.task_id!r} has changed since it was read: {now}")


def cancel(context: Context, task_id: str) -> Procedure[None]:
    """Withdraw a task that is pending or claimed; its consumer is told, and can settle it no more.

    Raises `TaskNotFound`, or `IllegalTransition` when it has ended.
    """
    yield from _change(context, task_id, "cancel of", partial(_cancelling, context))


def _cancelling(context: Context, current: Current) -> Procedure[Plan]:
    now, state = (yield from server_time(context)), current.state
    step(current.task_id, state.state, Event.CANCEL)
    extra = yield from _notice(context, current)
    current = yield from _with_claim(context, current)
    if state.state is State.CLAIMED:
        current = current.with_state(state.with_attempt("cancelled", now, None))
    return (yield from transitions.cancel(context, current, extra, now))


def _with_claim(context: Context, current: Current) -> Procedure[Current]:
    """The reading, with whether the claim's ephemeral has vanished with its session, and nobody has rescued it yet."""
    if current.state.state is not State.CLAIMED:
        return current
    gone = (yield Exists(context.paths.task(current.task_id, "claim"))) is None
    return replace(current, claim_gone=gone)


def _notice(context: Context, current: Current) -> Procedure[list[WriteOp]]:
    """Drop the run in escrow, and tell the consumer, which watches this znode; a dead one needs no telling."""
    ops: list[WriteOp] = [Delete(context.paths.task(current.task_id, "requeue"))] if current.state.requeue else []
    if current.state.state is State.CLAIMED:
        path = context.paths.consumer(current.state.consumer or "", "current")
        if (yield Exists(path)) is not None:
            ops.append(SetData(path, b""))
    return ops


def redrive(
    context: Context, task_id: str, version: int | None = None, data: bytes | str | None = None
) -> Procedure[None]:
    """Put a dead or cancelled task at the end of its lane, its attempts reset, its history kept.

    A member of a batch counts as open again; one that was done opens again, see `wait_batch`. Of a queue that is
    archived or followed, the run is kept as it ended.
    `version`: only if the task is still what was read as `Task.version`. `data` replaces the payload in the same
    transaction. Raises `TaskNotFound`, `TaskTooLarge`, or `IllegalTransition` for a task in any other state or version.
    """
    extra = [] if data is None else [_payload(context, task_id, encode_data("data", data))]

    def build(current: Current) -> Procedure[Plan]:
        step(task_id, current.state.state, Event.REDRIVE)
        yield from read_conf(context)
        entry = entry_name(context.marks.stamp(), task_id)
        members = yield from rejoin(context, current)
        batch = current.state.batch if members else None
        plan = yield from transitions.redrive(context, current, entry, extra, batch)
        return (yield from with_letter(context, current, Plan([*plan.changes, *members])))

    yield from _change(context, task_id, "redrive of", build, version)


def _payload(context: Context, task_id: str, data: bytes) -> WriteOp:
    return SetData(context.paths.task(task_id, "data"), data)


def replace_data(context: Context, task_id: str, data: bytes | str, version: int | None = None) -> Procedure[None]:
    """Replace the payload of a pending task, which keeps its place; see `redrive` for `version`.

    Raises `TaskNotFound`, `TaskTooLarge`, or `IllegalTransition` for a task that is not pending any more.
    """
    extra = [_payload(context, task_id, encode_data("data", data))]

    def build(current: Current) -> Procedure[Plan]:
        state, nonce = current.state, context.marks.nonce()
        after = next_record(task_id, state, Event.UPDATE, nonce, due=state.due)
        return transitions.rewrite(context, current, after, extra)
        yield  # pragma: no cover  a procedure that needs nothing

    yield from _change(context, task_id, "new data for", build, version)


def drop(context: Context, task_id: str, version: int | None = None) -> Procedure[None]:
    """Delete a task that is not claimed, whole; see `redrive` for `version`.

    A member of a batch that had not ended counts as failed. Of a queue that is archived or followed, a run that had
    ended is kept for who reads what ended. Raises `TaskNotFound`, or `IllegalTransition` for a claimed task or another
    version.
    """

    def build(current: Current) -> Procedure[Plan]:
        if current.state.state is State.CLAIMED:
            msg = f"task {task_id!r} is claimed: it cannot be dropped; cancel it first"
            raise IllegalTransition(msg)
        beside = yield from read_beside(context, task_id)
        return (yield from with_letter(context, current, transitions.delete(context, current, beside)))

    yield from _change(context, task_id, "drop of", build, version)


def clear(context: Context, state: State | str | None = None) -> Procedure[int]:
    """Delete every task of the queue, or every one in a state, whatever is being done with it; returns how many.

    A consumer that has one in hand loses its claim; a member of a batch that had not ended counts as failed. Of a queue
    that is archived or followed, runs that had ended are kept as by `drop`. Configuration and consumers stay.
    """
    yield from read_conf(context)
    wanted = as_state(state)
    count = 0
    for chunk in chunked((yield from task_ids(context, wanted))):
        records = yield from read_whole(context, chunk, _KEPT)
        for task_id, record in zip(chunk, records, strict=True):
            count += yield from _clear_one(context, task_id, record, wanted)
    context.listings.restock_all()
    return count


def _clear_one(context: Context, task_id: str, record: Record | Unread, wanted: State | None) -> Procedure[bool]:
    """Delete one tree, or report why it cannot be."""
    base = context.paths.task(task_id)
    if record is Unread.MISSING and (yield Exists(base)) is not None:
        context.report(base, f"has no state: it is no task of ours; {_KEPT}")
    try:
        return (yield from _delete_task(context, task_id, record, wanted))
    except CorruptRecord as error:
        context.report(context.paths.task(task_id, "state"), f"{error}; {_KEPT}")
        return False


def _delete_task(context: Context, task_id: str, record: Record | Unread, wanted: State | None) -> Procedure[bool]:
    """Delete one tree with all that lists it; again if it changed meanwhile. Raises `CorruptRecord`: it cannot be."""
    tries = Tries(f"deletion of task {task_id!r}")
    while isinstance(record, Record) and wanted in {None, record.state.state}:
        current = Current(task_id, record.stat.version, record.state, zxid=record.stat.mzxid)
        current = yield from _with_claim(context, current)
        delete = transitions.delete(context, current, record.beside, ours=False)
        plan = yield from with_letter(context, current, delete)
        verdict = yield from commit(plan)
        if verdict.refusal is None:
            return True
        yield from tries.refused(verdict.refusal.outcome, verdict.refusal.multi, record.stat.mzxid)
        (record,) = yield from read_whole(context, [task_id], _KEPT)
    return False
