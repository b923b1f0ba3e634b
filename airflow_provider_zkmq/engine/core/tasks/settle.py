"""Settling a claim: complete, fail, release, extend. Only the current claim can; a late owner changes nothing.

The fence is threefold, in one transaction: the version of the task's state, which every change bumps; the claim's
znode, which dies with its session; and the note of who is working on it, which a rescue takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_zkmq.engine.core.memory.claims import Held
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.records import TaskState, clip, dump, encode_data
from airflow_provider_zkmq.engine.core.model.states import Event, State
from airflow_provider_zkmq.engine.core.protocol.ops import (
    MAX_REQUEST,
    Check,
    Create,
    Failure,
    Get,
    Node,
    Ops,
    Procedure,
    SetData,
    Wait,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.protocol.transact import never, refused, transact
from airflow_provider_zkmq.engine.core.reading.claims import claim_lost, current_claim
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configure import optional_seconds, read_conf, seconds
from airflow_provider_zkmq.engine.core.writing import escrow
from airflow_provider_zkmq.engine.core.writing.closing import close_after
from airflow_provider_zkmq.engine.core.writing.moves import KEPT_NONCES, Moving, lease_path, move, moved, notes_of
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    ConfigError,
    OutcomeUnknown,
    TaskNotFound,
    TaskTooLarge,
    Unavailable,
)

#: One try at ending a claim: the record it left, or None where it was refused.
Try = Callable[[Held], Procedure[TaskState | None]]


def complete(
    context: Context, held: Held, result: bytes | str | None = None, *, dedupe: object = None
) -> Procedure[None]:
    """Finish the task and keep `result` (bytes or text). Raises `ClaimLost`, `TaskTooLarge`.

    `dedupe`: seconds (or a duration) for which an enqueue of the same id is still refused. A run held in escrow is
    inserted: at once, or when that time has passed.
    """
    data = b"" if result is None else encode_data("result", result)
    if len(data) > MAX_REQUEST - 20_000:
        msg = f"the result of task {held.task_id!r} has {len(data):,} bytes; ZooKeeper takes {MAX_REQUEST - 20_000:,}"
        raise TaskTooLarge(msg)
    window = optional_seconds("dedupe", dedupe)
    now = yield from server_time(context)
    until = now + int(window * 1000) if window else None

    def attempt(held: Held) -> Procedure[TaskState | None]:
        it = _moving(context, held, "complete", [result_op(context, held, data)])
        if held.state.requeue and until is None:
            before = held.state.with_attempt("finished", now, None)
            return (yield from escrow.rerun(context, replace(it, before=before), result=True))
        after = finished(context, held, now, until, nonce=it.nonce)
        return (yield from _move(context, it, after))

    yield from _settle(context, held, "complete", attempt)


def finished(
    context: Context, held: Held, now: int, until: int | None = None, *, nonce: str | None = None
) -> TaskState:
    """The record of a completed task; a run in escrow is due at `until`, the end of its dedupe window, or at once."""
    due = (until or now) if held.state.requeue else None
    state = moved(context, held.task_id, held.state, Event.COMPLETE, now=now, due=due, nonce=nonce)
    return replace(state, error=None, dedupe=until, result=True)


def result_op(context: Context, held: Held, data: bytes) -> WriteOp:
    """Keep a result; an earlier run of the same task may have left one."""
    path = context.paths.task(held.task_id, "result")
    return SetData(path, data) if held.state.result else Create(path, data)


def fail(
    context: Context,
    held: Held,
    error: str | BaseException,
    *,
    retry: bool = True,
    backoff: object = None,
) -> Procedure[State]:
    """The delivery failed: run again by the policy, or be dead. Returns the new state. Raises `ClaimLost`.

    `error`: a text, or the exception, which the policy may name as final. `retry=False`: it is final in any case.
    `backoff`: seconds (or a duration) until the next try, instead of the policy's.
    """
    conf = yield from read_conf(context)
    now = yield from server_time(context)
    given, rand = optional_seconds("backoff", backoff), context.run.random()
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)

    def attempt(held: Held) -> Procedure[TaskState | None]:
        before = held.state.with_attempt("failed", now, text)
        policy = before.retry(conf.policy)
        final = not retry or policy.exhausted(before.attempt) or policy.is_final(error)
        if final and before.requeue:
            return (yield from escrow.rerun(context, _moving(context, held, "fail", before=before)))
        wait = policy.backoff(before.attempt, rand) if given is None else given
        due = now + int(wait * 1000) if wait >= 0.001 and not final else None
        event = Event.FAIL_FINAL if final else Event.FAIL
        it = _moving(context, held, "fail", before=before)
        after = replace(moved(context, held.task_id, before, event, now=now, due=due, nonce=it.nonce), error=clip(text))
        return (yield from _move(context, it, after))

    return (yield from _settle(context, held, "fail", attempt)).state


def release(context: Context, held: Held, delay: object = None) -> Procedure[None]:
    """Give the task back to its old place; the delivery counts as no attempt. Raises `ClaimLost`.

    `delay`: seconds (or a duration) before it may be claimed again: the handler snoozes it.
    """
    span = optional_seconds("delay", delay) or 0.0
    now = (yield from server_time(context)) if span else 0
    due = now + int(span * 1000) if span else None

    def attempt(held: Held) -> Procedure[TaskState | None]:
        it = _moving(context, held, "release")
        state = moved(context, held.task_id, held.state, Event.RELEASE, due=due, nonce=it.nonce)
        after = replace(state, attempt=max(0, state.attempt - 1))
        return (yield from _move(context, it, after))

    state = yield from _settle(context, held, "release", attempt)
    context.listings.restock(context.paths.entry(state.place).rpartition("/")[0])


def snooze(context: Context, held: Held, span: object) -> Procedure[None]:
    """Give the task back, not to be handled for `span` seconds (or a duration); counts as no attempt."""
    yield from release(context, held, seconds("snooze", span))


def progress(context: Context, held: Held, value: float, note: str = "") -> Procedure[None]:
    """Report how far the handling has come: `value` from 0 to 1, and a note. Raises `ClaimLost`.

    It stands in the claim's znode, and goes with it.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        msg = f"progress {value!r} is not allowed: a number from 0 to 1"
        raise ConfigError(msg)
    path = context.paths.task(held.task_id, "claim")
    record = dump(held.claim | {"progress": value, "note": clip(str(note))})
    # The record's version alone may be that of another run of the same id; the claim's note is this one's.
    notes = [Check(note) for note in notes_of(context, held.task_id, held.state)]
    yield from _check_and_set(context, held, SetData(path, record), notes)


