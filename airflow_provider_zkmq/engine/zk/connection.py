"""One connection to ZooKeeper: how it is opened, its requests on the wire, and how replies are taken in."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import struct
import threading
import time
from collections import deque, namedtuple
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.protocol import serialization
from kazoo.protocol.connection import CLOSE_RESPONSE, PING_XID, WATCH_XID, ConnectionHandler
from kazoo.protocol.states import KeeperState
from kazoo.security import ACL

from ..connection_config import ConnectionConfig, Tls
from ..core.zk_operations import Create, Delete, SetData
from ..errors import ConfigError
from ..log import log

# --- ZooKeeper requests that kazoo does not have, or takes long for.


_CREATE, _DELETE, _GET_DATA, _SET_DATA, _CHECK = 1, 2, 4, 5, 13
#: A create whose reply has the Stat of what was created (ZooKeeper 3.5).
_CREATE_2 = 15
_ERROR = -1
_LASTING, _EPHEMERAL, _CONTAINER = 0, 1, 4
#: Errors of the parts of a transaction that were not refused themselves.
_ROLLED_BACK: Final = frozenset({0, -2})
_DATA_WATCH = 2
_NO_WATCH = struct.pack("B", 0)
#: What stands before each part of a request or a reply of several: its kind, whether it is the last, an error's code.
_ITEM = struct.Struct("!i?4x")
_READ = serialization.multiheader_struct.pack(_GET_DATA, False, -1)
_END = serialization.multiheader_struct.pack(-1, True, -1)
#: What a part of a transaction begins with: its kind, that it is not the last, no error, the length of its path.
_PART = struct.Struct("!iBii")
#: Of a Stat, the number of the transaction that wrote last, and when that was.
_LAST_WRITE = struct.Struct("!8xq8xq")


class MultiRead(namedtuple("MultiRead", "paths")):  # noqa: PYI024  kazoo's requests are namedtuples
    """``multiRead`` (opcode 22, ZooKeeper 3.6): several getData in one request; a missing znode fails alone."""

    __slots__ = ()
    type = 22

    def serialize(self) -> bytes:
        """The request's body."""
        parts: list[bytes] = []
        for path in self.paths:
            spelt = path.encode()
            parts += (_READ, serialization.int_struct.pack(len(spelt)), spelt, _NO_WATCH)
        return b"".join((*parts, _END))

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[Any]:
        """For each path (data, the values of its Stat), or the error's code: a scan has a hundred thousand of these."""
        results: list[Any] = []
        kind, done = _ITEM.unpack_from(reply, offset)
        while not done:
            offset += _ITEM.size
            (number,) = serialization.int_struct.unpack_from(reply, offset)
            offset += serialization.int_struct.size
            if kind == _ERROR:
                results.append(number)
            else:
                end = offset + max(number, 0)  # -1 stands for no data
                results.append((reply[offset:end], serialization.stat_struct.unpack_from(reply, end)))
                offset = end + serialization.stat_struct.size
            kind, done = _ITEM.unpack_from(reply, offset)
        return results


class Read(serialization.GetData):  # type: ignore[misc]  # kazoo is untyped
    """``getData``, whose reply is not made more of than is used."""

    __slots__ = ()

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> tuple[bytes, tuple[int, ...]]:
        """The data and the values of its Stat."""
        (length,) = serialization.int_struct.unpack_from(reply, offset)
        begin = offset + serialization.int_struct.size
        end = begin + max(length, 0)  # -1 stands for no data
        return reply[begin:end], serialization.stat_struct.unpack_from(reply, end)


class Listing(serialization.GetChildren):  # type: ignore[misc]  # kazoo is untyped
    """``getChildren``, whose reply may be a hundred thousand names."""

    __slots__ = ()

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[str]:
        """The names."""
        unpack, size = serialization.int_struct.unpack_from, serialization.int_struct.size
        (count,) = unpack(reply, offset)
        names: list[str] = []
        begin = offset + size
        for _ in range(count):
            end = begin + size + unpack(reply, begin)[0]
            names.append(reply[begin + size : end].decode())
            begin = end
        return names


