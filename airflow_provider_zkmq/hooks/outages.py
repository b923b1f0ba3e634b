"""Retries while ZooKeeper is away: the pauses between them, and for how long an Airflow task goes on."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from ..engine import SessionLost, TlsRefused, TransportError

_LONGEST_PAUSE: Final = 60.0
_SECONDS_BETWEEN_LINES: Final = 60.0
#: A run waits for what it waits for: it looks this often at the least.
LONGEST_OF_A_WAIT: Final = 15.0


class Backoff:
    """Pauses after failures, of 1 to 2 seconds at first, up to `longest` in the end, each watch's another time.

    What lasted longer than the longest pause before it failed starts anew. `what` goes on is logged, after a first
    failure at once, and then once a minute. `longest`: seconds, a minute at the most.
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
        self._last_logged: float | None = None

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
        if self._last_logged is None or now - self._last_logged >= _SECONDS_BETWEEN_LINES:
            self._last_logged = now
            self._log.warning("%s goes on after a pause: %s: %s", self._what, type(error).__name__, error)
        pause: float = min(longest, 2.0 ** min(self._failures, 10))
        return pause * random.uniform(0.5, 1.0)  # noqa: S311  no secret


#: So many seconds of an outage, at most, what changes a queue is tried again.
RETRY_SECONDS: Final = 540.0
#: What no wait mends: certificates that are refused, and the end of the client.
NO_OUTAGE: Final = (TlsRefused, SessionLost)
T = TypeVar("T")


def outlast(log: Any, what: str, seconds: float, work: Callable[[Callable[[], None]], T]) -> T:
    """Return what `work` does, tried again while ZooKeeper is away, for so many seconds of an outage.

    `work` is given a function to call whenever a server has answered it: what fails after that is another outage. It
    uses one client throughout, which knows what a try of unknown outcome has sent; what it has done it does not do
    again. `what` goes on is said in the log. Raises what `work` does; certificates that are refused, and the end of the
    client, are no outage.
    """
    backoff, until, answered = Backoff(log, what=what, longest=LONGEST_OF_A_WAIT), None, False

    def reached() -> None:
        nonlocal answered
        answered = True

    while True:
        try:
            return work(reached)
        except NO_OUTAGE:
            raise
        except TransportError as error:
            now = time.monotonic()
            if until is None or answered:
                until, answered = now + seconds, False
            if now >= until:
                raise
            backoff.block_after(error, until - now)


class Outlasting:
    """Calls of one client, each tried again while ZooKeeper is away: for `RETRY_SECONDS`, within the task's limit.

    A call of unknown outcome is made again as it was: so the client takes over what it had written.
    """

    def __init__(self, log: Any, what: str, limit: timedelta | None) -> None:
        self._log, self._what = log, what
        self._until = math.inf if limit is None else time.monotonic() + limit.total_seconds()

    def call(self, work: Callable[[], T]) -> T:
        """Return what `work` does. Raises what it does; see `outlast`."""
        left = self._until - time.monotonic()
        return outlast(self._log, self._what, min(RETRY_SECONDS, left), lambda _: work())


def persist(log: Any, deadline: float, wait: Callable[[float], T]) -> T:
    """Return what `wait` does, called with the seconds that are left, again and again while ZooKeeper is away.

    `deadline`: in seconds since 1970, or infinite. Raises what `wait` does, and a `TransportError` only after it.
    """
    backoff = Backoff(log, what="Waiting", longest=LONGEST_OF_A_WAIT)
    while True:
        try:
            return wait(max(0.0, deadline - time.time()))
        except NO_OUTAGE:
            raise
        except TransportError as error:
            left = deadline - time.time()
            if left <= 0:
                raise
            backoff.block_after(error, left)
