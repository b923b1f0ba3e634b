"""Transactions whose reply may be lost: sent again until it is known what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airflow_provider_zkmq.engine.core.protocol.ops import (
    Create,
    CreateContainer,
    Failure,
    Multi,
    Outcome,
    Procedure,
    Reconnect,
    Sync,
)
from airflow_provider_zkmq.engine.errors import CorruptRecord, OutcomeUnknown, SessionLost, Unavailable, ZkmqError

# --- Writes whose outcome is never guessed.
#
# A transaction whose reply was lost may have been carried out, may be on its way, or may be lost. Reading alone
# cannot tell, since a delayed request can commit after the read. So the same conditional transaction is issued
# again: whichever of the two commits first makes the other one fail, and the nonce in what was written tells
# whose it was.

#: How often a write of unknown outcome is issued again before the caller is told that it is not known.
TRIES: Final = 10


def transact(multi: Multi | CreateContainer, proof: Callable[[], Procedure[Outcome | None]]) -> Procedure[Outcome]:
    """Carry out `multi` and know its outcome.

    `proof` is asked when a re-issued transaction was refused: it reads what the first try would have written and
    returns that try's outcome, or None if the refusal is another's doing. Raises `Unavailable` where nothing was
    sent, and `OutcomeUnknown` when the connection does not come back in time, or is lost again and again: once
    something was sent, nothing else tells that it may have been written.
    """
    outcome: Outcome = yield multi
    return (yield from resolved(multi, outcome, proof))


def resolved(
    multi: Multi | CreateContainer, outcome: Outcome, proof: Callable[[], Procedure[Outcome | None]]
) -> Procedure[Outcome]:
    """What became of a transaction that was sent: its outcome; an unknown one is found out as by `transact`."""
    if not outcome.unknown:
        return outcome
    try:
        return (yield from _resolve(multi, proof, outcome.sent))
    except (Unavailable, SessionLost) as error:
        raise _unknown(error) from error


def _resolve(
    multi: Multi | CreateContainer, proof: Callable[[], Procedure[Outcome | None]], sent: float | None
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
            mine = yield from proof()
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


# --- Bounding what is tried again: a refusal makes sense of another try only where something has changed.

_WHY: Final = {
    Failure.NO_NODE: "is missing",
    Failure.NODE_EXISTS: "stands where nothing should",
    Failure.NOT_EMPTY: "holds znodes that are not ours",
    Failure.BAD_VERSION: "does not have the version that is read of it",
}


class Tries:
    """The tries of one call at one thing: what was refused is tried again while that gets on, three times where not."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last: object = None
        self._equal = 0

    def refused(self, outcome: Outcome, multi: Multi, sign: object) -> Procedure[None]:
        """Go on to another try. `sign` tells what was read before this one: a record's transaction, say; None: nothing.

        The same refusal for the same sign may come from a server that lags behind, so it is asked to catch up; once
        more, and it is no race: `CorruptRecord` names the path. Raises `ZkmqError` for a refusal nobody expects.
        """
        if outcome.failure not in _WHY:
            raise refused(self._what, outcome, multi)
        now = (sign, _refused_op(outcome, multi), outcome.failure)
        self._equal = self._equal + 1 if now == self._last else 0
        self._last = now
        if self._equal == 1:
            yield Sync(failed_at(outcome, multi))
        elif self._equal > 1:
            raise damaged(self._what, outcome, multi)


def _refused_op(outcome: Outcome, multi: Multi) -> object:
    """What was refused: its kind, its path and the version that it asked for, which changes where others get on."""
    if outcome.failed is None:
        return None
    op = multi.ops[outcome.failed]
    return type(op), op.path, getattr(op, "version", None)


def damaged(what: str, outcome: Outcome, multi: Multi) -> CorruptRecord:
    """The error for a task whose tree is not as its record says."""
    return CorruptRecord(f"{what} was refused, nothing was changed: {described(outcome, multi)}")


def described(outcome: Outcome, multi: Multi) -> str:
    """Where a refusal happened, and what is the matter there."""
    why = None if outcome.failure is None else _WHY.get(outcome.failure)
    return f"{failed_at(outcome, multi)} {why or outcome.detail or 'is not as its record says'}"
