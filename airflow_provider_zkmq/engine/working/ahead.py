"""What a worker has taken ahead: what its handlers soon get to, given back where they do not."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from airflow_provider_zkmq.engine.protocols import Closing, InHand
from airflow_provider_zkmq.engine.working.deliveries import Delivery
from airflow_provider_zkmq.engine.working.options import Options

#: As much work is taken ahead as its handlers do in so many seconds: others wait for no more than that.
WORK_SECONDS: Final = 0.05
#: What has waited for a handler for so long is given back: the handlers are slower than they were.
HELD_SECONDS: Final = 1.0
#: So many tasks can be claimed at once.
MOST_AT_ONCE: Final = 64
#: The share of the latest handler in what handlers are taken to need.
LATEST: Final = 0.2

C = TypeVar("C", bound=InHand)
U = TypeVar("U", bound=Closing)


class Ahead(Generic[C, U]):
    """The deliveries that wait for a thread, in the order in which they were claimed, and how many there may be.

    One lock guards them; nothing is sent and nobody waited for under it. Whoever takes one out decides on its end.
    Where a pause, the lock or a transaction belongs to each single task, nothing is taken ahead.
    """

    def __init__(self, options: Options) -> None:
        alone = options.transactional or options.throttle > 0 or not options.heartbeat
        self._most = 1 if alone else max(1, min(MOST_AT_ONCE, options.prefetch))
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Delivery[C, U], float]] = deque()
        self._seconds: float | None = None
        self._idle = 0

    def __bool__(self) -> bool:
        """Whether anything waits for a thread."""
        return bool(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether a thread waits for the queue: nothing is claimed ahead that it could begin at once."""
        return self._idle > 0

    @contextmanager
    def asking(self, *, idle: bool) -> Iterator[None]:
        """A thread asks the queue for tasks; `idle`: it waits until there are some."""
        with self._lock:
            self._idle += idle
        try:
            yield
        finally:
            with self._lock:
                self._idle -= idle

    @property
    def room(self) -> int:
        """How many tasks a thread without any claims: one until handlers are known to be fast, and while they are not.

        One as well while a thread is idle. A thread claims when none is waiting, and where that may be several, one
        thread does it for all: together they have no more than the limit waiting.
        """
        return 1 if self._idle else self._limit

    @property
    def fast(self) -> bool:
        """Whether handlers are known to be so fast that several tasks are claimed, and settled, together."""
        return self._limit > 1

    @property
    def _limit(self) -> int:
        seconds = self._seconds
        if seconds is None:
            return 1
        return self._most if seconds * self._most <= WORK_SECONDS else max(1, int(WORK_SECONDS / seconds))

    def handled(self, seconds: float) -> None:
        """A handler took so long."""
        with self._lock:
            known = seconds if self._seconds is None else self._seconds
            self._seconds = known + LATEST * (seconds - known)

    def put(self, deliveries: list[Delivery[C, U]]) -> None:
        """These wait from now on."""
        now = time.monotonic()
        with self._lock:
            self._waiting.extend((delivery, now) for delivery in deliveries)

    def take(self) -> Delivery[C, U] | None:
        """The next one, now the caller's."""
        with self._lock:
            return self._waiting.popleft()[0] if self._waiting else None

    def overdue(self, *, every: bool = False) -> list[Delivery[C, U]]:
        """What has waited for too long, or all of it, now the caller's to give back."""
        since = time.monotonic() - HELD_SECONDS
        with self._lock:
            count = len(self._waiting) if every else sum(taken <= since for _, taken in self._waiting)
            return [self._waiting.popleft()[0] for _ in range(count)]

    def until_overdue(self, most: float) -> float:
        """Seconds until something has waited for too long, at the most `most`."""
        with self._lock:
            since = self._waiting[0][1] if self._waiting else None
        return most if since is None else min(most, max(0.0, since + HELD_SECONDS - time.monotonic()))
