"""A way to ZooKeeper that fails as told: it loses the reply to a chosen write, goes down, or holds packets back."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

WRITES = (14, 19)  # multi, createContainer
_NOT_YET_A_REQUEST = 0  # the first packet of a connection is no request but the session's


class Proxy:
    """Passes packets on between clients and a server; counts transactions, and swallows the reply to one of them.

    While ``requests`` or ``replies`` is cleared, whole packets of that direction are held back in their order.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.writes = 0
        self.cuts = 0
        self.requests = threading.Event()
        self.replies = threading.Event()
        self.requests.set()
        self.replies.set()
        self._cut_at: int | None = None
        self._down = False
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, at: int | None) -> None:
        """Begin to count anew; the reply to the write number `at` (from 0) will be lost."""
        self.writes, self._cut_at = 0, at

    def down(self, seconds: float | None = None) -> None:
        """Cut every connection and refuse new ones, for so many seconds or until `up`."""
        self._down = True
        self._cut_all()
        if seconds is not None:
            timer = threading.Timer(seconds, self.up)
            timer.daemon = True
            timer.start()

    def up(self) -> None:
        """Take connections again."""
        self._down = False

    def close(self) -> None:
        """End every connection."""
        self.requests.set()
        self.replies.set()
        _end(self._listener)
        self._cut_all()

    def _cut_all(self) -> None:
        for one in list(self._sockets):
            _end(one)
            self._sockets.discard(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._down:
                    _end(client)
                    continue
                server = socket.create_connection(self._server)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets |= {client, server}
                lost: set[int] = set()
                ways = (client, server, self._request, self.requests), (server, client, self._reply, self.replies)
                for way in ways:
                    threading.Thread(target=self._pass_on, args=(*way, lost), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, look, gate: threading.Event, lost: set[int]) -> None:
        with contextlib.suppress(OSError):
            for number, packet in enumerate(_packets(source)):
                gate.wait()
                if number and not look(packet, lost):
                    break
                sink.sendall(struct.pack(">i", len(packet)) + packet)
        _end(source)
        _end(sink)

    def _request(self, packet: bytes, lost: set[int]) -> bool:
        xid, kind = struct.unpack_from(">ii", packet)
        if kind in WRITES:
            if self.writes == self._cut_at:
                lost.add(xid)
            self.writes += 1
        return True

    def _reply(self, packet: bytes, lost: set[int]) -> bool:
        if struct.unpack_from(">i", packet)[0] in lost:
            self._cut_at = None
            self.cuts += 1
            return False
        return True


def _packets(source: socket.socket) -> Iterator[bytes]:
    with source.makefile("rb") as stream:
        while head := stream.read(4):
            yield stream.read(struct.unpack(">i", head)[0])


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
