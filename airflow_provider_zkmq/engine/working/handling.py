"""One task, handled: what its handler gets, and what becomes of what it returns or raises."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import Any, Generic, TypeVar

from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.model.outcomes import Error, Retry, Snooze, Success
from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled
from airflow_provider_zkmq.engine.protocols import Holding

R = TypeVar("R")


class InHandler(Task, Generic[R]):
    """What handlers of both fronts get; `R`: what its calls return, nothing or what is to be awaited."""

    __slots__ = ("_claim",)
    _claim: Holding[R]

    def __init__(self, claim: Holding[R]) -> None:
        known = {spec.name: getattr(claim.task, spec.name) for spec in fields(Task)}
        super().__init__(**known | {"started_ms": claim.mark_begun()})
        object.__setattr__(self, "_claim", claim)

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled meanwhile: then nobody wants the result, and none will be taken."""
        return self._claim.cancelled

    @property
    def lost(self) -> bool:
        """Whether the claim is known to be over: cancelled, taken away, its lock or lease or its session has ended.

        What the handler does is for nothing then, and another may be at the task.
        """
        return self._claim.settled or self._claim.over

    @property
    def queue(self) -> str:
        """The name of the queue that it was taken from."""
        return self._claim.queue

    @property
    def token(self) -> int:
        """The fencing token of this delivery."""
        return self._claim.token

    def report(self, progress: float, note: str = "") -> R:
        """Tell how far it has come, from 0 to 1, for `Queue.task` and ``zkmq show --watch``. Raises `ClaimLost`."""
        return self._claim.progress(progress, note)

    def extend(self, lease: Duration) -> R:
        """Hold the task `lease` more seconds from now, where it has a lock or a lease. Raises `ClaimLost`."""
        return self._claim.extend(lease)


class Running(InHandler[None]):
    """The task a handler gets: what it is, and what the handler can do while it has it."""

    __slots__ = ()


class RunningAsync(InHandler[Coroutine[Any, Any, None]]):
    """`Running` for a coroutine: `report` and `extend` are awaited."""

    __slots__ = ()


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
