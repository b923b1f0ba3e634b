"""Writes whose outcome is never guessed.

A transaction whose reply was lost may have been carried out, may be on its way, or may be lost. Reading alone
cannot tell, since a delayed request can commit after the read. So the same conditional transaction is issued
again: whichever of the two commits first makes the other one fail, and the nonce in what was written tells
whose it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airflow_provider_zkmq.engine.core.protocol.ops import CreateContainer, Procedure, Reconnect
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Failure, Multi, Outcome
from airflow_provider_zkmq.engine.errors import OutcomeUnknown, SessionLost, Unavailable, ZkmqError

#: How often a write of unknown outcome is issued again before the caller is told that it is not known.
TRIES: Final = 10


def transact(multi: Multi | CreateContainer, ours: Callable[[], Procedure[Outcome | None]]) -> Procedure[Outcome]:
    """Carry out `multi` and know its outcome.

    `ours` is asked when a re-issued transaction was refused: it reads what the first try would have written and
    returns that try's outcome, or None if the refusal is another's doing. Raises `Unavailable` where nothing was
    sent, and `OutcomeUnknown` when the connection does not come back in time, or is lost again and again: once
    something was sent, nothing else tells that it may have been written.
    """
    outcome: Outcome = yield multi
    return (yield from resolved(multi, outcome, ours))


def resolved(
    multi: Multi | CreateContainer, outcome: Outcome, ours: Callable[[], Procedure[Outcome | None]]
) -> Procedure[Outcome]:
    """What became of a transaction that was sent: its outcome; an unknown one is found out as by `transact`."""
    if not outcome.unknown:
        return outcome
    try:
        return (yield from _resolve(multi, ours, outcome.sent))
    except (Unavailable, SessionLost) as error:
        raise _unknown(error) from error


def _resolve(
    multi: Multi | CreateContainer, ours: Callable[[], Procedure[Outcome | None]], sent: float | None
) -> Procedure[Outcome]:
    """Issue a write of unknown outcome again until it is known, or too long ago."""
    lost = 0
    while True:
        lost += 1
        yield from _reconnect(lost, sent)
        outcome: Outcome = yield multi
        if outcome.committed:
            return outcome
        if not outcome.unknown:
            mine = yield from ours()
            return mine or outcome


def _unknown(why: object) -> OutcomeUnknown:
    return OutcomeUnknown(f"a write was sent and its outcome is not known: {why}")


def _reconnect(lost: int, sent: float | None) -> Procedure[None]:
    """Wait for the connection, after it was lost with a write under way for the `lost`-th time.

    `sent`: when that write was first sent; its caller waits no longer for it than for any other operation.
    Raises `OutcomeUnknown` when it does not come back in time, and when it is lost again and again.
    """
    if lost > TRIES:
        raise _unknown("the connection was lost each time that its outcome was asked for")
    try:
        yield Reconnect(sent)
    except (Unavailable, SessionLost) as error:
        raise _unknown(error) from error


def never() -> Procedure[Outcome | None]:
    """For transactions that may be repeated without harm: a refusal is taken as it is."""
    return None
    yield  # pragma: no cover


def refused(what: str, outcome: Outcome, multi: Multi) -> ZkmqError:
    """The error for a refusal that no procedure expects."""
    op = multi.ops[outcome.failed] if outcome.failed is not None else None
    where = f" at {op.path}" if op is not None else ""
    reason = outcome.failure.value if outcome.failure else "refused"
    return ZkmqError(f"{what} was refused{where}: {outcome.detail or reason}")


def failed_at(outcome: Outcome, multi: Multi) -> str:
    """The path at which a transaction was refused."""
    return "" if outcome.failed is None else multi.ops[outcome.failed].path


def ensure_bucket(path: str) -> Procedure[None]:
    """Create a bucket of an index unless it exists; the server clears it away once it has been emptied.

    A server older than 3.5.3 knows no containers: there clean-up deletes what has been emptied.
    """
    outcome = yield from transact(CreateContainer(path), never)
    if not outcome.committed and outcome.failure is not Failure.NODE_EXISTS:
        yield from ensure_node(path)


def ensure_node(path: str, data: bytes = b"") -> Procedure[None]:
    """Create one persistent znode unless it exists; its parent must exist."""
    multi = Multi((Create(path, data),))
    outcome = yield from transact(multi, never)
    if not outcome.committed and outcome.failure is not Failure.NODE_EXISTS:
        raise refused("creating a znode", outcome, multi)
