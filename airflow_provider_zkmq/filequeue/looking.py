"""Waiting for something to be found in a file: looked for after each change of it, and when a time has come."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from airflow_provider_zkmq.textqueue.watch import changes

T = TypeVar("T")
#: A call whose own time is over goes on so many seconds with what takes no time unless somebody is in the way.
_GRACE: Final = 1.0
#: A look: what was found, and when (seconds since 1970) there may be something new without any change.
Look: TypeAlias = Callable[[], tuple[T | None, float | None]]


class Alarm:
    """Sets an event when a time has come."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._timer: threading.Timer | None = None

    def ring_in(self, seconds: float | None) -> None:
        """Ring after so many seconds, instead of when it would have rung; None: never."""
        self.silence()
        if seconds is not None:
            self._timer = threading.Timer(min(max(seconds, 0.0), threading.TIMEOUT_MAX), self.event.set)
            self._timer.daemon = True
            self._timer.start()

    def silence(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()


class Alarms:
    """The alarms of those who wait, so that all can be woken at once."""

    def __init__(self) -> None:
        self._all: set[Alarm] = set()
        self._lock = threading.Lock()

    def fire(self) -> None:
        """Wake everybody."""
        with self._lock:
            for alarm in self._all:
                alarm.event.set()

    @contextlib.contextmanager
    def one(self) -> Iterator[Alarm]:
        """An alarm, silenced afterwards."""
        alarm = Alarm()
        with self._lock:
            self._all.add(alarm)
        try:
            yield alarm
        finally:
            alarm.silence()
            with self._lock:
                self._all.discard(alarm)


def end_of(timeout: float | None) -> float | None:
    """Until when a call with a time of its own waits for a file's lock: a little longer; None without such a time."""
    return time.monotonic() + timeout + _GRACE if timeout else None


def look_until(path: Path, look: Look[T], timeout: float | None, alarms: Alarms, over: Callable[[], bool]) -> T | None:
    """What `look` finds, waiting for it at most `timeout` seconds, and until `over`; None if it finds nothing."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        with alarms.one() as alarm:
            for _ in changes(path, alarm.event):
                result, again = look()
                left = None if deadline is None else deadline - time.monotonic()
                if result is not None or over() or (left is not None and left <= 0):
                    return result
                waits = [left, None if again is None else again - time.time() + 0.001]
                alarm.ring_in(min((wait for wait in waits if wait is not None), default=None))
