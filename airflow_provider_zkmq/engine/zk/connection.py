"""One connection: its requests leave in one write, its replies are taken as they come together."""

from __future__ import annotations

import contextlib
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.connection import CLOSE_RESPONSE, PING_XID, WATCH_XID, ConnectionHandler
from kazoo.protocol.serialization import (
    Close,
    CloseInstance,
    Connect,
    Exists,
    GetChildren,
    GetChildren2,
    PingInstance,
    reply_header_struct,
)
from kazoo.protocol.states import KeeperState

from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.zk.requests import exception

# --- The bytes of a connection as frames: each begins with its length.

_LENGTH: Final = struct.Struct("!i")
#: So many bytes are asked for at once, and of a frame that is longer at most so many.
_USUAL: Final = 1 << 16
_MOST: Final = 1 << 20


class FrameReader:
    """Frames as they come, in pieces of any size. What is missing of one is waited for without being copied again."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = _LENGTH.size

    @property
    def wanted(self) -> int:
        """How many bytes it makes sense to ask for."""
        return min(max(_USUAL, self._need - self._have), _MOST)

    def fed(self, piece: bytes) -> list[bytes]:
        """The frames that are whole with this piece, without their lengths. Raises `ValueError` for what is none."""
        self._pieces.append(piece)
        self._have += len(piece)
        if self._have < self._need:
            return []
        received = b"".join(self._pieces)
        frames, begin = [], 0
        while (end := self._end(received, begin)) <= self._have:
            frames.append(received[begin + _LENGTH.size : end])
            begin = end
        self._pieces = [received[begin:]]
        self._have -= begin
        self._need = end - begin
        return frames

    def _end(self, received: bytes, begin: int) -> int:
        """Where the frame ends that begins here; of one whose length is not there yet, where its length does."""
        data = begin + _LENGTH.size
        if data > self._have:
            return data
        (length,) = _LENGTH.unpack_from(received, begin)
        if length < 0:
            msg = f"a frame of {length} bytes"
            raise ValueError(msg)
        return data + int(length)


# --- What is to be sent on one connection, and what was sent and is not answered yet.

#: What stands before a request's body: its length, its number on this connection, its kind.
_HEAD: Final = struct.Struct("!iii")
_COUNTED: Final = 8
_LARGEST_NUMBER: Final = (1 << 31) - 1
#: So many bytes are written at once before replies are looked at again.
_BATCH: Final = 1 << 18


class Queued(NamedTuple):
    """A request with its body, and who waits for its reply; None: nobody."""

    request: Any
    body: bytes
    reply: Any


class Pending(NamedTuple):
    """A request that was sent under this number."""

    request: Any
    reply: Any
    number: int


def framed(request: Any, body: bytes, number: int) -> bytes:
    """A request as it is written."""
    return _HEAD.pack(len(body) + _COUNTED, number, request.type) + body


class SendQueue:
    """Sends requests in the order in which they are given, from whichever thread is fit for it.

    Callers write to the socket themselves, which saves a hand-over to the connection's thread; what finds somebody else
    writing, or the socket full, is left to that thread, which writes all of it at once. ``lock``: re-entrant, since a
    signal's handler may send a request, too. Nothing blocks under it.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self.lock = threading.RLock()
        self._ring = ring
        self._queued: deque[Queued] = deque()
        self._pending: deque[Pending] = deque()
        self._socket: Any = None
        self._number = 0
        self._rest = b""
        self._rung = False
        self._writing = False
        """Whether the connection's thread is about to write."""
        self._sending = False
        """Whether a caller is writing, or was interrupted at that."""

    def __len__(self) -> int:
        """How many requests are under way, sent or not."""
        return len(self._pending) + len(self._queued)

    def open(self, direct: Any) -> None:
        """A connection stands. `direct`: its socket if callers may write to it, else None."""
        with self.lock:
            self._number, self._rest, self._writing, self._sending = 0, b"", False, False
            self._socket = direct

    def close(self) -> list[Any]:
        """The connection is lost: the replies that will not come, of what was sent and of what was not."""
        with self.lock:
            self._socket = None
            pending, self._pending = self._pending, deque()
            queued, self._queued = self._queued, deque()
        replies = [each.reply for each in pending] + [each.reply for each in queued]
        return [reply for reply in replies if reply is not None]

    def post(self, queued: Queued, *, more: bool = False) -> None:
        """Send a request, or have it sent, or have it wait for a `flush`; never blocks. Under the lock.

        An interrupt leaves a request queued or not. One that meets the very write of a request costs the connection,
        since nobody knows what of it was written. Raises `OSError` if the bell is gone.
        """
        try:
            self._queued.append(queued)
            if not more:
                self._go()
        except BaseException:
            self._ring()
            raise

    def give(self, queued: Queued) -> bool:
        """Send a request from this thread if it may write now; whether the system has all of it. Under the lock.

        Where the socket takes a part only, the rest of it is left to the connection's thread. An interrupt does what it
        does to `post`.
        """
        if self._socket is None or self._rest or self._writing or self._sending:
            return False
        self.post(queued)
        return not self._rest and not self._queued

    def flush(self) -> None:
        """Send what waits; an interrupt does what it does to `post`. Raises `OSError` if the bell is gone."""
        with self.lock:
            try:
                if self._queued:
                    self._go()
            except BaseException:
                self._ring()
                raise

    def _go(self) -> None:
        if self._socket is None or self._writing or self._sending:
            self._wake()
        else:
            self._send()

    def _wake(self) -> None:
        """Wake the connection's thread, unless it is about to look. A ring too many does no harm."""
        if not self._rung:
            self._ring()
            self._rung = True

    def _send(self) -> None:
        self._sending = True  # for good, where an interrupt comes in between
        if not self._rest:  # asked only now: a signal's handler may have written until here
            frames = self._taken()
            self._rest = frames[self._write(frames) :]
        self._sending = False
        if self._rest or self._queued:
            self._wake()

    def _write(self, frames: bytes) -> int:
        try:
            return int(self._socket.send(frames))
        except OSError:
            return 0  # the socket is full; or the connection's thread meets the same, and fails what is pending

    def _taken(self, *first: bytes) -> bytes:
        """What is written next; it counts as sent from now on."""
        parts, size = list(first), 0
        while self._queued and size < _BATCH:
            request, body, reply = self._queued.popleft()
            self._number = self._number % _LARGEST_NUMBER + 1
            self._pending.append(Pending(request, reply, self._number))
            parts.append(framed(request, body, self._number))
            size += len(body)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take(self, answer: Callable[[], object], *first: bytes) -> bytes:
        """What the connection's thread writes next: `first`, and what is queued. It calls `written` afterwards.

        `answer`: answers the ring. Raises `ConnectionDropped` where a request was interrupted while it was written.
        """
        with self.lock:
            if self._sending:
                msg = "a request was interrupted while it was written"
                raise ConnectionDropped(msg)
            answer()
            self._rung, self._writing = False, True
            taken, self._rest = self._taken(self._rest, *first), b""
            if self._queued:
                self._wake()
            return taken

    def written(self) -> None:
        """What was taken has been written."""
        self._writing = False

    def answered(self) -> Pending:
        """What the next reply answers. Raises `IndexError` where nothing was asked."""
        return self._pending.popleft()


