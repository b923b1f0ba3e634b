"""One task, handled: the handler is called, and what it returns or raises settles the claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine.core.inspect import Task
from airflow_provider_zkmq.engine.errors import ClaimLost, TransportError, ZkmqError
from airflow_provider_zkmq.engine.outcomes import Error, Retry, Snooze, Success

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.aqueue import AsyncClaim
    from airflow_provider_zkmq.engine.queue import Claim
    from airflow_provider_zkmq.engine.unit_of_work import UnitOfWork

Handler = Callable[..., Any]


class Running(Task):
    """The task a handler gets: what it is, and what the handler can do while it has it."""

    __slots__ = ("_claim",)
    _claim: Claim

    def __init__(self, claim: Claim) -> None:
        super().__init__(**{spec.name: getattr(claim.task, spec.name) for spec in fields(Task)})
        object.__setattr__(self, "_claim", claim)

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled meanwhile: then nobody wants the result, and none will be taken."""
        return self._claim.cancelled

    @property
    def token(self) -> int:
        """The fencing token of this delivery."""
        return self._claim.token

    def report(self, progress: float, note: str = "") -> None:
        """Tell how far it has come, from 0 to 1, for `Queue.task` and ``zkmq show --watch``. Raises `ClaimLost`."""
        self._claim.progress(progress, note)

    def extend(self, lease: object) -> None:
        """Hold the task `lease` more seconds from now, where it has a lock or a lease. Raises `ClaimLost`."""
        self._claim.extend(lease)


class RunningAsync(Task):
    """`Running` for a coroutine: its methods are awaited."""

    __slots__ = ("_claim",)
    _claim: AsyncClaim

    def __init__(self, claim: AsyncClaim) -> None:
        super().__init__(**{spec.name: getattr(claim.task, spec.name) for spec in fields(Task)})
        object.__setattr__(self, "_claim", claim)

    @property
    def cancelled(self) -> bool:
        """See `Running.cancelled`."""
        return self._claim.cancelled

    @property
    def token(self) -> int:
        """The fencing token of this delivery."""
        return self._claim.token

    async def report(self, progress: float, note: str = "") -> None:
        """See `Running.report`."""
        await self._claim.progress(progress, note)

    async def extend(self, lease: object) -> None:
        """See `Running.extend`."""
        await self._claim.extend(lease)


def outcome_of(returned: object) -> Success | Error | Retry | Snooze:
    """What a handler returned, as an outcome. Raises `TypeError`."""
    if isinstance(returned, Success | Error | Retry | Snooze):
        return returned
    if returned is None or isinstance(returned, bytes | str):
        return Success(returned)
    msg = (
        f"the handler returned {type(returned).__name__}; return bytes, text, None, "
        "or Success, Error, Retry or Snooze of airflow_provider_zkmq.engine"
    )
    raise TypeError(msg)


def call(claim: Claim, handler: Handler, transaction: UnitOfWork | None) -> Success | Error | Retry | Snooze:
    """Run the handler; an exception is an outcome, too. With a `transaction`, which holds the claim, it gets that."""
    try:
        task = Running(claim)
        return outcome_of(handler(task) if transaction is None else handler(task, transaction))
    except Exception as error:  # noqa: BLE001  a handler's failure is the task's
        return Retry(error)


def settle(claim: Claim, outcome: Success | Error | Retry | Snooze, transaction: UnitOfWork | None) -> bool:
    """Settle the claim by the outcome; whether that is a success. May be repeated after a `TransportError`.

    A `transaction` is committed on success, unless the handler has ended it, and rolled back otherwise. Raises
    `ClaimLost`, `TransportError`.
    """
    if transaction is not None and not transaction.open:
        return isinstance(outcome, Success)
    try:
        if isinstance(outcome, Success):
            if transaction is None:
                claim.complete(outcome.result, dedupe=outcome.dedupe)
            else:
                transaction.commit(outcome.result)
            return True
    except TransportError:
        raise
    except ClaimLost as error:
        if transaction is None:
            raise
        outcome = Retry(error)  # something else that was taken: this task is still ours
    except ZkmqError as error:  # a result that cannot be stored, say: no other try would end otherwise
        outcome = Error(error)
    if transaction is not None:
        transaction.disown(claim.task.id)
        transaction.rollback()
    _give_up(claim, outcome)
    return False


def _give_up(claim: Claim, outcome: Success | Error | Retry | Snooze) -> None:
    match outcome:
        case Snooze(delay):
            claim.snooze(delay)
        case Retry(error, backoff):
            claim.fail(error, backoff=backoff)
        case Error(error):
            claim.fail(error, retry=False)
