"""Waiting for something to be found in a file: looked for after each change of it, and when a time has come."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from ..textqueue.text_queue import changes

T = TypeVar("T")


#: A call whose own time is over goes on so many seconds with what takes no time unless somebody is in the way.
_GRACE: Final = 1.0


#: A look: what was found, and when (seconds since 1970) there may be something new without any change.
Look: TypeAlias = Callable[[], tuple[T | None, float | None]]


class Alarms:
    """The events of those who wait, so that all can be woken at once."""

    def __init__(self) -> None:
        self._all: set[threading.Event] = set()
        self._lock = threading.Lock()

    def fire(self) -> None:
        """Wake everybody."""
        with self._lock:
            for event in self._all:
                event.set()

    @contextlib.contextmanager
    def one(self) -> Iterator[threading.Event]:
        """An event that wakes whoever waits for it inside the block."""
        event = threading.Event()
        with self._lock:
            self._all.add(event)
        try:
            yield event
        finally:
            with self._lock:
                self._all.discard(event)


def end_of(timeout: float | None) -> float | None:
    """Until when a call with a time of its own waits for a file's lock: a little longer; None without such a time."""
    return time.monotonic() + timeout + _GRACE if timeout else None


def look_until(path: Path, look: Look[T], timeout: float | None, alarms: Alarms, over: Callable[[], bool]) -> T | None:
    """What `look` finds, waiting for it at most `timeout` seconds, and until `over`; None if it finds nothing."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        with alarms.one() as event, contextlib.ExitStack() as timers:
            for _ in changes(path, event):
                result, again = look()
                left = None if deadline is None else deadline - time.monotonic()
                if result is not None or over() or (left is not None and left <= 0):
                    return result
                timers.close()
                waits = [left, None if again is None else again - time.time() + 0.001]
                wait = min((wait for wait in waits if wait is not None), default=None)
                if wait is not None:
                    timer = threading.Timer(min(max(wait, 0.0), threading.TIMEOUT_MAX), event.set)
                    timer.daemon = True
                    timer.start()
                    timers.callback(timer.cancel)
