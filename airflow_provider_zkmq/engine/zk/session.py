"""One connection to ZooKeeper: its session, its watches, its end; and who may come in besides us."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Permissions, make_digest_acl_credential

from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.core.protocol.ops import Children
from airflow_provider_zkmq.engine.errors import (
    AccessDenied,
    NotSecured,
    SessionLost,
    TlsRefused,
    TransportError,
    Unavailable,
)
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.zk.connecting import CallDeadline, Dialer, Limit, is_address, left, over
from airflow_provider_zkmq.engine.zk.connection import ZooKeeperClient
from airflow_provider_zkmq.engine.zk.requests import RemoveWatches, rights
from airflow_provider_zkmq.engine.zk.signals import Fairness, ThreadSignal, Wakes
from airflow_provider_zkmq.engine.zk.watches import DATA, Handler, TlsHandler, Watches

# --- Who may come in besides us: what we create is ours alone, and what others left open is not used unawares.
#
# Deleting a znode takes the right to do so at its *parent*, so each znode counts, from the root down.

#: What makes an ancestor of the root a danger: the root could be taken away, or put there by somebody else.
_TAKE_OVER: Final = Permissions.CREATE | Permissions.DELETE | Permissions.ADMIN
_REMEDY: Final = (
    "give them an ACL of yours (zkCli: setAcl -R), choose another root, or say that it is meant: allow_open=True, "
    "zkmq --allow-open, extra allow_open"
)


@dataclass(frozen=True, slots=True)
class ReadAcl:
    """Read a znode's access control list → list of kazoo's ACL entries, or None without the znode.

    ``above``: it is above the root. Where we may not even look, nobody has left a door open: None.
    """

    path: str
    above: bool = False


Look: TypeAlias = Generator[ReadAcl | Children, Any, None]


class Access:
    """What a connection gives its znodes, and what it has looked at.

    With an identity, by credentials or a client certificate, each znode belongs to whoever made it: ZooKeeper's
    scheme ``auth`` has the server fill in every identity that it knows of the session.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.secured = bool(config.auth or (config.tls and config.tls.cert))
        self.acl: list[ACL] = list(CREATOR_ALL_ACL if self.secured else OPEN_ACL_UNSAFE)
        self.rights = rights(self.acl)
        self.open_above: tuple[str, ...] = ()
        self._config = config
        self._root = config.root
        self._looked_at: set[str] = set()

    def questions(self, ops: Iterable[object]) -> Iterable[Look]:
        """What is to be looked at before these requests are sent: the root and queues not seen so far."""
        return self._questions(ops) if self.secured else ()

    def _questions(self, ops: Iterable[object]) -> Iterator[Look]:
        for path in dict.fromkeys(territory for op in ops for territory in self._territories(op)):
            if path not in self._looked_at:
                yield self._look(path)

    def _territories(self, op: object) -> Iterator[str]:
        """The root and the queue to which the paths of a request belong."""
        for path in _paths(op):
            below = path.removeprefix(self._root)
            if path.startswith(self._root) and below[:1] in {"", "/"}:
                yield self._root
                if below:
                    yield f"{self._root}/{below[1:].partition('/')[0]}"

    def _look(self, path: str) -> Look:
        """Raise `NotSecured` where a znode, or one of a queue's own, is open to anyone. What is missing we make."""
        acl: list[ACL] | None = yield ReadAcl(path)
        if acl is None:
            return
        opened = [path] if _rights_of_anyone(acl) else []
        if path != self._root:
            for name in (yield Children(path)) or ():
                below = yield ReadAcl(f"{path}/{name}")
                opened += [f"{path}/{name}"] if _rights_of_anyone(below or ()) else []
        self._judge(opened)
        self._looked_at.add(path)

    def look_around(self) -> Look:
        """At the beginning, with an identity: look at the root, and at what is above it. Raises `NotSecured`."""
        if not self.secured:
            return
        names = self._root.strip("/").split("/")
        dangers = []
        for depth in range(len(names)):
            above = "/" + "/".join(names[:depth])
            acl: list[ACL] | None = yield ReadAcl(above, above=True)
            rights = _rights_of_anyone(acl or ())
            if any(self._grants_us(entry) for entry in acl or ()):
                self._judge([above] if rights else [])
            elif rights & _TAKE_OVER:
                dangers.append(above)
        yield from self._look(self._root)
        self.open_above = tuple(dangers)

    def _judge(self, opened: Sequence[str]) -> None:
        if not opened:
            return
        shown = ", ".join(opened[:5]) + (", …" if len(opened) > 5 else "")
        if not self._config.allow_open:
            raise NotSecured(
                f"anyone may use what is there already, your credentials do not close it: {shown}; {_REMEDY}"
            )
        _warn(f"open to anyone, as allowed: {shown}")

    def _grants_us(self, entry: ACL) -> bool:
        if entry.id.scheme == "x509":
            return self._config.tls is not None and self._config.tls.cert is not None
        return self._config.auth is not None and entry.id.id == make_digest_acl_credential(*self._config.auth)


