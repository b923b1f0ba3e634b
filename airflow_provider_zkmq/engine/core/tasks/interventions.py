"""What others than its holder do to a task: rescue, cancel, revoke, redrive, replace, drop, clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ... import errors
from .. import zk_operations as zk
from ..client_state import Context
from ..model.new_message import encode_data
from ..model.records import TaskState
from ..model.states import TRANSITIONS, Event, State, step
from ..model.znode_names import check_name, entry_name, is_prefetched
from ..read import bulk_read, claim_status, server_clock
from ..read.configuration import read_conf
from ..read.inspect import as_state, checked_ids, listed_ids
from ..transaction_retries import Tries, damaged
from ..write import next_run, transitions
from ..write.commit import CommitResult, Plan, Why, anew, commit, mending, send_together
from ..write.next_run import next_run_plan
from ..write.transitions import Current, next_record, notes_of, rejoin, with_history
from ..zk_operations import Procedure
from .settle import cancel_note


def rescue_lapsed(context: Context, task_id: str) -> Procedure[bool]:
    """Give a task back whose claim has ended by its deadline, as it is shown already; whether that was so."""
    node: zk.Node | None = yield zk.Get(context.paths.task(task_id, "state"))
    record = bulk_read.record_of(context, task_id, node)
    if (
        not isinstance(record, bulk_read.Record)
        or record.state.state is not State.CLAIMED
        or record.state.lease is None
    ):
        return False
    return (yield from rescue_task(context, task_id, claim_status.lease_path(context, record.state)))


def rescue_task(context: Context, task_id: str, note: str) -> Procedure[bool]:
    """Give one claimed task back: to its old place, or to the dead letters once its attempts are used up."""
    path, claim_path = context.paths.task(task_id, "state"), context.paths.task(task_id, "claim")
    for _ in range(TRIES):  # a requeue may be added meanwhile, an ephemeral vanish, a lease be extended
        node, claim, noted = yield from bulk_read.read_nodes((path, claim_path, note))
        if noted is None:
            return False  # settled or rescued meanwhile
        record = bulk_read.record_of(context, task_id, node)
        if not isinstance(record, bulk_read.Record) or not (
            record.state.state is State.CLAIMED and note in notes_of(context, task_id, record.state)
        ):
            yield zk.Multi((zk.Delete(note, noted.stat.version),))  # nobody is at it any more: only the note is left
            return False
        expired = note != context.paths.current(record.state.consumer or "", task_id)
        now = yield from server_clock.server_time(context)
        if expired and (claim_status.end_of(context, note, noted) or now + 1) > context.clock.certainly_past(now):
            return False  # it was extended since it was listed
        known = {note: noted} if claim is None else {note: noted, claim_path: claim}
        mark = claim_status.mark_path(context, task_id, record.state)
        marked: zk.Node | None = known[mark] if mark in known else (yield zk.Get(mark))
        checks: list[zk.WriteOp] = [zk.Check(note, noted.stat.version)]
        begun = marked is None or not is_prefetched(mark, marked.data)  # also where it cannot be read
        if marked is not None and not begun:
            checks.append(zk.Check(mark, marked.stat.version))  # refused once its handler begins
        if expired:  # its consumer lives, it may be
            checks += yield from cancel_note(context, record.state)
        guards = {guard.path: guard for guard in checks}
        current = Current(task_id, record.stat.version, record.state, claim_gone=claim is None)
        refusal = (yield from _give_back_lapsed(context, current, guards, now, begun=begun)).refusal
        if refusal is None:
            return True
        if refusal.why is not Why.CHANGED and refusal.path not in guards:
            raise damaged(f"giving back task {task_id!r}", refusal.outcome, refusal.multi)
    return False


def _give_back_lapsed(
    context: Context, current: Current, guards: Mapping[str, zk.WriteOp], now: int, *, begun: bool
) -> Procedure[CommitResult]:
    """To its place, or where its attempts are used up to the dead letters, or on to the run held in escrow."""
    state, nonce, checks = current.state, context.marks.nonce(), tuple(guards.values())
    if not begun:  # it was prefetched: the delivery counts as no attempt
        build = partial(transitions.release, context, current, nonce, None, checks)
        return (yield from commit((yield from build()), mending(build)))
    conf = yield from read_conf(context)
    over = context.paths.current(state.consumer or "", current.task_id) not in guards
    why = claim_status.why_ended(state.consumer) if over else f"its consumer died ({state.consumer})"
    current = current.with_state(state.with_attempt("rescued", now, why))
    if not state.retry(conf.policy).exhausted(state.attempt):
        build = partial(transitions.fail, context, current, Event.RESCUE, nonce, why, None, checks)
    elif state.requeue:
        return (yield from next_run.rerun(context, current, nonce, guards=checks))
    else:
        build = partial(transitions.to_dead, context, current, Event.RESCUE_FINAL, nonce, why, now, checks)
    return (yield from commit((yield from build()), mending(build)))


#: How often one task is read again and tried again while it changes under our eyes.
TRIES: Final = 5


# --- What operators do to tasks: cancel, redrive, drop, replace, clear.


#: What becomes of a corrupt task, for the report.
_KEPT: Final = "it is kept"


#: So many tasks are redriven at a time.
REDRIVEN_TOGETHER: Final = 64


def _change(
    context: Context, task_id: str, what: str, build: Callable[[Current], Procedure[Plan]], version: int | None = None
) -> Procedure[TaskState]:
    """Read a task, and commit what `build` makes of it; read it again while it changes under our eyes.

    `version`: only if it is still what was read as `Task.version`. Returns the record that was written last, of a
    deleted task the one that was read. Raises `ConfigError`, `TaskNotFound`, `CorruptRecord`, `IllegalTransition`.
    """
    path = context.paths.task(check_name("task id", task_id), "state")
    tries = Tries(f"{what} task {task_id!r}")
    while True:
        node: zk.Node | None = yield zk.Get(path)
        if node is None:
            yield zk.Sync(path)  # the server that we read from may lag behind the one that was written to
            node = yield zk.Get(path)
        if node is None:
            msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
            raise errors.TaskNotFound(msg)
        mzxid, state = node.stat.mzxid, TaskState.decode(path, node.data)
        current = Current(task_id, node.stat.version, state, zxid=mzxid)
        if version is not None and mzxid != version:
            now = f"it is {state.state} by now, attempt {state.attempt}"
            raise errors.IllegalTransition(f"task {task_id!r} has changed since it was read: {now}")
        try:
            plan = yield from build(current)
        except errors.IllegalTransition:
            # Where a claim has ended by its deadline, it is done to what follows.
            if state.state is not State.CLAIMED or not (yield from rescue_lapsed(context, task_id)):
                raise
            continue
        committed = yield from commit(plan, anew(partial(build, current)))
        if committed.refusal is None:
            return committed.after or state
        yield from tries.refused(committed.refusal.outcome, committed.refusal.multi, mzxid)


def cancel(context: Context, task_id: str) -> Procedure[None]:
    """Withdraw a task that is pending or claimed; its consumer is told, and can settle it no more.

    Raises `TaskNotFound`, or `IllegalTransition` when it has ended.
    """

    def build(current: Current) -> Procedure[Plan]:
        now, state = (yield from server_clock.server_time(context)), current.state
        step(task_id, state.state, Event.CANCEL)
        # The run in escrow goes too, and the consumer is told.
        extra: list[zk.WriteOp] = [zk.Delete(context.paths.task(task_id, "requeue"))] if state.requeue else []
        extra += yield from cancel_note(context, state)
        current = yield from _with_claim(context, current)
        if state.state is State.CLAIMED:
            current = current.with_state(state.with_attempt("cancelled", now, None))
        return (yield from transitions.cancel(context, current, extra, now))

    yield from _change(context, task_id, "cancel of", build)


def _with_claim(context: Context, current: Current) -> Procedure[Current]:
    """The reading, with whether the claim's ephemeral has vanished with its session, and nobody has rescued it yet."""
    if current.state.state is not State.CLAIMED:
        return current
    gone = (yield zk.Exists(context.paths.task(current.task_id, "claim"))) is None
    return replace(current, claim_gone=gone)


