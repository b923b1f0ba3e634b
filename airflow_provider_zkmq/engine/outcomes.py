"""What a handler may return besides a result: Carmine's success, error and retry, and snooze."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Success:
    """The task is done. ``dedupe``: seconds (or a duration) for which an enqueue of its id is still refused."""

    result: bytes | str | None = None
    dedupe: Any = None


@dataclass(frozen=True, slots=True)
class Error:
    """The task failed for good: it goes to the dead letters, whatever attempts are left."""

    error: str | BaseException


@dataclass(frozen=True, slots=True)
class Retry:
    """The task failed and is tried again by its policy. ``backoff``: seconds (or a duration), not the policy's."""

    error: str | BaseException = "to be tried again"
    backoff: Any = None


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now: the task is given back, not to be handled for so many seconds (or a duration). Counts as no attempt."""

    delay: Any