# --- Servers that went back: restored from an older state, they refuse a session that has seen more, which is given up.

#: So many refusals in a row are waited for before anybody asks why: a server that starts closes connections, too.
REFUSALS: Final = 2


class Reconnecting(ConnectionHandler):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's connection; of a session that no server will ever take again it says that it has expired.

    A server closes the connection of a client whose last transaction it does not have. One that lags behind catches
    up, and another one of its ensemble has it; but where the servers were restored from an older state, the client
    would ask for ever. A session of its own tells: beginning it is a transaction, and where that has a lower number
    than one that we have seen, all servers together have gone back.
    """

    _socket: Any
    _refusals = 0

    def _connect(self, host: Any, hostip: Any, port: Any) -> Any:
        """The session on a new connection. Raises `SessionExpiredError` where the servers have gone back."""
        try:
            timeouts = super()._connect(host, hostip, port)
        except ConnectionDropped:
            self._refusals += self._socket is not None  # else no connection came about
            if self._socket is not None and self.client.last_zxid and self._refusals >= REFUSALS:
                self._give_up_if_gone_back(host, hostip, port)
            raise
        self._refusals = 0
        return timeouts

    def _give_up_if_gone_back(self, host: str, hostip: str, port: int) -> None:
        seen, now = self.client.last_zxid, self._latest_of(host, hostip, port)
        if now is None or now >= seen:
            return
        self._refusals = 0
        self.client.restored += 1
        log.error(
            "ZooKeeper at %s:%s was restored from an older state: its latest transaction is %#x, and this client has "
            "seen %#x. What came after it is lost, and so is this client's session; it goes on with a new one",
            host, port, now, seen,
        )  # fmt: skip
        raise SessionExpiredError("the server was restored from an older state")

    def _latest_of(self, host: str, hostip: str, port: int) -> int | None:
        """The number of a server's latest transaction, asked by a session that has seen nothing; None: no answer."""
        begin = self.client.anew()
        seconds = begin.time_out / 1000
        self._socket.close()
        try:
            self._socket = self.handler.create_connection(
                address=(hostip, port), hostname=host, timeout=seconds, use_ssl=self.client.use_ssl
            )
            self._socket.setblocking(0)
            self._invoke(seconds, begin)
            latest: int | None = self._invoke(seconds, Exists("/", None), 1)
            with contextlib.suppress(KazooException):
                self._submit(CloseInstance, seconds, 2)
        except (OSError, KazooException, self.handler.timeout_exception):
            return None
        return latest


