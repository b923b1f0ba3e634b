"""The client whose requests go by an `Outbox` and a `Connection` of ours, where kazoo would take a round for each."""

from __future__ import annotations

import contextlib
from typing import Any

from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionLoss, SessionExpiredError
from kazoo.protocol.serialization import CloseInstance, GetChildren, GetChildren2
from kazoo.protocol.states import KeeperState

from airflow_provider_zkmq.engine.zk.connection import Connection
from airflow_provider_zkmq.engine.zk.kazoo_client import REFUSED, Client
from airflow_provider_zkmq.engine.zk.outbox import Outbox, Queued

#: What fails the requests that are under way when the connection comes into these states; else `ConnectionLoss`.
_FAILURES: dict[str, type[Exception]] = {
    KeeperState.AUTH_FAILED: AuthFailedError,
    KeeperState.EXPIRED_SESSION: SessionExpiredError,
}


class FastClient(Client):
    """A `Client` whose callers encode their requests themselves, and mostly send them themselves, too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.outbox = Outbox(self._ring)
        self._connection = Connection(self, self._conn_retry.copy(), logger=self.logger)

    def _ring(self) -> None:
        self.handler.bell.send(b"\0")

    def post(self, request: Any, reply: Any, *, more: bool = False) -> None:
        """Send a request or queue it; never blocks. What cannot be encoded is raised here, and nothing is sent."""
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
        """How many requests are under way."""
        return len(self.outbox)

    def _call(self, request: Any, async_object: Any) -> None:
        """What kazoo's own calls send."""
        self.post(request, async_object)

    def _ask_to_end(self) -> None:
        self._posted(Queued(CloseInstance, b"", None))

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
