"""Signals and replies between threads and event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from kazoo.handlers.threading import KazooTimeoutError

from airflow_provider_zkmq.engine.core.protocol.ops import WaitPlace, WaitQueue

# --- Signals for threads and event loops.


class ThreadSignal:
    """Counts how often it was fired and wakes whoever asked, from any thread.

    Callbacks are called once, outside the lock, in the firing thread; they must not block or raise.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._callbacks: WaitQueue[Callable[[], None]] = WaitQueue()

    @property
    def count(self) -> int:
        """How often it has been fired."""
        return self._count

    def fire(self) -> None:
        """Count one and wake everybody."""
        self._wake(1, self._callbacks.everybody)

    def notify(self) -> None:
        """Count one, and wake one of each kind of those with a place, and all others."""
        self._wake(1, self._callbacks.one_of_each)

    def notify_one(self, kind: Hashable) -> None:
        """Wake one more waiter of this kind; nothing is counted."""
        self._wake(0, partial(self._callbacks.next_of, kind))

    def _wake(self, happened: int, chosen: Callable[[], list[Callable[[], None]]]) -> None:
        """Call back; where an interrupt comes in between, rather all who wait than none of those who have got up."""
        chosen_callbacks: list[Callable[[], None]] = []
        try:
            with self._lock:
                self._count += happened
                chosen_callbacks = chosen()
            for callback in chosen_callbacks:
                callback()
        except BaseException:
            with self._lock:
                others = self._callbacks.everybody()
            for callback in (*chosen_callbacks, *others):
                callback()
            raise

    def on_next(self, seen: int, callback: Callable[[], None], place: WaitPlace | None = None) -> bool:
        """Have `callback` called at the next firing; False, without keeping it, if it was fired since `seen`."""
        with self._lock:
            if self._count > seen:
                return False
            self._callbacks.take(callback, place)
            return True

    def wait(self, seen: int, timeout: float | None, place: WaitPlace | None = None) -> bool:
        """Block until it has been fired more than `seen` times; whether it has within `timeout` seconds."""
        event = threading.Event()
        try:
            return not self.on_next(seen, event.set, place) or event.wait(timeout)
        finally:
            self.forget(event.set, place)

    def forget(self, callback: Callable[[], None], place: WaitPlace | None = None) -> None:
        """Withdraw a callback."""
        with self._lock:
            self._callbacks.leave(callback, place)


# --- Replies to come: what the connection's thread sets, and a thread or an event loop waits for.


class Reply:
    """A request's reply to come, with those methods of kazoo's `AsyncResult` that kazoo itself needs.

    kazoo's own makes a condition for each request, and calls back from a third thread. Callbacks are called here by
    whoever sets the reply: they must not block or raise. Each is called once.
    """

    __slots__ = ("__weakref__", "_callbacks", "_error", "_ready", "_value", "_wait")

    def __init__(self) -> None:
        self._ready = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []
        self._wait = threading.Lock()
        self._wait.acquire()

    def ready(self) -> bool:
        """Whether it has come, or an error."""
        return self._ready

    def set(self, value: Any = None) -> None:
        """It has come."""
        self._value = value
        self._come()

    def set_exception(self, exception: BaseException) -> None:
        """It will not come, or says that the request was refused."""
        self._error = exception
        self._come()

    def _come(self) -> None:
        self._ready = True
        with contextlib.suppress(RuntimeError):  # set twice: where a request was queued as the connection was closed
            self._wait.release()
        self._call_back()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The reply, waiting at most `timeout` seconds. Raises the error, or `KazooTimeoutError`."""
        if block and not self._ready and self._wait.acquire(timeout=-1 if timeout is None else timeout):
            self._wait.release()  # for others that wait
        if not self._ready:
            raise KazooTimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def get_nowait(self) -> Any:
        """The reply, if it is there. Raises the error, or `KazooTimeoutError`."""
        return self.get(block=False)

    def rawlink(self, callback: Callable[[Any], object]) -> None:
        """Have `callback` called with this reply once it has come; at once if it has."""
        self._callbacks.append(callback)
        if self._ready:
            self._call_back()

    def unlink(self, callback: Callable[[Any], object]) -> None:
        """Withdraw a callback."""
        with contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    def _call_back(self) -> None:
        """Two threads may be in here: a callback belongs to the one that has taken it off the list."""
        while self._callbacks:
            with contextlib.suppress(IndexError):
                self._callbacks.pop(0)(self)


# --- Waking event loops from other threads: what comes together wakes a loop once.


class LoopQueue:
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
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueue] = WeakKeyDictionary()
        self._gatherer: int | None = None
        self._gathered: list[LoopQueue] = []

    def line(self) -> LoopQueue:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            line = self._lines.get(loop)
            if line is None:
                line = self._lines[loop] = LoopQueue(loop, self)
            return line

    def due(self, line: LoopQueue) -> None:
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


# --- Rounds of an event loop: procedures that are woken together do not keep it from everybody else.
#
# A loop runs all that is ready before it looks at anything else. A thousand calls that begin at once, or that one event
# wakes, would be a round of a second, in which no timer and nothing of others goes on. So procedures have a part of
# each round; who comes after that goes on in the next one.

#: Seconds of a round for procedures: a tenth of a second is what people, and Airflow's triggerer, begin to notice.
SHARE: Final = 0.05


class Fairness:
    """What procedures of one session have had of the running loop's round. Used on the loop's thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = 0.0

    async def turn(self) -> None:
        """Return in this round of the running loop while procedures have a share of it left, else in a later one."""
        loop = asyncio.get_running_loop()
        # A loop that ended in the middle of a round is another one than the next.
        while self._loop is loop and loop.time() >= self._end:  # noqa: ASYNC110  the next round is what is waited for
            await asyncio.sleep(0)
        if self._loop is not loop:
            self._loop, self._end = loop, loop.time() + SHARE
            loop.call_soon(self._over)

    def _over(self) -> None:
        self._loop = None
