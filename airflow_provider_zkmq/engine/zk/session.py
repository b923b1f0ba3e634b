"""One connection to ZooKeeper: its session, its watches, its end."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.core.ops import Watch
from airflow_provider_zkmq.engine.errors import AccessDenied, SessionLost, TransportError, Unavailable
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal

log = logging.getLogger("airflow_provider_zkmq")


def _quiet_logger() -> logging.Logger:
    """kazoo's own log, never below INFO: at DEBUG it writes credentials and payloads."""
    logger = logging.getLogger("airflow_provider_zkmq.kazoo")
    logger.setLevel(logging.WARNING)
    return logger


class Session:
    """A kazoo client whose watches are never silently lost.

    kazoo drops its watches when the connection drops; here every outstanding watch then fires, so that whoever
    relies on one reads again. Client callbacks run on kazoo's threads and only set flags.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self.connected = threading.Event()
        self.changed = ThreadSignal()
        self.pid = os.getpid()
        self.closed = False
        self.requests: dict[str, int] = {}
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.acl = list(CREATOR_ALL_ACL if config.auth else OPEN_ACL_UNSAFE)
        self.client = KazooClient(**_client_options(config))
        self.client.add_listener(self._on_state)

    def start(self) -> None:
        """Connect within ``connect_timeout``. Raises `Unavailable` naming the hosts, or `AccessDenied`."""
        try:
            self.client.start(timeout=self.config.connect_timeout)
        except KazooTimeoutError as error:
            self.closed = True
            raise self.unavailable() from error
        except (AuthFailedError, KazooException) as error:
            self.close()
            raise self.denied() if isinstance(error, AuthFailedError) else self.unavailable() from error
        self._check_access()

    def _check_access(self) -> None:
        """A wrong password shows only at a znode with an ACL: look at the root now rather than in the first write."""
        try:
            parts = self.config.root.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                self.client.get_async("/" + "/".join(parts[:depth])).get(timeout=self.config.request_timeout)
        except NoAuthError as error:
            self.close()
            raise self.denied() from error
        except (KazooException, KazooTimeoutError):
            return  # not there yet, or the connection dropped: the first operation will tell

    def close(self) -> None:
        """End the session; what it held is given back at once. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if os.getpid() == self.pid:
            with contextlib.suppress(KazooException):
                self.client.stop()
            self.client.close()
        self.changed.fire()

    @property
    def id(self) -> int:
        """The session's id; a new session has another."""
        client_id = self.client.client_id
        return int(client_id[0]) if client_id else 0

    def usable(self) -> None:
        """Raise unless requests may be sent: not closed, not inherited through a fork."""
        if self.closed:
            msg = "the connection was closed"
            raise SessionLost(msg)
        if os.getpid() != self.pid:
            msg = "this connection was opened in another process: connect again after a fork"
            raise TransportError(msg)

    def watcher(self, watch: Watch) -> Callable[[Any], None]:
        """kazoo's callback for a watch; remembered, to fire it should the connection drop."""
        with self._lock:
            self._watches.add(watch)
        return _Callback(watch, self)

    def unwatch(self, path: str) -> None:
        """Nobody waits for changes of this znode's data any more."""

    def discard(self, watch: Watch) -> None:
        """The watch has fired."""
        with self._lock:
            self._watches.discard(watch)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.connected.set()
        else:
            self.connected.clear()
            with self._lock:
                watches, self._watches = list(self._watches), weakref.WeakSet()
            for watch in watches:
                watch.fire()
        self.changed.fire()

    def unavailable(self) -> Unavailable:
        """The error for servers that do not answer."""
        hint = " over TLS (wrong certificates look the same)" if self.config.tls else ""
        return Unavailable(
            f"no ZooKeeper server answered at {self.config.hosts}{hint} within {self.config.connect_timeout:g} s; "
            "check the hosts and that a server runs there (zkmq server starts one)"
        )

    def denied(self) -> AccessDenied:
        """The error for refused credentials."""
        who = f"user {self.config.auth[0]!r}" if self.config.auth else "an anonymous client"
        return AccessDenied(
            f"ZooKeeper at {self.config.hosts} refuses {who} access under {self.config.root!r}; check user and password"
        )


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's threads, but our watches fire on the connection's own.

    The server sends a watch's event before the reply to the write that caused it. Fired from another thread, as
    kazoo does, a caller could see its own write acknowledged and what it remembers still unmarked.
    """

    def dispatch_callback(self, callback: Any) -> None:
        """Run a watch of ours at once: it sets flags and wakes waiters, it neither blocks nor raises."""
        if isinstance(callback.func, _Callback):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)


class _Callback:
    """Called once by kazoo when the watch's event comes."""

    __slots__ = ("session", "watch")

    def __init__(self, watch: Watch, session: Session) -> None:
        self.watch = watch
        self.session = session

    def __call__(self, _event: Any) -> None:
        self.session.discard(self.watch)
        self.watch.fire()


def _client_options(config: ConnectionConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "hosts": config.hosts,
        "timeout": config.session_timeout,
        "handler": _Handler(),
        "connection_retry": KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.2),
        "logger": _quiet_logger(),
    }
    if config.auth:
        options["auth_data"] = [("digest", ":".join(config.auth))]
    if config.tls:
        tls = config.tls
        options |= {
            "use_ssl": True,
            "ca": tls.ca,
            "certfile": tls.cert,
            "keyfile": tls.key,
            "keyfile_password": tls.key_password,
            "verify_certs": True,
            "check_hostname": tls.check_hostname,
        }
    return options