class Written(NamedTuple):
    """A transaction was committed: when, and under which number, where it created something or set data."""

    time: int | None
    zxid: int | None


class Refused(NamedTuple):
    """A transaction was not committed: which part was refused, with which error; None: no part of its own account."""

    at: int | None
    code: int


class Rights(NamedTuple):
    """How the access control list of what is created is written, once for all creates, with the kind of znode."""

    lasting: bytes
    ephemeral: bytes
    container: bytes


def exception(code: int) -> Exception:
    """kazoo's error for a code of ZooKeeper's, also for one that kazoo does not know."""
    known: type[Exception] | None = exceptions.EXCEPTIONS.get(code)
    return exceptions.ZookeeperError(f"error {code}") if known is None else known()


def rights(acl: Iterable[ACL]) -> Rights:
    """An access control list as it is written."""
    entries = [
        serialization.int_struct.pack(one.perms)
        + serialization.write_string(one.id.scheme)
        + serialization.write_string(one.id.id)
        for one in acl
    ]
    spelt = serialization.int_struct.pack(len(entries)) + b"".join(entries)
    return Rights(*(spelt + serialization.int_struct.pack(kind) for kind in (_LASTING, _EPHEMERAL, _CONTAINER)))


class MultiRequest(namedtuple("MultiRequest", "ops rights")):  # noqa: PYI024  kazoo's requests are namedtuples
    """``multi`` (opcode 14) of our own operations, encoded in one go; of the reply only what is used is decoded.

    What is set tells when it was written; where nothing is set, the first create asks for that.
    """

    __slots__ = ()
    type = 14

    def serialize(self) -> bytes:
        """The request's body."""
        parts: list[bytes] = []
        create = _CREATE if SetData in set(map(type, self.ops)) else _CREATE_2
        for op in self.ops:
            path = op.path.encode()
            size = len(path)
            if isinstance(op, Create):
                tail = self.rights.ephemeral if op.ephemeral else self.rights.lasting
                parts += (
                    _PART.pack(create, 0, -1, size),
                    path,
                    serialization.int_struct.pack(len(op.data)),
                    op.data,
                    tail,
                )
                create = _CREATE
            elif isinstance(op, SetData):
                parts += (
                    _PART.pack(_SET_DATA, 0, -1, size),
                    path,
                    serialization.int_struct.pack(len(op.data)),
                    op.data,
                )
                parts.append(serialization.int_struct.pack(op.version))
            else:
                kind = _DELETE if isinstance(op, Delete) else _CHECK
                parts += (_PART.pack(kind, 0, -1, size), path, serialization.int_struct.pack(op.version))
        parts.append(_END)
        return b"".join(parts)

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[Written | Refused]:
        """One result for the whole; kazoo wants a list. A refused transaction, too, comes without an error of its own.

        Raises `ValueError` for parts that are none of ours.
        """
        at, written, refused = 0, Written(None, None), None
        kind, done = _ITEM.unpack_from(reply, offset)
        while not done:
            offset += _ITEM.size
            if kind in {_CREATE, _CREATE_2}:
                offset += serialization.int_struct.size + max(serialization.int_struct.unpack_from(reply, offset)[0], 0)
            if kind in {_SET_DATA, _CREATE_2}:
                if written.zxid is None:
                    zxid, time = _LAST_WRITE.unpack_from(reply, offset)
                    written = Written(time, zxid)
                offset += serialization.stat_struct.size
            elif kind == _ERROR:
                (code,) = serialization.int_struct.unpack_from(reply, offset)
                if refused is None or refused.at is None:  # rather a part refused itself than one rolled back with it
                    refused = Refused(None if code in _ROLLED_BACK else at, code)
                offset += serialization.int_struct.size
            elif kind not in {_CREATE, _DELETE, _CHECK}:
                raise ValueError(f"a transaction's part of kind {kind} is not known")
            at += 1
            kind, done = _ITEM.unpack_from(reply, offset)
        return [refused or written]


