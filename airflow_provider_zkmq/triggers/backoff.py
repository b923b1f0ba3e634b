"""The pauses after failures of what goes on all the same: longer after each one, and told about once a minute."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final

_LONGEST_PAUSE: Final = 60.0
_SECONDS_BETWEEN_LINES: Final = 60.0
#: A run waits for what it waits for: it looks this often at the least.
LONGEST_OF_A_WAIT: Final = 15.0


class Backoff:
    """Pauses after failures, of 1 to 2 seconds at first, up to `longest` in the end, each watch's another time.

    What lasted longer than the longest pause before it failed had got on: the next pause is a first one again.
    `what` goes on is said in the log, after a first failure at once, and then once a minute. `longest`: seconds, a
    minute at the most.
    """

    def __init__(
        self,
        log: Any,
        clock: Callable[[], float] = time.monotonic,
        *,
        what: str = "Watching",
        longest: float = _LONGEST_PAUSE,
    ) -> None:
        self._log = log
        self._clock = clock
        self._what = what
        self._longest = longest
        self._failures = 0
        self._resumed = clock()
        self._told: float | None = None

    async def after(self, error: Exception) -> None:
        """Tell what happened, unless something was told less than a minute ago, and sleep."""
        await asyncio.sleep(self._pause(error))
        self._resumed = self._clock()

    def block_after(self, error: Exception, most: float) -> None:
        """`after` for who blocks a thread, `most` seconds at the most."""
        time.sleep(min(most, self._pause(error)))
        self._resumed = self._clock()

    def _pause(self, error: Exception) -> float:
        """Count and tell the failure; return for how many seconds to pause."""
        now, longest = self._clock(), min(_LONGEST_PAUSE, self._longest)
        if now - self._resumed > longest:
            self._failures = 0
        self._failures += 1
        if self._told is None or now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            self._log.warning("%s goes on after a pause: %s: %s", self._what, type(error).__name__, error)
        pause: float = min(longest, 2.0 ** min(self._failures, 10))
        return pause * random.uniform(0.5, 1.0)  # noqa: S311  no secret