def extend(context: Context, held: Held, lease: object) -> Procedure[None]:
    """Hold the claim for `lease` more seconds from now; for a session-bound claim, check that it still holds.

    Raises `ClaimLost`.
    """
    span = seconds("lease", lease)
    if held.lost:
        raise claim_lost(held.task_id, held.token)
    if held.state.lease is None:
        yield from current_claim(context, held.task_id, held.token)
        return
    record = dump({"seconds": span, "consumer": held.state.consumer})
    yield from _check_and_set(context, held, SetData(lease_path(context, held.state), record))


def _check_and_set(context: Context, held: Held, op: SetData, notes: Sequence[WriteOp] = ()) -> Procedure[None]:
    """Write to a znode of the claim while it is the current one."""
    if held.lost:
        raise claim_lost(held.task_id, held.token)
    while True:
        tried = held.version
        ops = Ops([Check(context.paths.task(held.task_id, "state"), tried), *notes, op])
        outcome = yield from transact(ops.multi(), never)
        if outcome.committed:
            context.clock.learn(outcome)
            return
        if outcome.failure is Failure.OTHER:
            raise refused("writing to the claim", outcome, ops.multi())
        yield from still_ours(context, held, tried)


def _moving(
    context: Context, held: Held, verb: str, extra: list[WriteOp] | None = None, before: TaskState | None = None
) -> Moving:
    """What settling changes. Each way to settle a claim has one nonce, however often it is asked for."""
    nonce = held.nonces.setdefault(verb, context.marks.nonce())
    return Moving(held.task_id, held.version, before or held.state, extra or [], nonce=nonce)