class ContainerCreation(namedtuple("ContainerCreation", "path rights")):  # noqa: PYI024  kazoo's requests are namedtuples
    """``createContainer`` (opcode 19, ZooKeeper 3.5.3)."""

    __slots__ = ()
    type = 19

    def serialize(self) -> bytes:
        """The request's body."""
        return bytes(serialization.write_string(self.path) + serialization.write_buffer(b"") + self.rights.container)

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> str:
        """The path that was created; its Stat, which follows, is not used."""
        return str(serialization.read_string(reply, offset)[0])


class RemoveWatches(namedtuple("RemoveWatches", "path")):  # noqa: PYI024  kazoo's requests are namedtuples
    """``removeWatches`` (opcode 18, ZooKeeper 3.5) of the watch on a znode's data."""

    __slots__ = ()
    type = 18

    def serialize(self) -> bytearray:
        """The request's body."""
        return bytearray(serialization.write_string(self.path) + serialization.int_struct.pack(_DATA_WATCH))

    @classmethod
    def deserialize(cls, _reply: bytes, _offset: int) -> bool:
        """The reply has no body."""
        return True


# --- The bytes of a connection as frames: each begins with its length.


_LENGTH: Final = struct.Struct("!i")
#: So many bytes are asked for at once, and of a frame that is longer at most so many.
_USUAL: Final = 1 << 16
_MOST: Final = 1 << 20


class FrameReader:
    """Frames as they come, in pieces of any size. What is missing of one is waited for without being copied again."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = _LENGTH.size

    @property
    def wanted(self) -> int:
        """How many bytes it makes sense to ask for."""
        return min(max(_USUAL, self._need - self._have), _MOST)

    def fed(self, piece: bytes) -> list[bytes]:
        """The frames that are whole with this piece, without their lengths. Raises `ValueError` for what is none."""
        self._pieces.append(piece)
        self._have += len(piece)
        if self._have < self._need:
            return []
        received = b"".join(self._pieces)
        frames, begin = [], 0
        while True:
            end = begin + _LENGTH.size  # of its length, where that is not there yet, else of the frame
            if end <= self._have:
                (length,) = _LENGTH.unpack_from(received, begin)
                if length < 0:
                    raise ValueError(f"a frame of {length} bytes")
                end += length
            if end > self._have:
                break
            frames.append(received[begin + _LENGTH.size : end])
            begin = end
        self._pieces = [received[begin:]]
        self._have -= begin
        self._need = end - begin
        return frames


# --- For how long a call waits for servers: its limits, each with the name under which callers know it.

#: A call whose own time is over goes on so many seconds with what a healthy server answers at once.
GRACE: Final = 1.5


class Limit(NamedTuple):
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

    def begin(self) -> float:
        """The call waits from now on, unless it does already. Returns when its time is over, by the monotonic clock."""
        if self._waiting_since is None:
            self._waiting_since = self._answered = time.monotonic()
        end = self._waiting_since + self._silence.seconds
        return end if self._own is None else min(end, self._own[0])

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


# --- TLS as a client: whom we trust, who we are, and what went wrong where the two sides do not agree.

#: OpenSSL's numbers of what is wrong with a server's certificate.
_NOT_NOW: Final = frozenset({9, 10})
_NAMES_ANOTHER: Final = frozenset({62, 64})
#: Alerts by which a server refuses a client's certificate, or the lack of one.
_ALERTS: Final = (
    "CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNKNOWN_CA", "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED", "UNSUPPORTED_CERTIFICATE", "ACCESS_DENIED",
)  # fmt: skip


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
        try:
            context.load_verify_locations(cafile=tls.ca)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"tls ca {tls.ca!r} cannot be used, it must hold certificates in PEM: {_reason(error)}"
            ) from error
    if tls.cert is not None or tls.key is not None:
        _load_identity(context, tls)
    return context


def _load_identity(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.cert is None:
        raise ConfigError(f"tls key {tls.key!r} is given without a certificate: give cert, too")
    if tls.key is None:
        with contextlib.suppress(OSError):  # a file that cannot be read is reported where it is used
            if b"PRIVATE KEY-----" not in Path(tls.cert).read_bytes():
                raise ConfigError(f"tls cert {tls.cert!r} is given without its private key: give key, too")
    key, requested = tls.key or tls.cert, False

    def password() -> str:
        nonlocal requested
        requested = True
        return tls.key_password or ""

    try:
        context.load_cert_chain(tls.cert, tls.key, password)
    except (ssl.SSLError, OSError, ValueError) as error:
        why = f"tls cert {tls.cert!r} with key {key!r} cannot be used, they must be PEM: {_reason(error)}"
        if requested and not tls.key_password:
            why = f"tls key {key!r} is encrypted: give key_password, too"
        elif requested:
            why = f"tls key_password does not open the key {key!r}"
        elif "KEY_VALUES_MISMATCH" in _reason(error):
            why = f"tls key {key!r} is not that of the certificate {tls.cert!r}"
        raise ConfigError(why) from error


def _reason(error: Any) -> str:
    return str(getattr(error, "reason", None) or error)


def refusal(error: BaseException, tls: Tls) -> str | None:
    """What two sides do not agree about, after "the server "; None for what may pass, such as a lost connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NAMES_ANOTHER:
            return f"has a certificate for another host name: {error.verify_message}"
        if error.verify_code in _NOT_NOW:
            return f"has a certificate that does not hold now: {error.verify_message}"
        trusted = f"the authorities in {tls.ca!r}" if tls.ca else "the system's authorities"
        return f"has a certificate that {trusted} did not sign (tls ca): {error.verify_message}"
    reason = _reason(error) if isinstance(error, ssl.SSLError) else ""
    refused = any(alert in reason for alert in _ALERTS)
    if tls.cert is None and (refused or "HANDSHAKE_FAILURE" in reason):
        return "demands a client certificate: give tls cert and key"
    if refused:
        return f"refuses the client certificate {tls.cert!r}: {reason.lower().replace('_', ' ')}"
    if "WRONG_VERSION_NUMBER" in reason:
        return "does not speak TLS on this port: name its secure port"
    return None


