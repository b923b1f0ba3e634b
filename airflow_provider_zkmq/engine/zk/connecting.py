"""How connections are opened: time limits, TLS, and what was in the way."""

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
from pathlib import Path
from typing import Any, Final, TypeAlias

from airflow_provider_zkmq.engine.config import ConnectionConfig, Tls
from airflow_provider_zkmq.engine.errors import ConfigError

# --- For how long a call waits for servers: its limits, each with the name under which callers know it.

#: A call whose own time is over goes on so many seconds with what a healthy server answers at once.
GRACE: Final = 1.5


@dataclass(frozen=True, slots=True)
class Limit:
    """A span that callers can set, by its name."""

    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name} ({self.seconds:g} s)"


class CallDeadline:
    """How long one call waits still, whatever it waits for: a reply, the connection, another call of its client.

    It ends ``request_timeout`` after the last answer that the call got from a server: the work of others is no answer,
    so callers that queue behind one another end together. A call with a time of its own (`SetTimeout`) ends with that.
    """

    def __init__(self, span: float, name: str = "request_timeout") -> None:
        self._silence = Limit(name, span)
        self._waiting_since: float | None = None
        self._answered = time.monotonic()
        self._own: tuple[float, Limit] | None = None

    def begin(self) -> None:
        """The call waits from now on, unless it does already: what it computes in between takes none of its time."""
        if self._waiting_since is None:
            self._waiting_since = self._answered = time.monotonic()

    def answered(self) -> None:
        """A server has answered, or what the call waited for on its own account is over."""
        self._waiting_since, self._answered = None, time.monotonic()

    def missed(self) -> None:
        """One of several replies did not come: it has been waited for since the last one that did."""
        if self._waiting_since is None:
            self._waiting_since = self._answered

    def limit_to(self, seconds: float, name: str = "timeout", grace: float = GRACE) -> None:
        """The call ends in so many seconds, and `grace`, whatever is answered; never later than told before."""
        own = (time.monotonic() + seconds + grace, Limit(name, seconds))
        self._own = own if self._own is None or own[0] < self._own[0] else self._own

    def deadline(self, since: float | None = None) -> float:
        """When it is over, by the monotonic clock. `since`: when what it waits for began, if that is longer ago."""
        begun = time.monotonic() if self._waiting_since is None else self._waiting_since
        end = (begun if since is None else min(begun, since)) + self._silence.seconds
        return end if self._own is None else min(end, self._own[0])

    @property
    def limit(self) -> Limit:
        """Which limit it is that ends first."""
        return self._own[1] if self._own is not None and self._own[0] <= self.deadline() else self._silence


def left(deadline: float) -> float:
    """Seconds to a deadline."""
    return max(0.0, deadline - time.monotonic())


def over(deadline: float) -> bool:
    """Whether a deadline has passed."""
    return time.monotonic() >= deadline


# --- TLS as a client: whom we trust, who we are, and what went wrong where the two sides do not agree.

#: OpenSSL's numbers of what is wrong with a server's certificate.
_NOT_YET, _EXPIRED = 9, 10
_NAMES_ANOTHER: Final = frozenset({62, 64})
#: Alerts by which a server refuses a client's certificate, or the lack of one.
_ALERTS: Final = (
    "CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNKNOWN_CA", "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED", "UNSUPPORTED_CERTIFICATE", "ACCESS_DENIED",
)  # fmt: skip
_HANDSHAKE: Final = "HANDSHAKE_FAILURE"


class TlsSocket(ssl.SSLSocket):
    """A TLS socket that tells what it met: a server refuses our certificate only after the handshake (TLS 1.3)."""

    note: Callable[[OSError], None] | None = None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read; what is wrong is noted on its way."""
        try:
            return super().recv(buflen, flags)
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            if self.note is not None:
                self.note(error)
            raise


def client_context(tls: Tls) -> ssl.SSLContext:
    """How to speak TLS. Raises `ConfigError` for files and passwords that do not fit; never asks on the terminal."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which checks certificates and host names
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = TlsSocket
    if tls.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, tls.ca)
    if tls.cert is not None or tls.key is not None:
        _load_identity(context, tls)
    return context


