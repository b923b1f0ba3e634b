"""Settling a claim: complete, fail, release, extend. Only the current claim can; a late owner changes nothing.

The fence is threefold, in one transaction: the version of the task's state, which every change bumps; the claim's
znode, which dies with its session; and the note of who is working on it, which a rescue takes away.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration, optional_seconds, seconds
from airflow_provider_zkmq.engine.core.model.messages import encode_data
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import Event, State
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Wait
from airflow_provider_zkmq.engine.core.protocol.transact import refused
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST, Failure
from airflow_provider_zkmq.engine.core.reading.claims import unless_queue_gone
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.tasks.holder import Holding, over, settled_before
from airflow_provider_zkmq.engine.core.writing import escrow, transitions
from airflow_provider_zkmq.engine.core.writing.closing import close_after
from airflow_provider_zkmq.engine.core.writing.combining import send
from airflow_provider_zkmq.engine.core.writing.commit import Verdict, alone, commit
from airflow_provider_zkmq.engine.core.writing.plan import Plan, Refusal, Why
from airflow_provider_zkmq.engine.core.writing.record import Current
from airflow_provider_zkmq.engine.core.writing.transitions import result_write
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    OutcomeUnknown,
    TaskTooLarge,
    Unavailable,
)

#: One try at ending a claim: how it went.
Try = Callable[[Claimed], Procedure[Verdict]]


def complete(
    context: Context, claimed: Claimed, result: bytes | str | None = None, *, dedupe: Duration | None = None
) -> Procedure[None]:
    """Finish the task and keep `result` (bytes or text). Raises `ClaimLost`, `TaskTooLarge`.

    `dedupe`: seconds (or a duration) for which an enqueue of the same id is still refused. A run held in escrow is
    inserted: at once, or when that time has passed.
    """
    data = checked_result(claimed, result)
    window = optional_seconds("dedupe", dedupe)
    now = yield from server_time(context)
    times = claimed.times(context.clock, now)
    until = now + int(window * 1000) if window else None

    def attempt(claimed: Claimed) -> Procedure[Verdict]:
        current, nonce = _current(claimed), nonce_of(context, claimed, "complete")
        if claimed.state.requeue and until is None:
            before = current.with_state(claimed.state.with_attempt("finished", times.ended, None, times.started))
            extra = [result_write(context, current, data)]
            return (yield from escrow.rerun(context, before, nonce, extra, result=True))
        finish = partial(transitions.finish, context, current, nonce, data, now, times, until)
        return (yield from _carry_out(claimed, finish))

    yield from _settle(context, claimed, "complete", attempt)


def checked_result(claimed: Claimed, result: bytes | str | None) -> bytes:
    """A result as it is kept. Raises `ConfigError`, `TaskTooLarge`."""
    data = b"" if result is None else encode_data("result", result)
    if len(data) > MAX_REQUEST - 20_000:
        msg = (
            f"the result of task {claimed.task_id!r} has {len(data):,} bytes; ZooKeeper takes {MAX_REQUEST - 20_000:,}"
        )
        raise TaskTooLarge(msg)
    return data


def fail(
    context: Context,
    claimed: Claimed,
    error: str | BaseException,
    *,
    retry: bool = True,
    backoff: Duration | None = None,
) -> Procedure[State]:
    """The delivery failed: run again by the policy, or be dead. Returns the new state. Raises `ClaimLost`.

    `error`: a text, or the exception, which the policy may name as final. `retry=False`: it is final in any case.
    `backoff`: seconds (or a duration) until the next try, instead of the policy's.
    """
    return (yield from failed(context, claimed, error, retry=retry, backoff=backoff)).state


def failed(
    context: Context, claimed: Claimed, error: str | BaseException, *, retry: bool, backoff: Duration | None
) -> Procedure[TaskState]:
    """`fail`, which returns the record that it leaves."""
    conf = yield from unless_queue_gone(context, claimed, read_conf(context))
    now = yield from server_time(context)
    times = claimed.times(context.clock, now)
    wait, rand = optional_seconds("backoff", backoff), context.run.random()
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)

    def attempt(claimed: Claimed) -> Procedure[Verdict]:
        state = claimed.state.with_attempt("failed", times.ended, text, times.started)
        nonce = nonce_of(context, claimed, "fail")
        before, policy = _current(claimed).with_state(state), state.retry(conf.policy)
        if retry and not (policy.exhausted(state.attempt) or policy.is_final(error)):
            pause = policy.backoff(state.attempt, rand) if wait is None else wait
            due = now + int(pause * 1000) if pause >= 0.001 else None
            again = partial(transitions.fail, context, before, nonce, text, due)
            return (yield from _carry_out(claimed, again))
        if state.requeue:
            return (yield from escrow.rerun(context, before, nonce))
        bury = partial(transitions.bury, context, before, Event.FAIL_FINAL, nonce, text, now)
        return (yield from _carry_out(claimed, bury))

    return (yield from _settle(context, claimed, "fail", attempt))


def release(context: Context, claimed: Claimed, delay: Duration | None = None) -> Procedure[None]:
    """Give the task back to its old place; the delivery counts as no attempt. Raises `ClaimLost`.

    `delay`: seconds (or a duration) before it may be claimed again: the handler snoozes it.
    """
    span = optional_seconds("delay", delay) or 0.0
    now = (yield from server_time(context)) if span else 0
    due = now + int(span * 1000) if span else None

    def attempt(claimed: Claimed) -> Procedure[Verdict]:
        nonce = nonce_of(context, claimed, "release")
        back = partial(transitions.release, context, _current(claimed), nonce, due)
        return (yield from _carry_out(claimed, back))

    state = yield from _settle(context, claimed, "release", attempt)
    context.listings.restock(context.paths.entry(state.place).rpartition("/")[0])


def snooze(context: Context, claimed: Claimed, delay: Duration) -> Procedure[None]:
    """Give the task back, not to be handled for `delay`; counts as no attempt."""
    yield from release(context, claimed, seconds("delay", delay))


def nonce_of(context: Context, claimed: Claimed, verb: str) -> str:
    """Each way to settle a claim has one nonce, however often it is asked for."""
    return claimed.nonces.setdefault(verb, context.marks.nonce())


def _current(claimed: Claimed) -> Current:
    return Current(claimed.task_id, claimed.version, claimed.state)


def _carry_out(claimed: Claimed, build: Callable[[], Procedure[Plan]]) -> Procedure[Verdict]:
    """Settle: in a transaction that others may share, unless it is made to go with others already."""

    def anew(refusal: Refusal) -> Procedure[Plan | None]:
        if refusal.outcome.failure is Failure.OTHER:
            raise refused("settling the claim", refusal.outcome, refusal.multi)
        return (yield from build()) if refusal.why is Why.PLACE else None

    return (yield from commit((yield from build()), anew, by=alone if claimed.chained else send))


def _settle(context: Context, claimed: Claimed, verb: str, attempt: Try) -> Procedure[TaskState]:
    """End a claim; asked again after an unknown outcome, it tells what happened.

    Raises `OutcomeUnknown` rather than `Unavailable` for as long as it is not known what became of an earlier call.
    """
    mine, asked_before = context.run.new_signal(), True  # for as long as another thread's call is under way
    try:
        while claimed.settling is not None:
            yield Wait(claimed.settling, 0, turn=True)  # another thread's: one of the two settles it
        claimed.settling, asked_before = mine, claimed.unsure
        state = yield from _until_settled(context, claimed, verb, attempt)
        claimed.told = True
        return state
    except ClaimLost:
        claimed.told = True
        raise
    except Unavailable as error:
        if not asked_before:
            raise
        msg = f"what became of an earlier call that settles task {claimed.task_id!r} is not known yet: {error}"
        raise OutcomeUnknown(msg) from error
    finally:
        if claimed.settling is mine:
            claimed.settling = None
        mine.fire()


def _until_settled(context: Context, claimed: Claimed, verb: str, attempt: Try) -> Procedure[TaskState]:
    holding = Holding(context, claimed, f"settling task {claimed.task_id!r}")
    while True:
        state = None
        if not claimed.lost:
            tried, sent = claimed.version, claimed.unsure
            claimed.unsure = True  # until the reply is known: a call may be cut off anywhere
            try:
                verdict = yield from attempt(claimed)
            except Unavailable:
                claimed.unsure = sent  # nothing was sent, or what was sent was refused
                raise
            claimed.unsure, state = sent or verdict.uncertain, verdict.after
            if verdict.refusal is not None:
                again = holding.after(verdict.refusal.outcome, verdict.refusal.multi, tried, verb)
                state = yield from _ended_by(context, claimed, again)
        else:  # its session has ended, say; an earlier call may have been carried out before
            state = yield from _ended_by(context, claimed, settled_before(context, claimed, verb))
            if state is None:
                raise over(claimed)
        if state is not None:
            claimed.unsure = False
            context.claims.let_go(claimed)
            return state


def _ended_by(context: Context, claimed: Claimed, look: Procedure[TaskState | None]) -> Procedure[TaskState | None]:
    """What an earlier call left that settled the claim; it was cut off, perhaps before it ended the batch."""
    state = yield from look
    if state is not None:
        yield from close_after(context, claimed.state.batch)
    return state
