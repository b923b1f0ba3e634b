"""What kazoo's threads run on: watches fired where their events arrive, and a wake-up that never blocks."""

from __future__ import annotations

import contextlib
import math
import os
import select
import ssl
import threading
from typing import Any, Final

from kazoo.handlers.threading import SequentialThreadingHandler

from airflow_provider_zkmq.engine.zk.dialing import Dialer
from airflow_provider_zkmq.engine.zk.reply import Reply
from airflow_provider_zkmq.engine.zk.waking import Wakes
from airflow_provider_zkmq.engine.zk.watches import Fan

#: What makes a socket worth a look: also that it is gone, which whoever reads or writes then meets.
_GONE: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL if hasattr(select, "poll") else 0


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's threads, but our watches fire on the connection's own.

    The server sends a watch's event before the reply to the write that caused it. Fired from another thread, as
    kazoo does, a caller could see its own write acknowledged and what it remembers still unmarked.
    """

    #: What wakes the connection's thread; None before the first connection.
    bell: Any = None

    def __init__(self, dialer: Dialer) -> None:
        super().__init__()
        self.dialer = dialer
        self.wakes = Wakes()

    def async_result(self) -> Reply:
        """A reply to come."""
        return Reply()

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        """What can be read or written, by one system call where kazoo makes five; on Windows by kazoo's own way."""
        if not hasattr(select, "poll"):
            return super().select(rlist, wlist, xlist, timeout)
        poll = select.poll()
        for one in rlist:
            poll.register(one, select.POLLIN)
        for one in wlist:
            poll.register(one, select.POLLOUT)
        met = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
        readable = [one for one in rlist if met.get(one.fileno(), 0) & (select.POLLIN | _GONE)]
        return readable, [one for one in wlist if met.get(one.fileno(), 0) & (select.POLLOUT | _GONE)], []

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_of_kazoo: Any
    ) -> Any:
        """A connection to a server; kazoo's own options for TLS are not used."""
        return self.dialer.dial(address[:2], hostname, timeout)

    def dispatch_callback(self, callback: Any) -> None:
        """Run a watch of ours at once: it sets flags and wakes waiters, it neither blocks nor raises."""
        if isinstance(callback.func, Fan):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)

    def create_socket_pair(self) -> tuple[Any, Any]:
        """How who sends a request wakes the connection's thread."""
        pair = (bell := Bell(), bell) if hasattr(os, "eventfd") else super().create_socket_pair()
        self.bell = pair[1]
        return pair


class TlsHandler(Handler):
    """The same over TLS, which may have read more than was asked of it."""

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        """What can be read or written; kazoo's own does not see what TLS has read and nobody has fetched yet."""
        waiting = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        ready, writable, broken = super().select(rlist, wlist, xlist, 0 if waiting else timeout)
        return [*ready, *(one for one in waiting if one not in ready)], writable, broken


class Bell:
    """kazoo's pair of wake-up sockets as one counter: one ring for each request, one answer for each ring.

    A socket fills after a few hundred unread bytes and then blocks whoever sends: for as long as an outage lasts.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.RLock()  # a signal's handler may ring while its thread does

    def fileno(self) -> int:
        """What is readable while a ring is unanswered."""
        return self._fd

    def send(self, data: bytes) -> int:
        """Ring once."""
        with self._lock:
            if self._fd < 0:
                msg = "the connection was closed"
                raise OSError(msg)
            os.eventfd_write(self._fd, 1)
        return len(data)

    def recv(self, _size: int) -> bytes:
        """Answer one ring, if there is one."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        return b"\0"

    def close(self) -> None:
        """Idempotent: both ends of kazoo's pair are this one."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