# --- How connections are opened, within a time that leaves some for the other servers, and what was in the way.

Address: TypeAlias = tuple[str, int]


class Trouble(NamedTuple):
    """What was in the way to one server. ``lasting``: another try will meet the same."""

    text: str
    lasting: bool


_REFUSED: Final = "refused the connection"
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
        host = host or address[0]
        name = f"{host}:{address[1]}"
        deadline = time.monotonic() + (self._longest if timeout is None else min(timeout, self._longest))
        try:
            family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]  # an address: nobody is asked
            opened = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._use(opened, deadline)
                opened.connect(address)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is not None:
                    secured = self._context.wrap_socket(opened, server_hostname=host, do_handshake_on_connect=False)
                    opened = secured
                    if isinstance(secured, TlsSocket):
                        secured.note = partial(self._note, name, address)
                    self._use(secured, deadline)
                    secured.do_handshake()
            except BaseException:
                opened.close()
                raise
        except OSError as error:
            self._note(name, address, error)
            raise
        self._remember(name, address, _UNANSWERED if self._tls is None else _UNANSWERED_TLS)  # until there is an answer
        return opened

    def _use(self, opened: socket.socket, deadline: float) -> None:
        with self._lock:
            if self._cut:
                raise OSError("the connection was closed")
            self._socket, self._since = opened, time.monotonic()
        opened.settimeout(max(0.01, deadline - time.monotonic()))

    def send_command(self, command: bytes) -> bytes:
        """What the server that we are connected to answers to a word for operators; nothing where it does not."""
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None and self._context is None:
                with socket.create_connection(self._socket.getpeername()[:2], self._longest) as opened:
                    opened.sendall(command)
                    return opened.makefile("rb").read()
        return b""

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
        text = lasting or f"failed: {error.strerror or error}"
        if lasting is not None:
            if name not in self._addresses:
                found = {address[0]}
                with contextlib.suppress(OSError):  # it was looked up a moment ago
                    looked_up = socket.getaddrinfo(name.rpartition(":")[0], address[1], type=socket.SOCK_STREAM)
                    found = {str(each[4][0]) for each in looked_up}
                self._addresses[name] = found
        elif isinstance(error, TimeoutError):
            text = "did not answer"
        elif isinstance(error, ConnectionRefusedError):
            text = _REFUSED
        elif isinstance(error, ssl.SSLEOFError):
            text = "closed the connection instead of speaking TLS: full, or a port without TLS?"
        self._remember(name, address, Trouble(text, lasting is not None))
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
        refusals: dict[str, str] = {}
        for name in (f"{host}:{port}" for host, port in hosts):
            found = dict(self._troubles.get(name, {}))
            lasting = [trouble.text for trouble in found.values() if trouble.lasting]
            if not lasting or self._addresses.get(name, set()) - found.keys():
                return None  # or another of its addresses is left to be tried
            refusals[name] = f"{name} {lasting[0]}"
        return "; ".join(refusals.values())

    def nobody_listens(self) -> bool:
        """Whether each server has refused the connection."""
        return {trouble.text for found in list(self._troubles.values()) for trouble in found.values()} == {_REFUSED}

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


