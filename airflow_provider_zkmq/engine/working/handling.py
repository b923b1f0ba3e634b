"""One task, handled: what its handler gets, and what becomes of what it returns or raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled
from airflow_provider_zkmq.engine.errors import ConfigError
from airflow_provider_zkmq.engine.outcomes import Error, Retry, Snooze, Success

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.fronts.aqueue import AsyncClaim
    from airflow_provider_zkmq.engine.fronts.queue import Claim

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


def check_options(threads: object, least: int, lease: object, *, transactional: bool) -> None:
    """What both workers refuse. Raises `ConfigError`."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < least:
        msg = f"threads {threads!r} is not allowed: a whole number, {least} or more"
        raise ConfigError(msg)
    if transactional and lease is not None:
        msg = "a transaction is bound to its session: give either transactional=True or lease=, not both"
        raise ConfigError(msg)


def outcome_of(returned: object) -> Handled:
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


def call(work: Callable[[], object]) -> Handled:
    """Run a handler in a thread of its worker's; whatever it raises is an outcome, too, and ends no thread."""
    try:
        return outcome_of(work())
    except BaseException as error:  # noqa: BLE001  a handler's failure is the task's
        return Retry(error)
