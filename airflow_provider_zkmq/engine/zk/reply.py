"""Replies to come: what the connection's thread sets, and a thread or an event loop waits for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import KazooTimeoutError


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
