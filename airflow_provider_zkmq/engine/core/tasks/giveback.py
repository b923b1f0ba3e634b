"""Claims that their callers never got, or went away from, are given back before their client claims again.

A call that was cancelled or interrupted, or that ended in `OutcomeUnknown`, may have claimed a task: its session
lives, so no rescue would ever take it away. The claim's own transaction is issued once more, which tells what became
of the first one whatever was on its way, and the task is released; the delivery counts as no attempt, since no
handler has begun.

A rollback that was cut off, or whose server was away, is owed as well: whoever left a transaction has nothing to roll
back with any more. What it had taken counts as a delivery. So is what a loop over claims left (`core.claiming.loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.memory.claims import Claimed, Handover, Owed, Sending
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Wait
from airflow_provider_zkmq.engine.core.protocol.transact import transact
from airflow_provider_zkmq.engine.core.protocol.writes import Outcome
from airflow_provider_zkmq.engine.core.reading.claims import one_stands
from airflow_provider_zkmq.engine.core.tasks.recover import recover_record
from airflow_provider_zkmq.engine.core.tasks.settle import fail, release
from airflow_provider_zkmq.engine.errors import ClaimLost, CorruptRecord, TransportError, Unavailable, ZkmqError


def give_back(context: Context) -> Procedure[int]:
    """Give back what callers left behind; returns how many tasks. After a `TransportError` they are owed still."""
    count = 0
    for nonce in list(context.claims.handovers):
        # A caller that was refused and goes on sending has a new one by the same nonce.
        while (handover := context.claims.handovers.get(nonce)) is not None and handover.busy is not None:
            yield Wait(handover.busy, 0, turn=True)  # another call is at it
        if handover is not None and handover.caller.left:  # else it has been given back, or its caller has it
            count += yield from _give_back_alone(context, nonce, handover)
    return count + (yield from _settle_owed(context))


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


def owe(taken: Iterable[tuple[Context, Claimed]]) -> None:
    """The rollback of a transaction was cut off with these claims in it."""
    for context, claimed in taken:
        if not claimed.lost:
            context.claims.owed[claimed.task_id, claimed.token] = Owed(claimed, roll_back)
            context.run.pay()


def _settle_owed(context: Context) -> Procedure[int]:
    count = 0
    for key, owed in list(context.claims.owed.items()):
        try:
            yield from owed.end(context, owed.claimed)
            count += 1
        except TransportError:
            raise
        except ClaimLost:  # its session has ended, or its caller was here first
            pass
        except ZkmqError as error:
            context.run.report(context.paths.task(owed.claimed.task_id), f"what was left is not settled: {error}")
        context.claims.owed.pop(key, None)
    return count


def roll_back(context: Context, claimed: Claimed) -> Procedure[None]:
    """Give back what a transaction had taken; the taking counts as a delivery. Raises `ClaimLost`."""
    try:
        yield from fail(context, claimed, "rolled back", backoff=0)
    except CorruptRecord as error:  # its record was damaged meanwhile
        yield from recover_record(context, claimed)
        yield from fail(context, claimed, error, retry=False)