# --- What is to be sent on one connection, and what was sent and is not answered yet.

#: What stands before a request's body: its length, its number on this connection, its kind.
_HEAD: Final = struct.Struct("!iii")
_COUNTED: Final = 8
_LARGEST_NUMBER: Final = (1 << 31) - 1
#: So many bytes are written at once before replies are looked at again.
_BATCH: Final = 1 << 18
#: A request with its body, and who waits for its reply; None: nobody.
Queued: TypeAlias = tuple[Any, bytes, Any]


class SendQueue:
    """Sends requests in the order in which they are given, from whichever thread is fit for it.

    Callers write to the socket themselves, which saves a hand-over to the connection's thread; what finds somebody else
    writing, or the socket full, is left to that thread, which writes all of it at once. ``lock``: re-entrant, since a
    signal's handler may send a request, too. Nothing blocks under it.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self.lock = threading.RLock()
        self._ring = ring
        self._queued: deque[Queued] = deque()
        self._pending: deque[tuple[Any, Any, int]] = deque()  # requests, their replies and numbers
        self._socket: Any = None
        self._number = 0
        self._rest = b""
        self._rung = False
        self._writing = False  # whether the connection's thread is about to write
        self._sending = False  # whether a caller is writing, or was interrupted at that

    def __len__(self) -> int:
        """How many requests are under way, sent or not."""
        return len(self._pending) + len(self._queued)

    def open(self, direct: Any) -> None:
        """A connection stands. `direct`: its socket if callers may write to it, else None."""
        with self.lock:
            self._number, self._rest, self._writing, self._sending = 0, b"", False, False
            self._socket = direct

    def close(self) -> list[Any]:
        """The connection is lost: the replies that will not come, of what was sent and of what was not."""
        with self.lock:
            self._socket = None
            pending, self._pending = self._pending, deque()
            queued, self._queued = self._queued, deque()
        replies = [reply for _, reply, _ in pending] + [reply for _, _, reply in queued]
        return [reply for reply in replies if reply is not None]

    def post(self, queued: Queued, *, more: bool = False) -> None:
        """Send a request, or have it sent, or have it wait for a `flush`; never blocks. Under the lock.

        An interrupt leaves a request queued or not. One that meets the very write of a request costs the connection,
        since nobody knows what of it was written. Raises `OSError` if the bell is gone.
        """
        try:
            self._queued.append(queued)
            if not more:
                self._send()
        except BaseException:
            self._ring()
            raise

    def give(self, queued: Queued) -> bool:
        """Send a request from this thread if it may write now; whether the system has all of it. Under the lock.

        Where the socket takes a part only, the rest of it is left to the connection's thread.
        """
        if self._socket is None or self._rest or self._writing or self._sending:
            return False
        self.post(queued)
        return not self._rest and not self._queued

    def flush(self) -> None:
        """Send what was posted with `more` to come; an interrupt does what it does to `post`."""
        with contextlib.suppress(OSError), self.lock:  # the bell is gone: what is under way has failed, or will
            try:
                if self._queued:
                    self._send()
            except BaseException:
                self._ring()
                raise

    def _wake(self) -> None:
        """Wake the connection's thread, unless it is about to look. A ring too many does no harm."""
        if not self._rung:
            self._ring()
            self._rung = True

    def _send(self) -> None:
        """Write what is queued, or have it written where somebody else is at it, or only that thread may."""
        if self._socket is None or self._writing or self._sending:
            self._wake()
            return
        self._sending = True  # for good, where an interrupt comes in between
        if not self._rest:  # asked only now: a signal's handler may have written until here
            frames, written = self._taken(), 0
            with contextlib.suppress(OSError):  # it is full; or its thread meets the same, and fails what is pending
                written = self._socket.send(frames)
            self._rest = frames[written:]
        self._sending = False
        if self._rest or self._queued:
            self._wake()

    def _taken(self, *first: bytes) -> bytes:
        """What is written next; it counts as sent from now on."""
        parts, size = list(first), 0
        while self._queued and size < _BATCH:
            request, body, reply = self._queued.popleft()
            self._number = self._number % _LARGEST_NUMBER + 1
            self._pending.append((request, reply, self._number))
            parts.append(_HEAD.pack(len(body) + _COUNTED, self._number, request.type) + body)
            size += len(body)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take(self, answer: Callable[[], object], *first: bytes) -> bytes:
        """What the connection's thread writes next: `first`, and what is queued. It calls `written` afterwards.

        `answer`: answers the ring. Raises `ConnectionDropped` where a request was interrupted while it was written.
        """
        with self.lock:
            if self._sending:
                raise exceptions.ConnectionDropped("a request was interrupted while it was written")
            answer()
            self._rung, self._writing = False, True
            taken, self._rest = self._taken(self._rest, *first), b""
            if self._queued:
                self._wake()
            return taken

    def written(self) -> None:
        """What was taken has been written."""
        self._writing = False

    def answered(self) -> tuple[Any, Any, int]:
        """What the next reply answers. Raises `IndexError` where nothing was asked."""
        return self._pending.popleft()


