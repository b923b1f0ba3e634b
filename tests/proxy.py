"""A way to ZooKeeper that loses replies: it cuts the connection after a chosen write was carried out."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

WRITES = (14, 19)  # multi, createContainer
_NOT_YET_A_REQUEST = 0  # the first packet of a connection is no request but the session's


class Proxy:
    """Passes packets on between clients and a server; counts transactions, and swallows the reply to one of them."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.writes = 0
        self.cuts = 0
        self._cut_at: int | None = None
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, at: int | None) -> None:
        """Begin to count anew; the reply to the write number `at` (from 0) will be lost."""
        self.writes, self._cut_at = 0, at

    def close(self) -> None:
        """End every connection."""
        _end(self._listener)
        for one in list(self._sockets):
            _end(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets |= {client, server}
                lost: set[int] = set()
                for way in ((client, server, self._request), (server, client, self._reply)):
                    threading.Thread(target=self._pass_on, args=(*way, lost), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, look, lost: set[int]) -> None:
        with contextlib.suppress(OSError):
            for number, packet in enumerate(_packets(source)):
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