def revoke(
    context: Context, task_id: str, error: str | None = None, *, retry: bool = True, version: int | None = None
) -> Procedure[State]:
    """Take a claimed task from whoever holds it, and give it back to its place; returns the new state.

    Its consumer is told, and can settle it no more. The delivery counts as no attempt, and stands in the history as
    ``revoked``; with an `error` it has failed: the task runs again by its policy, or is dead, with ``retry=False`` in
    any case. `version`: only if the task is still what was read as `Task.version`. Raises `ConfigError` for an `error`
    that is no text, `TaskNotFound`, or `IllegalTransition` for a task that is not claimed, or in another version.
    """
    if not isinstance(error, str | None):
        raise errors.ConfigError(f"error {error!r} is not allowed: a text that says why, or None")
    conf, rand = (yield from read_conf(context)), context.run.random()

    def build(current: Current) -> Procedure[Plan]:
        step(task_id, current.state.state, Event.RELEASE)
        guards, nonce = (yield from cancel_note(context, current.state)), context.marks.nonce()
        current = yield from _with_claim(context, current)
        now = yield from server_clock.server_time(context)
        if error is None:
            current = current.with_state(current.state.with_attempt("revoked", now, None))
            return (yield from transitions.release(context, current, nonce, None, guards))
        state = current.state.with_attempt("failed", now, error)
        current, policy = current.with_state(state), state.retry(conf.policy)
        if retry and not (policy.exhausted(state.attempt) or policy.is_final(error)):
            wait = int(policy.backoff(state.attempt, rand) * 1000)
            due = now + wait if wait else None
            return (yield from transitions.fail(context, current, Event.FAIL, nonce, error, due, guards))
        if state.requeue:
            return (yield from next_run_plan(context, current, nonce, guards))
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
    extra: list[zk.WriteOp] = []
    if data is not None:
        extra.append(zk.SetData(context.paths.task(task_id, "data"), encode_data("data", data)))
    yield from _change(context, task_id, "redrive of", partial(_redriving, context, extra), version)


