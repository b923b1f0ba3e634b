"""kazoo's client with what we need of it besides: to queue a request without waiting, and to take a callback back."""

from __future__ import annotations

import threading
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError, SessionExpiredError
from kazoo.protocol.serialization import CloseInstance, Connect
from kazoo.protocol.states import KeeperState

from airflow_provider_zkmq.engine.zk.restored import Reconnecting

#: For so long a connection that was cut is waited for.
CUT_SECONDS: Final = 1.0

#: In these states of kazoo's a request is refused rather than queued.
REFUSED: dict[str, type[Exception]] = {
    KeeperState.AUTH_FAILED: AuthFailedError,
    KeeperState.CLOSED: ConnectionClosedError,
    KeeperState.EXPIRED_SESSION: SessionExpiredError,
}


class Client(KazooClient):  # type: ignore[misc]  # kazoo is untyped
    """A kazoo client whose handler is a `Handler`, which knows how its connection's thread is woken."""

    restored = 0
    """How often the servers turned out to have gone back to an older state."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._connection = Reconnecting(self, self._conn_retry.copy(), logger=self.logger)

    def anew(self) -> Connect:
        """What begins a session that has seen nothing."""
        return Connect(0, 0, self._session_timeout, 0, bytes(16), self.read_only)

    def post(self, request: Any, reply: Any, *, more: bool = False) -> None:  # noqa: ARG002
        """Queue a request; never blocks. `more`: others follow, and then a `flush`; they may be sent together.

        Without kazoo's own way to do it, which takes an interrupt of its caller for a closed connection. An interrupt
        here leaves the request queued or not; a ring too many is answered by kazoo, one too few delays what follows.
        """
        refused, bell = REFUSED.get(self._state), self.handler.bell
        if refused is not None or bell is None or bell.fileno() < 0:
            reply.set_exception((refused or ConnectionClosedError)())
            return
        try:
            self._queue.append((request, reply))
            bell.send(b"\0")
        except OSError:
            reply.set_exception(ConnectionClosedError())
        except BaseException:
            bell.send(b"\0")
            raise

    def give(self, request: Any, reply: Any) -> bool:  # noqa: ARG002
        """Send a request from this thread, if that may do so; whether it was sent. kazoo leaves sending to its own."""
        return False

    def flush(self) -> None:
        """Send what was posted with `more` to come: kazoo sends each request by itself, and has done so."""

    @property
    def unanswered(self) -> int:
        """How many requests are under way, sent or not."""
        return len(self._pending) + len(self._queue)

    def end(self, patience: float) -> None:
        """End the session, asking its server for at most so many seconds; then cut the connection. Returns soon after.

        kazoo's own `stop` waits for its thread, which may be opening a connection or resolving a name.
        """
        self._stopped.set()
        if self.connected:
            self._ask_to_end()
            self._connection.connection_stopped.wait(patience)
        self.handler.dialer.cut()
        if self._connection.connection_stopped.wait(CUT_SECONDS):
            self._release()
        else:
            threading.Thread(target=self._release, name="zkmq-ending", daemon=True).start()

    def _ask_to_end(self) -> None:
        self._queue.append((CloseInstance, None))
        self.handler.bell.send(b"\0")

    def _release(self) -> None:
        """Wait for kazoo's thread and free what it used."""
        self._connection.stop()
        self.handler.stop()
        self.close()

    def forget(self, path: str, callback: Any) -> None:
        """Take back the callback of a watch on a znode's data; kazoo has no public way to do that."""
        callbacks = self._data_watchers
        if path in callbacks:
            callbacks[path].discard(callback)
            if not callbacks[path]:
                del callbacks[path]