# --- kazoo's connection with fewer system calls: requests leave in one write, replies are taken as they come together.
#
# A server closes the connection of a client whose last transaction it does not have. One that lags behind catches up,
# and another one of its ensemble has it; but where the servers were restored from an older state, the client would ask
# for ever. A session of its own tells: beginning it is a transaction, and where that has a lower number than one that
# we have seen, all servers together have gone back.

#: So many refusals in a row are waited for before anybody asks why: a server that starts closes connections, too.
REFUSALS: Final = 2
_PING: Final = _HEAD.pack(_COUNTED, PING_XID, serialization.PingInstance.type)
#: Nothing is there yet: TLS has part of a record, or another thread has taken the same bytes.
_NOT_YET: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's loop, sessions, pings and their ends, with what it calls for each request done for many at once.

    kazoo calls `_read_socket` when there is something to read, `_send_request` when the bell has rung. What is not as
    ZooKeeper's protocol has it drops the connection, where kazoo's thread would end.
    """

    _socket: Any
    _refusals = 0

    def _connect(self, host: Any, hostip: Any, port: Any) -> Any:
        """A session on a new connection; none of our requests is sent before it stands.

        Raises `SessionExpiredError` where the servers have gone back.
        """
        self._frame_reader = FrameReader()
        try:
            timeouts = super()._connect(host, hostip, port)
        except exceptions.ConnectionDropped:
            self._refusals += self._socket is not None  # else no connection came about
            if self._socket is not None and self.client.last_zxid and self._refusals >= REFUSALS:
                self._give_up_if_gone_back(host, hostip, port)
            raise
        self._refusals = 0
        # Two threads must not use one TLS connection at once.
        self.client.send_queue.open(None if isinstance(self._socket, ssl.SSLSocket) else self._socket)
        return timeouts

    def _give_up_if_gone_back(self, host: str, hostip: str, port: int) -> None:
        """Have a session that has seen nothing ask the server for its latest transaction."""
        seen, begin = self.client.last_zxid, self.client.anew()
        seconds = begin.time_out / 1000
        self._socket.close()
        try:
            self._socket = self.handler.create_connection(
                address=(hostip, port), hostname=host, timeout=seconds, use_ssl=self.client.use_ssl
            )
            self._socket.setblocking(0)
            self._invoke(seconds, begin)
            now: int | None = self._invoke(seconds, serialization.Exists("/", None), 1)
            with contextlib.suppress(exceptions.KazooException):
                self._submit(serialization.CloseInstance, seconds, 2)
        except (OSError, exceptions.KazooException, self.handler.timeout_exception):
            return
        if now is None or now >= seen:
            return
        self._refusals = 0
        self.client.restored += 1
        log.error(
            "ZooKeeper at %s:%s was restored from an older state: its latest transaction is %#x, and this client has "
            "seen %#x. What came after it is lost, and so is this client's session; it goes on with a new one",
            host, port, now, seen,
        )  # fmt: skip
        raise exceptions.SessionExpiredError("the server was restored from an older state")

    def _send_request(self, _read_timeout: float, connect_timeout: float) -> None:
        """Send what callers have queued."""
        self._flush(connect_timeout, lambda: self._read_sock.recv(1))

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        """kazoo's own requests: those that open a session, before any of ours; and pings, between two of ours."""
        if request is serialization.PingInstance:
            self._flush(timeout, int, _PING)
        else:
            super()._submit(request, timeout, xid)

    def _flush(self, timeout: float, answer: Callable[[], object], *first: bytes) -> None:
        data = self.client.send_queue.take(answer, *first)
        if data:
            self._write(data, timeout)
        self.client.send_queue.written()

    def _read_socket(self, _read_timeout: float) -> int | None:
        """Take in what has come: several replies and events, or part of one. kazoo learns of a session's end."""
        try:
            piece: bytes = self._socket.recv(self._frame_reader.wanted)
        except _NOT_YET:
            return None
        except (OSError, ValueError) as error:
            raise exceptions.ConnectionDropped(f"socket connection error: {error}") from error
        if not piece:
            raise exceptions.ConnectionDropped("the server closed the connection")
        ended = None
        try:
            with self.handler.wakes.together():
                for frame in self._frame_reader.fed(piece):
                    number, zxid, code = serialization.reply_header_struct.unpack_from(frame)
                    if number == PING_XID:
                        self.ping_outstanding.clear()
                    elif number == WATCH_XID:
                        self._read_watch_event(frame, serialization.reply_header_struct.size)
                    else:
                        ended = self._answer(number, zxid, code, frame) or ended
        except (struct.error, IndexError, ValueError) as error:
            raise exceptions.ConnectionDropped(f"what came is no reply of ZooKeeper's: {error}") from error
        return ended

    def _answer(self, number: int, zxid: int, code: int, frame: bytes) -> int | None:
        """Give a reply to whoever waits for it. A znode that is missing is an answer to `Exists`."""
        request, reply, expected = self.client.send_queue.answered()
        if number != expected:
            if reply is not None:
                reply.set_exception(exceptions.ConnectionLoss())
            raise exceptions.ConnectionDropped(f"request {expected} was answered as {number}")
        if zxid > 0:
            self.client.last_zxid = zxid
        if request.type == serialization.Close.type:
            return int(CLOSE_RESPONSE)
        if reply is None:
            return None
        missing = code == exceptions.NoNodeError.code and request.type == serialization.Exists.type
        if code and not missing:
            reply.set_exception(exception(code))
            return None
        try:
            value = None if missing else request.deserialize(frame, serialization.reply_header_struct.size)
        except Exception as problem:
            self.logger.exception("a reply to %s is not understood", type(request).__name__)
            reply.set_exception(problem)
            return None
        self.client.note_watch(request)
        reply.set(value)
        return None


