"""The watches of a connection, and the threads on which they are fired."""

from __future__ import annotations

import contextlib
import math
import os
import select
import ssl
import threading
from collections.abc import Iterable
from typing import Any, Final, Protocol, TypeVar
from weakref import ref

from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionLoss, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler

from airflow_provider_zkmq.engine.core.protocol.ops import Watch
from airflow_provider_zkmq.engine.zk.connecting import Dialer
from airflow_provider_zkmq.engine.zk.signals import Reply, Wakes

# --- The watches of a connection: one on the server and one callback of kazoo's for each znode, whoever relies on it.
#
# kazoo keeps a callback for each watched read until the znode changes, and drops all of them with the connection. Here
# each znode has one `Fan`, which passes its event on to every `Watch` that was armed by a reply, and the end of the
# connection as well. Watches are held weakly: one that its reader dropped is nobody's.

DATA: Final = "data"
CHILD: Final = "child"
#: What fails a request without an answer of the server's.
_UNANSWERED = (ConnectionLoss, SessionExpiredError, ConnectionClosedError, AuthFailedError)

T = TypeVar("T")


class Fan:
    """What kazoo calls when a znode changes; equal to no other, so kazoo keeps it once however often it is added."""

    __slots__ = ("__weakref__", "armed", "kind", "path", "readings", "removing", "standing", "table")

    def __init__(self, table: Watches, kind: str, path: str) -> None:
        self.table = table
        self.kind = kind
        self.path = path
        self.armed: list[ref[Watch]] = []
        self.readings: list[ref[WatchedRead]] = []
        self.standing = False
        """Whether the server has a watch."""
        self.removing = False
        """Whether the server was asked to take it away."""

    def __call__(self, _event: Any) -> None:
        """Called on the connection's thread."""
        self.table.fire(self)

    def watches(self) -> list[Watch]:
        """Who relies on this znode's event: armed by a reply, or about to be."""
        coming = [reading.watch for reading in _alive(self.readings)]
        return [watch for watch in _alive([*self.armed, *coming]) if not watch.fired]


class WatchedRead(Reply):
    """The reply to a read with a watch, which is armed before anybody sees it.

    kazoo sets it on the connection's thread: events that the server sent before the reply have been passed on by then.
    """

    __slots__ = ("fan", "watch")

    def __init__(self, fan: Fan, watch: Watch) -> None:
        super().__init__()
        self.fan = fan
        self.watch = ref(watch)

    def set(self, value: Any = None) -> None:
        """The server answered, and has a watch."""
        self.fan.table.answered(self, armed=True)
        super().set(value)

    def set_exception(self, exception: BaseException) -> None:
        """There is no watch: the znode is missing, or the connection was lost."""
        self.fan.table.answered(self, armed=False)
        super().set_exception(exception)


class Removal(Reply):
    """The reply to a request that takes a watch away. Nobody waits for it."""

    __slots__ = ("fan",)

    def __init__(self, fan: Fan) -> None:
        super().__init__()
        self.fan = fan

    def set(self, value: Any = None) -> None:
        """The server has no watch any more."""
        self.fan.table.removed(self.fan)
        super().set(value)

    def set_exception(self, exception: BaseException) -> None:
        """It had none, the event having come first; or the connection was lost, and kazoo forgets everything itself."""
        if not isinstance(exception, _UNANSWERED):
            self.fan.table.removed(self.fan)
        super().set_exception(exception)


class Callbacks(Protocol):
    """The part of kazoo's client that is meant here."""

    def forget(self, path: str, callback: Any) -> None:
        """Take back the callback of a watch on a znode's data."""


class Watches:
    """The fans of one connection.

    ``lock`` guards them, and is held while a request that changes them is queued: the order of requests is then the
    order of what is noted here. The connection's thread takes it too, so nothing may block under it.
    """

    def __init__(self, client: Callbacks) -> None:
        self.lock = threading.RLock()
        self._client = client
        self._fans: dict[tuple[str, str], Fan] = {}

    def reading(self, kind: str, path: str, watch: Watch) -> WatchedRead:
        """The reply of a read that is about to be queued, the lock being held."""
        fan = self._fans.setdefault((kind, path), Fan(self, kind, path))
        reading = WatchedRead(fan, watch)
        fan.readings = [*(ref(one) for one in _alive(fan.readings)), ref(reading)]
        fan.removing = False
        return reading

    def answered(self, reading: WatchedRead, *, armed: bool) -> None:
        """A read's reply has come."""
        with self.lock:
            fan, watch = reading.fan, reading.watch()
            fan.readings = [ref(one) for one in _alive(fan.readings) if one is not reading]
            if armed:
                fan.standing = True
                fan.armed = [ref(one) for one in _alive(fan.armed)]
                if watch is not None:
                    fan.armed.append(ref(watch))
            self._keep_or_drop(fan)

    def fire(self, fan: Fan) -> None:
        """The znode has changed: the server's watch is spent."""
        with self.lock:
            watches, fan.armed, fan.standing = _alive(fan.armed), [], False
            self._keep_or_drop(fan)
        for watch in watches:
            watch.fire()

    def lose(self) -> None:
        """The connection is lost, and with it every watch; whoever relies on one reads again."""
        watches: list[Watch] = []
        with self.lock:
            for fan in list(self._fans.values()):
                watches += fan.watches()
                fan.armed, fan.standing, fan.removing = [], False, False
                self._keep_or_drop(fan)
        for watch in watches:
            watch.lose()

    def unwanted(self, kind: str, path: str) -> Removal | None:
        """The reply of a removal that is to be queued, the lock being held; None where nothing is to be taken away."""
        fan = self._fans.get((kind, path))
        if fan is None or fan.removing or fan.watches():
            return None
        fan.removing = True
        return Removal(fan)

    def removed(self, fan: Fan) -> None:
        """The server's watch is gone; one of a later read comes with that read's reply."""
        with self.lock:
            fan.standing, fan.removing = False, False
            self._keep_or_drop(fan)
            self._client.forget(fan.path, fan)

    def _keep_or_drop(self, fan: Fan) -> None:
        key = (fan.kind, fan.path)
        if fan.standing or _alive(fan.readings):
            self._fans.setdefault(key, fan)
        elif self._fans.get(key) is fan:
            del self._fans[key]


def _alive(refs: Iterable[ref[T]]) -> list[T]:
    return [target for each in refs if (target := each()) is not None]


# --- What kazoo's threads run on: watches fired where their events arrive, and a wake-up that never blocks.

#: What makes a socket worth a look: also that it is gone, which whoever reads or writes then meets.
_GONE: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL if hasattr(select, "poll") else 0


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's threads, but our watches fire on the connection's own.

    The server sends a watch's event before the reply to the write that caused it. Fired from another thread, as
    kazoo does, a caller could see its own write acknowledged and what it remembers still unmarked.
    """

    #: What wakes the connection's thread; None before the first connection.
    notifier: Any = None

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
        pair = (notifier := LoopNotifier(), notifier) if hasattr(os, "eventfd") else super().create_socket_pair()
        self.notifier = pair[1]
        return pair


class TlsHandler(Handler):
    """The same over TLS, which may have read more than was asked of it."""

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        """What can be read or written; kazoo's own does not see what TLS has read and nobody has fetched yet."""
        waiting = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        ready, writable, broken = super().select(rlist, wlist, xlist, 0 if waiting else timeout)
        return [*ready, *(one for one in waiting if one not in ready)], writable, broken


class LoopNotifier:
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
