"""One connection to ZooKeeper: its session, its watches, its end."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final

from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.errors import AccessDenied, SessionLost, TlsRefused, TransportError, Unavailable
from airflow_provider_zkmq.engine.zk.access import Access
from airflow_provider_zkmq.engine.zk.dialing import Dialer, is_address
from airflow_provider_zkmq.engine.zk.handler import Handler, TlsHandler
from airflow_provider_zkmq.engine.zk.kazoo_client import Client
from airflow_provider_zkmq.engine.zk.limits import Limit, Patience, left, over
from airflow_provider_zkmq.engine.zk.requests import RemoveWatches
from airflow_provider_zkmq.engine.zk.rounds import Rounds
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal
from airflow_provider_zkmq.engine.zk.waking import Wakes
from airflow_provider_zkmq.engine.zk.watches import DATA, Watches

#: For so long the end of a session is waited for whose servers have not answered before.
CLOSING_SECONDS: Final = 1.0


def _is_no_secret(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.INFO


def _quiet_logger() -> logging.Logger:
    """kazoo's own log, never below INFO, whatever level others set: at DEBUG it writes credentials and payloads."""
    logger = logging.getLogger("airflow_provider_zkmq.kazoo")
    logger.setLevel(logging.WARNING)
    logger.addFilter(_is_no_secret)
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
        self.rounds = Rounds()
        self.pid = os.getpid()
        self.closed = False
        self.id = 0
        self.away_since: float | None = None
        self.silent = False
        """Whether the servers let a call wait to its end, and have not answered since."""
        self.requests: dict[str, int] = {}
        self.access = Access(config)
        self.dialer = Dialer(config, self.changed.fire)
        self.client = Client(**_client_options(config, self.dialer))
        self.wakes: Wakes = self.client.handler.wakes
        self.watches = Watches(self.client)
        self.client.add_listener(self._on_state)

    def open(self, patience: Patience) -> None:
        """Connect. Raises `Unavailable` when `patience` is over, `TlsRefused` at once, `AccessDenied`."""
        deadline, share = patience.deadline(), self._share()
        self.client.start_async()
        while not self.connected.is_set():
            seen = self.changed.count
            self.usable()
            if self.client.client_state == KeeperState.AUTH_FAILED:
                raise self.denied()
            if over(deadline) or self.dialer.refused_by(self.client.hosts):
                raise self.unavailable(patience.limit)
            self.changed.wait(seen, min(left(deadline), share))
            if not self.connected.is_set():
                self.dialer.drop_stalled(share)

    def _share(self) -> float:
        """For how many seconds each server is waited for when a session is opened; a name may stand for several."""
        (first, _), *others = self.client.hosts
        several = others or not is_address(first)
        return self.config.connect_timeout / (len(self.client.hosts) + 1 if several else 1)

    def close(self, patience: float | None = None) -> None:
        """End the session; what it held is given back at once. Idempotent.

        `patience`: for how many seconds its end may take, ``request_timeout`` if not told. A server that does not
        answer ends the session itself, after ``session_timeout``.
        """
        if self.closed:
            return
        self.closed = True
        if os.getpid() == self.pid:
            self.client.end(self.config.request_timeout if patience is None else patience)
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

    def farewell(self) -> Patience:
        """How long closing waits for servers; callers that have just waited in vain do not once more."""
        most = self.config.request_timeout
        return Patience(min(most, CLOSING_SECONDS) if self.silent else most)

    def patience(self) -> Patience:
        """How long a call that begins now waits for servers."""
        return Patience(self.config.request_timeout)

    def send(self, name: str, request: Any, reply: Any, *, more: bool = False) -> None:
        """Send a request or queue it; never blocks. Counted under `name`. `more`: its sender will `flush`."""
        self.requests[name] = self.requests.get(name, 0) + 1
        self.client.post(request, reply, more=more)

    def send_now(self, name: str, request: Any, reply: Any) -> bool:
        """Send a request if this thread can do so at once; whether the system has all of it. Counted if it has.

        What of it did not fit is sent later, and its reply comes.
        """
        given = bool(self.client.give(request, reply))
        if given:
            self.requests[name] = self.requests.get(name, 0) + 1
        return given

    def flush_soon(self) -> None:
        """Send what was posted on the running loop, together with what else is posted there in this round of it.

        A request that is the only one under way is sent at once.
        """
        if self.client.unanswered > 1:
            self.wakes.line().soon(self.client.flush)
        else:
            self.client.flush()

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
            self.dialer.forget_troubles()
            self.silent = False
            self.connected.set()
        else:
            if state == KazooState.LOST:
                self.id = 0
            if self.away_since is None:
                self.away_since = time.monotonic()
            self.connected.clear()
            self.watches.lose()
        self.changed.fire()

    def unavailable(self, limit: Limit) -> Unavailable:
        """The error for servers that did not answer within a limit, or with which we do not agree about TLS."""
        self.silent = True
        refused = self.dialer.refused_by(self.client.hosts)
        if refused is not None:
            return TlsRefused(f"no TLS connection to ZooKeeper: the server {refused}")
        met = self.dialer.shown()
        return Unavailable(
            f"no ZooKeeper server answered at {self.config.hosts} within {limit}{met and f' ({met})'}; "
            "check the hosts and that a server runs there (zkmq server starts one)"
        )

    def unanswered(self) -> Unavailable:
        """The error for a request that was not answered."""
        return self.unavailable(Limit("request_timeout", self.config.request_timeout))

    def denied(self) -> AccessDenied:
        """The error for refused credentials."""
        return AccessDenied(
            f"ZooKeeper at {self.config.hosts} refuses {_who(self.config)} access under {self.config.root!r}"
        )

    def not_known(self) -> AccessDenied:
        """The error for a server that knows no identity of ours, so that nothing could be ours alone."""
        return AccessDenied(
            f"ZooKeeper at {self.config.hosts} does not know who {_who(self.config)} is, nothing was written: its "
            "secure port must ask for client certificates (ssl.clientAuth=need)"
        )


def _who(config: ConnectionConfig) -> str:
    """The identity of a connection in errors; no secret is in there."""
    whos = [f"user {config.auth[0]!r} (check user and password)"] if config.auth else []
    if config.tls is not None and config.tls.cert:
        whos.append(f"the owner of the certificate {config.tls.cert!r}")
    return " and ".join(whos) or "an anonymous client"


def _client_options(config: ConnectionConfig, dialer: Dialer) -> dict[str, Any]:
    options: dict[str, Any] = {
        "hosts": config.hosts,
        "timeout": config.session_timeout,
        "handler": (Handler if config.tls is None else TlsHandler)(dialer),
        "connection_retry": KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.2),
        "logger": _quiet_logger(),
    }
    if config.auth:
        options["auth_data"] = [("digest", ":".join(config.auth))]
    return options
