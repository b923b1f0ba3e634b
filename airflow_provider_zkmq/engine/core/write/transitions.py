"""Each transition of a task as the operations that carry it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.client.claims import Claimed
from airflow_provider_zkmq.engine.core.client.context import Context, OpenSegment
from airflow_provider_zkmq.engine.core.model.codec import dump
from airflow_provider_zkmq.engine.core.model.names import SEPARATOR, Lane, claim_note, consumer_note
from airflow_provider_zkmq.engine.core.model.records import TaskState, Times, claimed_before, clip, replace
from airflow_provider_zkmq.engine.core.model.states import ENDED, Event, State, step
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Check,
    Create,
    Delete,
    Failure,
    Ops,
    Procedure,
    SetData,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.read.configuration import known_conf
from airflow_provider_zkmq.engine.core.read.leases import lease_path, mark_path
from airflow_provider_zkmq.engine.core.write.batch_closing import close_after
from airflow_provider_zkmq.engine.core.write.commit import Change, Plan, make_bucket, one, open_segment, parents_of
from airflow_provider_zkmq.engine.core.write.record import (
    Current,
    deleted,
    fails_batch,
    leaves_batch,
    next_record,
    written,
)

# --- The operations of which changes are made: where a task is listed, noted, and a member.


def notes_of(context: Context, task_id: str, state: TaskState) -> list[str]:
    """Where a claim is noted: with its consumer if it ends with a session, among the leases if it has a deadline."""
    notes = []
    if state.bound or state.lease is None:
        notes.append(context.paths.current(state.consumer or "", task_id))
    if state.lease is not None:
        notes.append(lease_path(context, state))
    return notes


def beginning(context: Context, claimed: Claimed) -> SetData:
    """Say that the handler of a claim begins. Whoever is at the claim's note meanwhile is refused."""
    note = consumer_note(prefetched=False) if claimed.ends_with_session else claim_note(claimed.claim, prefetched=False)
    return SetData(mark_path(context, claimed.task_id, claimed.state), note)


def record_write(context: Context, current: Current, after: TaskState) -> SetData:
    """Write the record, if it is still the one that was read: this fences every change."""
    return SetData(context.paths.task(current.task_id, "state"), after.encode(), current.version)


def unlist(context: Context, current: Current) -> list[WriteOp]:
    """The deletes that take a task from where it is listed."""
    if current.state.state is State.CLAIMED:
        gone = [] if current.claim_gone else [context.paths.task(current.task_id, "claim")]
        return [Delete(path) for path in (*gone, *notes_of(context, current.task_id, current.state))]
    return [Delete(place_of(context, current.state))]


def place_of(context: Context, state: TaskState) -> str:
    """The entry that lists a task which is not claimed."""
    return context.paths.entry(state.place) if state.index is None else context.paths.at(state.index)


def arrival(context: Context, after: TaskState) -> Create:
    """The entry of a task that is listed; in a queue of strict order it holds the place it had from the first."""
    return Create(place_of(context, after), b"" if after.rank is None else str(after.rank).encode())


def membership(context: Context, task_id: str, state: TaskState, *, failed: bool = False) -> list[WriteOp]:
    """What takes a task off its batch's open ones; `failed`: it ended dead or cancelled."""
    if state.batch is None or state.state in ENDED:
        return []
    ops: list[WriteOp] = [Delete(context.paths.batch(state.batch, "open", task_id))]
    if failed:
        ops.append(Create(context.paths.batch(state.batch, "failed", task_id)))
    return ops


def task_deletes(context: Context, task_id: str, state: TaskState, version: int) -> list[WriteOp]:
    """The deletes of a task's own tree; its claim, if any, is deleted by its departure."""
    task, filters = context.paths.task, bool(state.filters)
    optional = {"metadata": state.metadata, "filters": filters, "result": state.result, "requeue": state.requeue}
    parts = ["data", *(f"filters/{name}" for name in state.filters), *(name for name in optional if optional[name])]
    deletes: list[WriteOp] = [Delete(task(task_id, "state"), version)]
    return [*deletes, *(Delete(task(task_id, part)) for part in parts), Delete(task(task_id))]


# --- One constructor for each row of the state table that moves a task; `core.write.new_task` has that of new ones.
#
# Each makes a plan of one change: the record under the version that was read, what takes the task from where it is
# listed, what lists it where it goes. A place without a segment is none to go back to: such a task goes to the end
# of its lane.

#: What a record's refusal says: it is another by now, or gone.
_CHANGED: Final = frozenset({Failure.BAD_VERSION, Failure.NO_NODE})
#: The ephemeral of a claim goes with its session.
_GONE: Final = frozenset({Failure.NO_NODE})


# --- a claim, and how it ends


