"""One connection to ZooKeeper: its session, its watches, its end."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Any

from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.errors import AccessDenied, SessionLost, TransportError, Unavailable
from airflow_provider_zkmq.engine.zk.handler import Handler
from airflow_provider_zkmq.engine.zk.kazoo_client import Client
from airflow_provider_zkmq.engine.zk.requests import RemoveWatches
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal
from airflow_provider_zkmq.engine.zk.watches import DATA, Watches


def _quiet_logger() -> logging.Logger:
    """kazoo's own log, never below INFO: at DEBUG it writes credentials and payloads."""
    logger = logging.getLogger("airflow_provider_zkmq.kazoo")
    logger.setLevel(logging.WARNING)
    return logger


class Session:
    """A kazoo client whose watches are never silently lost.

    kazoo drops its watches when the connection drops; here every outstanding watch then fires, so that whoever
    relies on one reads again. Client callbacks run on kazoo's threads and only set flags.

    ``memory`` is the lock under which procedures run; see `drivers`. ``id`` is the ZooKeeper session's: it stays while
    the connection is away, is 0 once the session has ended, and another one after. ``away_since``: when the connection
    was lost, by the monotonic clock; None while it is there.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self.memory = threading.RLock()
        self.connected = threading.Event()
        self.changed = ThreadSignal()
        self.pid = os.getpid()
        self.closed = False
        self.id = 0
        self.away_since: float | None = None
        self.requests: dict[str, int] = {}
        self.acl = list(CREATOR_ALL_ACL if config.auth else OPEN_ACL_UNSAFE)
        self.client = Client(**_client_options(config))
        self.watches = Watches(self.client)
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
        self.connected.wait(self.config.connect_timeout)  # kazoo is back a moment before it has told the session's id
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

    def usable(self) -> None:
        """Raise unless requests may be sent: not closed, not inherited through a fork."""
        if self.closed:
            msg = "the connection was closed"
            raise SessionLost(msg)
        self.refuse_a_fork()

    def refuse_a_fork(self) -> None:
        """Raise in a process that inherited the connection, before it meets a lock that nobody there will free."""
        if os.getpid() != self.pid:
            msg = "this connection was opened in another process: connect again after a fork"
            raise TransportError(msg)

    def deadline(self, since: float | None = None) -> float:
        """When an operation has taken too long that began at a time of the monotonic clock; None: that begins now."""
        return (time.monotonic() if since is None else since) + self.config.request_timeout

    def send(self, name: str, request: Any, reply: Any) -> None:
        """Queue a request; never blocks. Counted under `name`."""
        self.requests[name] = self.requests.get(name, 0) + 1
        self.client.post(request, reply)

    def unwatch(self, path: str) -> None:
        """Nobody waits for changes of this znode's data any more: have the server forget it, unless somebody does.

        Sends at most one request, whose reply nobody waits for. A watch counts while its owner keeps it unfired.
        """
        if self.closed or os.getpid() != self.pid:
            return
        with self.watches.lock:
            reply = self.watches.unwanted(DATA, path)
            if reply is not None:
                self.send("RemoveWatches", RemoveWatches(path), reply)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.id = int(self.client.client_id[0])
            self.away_since = None
            self.connected.set()
        else:
            if state == KazooState.LOST:
                self.id = 0
            if self.away_since is None:
                self.away_since = time.monotonic()
            self.connected.clear()
            self.watches.lose()
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


def left(deadline: float) -> float:
    """Seconds to a deadline."""
    return max(0.0, deadline - time.monotonic())


def _client_options(config: ConnectionConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "hosts": config.hosts,
        "timeout": config.session_timeout,
        "handler": Handler(),
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
