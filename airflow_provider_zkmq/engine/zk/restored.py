"""Servers that went back: restored from an older state, they refuse a session that has seen more, which is given up."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from kazoo.exceptions import ConnectionDropped, KazooException, SessionExpiredError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import CloseInstance, Exists

from airflow_provider_zkmq.engine.log import log

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