def claim(context: Context, claimed: Claimed, consumer: str, span: float | None, lease: float | None, now: int) -> Plan:
    """Taken by a consumer whose session lives; `claimed` is made the claim that the plan writes.

    `span`: for how many seconds it holds unless it is extended; with a `lease` it outlives its session. Whoever sends
    the plan says how a lost reply is resolved: it may be one of several that go together.
    """
    paths, task_id, nonce, before = context.paths, claimed.task_id, context.marks.nonce(), claimed.state
    place, deadline = paths.entry(before.place), f"{task_id}{SEPARATOR}{nonce}" if span else None
    claimed.state = replace(
        before,
        state=step(task_id, before.state, Event.CLAIM),
        attempt=before.attempt + 1,
        consumer=consumer,
        claimed=now,
        nonce=nonce,
        lease=deadline,
        bound=lease is None and deadline is not None,
        error=None,
    )
    claimed.claim = {"consumer": consumer, "nonce": nonce, "lease": span}
    ops = Ops().set(paths.task(task_id, "state"), claimed.state.encode(), claimed.version - 1)
    note = claim_note(claimed.claim, prefetched=claimed.prefetched and lease is not None)
    ops.create(paths.task(task_id, "claim"), note, ephemeral=lease is None)
    ops.delete(place).check(paths.live(consumer))
    if lease is None:
        ops.create(paths.current(consumer, task_id), consumer_note(prefetched=claimed.prefetched))
    if deadline is not None:
        ops.create(lease_path(context, claimed.state), dump({"seconds": span, "consumer": consumer}))
    return one(Change(context, task_id, ops.items, after=claimed.state))


def finish(
    context: Context, current: Current, nonce: str, result: bytes, now: int, times: Times, until: int | None = None
) -> Procedure[Plan]:
    """Completed: the result is kept; a run in escrow is due at `until`, the end of its dedupe window, or at once.

    `times`: those of its handler, which has ended some time before `now`.
    """
    started, ended = times
    before = replace(current.state, started=started, claimed=claimed_before(current.state.claimed, started))
    due = (until or now) if before.requeue else None
    state = next_record(current.task_id, before, Event.COMPLETE, nonce, now=now, due=due)
    after = replace(state, error=None, dedupe=until, result=True, ended=ended)
    return (yield from relist(context, current, after, [result_write(context, current, result)]))


def result_write(context: Context, current: Current, result: bytes) -> WriteOp:
    """Keep a result; an earlier run of the same task may have left one."""
    path = context.paths.task(current.task_id, "result")
    return SetData(path, result) if current.state.result else Create(path, result)


def fail(
    context: Context, current: Current, nonce: str, error: str, due: int | None, guards: Sequence[WriteOp] = ()
) -> Procedure[Plan]:
    """The delivery failed; it goes back to its place, at `due` (server's milliseconds) or at once."""
    state = next_record(current.task_id, current.state, Event.FAIL, nonce, due=due)
    return (yield from relist(context, current, replace(state, error=clip(error)), guards=guards))


def release(
    context: Context, current: Current, nonce: str, due: int | None, guards: Sequence[WriteOp] = ()
) -> Procedure[Plan]:
    """Given back: the delivery counts as no attempt."""
    state = next_record(current.task_id, current.state, Event.RELEASE, nonce, due=due)
    return (yield from relist(context, current, replace(state, attempt=max(0, state.attempt - 1)), guards=guards))


def rescue(context: Context, current: Current, nonce: str, error: str, guards: Sequence[WriteOp]) -> Procedure[Plan]:
    """Nobody holds it any more: it goes back to its place."""
    state = next_record(current.task_id, current.state, Event.RESCUE, nonce)
    return (yield from relist(context, current, replace(state, error=error), guards=guards))


def to_dead(
    context: Context, current: Current, event: Event, nonce: str, error: str, now: int, guards: Sequence[WriteOp] = ()
) -> Procedure[Plan]:
    """It is dead: `event` is the one of the state table by which it came to that."""
    state = next_record(current.task_id, current.state, event, nonce, now=now)
    return (yield from relist(context, current, replace(state, error=clip(error)), guards=guards))


# --- what the clock and operators do


def promote(context: Context, current: Current) -> Procedure[Plan]:
    """Its time has come: it goes to its lane."""
    return (yield from relist(context, current, _promoted(context, current)))


def promote_to_end(context: Context, current: Current) -> Procedure[Plan]:
    """Its time has come: it goes to the end of its lane, whatever place it had."""
    return (yield from append(context, current, lambda place: replace(_promoted(context, current), place=place)))


def _promoted(context: Context, current: Current) -> TaskState:
    return next_record(current.task_id, current.state, Event.PROMOTE, context.marks.nonce())


