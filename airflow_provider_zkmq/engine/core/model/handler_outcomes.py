"""What a handler may return besides a result: Carmine's success, error, retry, and snooze; what follows a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .states import State
from .values import Duration


@dataclass(frozen=True, slots=True)
class Success:
    """The task is done. ``dedupe``: for how long an enqueue of its id is still refused."""

    result: bytes | str | None = None
    dedupe: Duration | None = None


@dataclass(frozen=True, slots=True)
class Error:
    """The task failed for good: it goes to the dead letters, whatever attempts are left."""

    error: str | BaseException


@dataclass(frozen=True, slots=True)
class Retry:
    """The task failed and is tried again by its policy. ``backoff``: after how long, instead of the policy's."""

    error: str | BaseException = "to be tried again"
    backoff: Duration | None = None


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now: the task is given back, not to be handled for so long. Counts as no attempt."""

    delay: Duration


Handled: TypeAlias = Success | Error | Retry | Snooze


class Follows(NamedTuple):
    """What follows a failed delivery.

    The task's state; if known, how many attempts it has at the most, and after how many seconds it is tried again.
    """

    state: State
    attempts: int | None = None
    pause: float | None = None
