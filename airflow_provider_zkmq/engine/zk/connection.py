"""kazoo's connection with fewer system calls: requests leave in one write, replies are taken as they come together."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable
from typing import Any, Final

from kazoo.exceptions import ConnectionDropped, ConnectionLoss, NoNodeError
from kazoo.protocol.connection import CLOSE_RESPONSE, PING_XID, WATCH_XID
from kazoo.protocol.serialization import Close, Exists, PingInstance, reply_header_struct

from airflow_provider_zkmq.engine.zk.frames import Frames
from airflow_provider_zkmq.engine.zk.outbox import framed
from airflow_provider_zkmq.engine.zk.requests import exception
from airflow_provider_zkmq.engine.zk.restored import Reconnecting

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
        self._frames = Frames()
        timeouts = super()._connect(host, hostip, port)
        # Two threads must not use one TLS connection at once.
        self.client.outbox.open(None if isinstance(self._socket, ssl.SSLSocket) else self._socket)
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
        data = self.client.outbox.take(answer, *first)
        if data:
            self._write(data, timeout)
        self.client.outbox.written()

    def _read_socket(self, _read_timeout: float) -> int | None:
        """Take in what has come: several replies and events, or part of one. kazoo is told of a session's end."""
        ended = None
        try:
            with self.handler.wakes.together():
                for frame in self._frames.fed(self._received()):
                    ended = self._take_in(frame) or ended
        except (struct.error, IndexError, ValueError) as error:
            msg = f"what came is no reply of ZooKeeper's: {error}"
            raise ConnectionDropped(msg) from error
        return ended

    def _received(self) -> bytes:
        try:
            piece: bytes = self._socket.recv(self._frames.wanted)
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
        request, reply, expected = self.client.outbox.answered()
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
