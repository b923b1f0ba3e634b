"""Signals for threads and event loops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import partial

from airflow_provider_zkmq.engine.core.protocol.seats import Seat, Seats


class ThreadSignal:
    """Counts how often it was fired and wakes whoever asked, from any thread.

    Callbacks are called once, outside the lock, in the firing thread; they must not block or raise.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._callbacks: Seats[Callable[[], None]] = Seats()

    @property
    def count(self) -> int:
        """How often it has been fired."""
        return self._count

    def fire(self) -> None:
        """Count one and wake everybody."""
        self._tell(1, self._callbacks.everybody)

    def nudge(self) -> None:
        """Count one, and wake one of each kind of those in seats, and all others."""
        self._tell(1, self._callbacks.one_of_each)

    def pass_on(self, kind: Hashable) -> None:
        """Wake one more in a seat of this kind; nothing is counted."""
        self._tell(0, partial(self._callbacks.next_of, kind))

    def _tell(self, happened: int, chosen: Callable[[], list[Callable[[], None]]]) -> None:
        """Call back; where an interrupt comes in between, rather all who wait than none of those who have got up."""
        told: list[Callable[[], None]] = []
        try:
            with self._lock:
                self._count += happened
                told = chosen()
            for callback in told:
                callback()
        except BaseException:
            with self._lock:
                others = self._callbacks.everybody()
            for callback in (*told, *others):
                callback()
            raise

    def on_next(self, seen: int, callback: Callable[[], None], seat: Seat | None = None) -> bool:
        """Have `callback` called at the next firing; False, without keeping it, if it was fired since `seen`."""
        with self._lock:
            if self._count > seen:
                return False
            self._callbacks.take(callback, seat)
            return True

    def wait(self, seen: int, timeout: float | None, seat: Seat | None = None) -> bool:
        """Block until it has been fired more than `seen` times; whether it has within `timeout` seconds."""
        event = threading.Event()
        try:
            return not self.on_next(seen, event.set, seat) or event.wait(timeout)
        finally:
            self.forget(event.set, seat)

    def forget(self, callback: Callable[[], None], seat: Seat | None = None) -> None:
        """Withdraw a callback."""
        with self._lock:
            self._callbacks.leave(callback, seat)
