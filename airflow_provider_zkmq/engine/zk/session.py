"""A client's session on ZooKeeper: its signals and replies, its watches, the threads that it runs on, its end."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import re
import select
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, ref

from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionLoss, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from .. import lazy_asyncio as asyncio
from ..connection_config import ConnectionConfig
from ..core.client_state import Runtime
from ..core.zk_operations import WaitPlace, WaitQueue, Watch
from ..errors import AccessDenied, SessionLost, TlsRefused, TransportError, Unavailable
from ..log import log
from .acl_check import Access
from .connection import CallDeadline, Dialer, Limit, RemoveWatches, ZooKeeperClient, is_address, left

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


class NotedReply(Reply):
    """A reply that nobody waits for: its value, or the error that came instead, is noted by the connection's thread."""

    __slots__ = ("_note",)

    def __init__(self, note: Callable[[Any, BaseException | None], None]) -> None:
        super().__init__()
        self._note = note

    def set(self, value: Any = None) -> None:
        """It has come."""
        self._note(value, None)
        super().set(value)

    def set_exception(self, exception: BaseException) -> None:
        """It will not come, or says that the request was refused."""
        self._note(None, exception)
        super().set_exception(exception)


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
# A loop runs all that is ready before it looks at anything else: a thousand procedures that one event wakes would be
# a round of a second. So they have a part of each round; who comes after that goes on in the next one.


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
        while self._loop is loop and loop.time() >= self._end:
            await asyncio.sleep(0)
        if self._loop is not loop:
            self._loop, self._end = loop, loop.time() + SHARE
            loop.call_soon(self._over)

    def _over(self) -> None:
        self._loop = None


# --- The watches of a connection: one on the server and one callback of kazoo's for each znode, whoever relies on it.
#
# A znode's `Fan` passes its event, and the end of the connection, on to every `Watch` that was armed by a reply.
# Watches are held weakly: one that its reader dropped is nobody's.

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
        self.standing = False  # whether the server has a watch
        self.removing = False  # whether the server was asked to take it away

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


class Watches:
    """The fans of one connection.

    ``lock`` guards them, and is held while a request that changes them is queued: the order of requests is then the
    order of what is noted here. The connection's thread takes it too, so nothing may block under it.
    """

    def __init__(self, client: ZooKeeperClient) -> None:
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

    def unwanted(self, kind: str, path: str) -> Reply | None:
        """The reply of a removal that is to be queued, the lock being held; None where nothing is to be taken away."""
        fan = self._fans.get((kind, path))
        if fan is None or fan.removing or fan.watches():
            return None
        fan.removing = True
        return NotedReply(partial(self._removed, fan))

    def _removed(self, fan: Fan, _value: Any, error: BaseException | None) -> None:
        """The server's watch is gone, or was before; one of a later read comes with that read's reply."""
        if isinstance(error, _UNANSWERED):
            return  # with the connection, of which kazoo forgets everything itself
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
_GONE: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL


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

    def select(self, rlist: Any, wlist: Any, _xlist: Any, timeout: float | None = None) -> Any:
        """What can be read or written, by one system call where kazoo makes five."""
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
        """How who sends a request wakes the connection's thread: by a byte, unless one waits already."""
        pair: tuple[Any, Any] = super().create_socket_pair()
        self.notifier = pair[1]
        self.notifier.setblocking(False)
        return pair

    def ring(self) -> None:
        """Wake the connection's thread. Raises `OSError` where the connection was closed."""
        with contextlib.suppress(BlockingIOError):  # full of what wakes it already
            self.notifier.send(b"\0")


class TlsHandler(Handler):
    """The same over TLS, which may have read more than was asked of it."""

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        """What can be read or written; kazoo's own does not see what TLS has read and nobody has fetched yet."""
        waiting = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        ready, writable, broken = super().select(rlist, wlist, xlist, 0 if waiting else timeout)
        return [*ready, *(one for one in waiting if one not in ready)], writable, broken


