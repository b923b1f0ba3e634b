"""What operators do to tasks: cancel, redrive, drop, replace, clear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.messages import encode_data
from airflow_provider_zkmq.engine.core.model.names import check_name, entry_name
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import TRANSITIONS, Event, State, step
from airflow_provider_zkmq.engine.core.protocol.ops import Delete, Exists, Get, Node, Procedure, SetData, Sync, WriteOp
from airflow_provider_zkmq.engine.core.protocol.transact import Tries
from airflow_provider_zkmq.engine.core.read.configuration import read_conf
from airflow_provider_zkmq.engine.core.read.counts import as_state, listed_ids
from airflow_provider_zkmq.engine.core.read.inspect import checked_ids
from airflow_provider_zkmq.engine.core.read.leases import lapsed_tasks
from airflow_provider_zkmq.engine.core.read.nodes import Record, Unread, chunked, read_records
from airflow_provider_zkmq.engine.core.read.server_clock import ordering_time, server_time
from airflow_provider_zkmq.engine.core.tasks.holding import cancel_note
from airflow_provider_zkmq.engine.core.tasks.recovery import rescue_lapsed
from airflow_provider_zkmq.engine.core.write import transitions
from airflow_provider_zkmq.engine.core.write.batch_closing import rejoin
from airflow_provider_zkmq.engine.core.write.commit import Plan, anew, commit, send_together
from airflow_provider_zkmq.engine.core.write.escrow import next_run
from airflow_provider_zkmq.engine.core.write.history import with_history
from airflow_provider_zkmq.engine.core.write.record import Current, next_record
from airflow_provider_zkmq.engine.errors import (
    CorruptRecord,
    IllegalTransition,
    OutcomeUnknown,
    TaskNotFound,
    Unavailable,
    ZkmqError,
)

#: What becomes of a corrupt task, for the report.
_KEPT: Final = "it is kept"
#: So many tasks are redriven at a time.
REDRIVEN_TOGETHER: Final = 64
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


def _change(
    context: Context, task_id: str, what: str, build: Build, version: int | None = None
) -> Procedure[TaskState]:
    """Read a task, and commit what `build` makes of it; read it again while it changes under our eyes.

    What cannot be done to a claim is done to what follows it, where the claim has ended by its deadline.
    Returns the record that was written last, of a deleted task the one that was read.

    `version`: only if it is still what was read as `Task.version`; else `IllegalTransition`.
    """
    tries = Tries(f"{what} task {task_id!r}")
    while True:
        current, mzxid = yield from read_current(context, task_id)
        if version is not None and mzxid != version:
            raise _changed(current)
        try:
            plan = yield from build(current)
        except IllegalTransition:
            if current.state.state is not State.CLAIMED or not (yield from rescue_lapsed(context, task_id)):
                raise
            continue
        committed = yield from commit(plan, anew(partial(build, current)))
        if committed.refusal is None:
            return committed.after or current.state
        yield from tries.refused(committed.refusal.outcome, committed.refusal.multi, mzxid)


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
    """Drop the run in escrow, and tell the consumer."""
    ops: list[WriteOp] = [Delete(context.paths.task(current.task_id, "requeue"))] if current.state.requeue else []
    return [*ops, *(yield from cancel_note(context, current.state))]


def revoke(
    context: Context, task_id: str, error: str | None = None, *, retry: bool = True, version: int | None = None
) -> Procedure[State]:
    """Take a claimed task from whoever holds it, and give it back to its place; returns the new state.

    Its consumer is told, and can settle it no more. The delivery counts as no attempt; with an `error` it has failed:
    the task runs again by its policy, or is dead, with ``retry=False`` in any case. `version`: only if the task is
    still what was read as `Task.version`. Raises `TaskNotFound`, or `IllegalTransition` for a task that is not claimed,
    or in another version.
    """
    conf, rand = (yield from read_conf(context)), context.run.random()

    def build(current: Current) -> Procedure[Plan]:
        step(task_id, current.state.state, Event.RELEASE)
        guards, nonce = (yield from cancel_note(context, current.state)), context.marks.nonce()
        current = yield from _with_claim(context, current)
        if error is None:
            return (yield from transitions.release(context, current, nonce, None, guards))
        now = yield from server_time(context)
        state = current.state.with_attempt("failed", now, error)
        current, policy = current.with_state(state), state.retry(conf.policy)
        if retry and not (policy.exhausted(state.attempt) or policy.is_final(error)):
            due = now + int(policy.backoff(state.attempt, rand) * 1000)
            return (yield from transitions.fail(context, current, nonce, error, due if due > now else None, guards))
        if state.requeue:
            return (yield from next_run(context, current, nonce, guards))
        return (yield from transitions.to_dead(context, current, Event.FAIL_FINAL, nonce, error, now, guards))

    after = yield from _change(context, task_id, "taking away of", build, version)
    context.listings.forget_tried(context.paths.entry(after.place).rpartition("/")[0])
    return after.state


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

    yield from _change(context, task_id, "redrive of", partial(_redriving, context, extra), version)


def _redriving(context: Context, extra: list[WriteOp], current: Current) -> Procedure[Plan]:
    step(current.task_id, current.state.state, Event.REDRIVE)
    yield from read_conf(context)
    entry = entry_name(context.marks.stamp((yield from ordering_time(context))), current.task_id)
    members = yield from rejoin(context, current)
    batch = current.state.batch if members else None
    plan = yield from transitions.redrive(context, current, entry, extra, batch)
    return (yield from with_history(context, current, Plan([*plan.changes, *members])))


def redrive_many(context: Context, task_ids: Sequence[str]) -> Procedure[dict[str, ZkmqError]]:
    """Redrive tasks in their order, a group at a time; returns those that could not be, each with why.

    Each task is redriven by itself, as by `redrive`, in a transaction of its own: those of a group are on their way
    together. Why: `TaskNotFound`, `IllegalTransition` or `CorruptRecord`. Raises `QueueNotFound`, `ConfigError` for a
    bad id before anything is redriven, `Unavailable` where nothing was, and `OutcomeUnknown`: what was redriven by
    then, the same call then refuses.
    """
    refused: dict[str, ZkmqError] = {}
    ids = checked_ids(task_ids)
    yield from read_conf(context)
    done: set[str] = set()
    for group in chunked(ids, REDRIVEN_TOGETHER):
        try:
            yield from _redrive_together(context, group, done)
            for task_id in [each for each in group if each not in done]:
                try:
                    yield from redrive(context, task_id)
                    done.add(task_id)
                except (TaskNotFound, IllegalTransition, CorruptRecord) as error:
                    refused[task_id] = error
        except Unavailable as error:
            if not done:
                raise
            raise OutcomeUnknown(f"some of these tasks were redriven, and the others were not: {error}") from error
    return refused


def _redrive_together(context: Context, ids: Sequence[str], done: set[str]) -> Procedure[None]:
    """Redrive what can be as it was read, and note it; the others are to be read and judged one by one."""
    records = yield from read_records(context, ids)
    currents: list[Current] = []
    for task_id, record in zip(ids, records, strict=True):
        if isinstance(record, Record) and (record.state.state, Event.REDRIVE) in TRANSITIONS:
            currents.append(Current(task_id, record.stat.version, record.state, zxid=record.stat.mzxid))
    plans: list[Plan] = []
    for current in currents:
        plans.append((yield from _redriving(context, [], current)))
    for current, plan, sent in zip(currents, plans, (yield from send_together(plans)) if plans else [], strict=True):
        if sent.outcome.committed or sent.outcome.unknown:  # a refused one is read again before it is tried again
            committed = yield from commit(plan, first=sent)
            done |= {current.task_id} if committed.committed else set()


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
        return (yield from with_history(context, current, transitions.delete(context, current)))

    yield from _change(context, task_id, "drop of", build, version)


def clear(context: Context, state: State | str | None = None) -> Procedure[int]:
    """Delete every task of the queue, or every one in a state, whatever is being done with it; returns how many.

    A consumer that has one in hand loses its claim; a member of a batch that had not ended counts as failed. Of a queue
    that is archived or followed, runs that had ended are kept as by `drop`. Configuration and consumers stay.
    """
    yield from read_conf(context)
    wanted = as_state(state)
    for task_id in [] if wanted is None else (yield from lapsed_tasks(context)):
        yield from rescue_lapsed(context, task_id)
    count = 0
    for chunk in chunked((yield from listed_ids(context, wanted))):
        records = yield from read_records(context, chunk, _KEPT)
        for task_id, record in zip(chunk, records, strict=True):
            count += yield from _clear_one(context, task_id, record, wanted)
    context.listings.forget_all_tried()
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
        delete = transitions.delete(context, current, proof=False)
        delete.changes[0].ops += yield from cancel_note(context, record.state)
        plan = yield from with_history(context, current, delete)
        committed = yield from commit(plan)
        if committed.refusal is None:
            return True
        yield from tries.refused(committed.refusal.outcome, committed.refusal.multi, record.stat.mzxid)
        (record,) = yield from read_records(context, [task_id], _KEPT)
    return False