def _move(context: Context, it: Moving, after: TaskState) -> Procedure[TaskState | None]:
    outcome, multi = yield from move(context, it, after)
    if outcome.failure is Failure.OTHER:
        raise refused("settling the claim", outcome, multi)
    return after if outcome.committed else None


def _settle(context: Context, held: Held, verb: str, attempt: Try) -> Procedure[TaskState]:
    """End a claim; asked again after an unknown outcome, it tells what happened.

    Raises `OutcomeUnknown` rather than `Unavailable` for as long as it is not known what became of an earlier call.
    """
    while held.settling is not None:
        yield Wait(held.settling, 0)  # another thread's: one of the two settles it
    held.settling = mine = context.run.new_signal()
    asked_before = held.unsure
    try:
        return (yield from _until_settled(context, held, verb, attempt))
    except Unavailable as error:
        if not asked_before:
            raise
        msg = f"what became of an earlier call that settles task {held.task_id!r} is not known yet: {error}"
        raise OutcomeUnknown(msg) from error
    finally:
        held.settling = None
        mine.fire()


def _until_settled(context: Context, held: Held, verb: str, attempt: Try) -> Procedure[TaskState]:
    while True:
        state = None
        if not held.lost:
            tried, sent = held.version, held.unsure
            held.unsure = True  # until the reply is known: a call may be cut off anywhere
            try:
                state = yield from attempt(held)
            except Unavailable:
                held.unsure = sent  # nothing was sent, or what was sent was refused
                raise
            held.unsure = sent
            if state is None:
                state = yield from _ended_by(context, held, still_ours(context, held, tried, verb))
        else:  # its session has ended, say; an earlier call may have been carried out before
            state = yield from _ended_by(context, held, _settled_before(context, held, verb))
            if state is None:
                raise claim_lost(held.task_id, held.token)
        if state is not None:
            held.unsure = False
            context.claims.let_go(held)
            return state


def _ended_by(context: Context, held: Held, look: Procedure[TaskState | None]) -> Procedure[TaskState | None]:
    """What an earlier call left that settled the claim; it was cut off, perhaps before it ended the batch."""
    state = yield from look
    if state is not None:
        yield from close_after(context, held.state.batch)
    return state


def still_ours(context: Context, held: Held, tried: int, verb: str = "") -> Procedure[TaskState | None]:
    """After a refusal: the claim is another's (`ClaimLost`), or only its record changed and we may try again.

    `tried`: the version that was refused; another thread with the same claim may have learnt of a newer one meanwhile.
    Where an earlier try of `verb` is what ended the claim, its reply having been lost: the record that it left.
    """
    try:
        now = yield from current_claim(context, held.task_id, held.token)
    except (ClaimLost, TaskNotFound) as error:
        happened = yield from _settled_before(context, held, verb)
        context.claims.let_go(held)
        if happened is not None:
            return happened
        raise claim_lost(held.task_id, held.token) from error
    if now.version == tried:
        context.claims.let_go(held)
        raise claim_lost(held.task_id, held.token)  # noted nowhere any more: a rescue is under way
    held.version, held.state = now.version, now.state
    return None


def _settled_before(context: Context, held: Held, verb: str) -> Procedure[TaskState | None]:
    """The record, if an earlier call of the same verb ended this claim; None if another verb or somebody else did.

    Raises `OutcomeUnknown` where that cannot be told any more.
    """
    if not held.unsure:
        return None
    path = context.paths.task(held.task_id, "state")
    node: Node | None = yield Get(path)
    state = None if node is None else TaskState.decode(path, node.data)
    mine = set(held.nonces.values())
    if state is None or (len(state.settled) >= KEPT_NONCES and not mine & set(state.settled)):
        context.claims.let_go(held)  # asked once more it is lost: no later look would tell more
        held.unsure = False
        msg = (
            f"claim {held.token} of task {held.task_id!r} is over; whether it was settled by us cannot be told any more"
        )
        raise OutcomeUnknown(msg)
    return state if held.nonces.get(verb) in state.settled else None