def _redriving(context: Context, extra: list[zk.WriteOp], current: Current) -> Procedure[Plan]:
    step(current.task_id, current.state.state, Event.REDRIVE)
    yield from read_conf(context)
    entry = entry_name(context.marks.stamp((yield from server_clock.ordering_time(context))), current.task_id)
    members = yield from rejoin(context, current)
    batch = current.state.batch if members else None
    plan = yield from transitions.redrive(context, current, entry, extra, batch)
    return (yield from with_history(context, current, Plan([*plan.changes, *members])))


def redrive_many(context: Context, task_ids: Sequence[str]) -> Procedure[dict[str, errors.ZkmqError]]:
    """Redrive tasks in their order, a group at a time; returns those that could not be, each with why.

    Each task is redriven by itself, as by `redrive`, in a transaction of its own: those of a group are on their way
    together. Why: `TaskNotFound`, `IllegalTransition` or `CorruptRecord`. Raises `QueueNotFound`, `ConfigError` for a
    bad id before anything is redriven, `Unavailable` where nothing was, and `OutcomeUnknown`: what was redriven by
    then, the same call then refuses.
    """
    refused: dict[str, errors.ZkmqError] = {}
    ids = checked_ids(task_ids)
    yield from read_conf(context)
    done: set[str] = set()
    for group in bulk_read.chunked(ids, REDRIVEN_TOGETHER):
        try:
            yield from _redrive_together(context, group, done)
            for task_id in [each for each in group if each not in done]:
                try:
                    yield from redrive(context, task_id)
                    done.add(task_id)
                except (errors.TaskNotFound, errors.IllegalTransition, errors.CorruptRecord) as error:
                    refused[task_id] = error
        except errors.Unavailable as error:
            if not done:
                raise
            raise errors.OutcomeUnknown(
                f"some of these tasks were redriven, and the others were not: {error}"
            ) from error
    return refused


