"""Settling a claim: complete, fail, release, snooze; and giving back what nobody received."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.client.claims import Claimed, Handover, Sending, UnsettledClaim
from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.messages import encode_data
from airflow_provider_zkmq.engine.core.model.records import TaskState, replace
from airflow_provider_zkmq.engine.core.model.states import Event, State
from airflow_provider_zkmq.engine.core.model.time import Duration, optional_seconds, seconds
from airflow_provider_zkmq.engine.core.protocol.ops import MAX_REQUEST, Failure, Outcome, Procedure, Sync, Wait
from airflow_provider_zkmq.engine.core.protocol.transact import refused, transact
from airflow_provider_zkmq.engine.core.read.configuration import read_conf
from airflow_provider_zkmq.engine.core.read.leases import one_stands, unless_queue_gone
from airflow_provider_zkmq.engine.core.read.nodes import read_nodes
from airflow_provider_zkmq.engine.core.read.server_clock import server_time
from airflow_provider_zkmq.engine.core.tasks.holding import Holding, over, settled_before
from airflow_provider_zkmq.engine.core.write import escrow, transitions
from airflow_provider_zkmq.engine.core.write.batch_closing import close_after
from airflow_provider_zkmq.engine.core.write.commit import CommitResult, Plan, Refusal, Why, alone, commit
from airflow_provider_zkmq.engine.core.write.group_commit import send
from airflow_provider_zkmq.engine.core.write.record import Current
from airflow_provider_zkmq.engine.core.write.transitions import result_write
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    CorruptRecord,
    OutcomeUnknown,
    TaskTooLarge,
    TransportError,
    Unavailable,
    ZkmqError,
)

# --- A task whose record was damaged while it was in hand: its consumer still knows what stood there.


def recover_record(context: Context, claimed: Claimed) -> Procedure[bool]:
    """After a `CorruptRecord`: let the next settling write over the record, if that was damaged. Raises `ClaimLost`.

    The claim's znode says that the task is still ours, and the version of what is read fences the write to come.
    """
    path, claim_path = (context.paths.task(claimed.task_id, part) for part in ("state", "claim"))
    yield Sync(path)
    node, claim, escrow = yield from read_nodes((path, claim_path, context.paths.task(claimed.task_id, "requeue")))
    if node is None or claim is None or claim.stat.czxid != claimed.token:
        context.claims.let_go(claimed)
        msg = f"claim {claimed.token} of task {claimed.task_id!r} is not the current one; this call changed nothing"
        raise ClaimLost(msg)
    claimed.version = node.stat.version
    try:
        claimed.state = TaskState.decode(path, node.data)
    except CorruptRecord as error:
        context.run.report(path, f"{error}; what its consumer knows takes its place")
        claimed.state = replace(claimed.state, requeue=escrow is not None)
        return True
    return False


# --- Settling a claim: complete, fail, release, extend. Only the current claim can; a late owner changes nothing.
#
# The fence is threefold, in one transaction: the version of the task's state, which every change bumps; the claim's
# znode, which dies with its session; and the note of who is working on it, which a rescue takes away.

#: One try at ending a claim: how it went.
Try = Callable[[Claimed], Procedure[CommitResult]]


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

    def attempt(claimed: Claimed) -> Procedure[CommitResult]:
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

    def attempt(claimed: Claimed) -> Procedure[CommitResult]:
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
        to_dead = partial(transitions.to_dead, context, before, Event.FAIL_FINAL, nonce, text, now)
        return (yield from _carry_out(claimed, to_dead))

    return (yield from _settle(context, claimed, "fail", attempt))


def release(context: Context, claimed: Claimed, delay: Duration | None = None) -> Procedure[None]:
    """Give the task back to its old place; the delivery counts as no attempt. Raises `ClaimLost`.

    `delay`: seconds (or a duration) before it may be claimed again: the handler snoozes it.
    """
    span = optional_seconds("delay", delay) or 0.0
    now = (yield from server_time(context)) if span else 0
    due = now + int(span * 1000) if span else None

    def attempt(claimed: Claimed) -> Procedure[CommitResult]:
        nonce = nonce_of(context, claimed, "release")
        back = partial(transitions.release, context, _current(claimed), nonce, due)
        return (yield from _carry_out(claimed, back))

    state = yield from _settle(context, claimed, "release", attempt)
    context.listings.forget_tried(context.paths.entry(state.place).rpartition("/")[0])


def snooze(context: Context, claimed: Claimed, delay: Duration) -> Procedure[None]:
    """Give the task back, not to be handled for `delay`; counts as no attempt."""
    yield from release(context, claimed, seconds("delay", delay))


def nonce_of(context: Context, claimed: Claimed, verb: str) -> str:
    """Each way to settle a claim has one nonce, however often it is asked for."""
    return claimed.nonces.setdefault(verb, context.marks.nonce())


def _current(claimed: Claimed) -> Current:
    return Current(claimed.task_id, claimed.version, claimed.state)


def _carry_out(claimed: Claimed, build: Callable[[], Procedure[Plan]]) -> Procedure[CommitResult]:
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
    mine, sent_before = context.run.new_signal(), True  # for as long as another thread's call is under way
    try:
        while claimed.settling is not None:
            yield Wait(claimed.settling, 0, turn=True)  # another thread's: one of the two settles it
        claimed.settling, sent_before = mine, claimed.unsure
        state = yield from _until_settled(context, claimed, verb, attempt)
        claimed.reported = True
        return state
    except ClaimLost:
        claimed.reported = True
        raise
    except Unavailable as error:
        if not sent_before:
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
                committed = yield from attempt(claimed)
            except Unavailable:
                claimed.unsure = sent  # nothing was sent, or what was sent was refused
                raise
            claimed.unsure, state = sent or committed.uncertain, committed.after
            if committed.refusal is not None:
                again = holding.after(committed.refusal.outcome, committed.refusal.multi, tried, verb)
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


# --- Claims that their callers never got, or went away from, are given back before their client claims again.
#
# A call that was cancelled or interrupted, or that ended in `OutcomeUnknown`, may have claimed a task: its session
# lives, so no rescue would ever take it away. The claim's own transaction is issued once more, which tells what
# became of the first one whatever was on its way, and the task is released; the delivery counts as no attempt,
# since no handler has begun.
#
# A rollback that was cut off, or whose server was away, is owed as well: whoever left a transaction has nothing to
# roll back with any more. What it had taken counts as a delivery. So is what a loop over claims left
# (`core.claim.claim`).


def give_back(context: Context) -> Procedure[int]:
    """Give back what callers left behind; returns how many tasks. After a `TransportError` they are owed still."""
    count = 0
    for nonce in list(context.claims.handovers):
        # A caller that was refused and goes on sending has a new one by the same nonce.
        while (handover := context.claims.handovers.get(nonce)) is not None and handover.busy is not None:
            yield Wait(handover.busy, 0, turn=True)  # another call is at it
        if handover is not None and handover.caller.left:  # else it has been given back, or its caller has it
            count += yield from _give_back_alone(context, nonce, handover)
    return count + (yield from _end_unsettled(context))


def _give_back_alone(context: Context, nonce: str, handover: Handover) -> Procedure[int]:
    """Give back what was on its way to one caller; other calls wait meanwhile, so that it is given back once."""
    handover.busy = busy = context.run.new_signal()
    try:
        given_back = yield from _give_back(context, handover)
        context.claims.handovers.pop(nonce, None)
        return given_back
    finally:
        handover.busy = None
        busy.fire()


def _give_back(context: Context, handover: Handover) -> Procedure[int]:
    count = 0
    for sending in list(handover.sent):
        outcome = yield from _outcome_of(context, sending)
        for claimed in sending.claims:
            if outcome is not None and not claimed.lost:  # an earlier try, cut off, may have come to this one
                context.claims.receive(claimed, outcome.zxid or 0)
                count += yield from _release(context, claimed)
    return count


def _outcome_of(context: Context, sending: Sending) -> Procedure[Outcome | None]:
    """What became of a transaction that claims, or becomes of it now; None: it did not happen, or all of it is over."""
    first = sending.claims[0]
    if first.ends_with_session and first.session != context.run.session():
        return None  # it ended with its session
    stands = partial(one_stands, context, sending.claims)
    outcome = yield from transact(sending.multi, stands)
    if not outcome.committed:
        outcome = (yield from stands()) or outcome
    return outcome if outcome.committed else None


def _release(context: Context, claimed: Claimed) -> Procedure[bool]:
    try:
        yield from release(context, claimed)
    except TransportError:
        raise
    except ZkmqError as error:
        context.run.report(context.paths.task(claimed.task_id), f"a claim that nobody got was not given back: {error}")
        return False
    return True


# --- transactions


def _at_once() -> Procedure[None]:
    yield from ()


@dataclass(frozen=True, slots=True)
class Holder:
    """The session that holds what a transaction has taken."""

    is_over: Callable[[], bool]
    """Whether it has ended, or has been out of reach for as long as it lives without its client."""
    reach: Callable[[], Procedure[None]]
    """Wait until the server can be asked, or the session is over. Raises `Unavailable`."""


#: A session that lives, and whose server is there.
REACHABLE: Final = Holder(lambda: False, _at_once)


def while_held(holder: Holder, procedure: Procedure[None]) -> Procedure[None]:
    """Carry out a procedure that waits for the connection no longer than the session lives: then it is `Unavailable`.

    By itself each of its operations, and each of its writes of unknown outcome, would wait as long as any other does.
    """
    result: object = None
    error: Exception | None = None
    try:
        while True:
            op = procedure.send(result) if error is None else procedure.throw(error)
            result = error = None
            try:
                yield from holder.reach()
                if holder.is_over():
                    raise Unavailable("the session that held what was taken is over")
                result = yield op
            except Exception as raised:  # noqa: BLE001  every failure belongs to the procedure that asked
                error = raised
    except StopIteration:
        return
    finally:
        procedure.close()


def remember_unsettled(taken: Iterable[tuple[Context, Claimed]]) -> None:
    """The rollback of a transaction was cut off with these claims in it."""
    for context, claimed in taken:
        if not claimed.lost:
            context.claims.unsettled[claimed.task_id, claimed.token] = UnsettledClaim(claimed, roll_back)
            context.run.finish_later()


def _end_unsettled(context: Context) -> Procedure[int]:
    count = 0
    for key, unsettled in list(context.claims.unsettled.items()):
        try:
            yield from unsettled.end(context, unsettled.claimed)
            count += 1
        except TransportError:
            raise
        except ClaimLost:  # its session has ended, or its caller was here first
            pass
        except ZkmqError as error:
            context.run.report(context.paths.task(unsettled.claimed.task_id), f"what was left is not settled: {error}")
        context.claims.unsettled.pop(key, None)
    return count


def roll_back(context: Context, claimed: Claimed) -> Procedure[None]:
    """Give back what a transaction had taken; the taking counts as a delivery. Raises `ClaimLost`."""
    try:
        yield from fail(context, claimed, "rolled back", backoff=0)
    except CorruptRecord as error:  # its record was damaged meanwhile
        yield from recover_record(context, claimed)
        yield from fail(context, claimed, error, retry=False)
