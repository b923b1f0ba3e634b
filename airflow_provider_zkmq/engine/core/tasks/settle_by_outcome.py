"""Settling by outcome: what a handler has done becomes the end of its delivery, whatever it was.

A result completes the task, or commits the transaction that holds it; everything else gives the task up. What the
engine refuses to carry out, such as a result too large or a snooze of no time, is settled as a failure that names the
reason: no task stays claimed by a consumer that goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from ...errors import ClaimLost, CorruptRecord, TransportError, ZkmqError
from ..client_state import Claimed, Context
from ..model.handler_outcomes import Error, Follows, Handled, Retry, Snooze, Success
from ..model.records import clip
from ..model.values import Duration
from ..zk_operations import Procedure
from .settle import complete, failed, recover_record, snooze
from .transaction import TransactionState, commit, rollback

#: How often an outcome gives way to another one before its refusal is raised.
MOST_REFUSALS: Final = 2


@dataclass(slots=True)
class Settlement:
    """How far the settling of one delivery has come; repeated after a `TransportError`, it goes on from there."""

    outcome: Handled | None = None
    """What is being carried out: the handler's, or what it gave way to."""
    refusals: int = 0
    rolled_back: bool = False
    follows: Follows | None = None
    """Once it is settled, and the delivery counted as failed."""


class Endings(Protocol):
    """The ways in which a delivery ends."""

    def succeed(self, outcome: Success) -> Procedure[None]:
        """Keep the result. Raises `ClaimLost`."""

    def withdraw(self) -> Procedure[None]:
        """Give back what else was taken; called once, before the task is given up."""

    def fail(self, error: str | BaseException, *, retry: bool, backoff: Duration | None) -> Procedure[Follows]:
        """The delivery counts. Raises `ClaimLost`."""

    def snooze(self, delay: Duration) -> Procedure[None]:
        """The delivery does not count. Raises `ClaimLost`."""

    def recover(self) -> Procedure[bool]:
        """After a `CorruptRecord`: whether it was this task's, which can be settled now. Raises `ClaimLost`."""


def settle_outcome(
    context: Context, claimed: Claimed, outcome: Handled, transaction: TransactionState | None, progress: Settlement
) -> Procedure[bool]:
    """Settle a claim by what its handler has done; whether that is a success.

    `transaction`: the one that holds the claim; it is committed on success and rolled back otherwise, unless the
    handler has ended it. Raises `TransportError`, after which it is to be repeated with the same `progress`, and
    `ClaimLost`; any other error says that the task cannot be settled by whatever means.
    """
    if transaction is not None and transaction.ended and progress.outcome is None:
        return isinstance(outcome, Success)
    if transaction is not None and transaction.rolling_back:
        outcome = Retry("rolled back", backoff=0)  # by the handler, and that did not come to its end
    return (yield from settle_by(_OfQueue(context, claimed, transaction), outcome, progress))


def settle_by_outcome(context: Context, claimed: Claimed, outcome: Handled, progress: Settlement) -> Procedure[bool]:
    """End the claim by what a handler has done; whether it is a success. What is refused becomes a failure."""
    return settle_outcome(context, claimed, outcome, None, progress)


def settle_by(ends: Endings, outcome: Handled, progress: Settlement) -> Procedure[bool]:
    """`settle_outcome` for whatever can end a delivery."""
    progress.outcome = progress.outcome or outcome
    while True:
        try:
            return (yield from _carry_out(ends, progress.outcome, progress))
        except TransportError:
            raise
        except ClaimLost as error:
            if not isinstance(progress.outcome, Success):
                raise
            progress.outcome = Retry(error)  # where it is this task's own claim that was lost, that will say so
        except Exception as error:
            progress.refusals += 1
            if progress.refusals > MOST_REFUSALS:
                raise
            corrupt, what = isinstance(error, CorruptRecord), type(progress.outcome).__name__
            if (corrupt and (yield from ends.recover())) or (isinstance(progress.outcome, Success) and not corrupt):
                progress.outcome = Error(error)  # another try would end like a refused success: that is final
            else:  # left to the policy: a refused retry or snooze, and a success that damage elsewhere keeps out
                progress.outcome = Retry(f"{error_text(error)} (the handler's outcome was {what})")


def _carry_out(ends: Endings, outcome: Handled, progress: Settlement) -> Procedure[bool]:
    if isinstance(outcome, Success):
        yield from ends.succeed(outcome)
        return True
    if not progress.rolled_back:
        yield from ends.withdraw()
        progress.rolled_back = True
    match outcome:
        case Snooze(delay):
            yield from ends.snooze(delay)
        case Retry(error, backoff):
            progress.follows = yield from ends.fail(_showable(error), retry=True, backoff=backoff)
        case Error(error):
            progress.follows = yield from ends.fail(_showable(error), retry=False, backoff=None)
    return False


def _showable(error: str | BaseException) -> str | BaseException:
    """An error that has a text: an exception of the handler's may fail to tell its own."""
    try:
        str(error)
    except Exception:  # noqa: BLE001  whatever its `__str__` raises
        return f"{type(error).__name__}, which cannot be shown"
    return error


def error_text(error: str | BaseException) -> str:
    """An error as logs tell it: an exception with its kind, as long as a record keeps, and printable."""
    return clip(error if isinstance(error, str) else f"{type(error).__name__}: {_showable(error)}") or ""


@dataclass(frozen=True, slots=True)
class _OfQueue:
    """The ends of a claim in ZooKeeper, alone or adopted by a transaction."""

    context: Context
    claimed: Claimed
    transaction: TransactionState | None

    def succeed(self, outcome: Success) -> Procedure[None]:
        if self.transaction is None:
            yield from complete(self.context, self.claimed, outcome.result, dedupe=outcome.dedupe)
        else:
            yield from commit(self.transaction, outcome.result)

    def withdraw(self) -> Procedure[None]:
        """Roll the others back; the adopted claim leaves the transaction, to be settled by its own outcome."""
        if self.transaction is None:
            return
        self.transaction.taken = [pair for pair in self.transaction.taken if pair[1] is not self.claimed]
        self.transaction.rolling_back = True  # the failure that follows keeps a commit out that may still come
        try:
            yield from rollback(self.transaction)
        except TransportError:
            raise
        except ZkmqError as error:  # another task's trouble: it must not keep this one
            self.context.run.report(self.context.paths.task(self.claimed.task_id), f"rolling back: {error}")

    def fail(self, error: str | BaseException, *, retry: bool, backoff: Duration | None) -> Procedure[Follows]:
        return (yield from failed(self.context, self.claimed, error, retry=retry, backoff=backoff))

    def snooze(self, delay: Duration) -> Procedure[None]:
        yield from snooze(self.context, self.claimed, delay)

    def recover(self) -> Procedure[bool]:
        return recover_record(self.context, self.claimed)
