"""kazoo's client, whose requests go by an `Outbox` and a `Connection` of ours: kazoo would take a round for each."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionLoss, SessionExpiredError
from kazoo.protocol.serialization import CloseInstance, Connect, GetChildren, GetChildren2
from kazoo.protocol.states import KeeperState

from airflow_provider_zkmq.engine.zk.connection import Connection
from airflow_provider_zkmq.engine.zk.outbox import Outbox, Queued

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


class Client(KazooClient):  # type: ignore[misc]  # kazoo is untyped
    """A kazoo client whose callers encode their requests themselves, and mostly send them themselves, too.

    Its handler is a `Handler`, which knows how its connection's thread is woken.
    """

    restored = 0
    """How often the servers turned out to have gone back to an older state."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.outbox = Outbox(self._ring)
        self._connection = Connection(self, self._conn_retry.copy(), logger=self.logger)

    def _ring(self) -> None:
        self.handler.bell.send(b"\0")

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
        with self.outbox.lock, contextlib.suppress(OSError):
            return self._state not in REFUSED and self.outbox.give(queued)
        return False  # closed meanwhile

    def flush(self) -> None:
        """Send what was posted with `more` to come."""
        with contextlib.suppress(OSError):  # closed: what is under way has failed, or will
            self.outbox.flush()

    def _posted(self, queued: Queued, *, more: bool = False) -> Exception | None:
        """A request's refusal, if it is refused: what is under way fails when the state changes, not before."""
        with self.outbox.lock:
            refused: type[Exception] | None = REFUSED.get(self._state)
            bell = self.handler.bell
            if refused is not None or bell is None or bell.fileno() < 0:
                refused = refused or ConnectionClosedError
            else:
                try:
                    self.outbox.post(queued, more=more)
                except OSError:
                    refused = ConnectionClosedError
        return None if refused is None else refused()

    @property
    def unanswered(self) -> int:
        """How many requests are under way, sent or not."""
        return len(self.outbox)

    def _call(self, request: Any, async_object: Any) -> None:
        """What kazoo's own calls send."""
        self.post(request, async_object)

    def end(self, patience: float) -> None:
        """End the session, asking its server for at most so many seconds; then cut the connection. Returns soon after.

        kazoo's own `stop` waits for its thread, which may be opening a connection or resolving a name.
        """
        self._stopped.set()
        if self.connected:
            self._posted(Queued(CloseInstance, b"", None))
            self._connection.connection_stopped.wait(patience)
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
            for reply in self.outbox.close():
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