# --- One connection to ZooKeeper: its session, its watches, its end.

#: For so long the end of a session is waited for whose servers have not answered before.
CLOSING_SECONDS: Final = 1.0
#: For so long a client that closes waits to be taken off the register; else the end of its session does that.
DISCONNECT_SECONDS: Final = 3.0


def _is_no_secret(record: logging.LogRecord) -> bool:
    """Whatever level others set for kazoo's own log: below INFO it writes credentials and payloads."""
    return record.levelno >= logging.INFO


class Session:
    """A kazoo client whose watches are never silently lost.

    kazoo drops its watches when the connection drops; here every outstanding watch then fires, so that whoever
    relies on one reads again. Client callbacks run on kazoo's threads and only set flags.

    ``memory`` is the lock under which procedures run; see `drivers`. ``id`` is the ZooKeeper session's: it stays while
    the connection is away, is 0 once the session has ended, and another one after. ``away_since``: when the connection
    was lost, by the monotonic clock; None while it is there.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self.memory = threading.RLock()
        self.connected = threading.Event()
        self.changed = ThreadSignal()
        self.fairness = Fairness()
        self.pid = os.getpid()
        self.closed = False
        self.id = 0
        self.away_since: float | None = None
        self.silent = False  # whether the servers let a call wait to its end, and have not answered since
        self.requests: dict[str, int] = {}
        self.access = Access(config)
        self.dialer = Dialer(config, self.changed.fire)
        logger = logging.getLogger("airflow_provider_zkmq.kazoo")
        logger.setLevel(logging.WARNING)
        logger.addFilter(_is_no_secret)
        self.client = ZooKeeperClient(
            hosts=config.hosts,
            timeout=config.session_timeout,
            handler=(Handler if config.tls is None else TlsHandler)(self.dialer),
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.2),
            logger=logger,
            auth_data=[("digest", ":".join(config.auth))] if config.auth else None,
        )
        self.wakes: Wakes = self.client.handler.wakes
        self.watches = Watches(self.client)
        self.client.add_listener(self._on_state)

    def zxid(self) -> int:
        """The number of the latest transaction that a reply told of."""
        return int(self.client.last_zxid)

    def runtime(self, finish_later: Callable[[], None]) -> Runtime:
        """What it lends to the procedures on one queue."""
        return Runtime(
            monotonic=time.monotonic,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            random=random.random,
            new_signal=ThreadSignal,
            session=lambda: self.id,
            report=lambda path, why: log.warning("%s", why if why.startswith(path) else f"{path}: {why}"),
            zxid=self.zxid,
            restored=lambda: int(self.client.restored),
            unwatch=self.unwatch,
            finish_later=finish_later,
        )

    def open(self, call_deadline: CallDeadline) -> None:
        """Connect. Raises `Unavailable` when `call_deadline` is over, `TlsRefused` at once, `AccessDenied`."""
        (first, _), *others = hosts = self.client.hosts
        many = len(hosts) + 1 if others or not is_address(first) else 1  # a name may stand for several servers
        deadline, share = call_deadline.deadline(), self.config.connect_timeout / many
        self.client.start_async()
        while not self.connected.is_set():
            seen = self.changed.count
            self.usable()
            if self.client.client_state == KeeperState.AUTH_FAILED:
                raise self.denied()
            if not left(deadline) or self.dialer.refused_by(hosts):
                raise self.unavailable(call_deadline.limit)
            self.changed.wait(seen, min(left(deadline), share))
            if not self.connected.is_set():
                self.dialer.drop_stalled(share)

    def close(self, call_deadline: float | None = None) -> None:
        """End the session within `call_deadline` seconds, ``request_timeout`` if not told. Idempotent.

        A server that does not answer ends the session itself, after ``session_timeout``.
        """
        if self.closed:
            return
        self.closed = True
        if os.getpid() == self.pid:
            self.client.end(self.config.request_timeout if call_deadline is None else call_deadline)
        self.changed.fire()

    def usable(self) -> None:
        """Raise unless requests may be sent: not closed, not inherited through a fork."""
        if self.closed:
            raise SessionLost("the connection was closed")
        self.refuse_a_fork()

    def refuse_a_fork(self) -> None:
        """Raise in a process that inherited the connection, before it meets a lock that nobody there will free."""
        if os.getpid() != self.pid:
            raise TransportError("this connection was opened in another process: connect again after a fork")

    def call_deadline(self) -> CallDeadline:
        """How long a call that begins now waits for servers."""
        return CallDeadline(self.config.request_timeout)

    def send(self, name: str, request: Any, reply: Any, *, more: bool = False) -> None:
        """Send a request or queue it; never blocks. Counted under `name`. `more`: its sender will `flush`."""
        self.requests[name] = self.requests.get(name, 0) + 1
        self.client.post(request, reply, more=more)

    def unwatch(self, path: str) -> None:
        """Nobody waits for changes of this znode's data any more: have the server forget it, unless somebody does.

        Sends at most one request, whose reply nobody waits for. A watch counts while its owner keeps it unfired.
        """
        if self.closed or os.getpid() != self.pid:
            return
        with self.watches.lock:
            reply = self.watches.unwanted(DATA, path)
            if reply is not None:
                self.send("RemoveWatches", RemoveWatches(path), reply)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            if self.away_since is not None:
                kept = "with the same session" if self.id else "with a new session: claims of the old one are lost"
                log.info("connected to ZooKeeper again after %.1f s, %s", time.monotonic() - self.away_since, kept)
            self.id = int(self.client.client_id[0])
            self.away_since = None
            self.dialer.forget_troubles()
            self.silent = False
            self.connected.set()
        else:
            if state == KazooState.LOST:
                self.id = 0
            if self.away_since is None:
                self.away_since = time.monotonic()
                if not self.closed:
                    log.info("the connection to ZooKeeper is lost; it is opened again as soon as a server answers")
            self.connected.clear()
            self.watches.lose()
        self.changed.fire()

    def server_version(self) -> str | None:
        """The version of the server, by a connection of its own; None: it does not tell, or speaks TLS."""
        version = re.search(rb"version: (\d+(?:\.\d+)+)", self.dialer.send_command(b"srvr"))
        return version and version[1].decode()

    def unavailable(self, limit: Limit) -> Unavailable:
        """The error for servers that did not answer within a limit, or with which we do not agree about TLS."""
        self.silent = True
        refused = self.dialer.refused_by(self.client.hosts)
        if refused is not None:
            return TlsRefused(f"no TLS connection to ZooKeeper: the server {refused}")
        met = self.dialer.shown()
        return Unavailable(
            f"no ZooKeeper server answered at {self.config.hosts} within {limit}{met and f' ({met})'}; "
            "check the hosts and that a server runs there (zkmq server starts one)",
            met=met,
            nobody_listens=self.dialer.nobody_listens(),
        )

    def unanswered(self) -> Unavailable:
        """The error for a request that was not answered."""
        return self.unavailable(Limit("request_timeout", self.config.request_timeout))

    def denied(self) -> AccessDenied:
        """The error for refused credentials."""
        return AccessDenied(
            f"ZooKeeper at {self.config.hosts} refuses {_who(self.config)} access under {self.config.root!r}"
        )

    def not_known(self) -> AccessDenied:
        """The error for a server that knows no identity of ours, so that nothing could be ours alone."""
        return AccessDenied(
            f"ZooKeeper at {self.config.hosts} does not know who {_who(self.config)} is, nothing was written: its "
            "secure port must ask for client certificates (ssl.clientAuth=need)"
        )


def _who(config: ConnectionConfig) -> str:
    """The identity of a connection in errors; no secret is in there."""
    whos = [f"user {config.auth[0]!r} (check user and password)"] if config.auth else []
    if config.tls is not None and config.tls.cert:
        whos.append(f"the owner of the certificate {config.tls.cert!r}")
    return " and ".join(whos) or "an anonymous client"