def cancel(context: Context, current: Current, extra: list[WriteOp], now: int) -> Procedure[Plan]:
    """Withdrawn; `extra` tells its consumer, and drops a run in escrow."""
    state = next_record(current.task_id, current.state, Event.CANCEL, context.marks.nonce(), now=now)
    return (yield from relist(context, current, replace(state, requeue=False), extra))


def redrive(context: Context, current: Current, entry: str, extra: list[WriteOp], batch: str | None) -> Procedure[Plan]:
    """Put back at the end of its lane: attempts are reset, the history is kept. `batch`: the one that it counts for."""
    fresh = next_record(current.task_id, current.state, Event.REDRIVE, context.marks.nonce())
    fresh = replace(fresh, attempt=0, error=None, claimed=None, started=None, ended=None, was_due=None, rank=None)
    fresh = replace(fresh, batch=batch)
    return (yield from append(context, current, lambda place: replace(fresh, place=place), extra, entry=entry))


def rewrite(context: Context, current: Current, after: TaskState, extra: list[WriteOp]) -> Plan:
    """Changed where it stands: its listing stays.

    A task that was dropped and enqueued anew may have the record's version, but its entry has another name.
    """
    same = [] if current.state.state is State.CLAIMED else [Check(place_of(context, current.state))]
    return one(_change(context, current, after, [record_write(context, current, after), *same, *extra]))


def delete(context: Context, current: Current, *, proof: bool = True) -> Plan:
    """Deleted whole, with all that lists it; it fails its batch unless it had ended.

    `proof`: that it is gone after a lost reply is this call's doing.
    """
    record, *parts = task_deletes(context, current.task_id, current.state, current.version)
    off = membership(context, current.task_id, current.state, failed=True)
    # The record goes first: if that is another by now, the refusal says so.
    change = _change(context, current, None, [record, *unlist(context, current), *parts, *off])
    if proof:
        change.proof = partial(deleted, context, current.task_id)
    _leave(change, current.state.batch)
    return one(change)


# --- what they are made of


def relist(
    context: Context,
    current: Current,
    after: TaskState,
    extra: Sequence[WriteOp] = (),
    *,
    guards: Sequence[WriteOp] = (),
) -> Procedure[Plan]:
    """From where it is listed to where `after` lists it."""
    if after.index is None and not after.placed:
        at = lambda place: replace(after, place=place, rank=None)  # noqa: E731
        lane = Lane(after.priority, dict(after.filters))
        return (yield from append(context, current, at, extra, guards=guards, lane=lane, entry=after.entry))
    return one(_moved(context, current, after, extra, guards, None))


def append(
    context: Context,
    current: Current,
    after_at: Callable[[str], TaskState],
    extra: Sequence[WriteOp] = (),
    *,
    guards: Sequence[WriteOp] = (),
    lane: Lane | None = None,
    entry: str | None = None,
) -> Procedure[Plan]:
    """To the end of a lane, its own unless another is given; `after_at` makes the record for a place."""
    own, conf = Lane(current.state.priority, dict(current.state.filters)), (yield from known_conf(context))
    slot = yield from open_segment(context, lane or own, ordered=conf.ordered)
    place = f"{slot.lane.name}/{slot.segment}/{entry or current.state.entry}"
    return one(_moved(context, current, after_at(place), extra, guards, slot))


def _moved(
    context: Context,
    current: Current,
    after: TaskState,
    extra: Sequence[WriteOp],
    guards: Sequence[WriteOp],
    slot: OpenSegment | None,
) -> Change:
    ops = [record_write(context, current, after), *guards, *unlist(context, current), *extra]
    change = _change(context, current, after, ops)
    change.slot, entry = slot, arrival(context, after)
    if after.index is not None:
        change.make_parent[entry.path] = partial(make_bucket, context, entry.path.rpartition("/")[0])
    elif slot is None:
        change.parents = parents_of(context, after)
    if leaves_batch(current.state, after):
        failed = fails_batch(current.state, after)
        change.listing += membership(context, current.task_id, current.state, failed=failed)
        _leave(change, current.state.batch)
    change.listing.append(entry)
    return change


def _change(context: Context, current: Current, after: TaskState | None, ops: list[WriteOp]) -> Change:
    change = Change(context, current.task_id, ops, after=after, before=current.state.nonce)
    result = context.paths.task(current.task_id, "result")
    change.upsert = {op.path: op.data for op in ops if op.path == result and isinstance(op, Create | SetData)}
    if after is not None:
        change.proof = partial(written, context, current.task_id, after.nonce)
    change.preconditions[context.paths.task(current.task_id, "state")] = _CHANGED
    change.preconditions[context.paths.task(current.task_id, "claim")] = _GONE
    return change


def _leave(change: Change, batch: str | None) -> None:
    if batch is not None:
        change.batch = batch
        change.on_commit = partial(close_after, change.context, batch)