# --- kazoo's client, whose requests go by an `SendQueue` and a `Connection` of ours: kazoo would take a round for each.

#: For so long a connection that was cut is waited for.
CUT_SECONDS: Final = 1.0

#: In these states of kazoo's a request is refused rather than queued.
REFUSED: dict[str, type[Exception]] = {
    KeeperState.AUTH_FAILED: exceptions.AuthFailedError,
    KeeperState.CLOSED: exceptions.ConnectionClosedError,
    KeeperState.EXPIRED_SESSION: exceptions.SessionExpiredError,
}


class ZooKeeperClient(KazooClient):  # type: ignore[misc]  # kazoo is untyped
    """A kazoo client whose callers encode their requests themselves, and mostly send them themselves, too."""

    restored = 0  # how often the servers turned out to have gone back to an older state

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.send_queue = SendQueue(self.handler.ring)
        self.flush = self.send_queue.flush
        self._connection = Connection(self, self._conn_retry.copy(), logger=self.logger)

    def anew(self) -> serialization.Connect:
        """What begins a session that has seen nothing."""
        return serialization.Connect(0, 0, self._session_timeout, 0, bytes(16), self.read_only)

    def post(self, request: Any, reply: Any, *, more: bool = False) -> None:
        """Send a request or queue it; never blocks. `more`: a `flush` follows. What cannot be encoded is raised."""
        queued = request, request.serialize(), reply
        with self.send_queue.lock:  # what is under way fails when the state changes, not before
            refused = REFUSED.get(self._state)
            notifier = self.handler.notifier
            if refused is None and (notifier is None or notifier.fileno() < 0):
                refused = exceptions.ConnectionClosedError
            if refused is None:
                try:
                    self.send_queue.post(queued, more=more)
                except OSError:
                    refused = exceptions.ConnectionClosedError
        if refused is not None and reply is not None:
            reply.set_exception(refused())

    def give(self, request: Any, reply: Any) -> bool:
        """Send a request, and what is queued before it, from this thread, if it can at once; whether that was done."""
        queued = request, request.serialize(), reply
        with self.send_queue.lock, contextlib.suppress(OSError):
            return self._state not in REFUSED and self.send_queue.give(queued)
        return False  # closed meanwhile

    _call = post  # what kazoo's own calls send

    def end(self, call_deadline: float) -> None:
        """End the session, asking its server for at most so many seconds; then cut the connection. Returns soon after.

        kazoo's own `stop` waits for its thread, which may be opening a connection or resolving a name.
        """
        self._stopped.set()
        if self.connected:
            self.post(serialization.CloseInstance, None)
            self._connection.connection_stopped.wait(call_deadline)
        self.handler.dialer.cut()
        if self._connection.connection_stopped.wait(CUT_SECONDS):
            self._release()
        else:
            threading.Thread(target=self._release, name="zkmq-ending", daemon=True).start()

    def _release(self) -> None:
        """Wait for kazoo's thread and free what it used."""
        self._connection.stop()
        self.handler.stop()
        with self.send_queue.lock:  # nobody rings while the bell is taken away
            self.close()

    def _notify_pending(self, state: str) -> None:
        """kazoo's state has changed, and nothing that is under way will be answered."""
        failure = (
            exceptions.ConnectionLoss()
            if state == KeeperState.CLOSED
            else REFUSED.get(state, exceptions.ConnectionLoss)()
        )
        with self.handler.wakes.together():
            for reply in self.send_queue.close():
                reply.set_exception(failure)

    def note_watch(self, request: Any) -> None:
        """Keep the callback of a read with a watch, as kazoo does; the connection's thread calls it."""
        watcher = getattr(request, "watcher", None)
        if watcher and not self._stopped.is_set():
            lists = isinstance(request, serialization.GetChildren | serialization.GetChildren2)
            (self._child_watchers if lists else self._data_watchers)[request.path].add(watcher)

    def forget(self, path: str, callback: Any) -> None:
        """Take back the callback of a watch on a znode's data; kazoo has no public way to do that."""
        callbacks = self._data_watchers.get(path, set())
        callbacks.discard(callback)
        if not callbacks:
            self._data_watchers.pop(path, None)