def _paths(op: object) -> Iterator[str]:
    for part in getattr(op, "ops", None) or (op,):
        yield from getattr(part, "paths", None) or (getattr(part, "path", ""),)


def _rights_of_anyone(acl: Iterable[ACL]) -> int:
    rights = 0
    for entry in acl:
        if entry.id.scheme == "world":
            rights |= entry.perms
    return rights


_WARNED: Final[set[str]] = set()


def _warn(what: str) -> None:
    """Tell an owner, once in each process."""
    if what not in _WARNED:
        _WARNED.add(what)
        log.warning("%s", what)


# --- One connection to ZooKeeper: its session, its watches, its end.

#: For so long the end of a session is waited for whose servers have not answered before.
CLOSING_SECONDS: Final = 1.0


def _is_no_secret(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.INFO


def _kazoo_logger() -> logging.Logger:
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
        self.fairness = Fairness()
        self.pid = os.getpid()
        self.closed = False
        self.id = 0
        self.away_since: float | None = None
        self.silent = False
        """Whether the servers let a call wait to its end, and have not answered since."""
        self.requests: dict[str, int] = {}
        self.access = Access(config)
        self.dialer = Dialer(config, self.changed.fire)
        self.client = ZooKeeperClient(**_client_options(config, self.dialer))
        self.wakes: Wakes = self.client.handler.wakes
        self.watches = Watches(self.client)
        self.client.add_listener(self._on_state)

    def open(self, call_deadline: CallDeadline) -> None:
        """Connect. Raises `Unavailable` when `call_deadline` is over, `TlsRefused` at once, `AccessDenied`."""
        deadline, share = call_deadline.deadline(), self._share()
        self.client.start_async()
        while not self.connected.is_set():
            seen = self.changed.count
            self.usable()
            if self.client.client_state == KeeperState.AUTH_FAILED:
                raise self.denied()
            if over(deadline) or self.dialer.refused_by(self.client.hosts):
                raise self.unavailable(call_deadline.limit)
            self.changed.wait(seen, min(left(deadline), share))
            if not self.connected.is_set():
                self.dialer.drop_stalled(share)

    def _share(self) -> float:
        """For how many seconds each server is waited for when a session is opened; a name may stand for several."""
        (first, _), *others = self.client.hosts
        many = others or not is_address(first)
        return self.config.connect_timeout / (len(self.client.hosts) + 1 if many else 1)

    def close(self, call_deadline: float | None = None) -> None:
        """End the session; what it held is given back at once. Idempotent.

        `call_deadline`: for how many seconds its end may take, ``request_timeout`` if not told. A server that does not
        answer ends the session itself, after ``session_timeout``.
        """
        if self.closed:
            return
        self.closed = True
        if os.getpid() == self.pid:
            self.client.end(self.config.request_timeout if call_deadline is None else call_deadline)
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

    def close_timeout(self) -> CallDeadline:
        """How long closing waits for servers; callers that have just waited in vain do not once more."""
        most = self.config.request_timeout
        return CallDeadline(min(most, CLOSING_SECONDS) if self.silent else most)

    def call_deadline(self) -> CallDeadline:
        """How long a call that begins now waits for servers."""
        return CallDeadline(self.config.request_timeout)

    def send(self, name: str, request: Any, reply: Any, *, more: bool = False) -> None:
        """Send a request or queue it; never blocks. Counted under `name`. `more`: its sender will `flush`."""
        self.requests[name] = self.requests.get(name, 0) + 1
        self.client.post(request, reply, more=more)

    def send_now(self, name: str, request: Any, reply: Any) -> bool:
        """Send a request if this thread can do so at once; whether the system has all of it. Counted if it has.

        What of it did not fit is sent later, and its reply comes.
        """
        passed = bool(self.client.give(request, reply))
        if passed:
            self.requests[name] = self.requests.get(name, 0) + 1
        return passed

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
        "logger": _kazoo_logger(),
    }
    if config.auth:
        options["auth_data"] = [("digest", ":".join(config.auth))]
    return options