def _redrive_together(context: Context, ids: Sequence[str], done: set[str]) -> Procedure[None]:
    """Redrive what can be as it was read, and note it; the others are to be read and judged one by one."""
    records = yield from bulk_read.read_records(context, ids)
    plans: list[Plan] = []
    for task_id, record in zip(ids, records, strict=True):
        if isinstance(record, bulk_read.Record) and (record.state.state, Event.REDRIVE) in TRANSITIONS:
            current = Current(task_id, record.stat.version, record.state, zxid=record.stat.mzxid)
            plans.append((yield from _redriving(context, [], current)))
    for plan, sent in zip(plans, (yield from send_together(plans)) if plans else [], strict=True):
        if sent.outcome.committed or sent.outcome.unknown:  # a refused one is read again before it is tried again
            committed = yield from commit(plan, first=sent)
            if committed.committed:
                done.add(plan.changes[0].task_id)


def replace_data(context: Context, task_id: str, data: bytes | str, version: int | None = None) -> Procedure[None]:
    """Replace the payload of a pending task, which keeps its place; see `redrive` for `version`.

    Raises `TaskNotFound`, `TaskTooLarge`, or `IllegalTransition` for a task that is not pending any more.
    """
    extra: list[zk.WriteOp] = [zk.SetData(context.paths.task(task_id, "data"), encode_data("data", data))]

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
            raise errors.IllegalTransition(msg)
        return (yield from with_history(context, current, transitions.delete(context, current)))

    yield from _change(context, task_id, "drop of", build, version)


def clear(context: Context, state: State | str | None = None) -> Procedure[int]:
    """Delete every task of the queue, or every one in a state, whatever is being done with it; returns how many.

    A consumer that has one in hand loses its claim; a member of a batch that had not ended counts as failed. Of a queue
    that is archived or followed, runs that had ended are kept as by `drop`. Configuration and consumers stay. A task
    whose record cannot be read is reported in the log and kept. Raises `ConfigError` for an unknown state, and
    `QueueNotFound`.
    """
    yield from read_conf(context)
    wanted = as_state(state)
    for task_id in [] if wanted is None else (yield from claim_status.lapsed_tasks(context)):
        yield from rescue_lapsed(context, task_id)
    count = 0
    for chunk in bulk_read.chunked((yield from listed_ids(context, wanted))):
        records = yield from bulk_read.read_records(context, chunk, _KEPT)
        for task_id, record in zip(chunk, records, strict=True):
            base = context.paths.task(task_id)
            if record is bulk_read.Unread.MISSING and (yield zk.Exists(base)) is not None:
                context.report(base, f"has no state: it is no task of ours; {_KEPT}")
            try:
                count += yield from _delete_task(context, task_id, record, wanted)
            except errors.CorruptRecord as error:
                context.report(f"{base}/state", f"{error}; {_KEPT}")
    for reading in context.listings.readings.values():  # what was tried is tried again
        reading.cached_entries = None
    return count


def _delete_task(
    context: Context, task_id: str, record: bulk_read.Record | bulk_read.Unread, wanted: State | None
) -> Procedure[bool]:
    """Delete one tree with all that lists it; again if it changed meanwhile. Raises `CorruptRecord`: it cannot be."""
    tries = Tries(f"deletion of task {task_id!r}")
    while isinstance(record, bulk_read.Record) and wanted in {None, record.state.state}:
        current = Current(task_id, record.stat.version, record.state, zxid=record.stat.mzxid)
        current = yield from _with_claim(context, current)
        delete = transitions.delete(context, current, proof=False)
        delete.changes[0].ops += yield from cancel_note(context, record.state)
        plan = yield from with_history(context, current, delete)
        committed = yield from commit(plan)
        if committed.refusal is None:
            return True
        yield from tries.refused(committed.refusal.outcome, committed.refusal.multi, record.stat.mzxid)
        (record,) = yield from bulk_read.read_records(context, [task_id], _KEPT)
    return False