# --- kazoo's connection with fewer system calls: requests leave in one write, replies are taken as they come together.

_PING: Final = framed(PingInstance, b"", PING_XID)
#: Nothing is there yet: TLS has part of a record, or somebody else was told of the same bytes.
_NOT_YET: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection(Reconnecting):
    """kazoo's loop, sessions, pings and their ends, with what it calls for each request done for many at once.

    kazoo calls `_read_socket` when there is something to read, `_send_request` when the bell has rung. What is not as
    ZooKeeper's protocol has it drops the connection, where kazoo's thread would end.
    """

    def _connect(self, host: Any, hostip: Any, port: Any) -> Any:
        """A session on a new connection; none of our requests is sent before it stands."""
        self._frame_reader = FrameReader()
        timeouts = super()._connect(host, hostip, port)
        # Two threads must not use one TLS connection at once.
        self.client.send_queue.open(None if isinstance(self._socket, ssl.SSLSocket) else self._socket)
        return timeouts

    def _send_request(self, _read_timeout: float, connect_timeout: float) -> None:
        """Send what callers have queued."""
        self._flush(connect_timeout, lambda: self._read_sock.recv(1))

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        """kazoo's own requests: those that open a session, before any of ours; and pings, between two of ours."""
        if request is PingInstance:
            self._flush(timeout, int, _PING)
        else:
            super()._submit(request, timeout, xid)

    def _flush(self, timeout: float, answer: Callable[[], object], *first: bytes) -> None:
        data = self.client.send_queue.take(answer, *first)
        if data:
            self._write(data, timeout)
        self.client.send_queue.written()

    def _read_socket(self, _read_timeout: float) -> int | None:
        """Take in what has come: several replies and events, or part of one. kazoo is told of a session's end."""
        ended = None
        try:
            with self.handler.wakes.together():
                for frame in self._frame_reader.fed(self._received()):
                    ended = self._take_in(frame) or ended
        except (struct.error, IndexError, ValueError) as error:
            msg = f"what came is no reply of ZooKeeper's: {error}"
            raise ConnectionDropped(msg) from error
        return ended

    def _received(self) -> bytes:
        try:
            piece: bytes = self._socket.recv(self._frame_reader.wanted)
        except _NOT_YET:
            return b""
        except OSError as error:
            msg = f"socket connection error: {error}"
            raise ConnectionDropped(msg) from error
        if not piece:
            msg = "the server closed the connection"
            raise ConnectionDropped(msg)
        return piece

    def _take_in(self, frame: bytes) -> int | None:
        number, zxid, error = reply_header_struct.unpack_from(frame)
        if number == PING_XID:
            self.ping_outstanding.clear()
        elif number == WATCH_XID:
            self._read_watch_event(frame, reply_header_struct.size)
        else:
            return self._answer(number, zxid, error, frame)
        return None

    def _answer(self, number: int, zxid: int, error: int, frame: bytes) -> int | None:
        request, reply, expected = self.client.send_queue.answered()
        if number != expected:
            if reply is not None:
                reply.set_exception(ConnectionLoss())
            msg = f"request {expected} was answered as {number}"
            raise ConnectionDropped(msg)
        if zxid > 0:
            self.client.last_zxid = zxid
        if request.type == Close.type:
            return int(CLOSE_RESPONSE)
        if reply is not None:
            self._settle(request, reply, error, frame)
        return None

    def _settle(self, request: Any, reply: Any, error: int, frame: bytes) -> None:
        """Give a reply to whoever waits for it. A znode that is missing is an answer to `Exists`."""
        missing = error == NoNodeError.code and request.type == Exists.type
        if error and not missing:
            reply.set_exception(exception(error))
            return
        try:
            value = None if missing else request.deserialize(frame, reply_header_struct.size)
        except Exception as problem:
            self.logger.exception("a reply to %s is not understood", type(request).__name__)
            reply.set_exception(problem)
            return
        self.client.note_watch(request)
        reply.set(value)


# --- kazoo's client, whose requests go by an `SendQueue` and a `Connection` of ours: kazoo would take a round for each.

#: For so long a connection that was cut is waited for.
CUT_SECONDS: Final = 1.0

