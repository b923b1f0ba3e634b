"""The pauses of a watch that never ends: longer after each failure, and told about once a minute."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final

_LONGEST_PAUSE: Final = 60.0
_SECONDS_BETWEEN_LINES: Final = 60.0


class Backoff:
    """Pauses after failures, of 1 to 2 seconds at first and of 30 to 60 in the end, each watch's another time.

    What lasted longer than the longest pause before it failed had got on: the next pause is a first one again.
    `longest`: seconds, where 60 are too many.
    """

    def __init__(self, log: Any, clock: Callable[[], float] = time.monotonic, longest: float = _LONGEST_PAUSE) -> None:
        self._log = log
        self._clock = clock
        self._longest = min(longest, _LONGEST_PAUSE)
        self._failures = 0
        self._resumed = clock()
        self._told: float | None = None

    async def after(self, error: Exception) -> None:
        """Tell what happened, unless something was told less than a minute ago, and sleep."""
        now = self._clock()
        if now - self._resumed > _LONGEST_PAUSE:
            self._failures = 0
        self._failures += 1
        if self._told is None or now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            self._log.warning("Watching goes on after a pause: %s: %s", type(error).__name__, error)
        pause = min(self._longest, 2.0 ** min(self._failures, 10))
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  no secret
        self._resumed = self._clock()