def _load_authorities(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"tls ca {ca!r} cannot be used, it must hold certificates in PEM: {_reason(error)}"
        ) from error


def _load_identity(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.cert is None:
        raise ConfigError(f"tls key {tls.key!r} is given without a certificate: give cert, too")
    if tls.key is None and not _holds_key(tls.cert):
        raise ConfigError(f"tls cert {tls.cert!r} is given without its private key: give key, too")
    key, requested = tls.key or tls.cert, False

    def password() -> str:
        nonlocal requested
        requested = True
        return tls.key_password or ""

    try:
        context.load_cert_chain(tls.cert, tls.key, password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(_why_no_identity(tls, key, error, requested=requested)) from error


def _holds_key(path: str) -> bool:
    """Whether a file holds a private key; one that cannot be read is told of where it is used."""
    try:
        return b"PRIVATE KEY-----" in Path(path).read_bytes()
    except OSError:
        return True


def _why_no_identity(tls: Tls, key: str, error: Exception, *, requested: bool) -> str:
    if requested and not tls.key_password:
        return f"tls key {key!r} is encrypted: give key_password, too"
    if requested:
        return f"tls key_password does not open the key {key!r}"
    if "KEY_VALUES_MISMATCH" in _reason(error):
        return f"tls key {key!r} is not that of the certificate {tls.cert!r}"
    return f"tls cert {tls.cert!r} with key {key!r} cannot be used, they must be PEM: {_reason(error)}"


def _reason(error: Any) -> str:
    return str(getattr(error, "reason", None) or error)


def refusal(error: BaseException, tls: Tls) -> str | None:
    """What two sides do not agree about, after "the server "; None for what may pass, such as a lost connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_the_server(error, tls)
    reason = _reason(error) if isinstance(error, ssl.SSLError) else ""
    if any(alert in reason for alert in _ALERTS) or (_HANDSHAKE in reason and tls.cert is None):
        return _of_the_client(reason, tls)
    if "WRONG_VERSION_NUMBER" in reason:
        return "does not speak TLS on this port: name its secure port"
    return None


def _of_the_server(error: ssl.SSLCertVerificationError, tls: Tls) -> str:
    if error.verify_code in _NAMES_ANOTHER:
        return f"has a certificate for another host name: {error.verify_message}"
    if error.verify_code in {_NOT_YET, _EXPIRED}:
        return f"has a certificate that does not hold now: {error.verify_message}"
    trusted = f"the authorities in {tls.ca!r}" if tls.ca else "the system's authorities"
    return f"has a certificate that {trusted} did not sign (tls ca): {error.verify_message}"


def _of_the_client(reason: str, tls: Tls) -> str:
    if tls.cert is None:
        return "demands a client certificate: give tls cert and key"
    return f"refuses the client certificate {tls.cert!r}: {reason.lower().replace('_', ' ')}"


# --- How connections are opened, within a time that leaves some for the other servers, and what was in the way.

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
        found = self._troubles.setdefault(name, {})
        known = found.get(address[0])
        if trouble.lasting or known is None or not known.lasting:
            found[address[0]] = trouble

    def forget_troubles(self) -> None:
        """A connection stands."""
        self._troubles.clear()

    def refused_by(self, hosts: Iterable[tuple[str, int]]) -> str | None:
        """What we and servers do not agree about; None unless that is so with each of them, at all of its addresses."""
        refusals = {name: self._refusal(name) for name in (f"{host}:{port}" for host, port in hosts)}
        return None if None in refusals.values() else "; ".join(f"{name} {text}" for name, text in refusals.items())

    def _refusal(self, name: str) -> str | None:
        """What is in the way to one server for good: no other of its addresses is left to be tried."""
        found = dict(self._troubles.get(name, {}))
        left = self._addresses.get(name, set()) - found.keys()
        return next((trouble.text for trouble in found.values() if trouble.lasting and not left), None)

    def shown(self) -> str:
        """What was in the way to each server, for an error's message."""
        found = [(name, list(troubles.values())[-1]) for name, troubles in list(self._troubles.items())]
        return "; ".join(f"{name} {trouble.text}" for name, trouble in found)


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