#: In these states of kazoo's a request is refused rather than queued.
REFUSED: dict[str, type[Exception]] = {
    KeeperState.AUTH_FAILED: AuthFailedError,
    KeeperState.CLOSED: ConnectionClosedError,
    KeeperState.EXPIRED_SESSION: SessionExpiredError,
}
#: What fails the requests that are under way when the connection comes into these states; else `ConnectionLoss`.
_FAILURES: dict[str, type[Exception]] = {
    KeeperState.AUTH_FAILED: AuthFailedError,
    KeeperState.EXPIRED_SESSION: SessionExpiredError,
}


class ZooKeeperClient(KazooClient):  # type: ignore[misc]  # kazoo is untyped
    """A kazoo client whose callers encode their requests themselves, and mostly send them themselves, too.

    Its handler is a `Handler`, which knows how its connection's thread is woken.
    """

    restored = 0
    """How often the servers turned out to have gone back to an older state."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.send_queue = SendQueue(self._ring)
        self._connection = Connection(self, self._conn_retry.copy(), logger=self.logger)

    def _ring(self) -> None:
        self.handler.notifier.send(b"\0")

    def anew(self) -> Connect:
        """What begins a session that has seen nothing."""
        return Connect(0, 0, self._session_timeout, 0, bytes(16), self.read_only)

    def post(self, request: Any, reply: Any, *, more: bool = False) -> None:
        """Send a request or queue it; never blocks. `more`: others follow, and then a `flush`; they leave together.

        What cannot be encoded is raised here, and nothing is sent.
        """
        refused = self._posted(Queued(request, request.serialize(), reply), more=more)
        if refused is not None:
            reply.set_exception(refused)

    def give(self, request: Any, reply: Any) -> bool:
        """Send a request, and what is queued before it, from this thread, if it can at once; whether that was done."""
        queued = Queued(request, request.serialize(), reply)
        with self.send_queue.lock, contextlib.suppress(OSError):
            return self._state not in REFUSED and self.send_queue.give(queued)
        return False  # closed meanwhile

    def flush(self) -> None:
        """Send what was posted with `more` to come."""
        with contextlib.suppress(OSError):  # closed: what is under way has failed, or will
            self.send_queue.flush()

    def _posted(self, queued: Queued, *, more: bool = False) -> Exception | None:
        """A request's refusal, if it is refused: what is under way fails when the state changes, not before."""
        with self.send_queue.lock:
            refused: type[Exception] | None = REFUSED.get(self._state)
            notifier = self.handler.notifier
            if refused is not None or notifier is None or notifier.fileno() < 0:
                refused = refused or ConnectionClosedError
            else:
                try:
                    self.send_queue.post(queued, more=more)
                except OSError:
                    refused = ConnectionClosedError
        return None if refused is None else refused()

    @property
    def unanswered(self) -> int:
        """How many requests are under way, sent or not."""
        return len(self.send_queue)

    def _call(self, request: Any, async_object: Any) -> None:
        """What kazoo's own calls send."""
        self.post(request, async_object)

    def end(self, call_deadline: float) -> None:
        """End the session, asking its server for at most so many seconds; then cut the connection. Returns soon after.

        kazoo's own `stop` waits for its thread, which may be opening a connection or resolving a name.
        """
        self._stopped.set()
        if self.connected:
            self._posted(Queued(CloseInstance, b"", None))
            self._connection.connection_stopped.wait(call_deadline)
        self.handler.dialer.cut()
        if self._connection.connection_stopped.wait(CUT_SECONDS):
            self._release()
        else:
            threading.Thread(target=self._release, name="zkmq-ending", daemon=True).start()

    def _release(self) -> None:
        """Wait for kazoo's thread and free what it used."""
        self._connection.stop()
        self.handler.stop()
        self.close()

    def _notify_pending(self, state: str) -> None:
        """kazoo's state has changed, and nothing that is under way will be answered."""
        failure = _FAILURES.get(state, ConnectionLoss)()
        with self.handler.wakes.together():
            for reply in self.send_queue.close():
                reply.set_exception(failure)

    def note_watch(self, request: Any) -> None:
        """Keep the callback of a read with a watch, as kazoo does; the connection's thread calls it."""
        watcher = getattr(request, "watcher", None)
        if watcher and not self._stopped.is_set():
            lists = isinstance(request, GetChildren | GetChildren2)
            (self._child_watchers if lists else self._data_watchers)[request.path].add(watcher)

    def forget(self, path: str, callback: Any) -> None:
        """Take back the callback of a watch on a znode's data; kazoo has no public way to do that."""
        callbacks = self._data_watchers
        if path in callbacks:
            callbacks[path].discard(callback)
            if not callbacks[path]:
                del callbacks[path]
