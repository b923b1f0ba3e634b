"""A way to ZooKeeper that can be shut for a while, by hand or at the reply to a chosen write."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

MULTI = 14


class Gate:
    """Passes packets on while it is open; shut, it ends every connection and lets nobody in."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._shut = threading.Event()
        self._lose: int | None = None
        self._reopen: float | None = None
        self.lost = 0
        self._lost: set[tuple[int, int]] = set()
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """End every connection; new ones end at once."""
        with self._lock:
            self._shut.set()
            gone, self._sockets = self._sockets, set()
        for one in gone:
            _end(one)

    def open(self) -> None:
        """Let everybody through again."""
        self._shut.clear()

    def shut_at_reply(self, write: int, seconds: float | None = None) -> None:
        """Shut when the reply to a transaction comes, which is lost: to the next one (0), or so many later.

        `seconds`: open again after so long.
        """
        self._lose, self._reopen = write, seconds

    def close(self) -> None:
        """For good."""
        self.shut()
        _end(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    if self._shut.is_set():
                        _end(client)
                        continue
                    server = socket.create_connection(self._server)
                    self._sockets |= {client, server}
                for way in ((client, server, self._request), (server, client, self._reply)):
                    threading.Thread(target=self._pass_on, args=(*way, id(client)), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, look, connection: int) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            first = True  # no request but the session's
            while head := stream.read(4):
                packet = stream.read(struct.unpack(">i", head)[0])
                if not (first or look(connection, *struct.unpack_from(">ii", packet))):
                    self._lose_reply()
                    return
                first = False
                sink.sendall(head + packet)
        _end(source)
        _end(sink)

    def _lose_reply(self) -> None:
        self.lost += 1
        self.shut()
        if self._reopen is not None:
            threading.Timer(self._reopen, self.open).start()

    def _request(self, connection: int, xid: int, kind: int) -> bool:
        if kind == MULTI and self._lose is not None:
            if self._lose == 0:
                self._lost.add((connection, xid))
            self._lose = self._lose - 1 if self._lose else None
        return True

    def _reply(self, connection: int, xid: int, _: int) -> bool:
        return (connection, xid) not in self._lost


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
