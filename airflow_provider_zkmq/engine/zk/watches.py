"""The watches of a connection: one on the server and one callback of kazoo's for each znode, whoever relies on it.

kazoo keeps a callback for each watched read until the znode changes, and drops all of them with the connection. Here
each znode has one `Fan`, which passes its event on to every `Watch` that was armed by a reply, and the end of the
connection as well. Watches are held weakly: one that its reader dropped is nobody's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final, Protocol, TypeVar
from weakref import ref

from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionLoss, SessionExpiredError

from airflow_provider_zkmq.engine.core.protocol.ops import Watch
from airflow_provider_zkmq.engine.zk.reply import Reply

DATA: Final = "data"
CHILD: Final = "child"
#: What fails a request without an answer of the server's.
_UNANSWERED = (ConnectionLoss, SessionExpiredError, ConnectionClosedError, AuthFailedError)

T = TypeVar("T")


class Fan:
    """What kazoo calls when a znode changes; equal to no other, so kazoo keeps it once however often it is added."""

    __slots__ = ("__weakref__", "armed", "kind", "leaving", "path", "readings", "standing", "table")

    def __init__(self, table: Watches, kind: str, path: str) -> None:
        self.table = table
        self.kind = kind
        self.path = path
        self.armed: list[ref[Watch]] = []
        self.readings: list[ref[Reading]] = []
        self.standing = False
        """Whether the server has a watch."""
        self.leaving = False
        """Whether the server was asked to take it away."""

    def __call__(self, _event: Any) -> None:
        """Called on the connection's thread."""
        self.table.fire(self)

    def watches(self) -> list[Watch]:
        """Who relies on this znode's event: armed by a reply, or about to be."""
        coming = [reading.watch for reading in _alive(self.readings)]
        return [watch for watch in _alive([*self.armed, *coming]) if not watch.fired]


class Reading(Reply):
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


class Removal(Reply):
    """The reply to a request that takes a watch away. Nobody waits for it."""

    __slots__ = ("fan",)

    def __init__(self, fan: Fan) -> None:
        super().__init__()
        self.fan = fan

    def set(self, value: Any = None) -> None:
        """The server has no watch any more."""
        self.fan.table.removed(self.fan)
        super().set(value)

    def set_exception(self, exception: BaseException) -> None:
        """It had none, the event having come first; or the connection was lost, and kazoo forgets everything itself."""
        if not isinstance(exception, _UNANSWERED):
            self.fan.table.removed(self.fan)
        super().set_exception(exception)


class Callbacks(Protocol):
    """The part of kazoo's client that is meant here."""

    def forget(self, path: str, callback: Any) -> None:
        """Take back the callback of a watch on a znode's data."""


class Watches:
    """The fans of one connection.

    ``lock`` guards them, and is held while a request that changes them is queued: the order of requests is then the
    order of what is noted here. The connection's thread takes it too, so nothing may block under it.
    """

    def __init__(self, client: Callbacks) -> None:
        self.lock = threading.RLock()
        self._client = client
        self._fans: dict[tuple[str, str], Fan] = {}

    def reading(self, kind: str, path: str, watch: Watch) -> Reading:
        """The reply of a read that is about to be queued, the lock being held."""
        fan = self._fans.setdefault((kind, path), Fan(self, kind, path))
        reading = Reading(fan, watch)
        fan.readings = [*(ref(one) for one in _alive(fan.readings)), ref(reading)]
        fan.leaving = False
        return reading

    def answered(self, reading: Reading, *, armed: bool) -> None:
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
                fan.armed, fan.standing, fan.leaving = [], False, False
                self._keep_or_drop(fan)
        for watch in watches:
            watch.lose()

    def unwanted(self, kind: str, path: str) -> Removal | None:
        """The reply of a removal that is to be queued, the lock being held; None where nothing is to be taken away."""
        fan = self._fans.get((kind, path))
        if fan is None or fan.leaving or fan.watches():
            return None
        fan.leaving = True
        return Removal(fan)

    def removed(self, fan: Fan) -> None:
        """The server's watch is gone; one of a later read comes with that read's reply."""
        with self.lock:
            fan.standing, fan.leaving = False, False
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
