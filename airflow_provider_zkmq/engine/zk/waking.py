"""Waking event loops from other threads: what comes together wakes a loop once."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref


class Line:
    """The futures of one event loop that are due. One for each loop and connection."""

    __slots__ = ("__weakref__", "_due", "_loop", "_planned", "_rung", "_wakes")

    def __init__(self, loop: asyncio.AbstractEventLoop, wakes: Wakes) -> None:
        self._loop = ref(loop)  # which keeps this line, not the other way round
        self._wakes = wakes
        self._due: deque[asyncio.Future[Any]] = deque()
        self._rung = False
        self._planned = False

    def soon(self, call: Callable[[], object]) -> None:
        """On the loop: have `call` called once what is ready to run now has run. It is the same each time."""
        if not self._planned:
            asyncio.get_running_loop().call_soon(self._run, call)
            self._planned = True  # after it: an interrupt in between costs a call too many, not all that follow

    def _run(self, call: Callable[[], object]) -> None:
        self._planned = False
        call()

    def waker(self, future: asyncio.Future[Any]) -> Callable[..., None]:
        """What resolves a future of this loop from any thread; it neither blocks nor raises."""
        return partial(self._wake, future)

    def _wake(self, future: asyncio.Future[Any], _cause: object = None) -> None:
        self._due.append(future)
        if self._rung:
            return  # the loop looks again after this future was put here
        try:
            self._rung = True
            self._wakes.due(self)
        except BaseException:  # an interrupt: whoever is next rings
            self._rung = False
            raise

    def ring(self) -> None:
        """Have the loop resolve what is due."""
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            self._due.clear()  # the loop was closed: its waiters are gone

    def _resolve(self) -> None:
        """On the loop: what is put here from now on rings again."""
        self._rung = False
        while self._due:
            future = self._due.popleft()
            if not future.done():
                future.set_result(True)


class Wakes:
    """The lines of one connection. Its thread gathers what a piece of news makes due, and rings at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, Line] = WeakKeyDictionary()
        self._gatherer: int | None = None
        self._gathered: list[Line] = []

    def line(self) -> Line:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            line = self._lines.get(loop)
            if line is None:
                line = self._lines[loop] = Line(loop, self)
            return line

    def due(self, line: Line) -> None:
        """Something of this line is due."""
        if self._gatherer == threading.get_ident():
            self._gathered.append(line)
        else:
            line.ring()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What this thread makes due in here wakes each loop once, at the end. Of the connection's thread alone."""
        self._gatherer = threading.get_ident()
        try:
            yield
        finally:
            self._gatherer = None
            gathered, self._gathered = self._gathered, []
            for line in gathered:
                line.ring()
