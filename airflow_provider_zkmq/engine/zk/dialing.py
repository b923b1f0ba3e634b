"""How connections are opened, within a time that leaves some for the other servers, and what was in the way."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.zk.tls import TlsSocket, client_context, refusal

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Trouble:
    """What was in the way to one server. ``lasting``: another try will meet the same."""

    text: str
    lasting: bool


_UNANSWERED: Final = Trouble("took the connection and did not answer: frozen, full, or a port for TLS only?", False)
_UNANSWERED_TLS: Final = Trouble("took the connection over TLS and did not answer: frozen, or full?", False)


class Dialer:
    """Opens a client's connections, on kazoo's thread, and remembers what was in the way to each server.

    kazoo would wait a whole session timeout for a server that is not there, which then has ended (kazoo #756). It also
    trusts the system's authorities besides those that are named, and asks for passwords on the terminal.
    """

    def __init__(self, config: ConnectionConfig, troubled: Callable[[], None]) -> None:
        self._tls = config.tls
        self._context = None if config.tls is None else client_context(config.tls)
        servers = config.hosts.count(",") + 1
        self._longest = min(config.session_timeout / 2, config.connect_timeout) / servers
        self._troubled = troubled
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._since = 0.0
        self._cut = False
        self._troubles: dict[str, dict[str, Trouble]] = {}
        self._addresses: dict[str, set[str]] = {}

    def dial(self, address: Address, host: str | None, timeout: float | None) -> socket.socket:
        """A connection to an address of a host. Raises `OSError`."""
        name = f"{host or address[0]}:{address[1]}"
        longest = self._longest if timeout is None else min(timeout, self._longest)
        note = partial(self._note, name, address)
        try:
            opened = self._open(address, host or address[0], time.monotonic() + longest, note)
        except OSError as error:
            note(error)
            raise
        self._remember(name, address, _UNANSWERED if self._tls is None else _UNANSWERED_TLS)  # until there is an answer
        return opened

    def _open(self, address: Address, host: str, deadline: float, note: Callable[[OSError], None]) -> socket.socket:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]  # an address: nobody is asked
        plain = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._use(plain)
            _limit(plain, deadline)
            plain.connect(address)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return plain if self._context is None else self._secured(plain, host, deadline, note)
        except BaseException:
            plain.close()
            raise

    def _secured(
        self, plain: socket.socket, host: str, deadline: float, note: Callable[[OSError], None]
    ) -> socket.socket:
        assert self._context is not None  # noqa: S101  for type checkers
        secured = self._context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        try:
            if isinstance(secured, TlsSocket):
                secured.note = note
            self._use(secured)
            _limit(secured, deadline)
            secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured

    def _use(self, opened: socket.socket) -> None:
        with self._lock:
            if self._cut:
                msg = "the connection was closed"
                raise OSError(msg)
            self._socket, self._since = opened, time.monotonic()

    def cut(self) -> None:
        """Cut the connection, also one that is being opened, and open no more."""
        with self._lock:
            self._cut = True
            self._shut_down()

    def drop_stalled(self, share: float) -> None:
        """Have the next server tried where this one has had its share of the time, in seconds."""
        with self._lock:
            if time.monotonic() - self._since >= share:
                self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # below TLS, which another thread may be in

    def _note(self, name: str, address: Address, error: OSError) -> None:
        lasting = None if self._tls is None else refusal(error, self._tls)
        self._remember(name, address, Trouble(lasting or _shown(error), lasting is not None))
        if lasting is not None and name not in self._addresses:
            self._addresses[name] = _addresses(name.rpartition(":")[0], address)
        self._troubled()

    def _remember(self, name: str, address: Address, trouble: Trouble) -> None:
        met = self._troubles.setdefault(name, {})
        known = met.get(address[0])
        if trouble.lasting or known is None or not known.lasting:
            met[address[0]] = trouble

    def forget_troubles(self) -> None:
        """A connection stands."""
        self._troubles.clear()

    def refused_by(self, hosts: Iterable[tuple[str, int]]) -> str | None:
        """What we and servers do not agree about; None unless that is so with each of them, at all of its addresses."""
        refusals = {name: self._refusal(name) for name in (f"{host}:{port}" for host, port in hosts)}
        return None if None in refusals.values() else "; ".join(f"{name} {text}" for name, text in refusals.items())

    def _refusal(self, name: str) -> str | None:
        """What is in the way to one server for good: no other of its addresses is left to be tried."""
        met = dict(self._troubles.get(name, {}))
        left = self._addresses.get(name, set()) - met.keys()
        return next((trouble.text for trouble in met.values() if trouble.lasting and not left), None)

    def shown(self) -> str:
        """What was in the way to each server, for an error's message."""
        met = [(name, list(troubles.values())[-1]) for name, troubles in list(self._troubles.items())]
        return "; ".join(f"{name} {trouble.text}" for name, trouble in met)


def is_address(host: str) -> bool:
    """Whether nobody need be asked where a host is."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _addresses(host: str, address: Address) -> set[str]:
    """All addresses of a host that was looked up a moment ago."""
    with contextlib.suppress(OSError):
        return {str(each[4][0]) for each in socket.getaddrinfo(host, address[1], type=socket.SOCK_STREAM)}
    return {address[0]}


def _limit(opened: socket.socket, deadline: float) -> None:
    opened.settimeout(max(0.01, deadline - time.monotonic()))


def _shown(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "did not answer"
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(error, ssl.SSLEOFError):
        return "closed the connection instead of speaking TLS: full, or a port without TLS?"
    return f"failed: {error.strerror or error}"
