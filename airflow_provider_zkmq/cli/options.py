"""The options that every verb takes, and the text forms of values."""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from ..environment import DEFAULT_HOSTS, DEFAULT_ROOT, FILES, KEY_PASSWORD, environment_options

if TYPE_CHECKING:
    from ..engine import AnyClient

# --- Whether anybody listens where ZooKeeper should be.


def anybody_listens(hosts: str, seconds: float) -> bool:
    """Whether one of ``host:port,host:port`` takes connections, as far as that is known within so many seconds."""
    answers, deadline = SimpleQueue[bool](), time.monotonic() + seconds
    servers = hosts.split(",")
    for server in servers:  # each in a thread: nothing bounds how long the system looks a name up
        threading.Thread(target=_look, args=(server, seconds, answers), daemon=True).start()
    try:
        return any(answers.get(timeout=max(0.0, deadline - time.monotonic())) for _ in servers)
    except Empty:
        return False


def _look(server: str, seconds: float, answers: SimpleQueue[bool]) -> None:
    host, _, port = server.strip().rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except (OSError, ValueError):
        answers.put(False)
    else:
        answers.put(True)


# --- TLS and what goes with it on the command line: no password stands there, where others could see it.

_FILES: Final = {
    "ca": "PEM file of those who sign the servers' certificates; nobody else is trusted",
    "cert": "PEM file of your certificate, which is then your identity",
    "key": "PEM file of its private key",
}


def add_tls(parser: argparse.ArgumentParser, prefix: str) -> None:
    """Add the options of TLS; their values are kept under names that begin with `prefix`."""
    group = parser.add_argument_group("TLS and access (before or after the verb)")
    group.add_argument(
        "--tls",
        dest=f"{prefix}tls",
        action="store_true",
        default=None,
        help="speak TLS (env ZKMQ_TLS=1); the files below imply it",
    )
    for name, text in _FILES.items():
        variable = f"ZKMQ_TLS_{name.upper()}"
        group.add_argument(f"--tls-{name}", dest=f"{prefix}tls_{name}", metavar="FILE", help=f"{text} (env {variable})")
    group.add_argument(
        "--tls-key-password-env",
        dest=f"{prefix}tls_key_password_env",
        metavar="NAME",
        help=f"the variable that holds the key's password (else {KEY_PASSWORD})",
    )
    group.add_argument(
        "--tls-key-password-file",
        dest=f"{prefix}tls_key_password_file",
        metavar="FILE",
        help=f"the file whose first line is the key's password (env {KEY_PASSWORD}_FILE)",
    )
    group.add_argument(
        "--allow-open",
        dest=f"{prefix}allow_open",
        action="store_true",
        default=None,
        help="with credentials: use znodes, too, that anyone may use (env ZKMQ_ALLOW_OPEN=1)",
    )


# --- The options that every verb takes, and the text forms of values.

T = TypeVar("T")
STATES = ("inserted", "claimed", "finished", "dead", "cancelled")
#: The statuses that tell more than the state does.
STATUSES = (
    "queued",
    "queued-with-backoff",
    "locked",
    "locked-with-requeue",
    "done-awaiting-gc",
    "done-with-backoff",
    "done-with-requeue",
)
#: For how many seconds a server is waited for by default where nobody listens, and where somebody does, or by a worker.
QUICK, PATIENT = 1.0, 10.0
_LOOK = 0.3
_BEFORE = "before_"
#: A default of the verbs whose ``--timeout`` is about something else than the connection.
OWN_TIMEOUT = "own_timeout"


class UsageError(Exception):
    """The command line itself is not understood."""


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Report what is wrong as an exception."""
        raise UsageError(f"{message} (see {self.prog} --help)")


@dataclass(frozen=True, slots=True)
class Common:
    """How to reach ZooKeeper and how to answer."""

    hosts: str
    root: str
    auth: str | None = field(repr=False)
    as_json: bool
    session_timeout: float | None
    connect_timeout: float | None
    request_timeout: float | None = None
    access: Mapping[str, Any] = field(default_factory=lambda: {"tls": None, "allow_open": None}, repr=False)
    """The options ``tls``, which may hold a password, and ``allow_open``."""
    secret: frozenset[str] = frozenset()
    """The variables of the environment that the command line names as holding a password."""

    def connect(self, *, gc: bool = False, seconds: float = QUICK) -> AnyClient:
        """Open a connection; by default one that takes no part in clean-up.

        `seconds`: for how many seconds a server is waited for where the command line does not say it; one that listens,
        and may just be slow, for longer. Raises what `Zkmq.connect` does.
        """
        from ..engine import ConnectionConfig, Unavailable

        if self.hosts.startswith(FILES):
            return self._connect(gc, self.connect_timeout)
        try:
            return self._connect(gc, seconds if self.connect_timeout is None else self.connect_timeout)
        except Unavailable as error:
            if self.connect_timeout is not None or type(error) is not Unavailable:  # others do not mend by waiting
                raise
            if seconds < PATIENT and anybody_listens(ConnectionConfig.of(self.hosts).hosts, _LOOK):
                return self._connect(gc, PATIENT)
            raise Unavailable(f"{error}; --timeout waits longer") from None

    def _connect(self, gc: bool, limit: float | None) -> AnyClient:
        from ..engine import Zkmq

        spans = {"session_timeout": self.session_timeout, "request_timeout": self.request_timeout}
        return Zkmq.connect(self.hosts, self.root, gc=gc, auth=self.auth, connect_timeout=limit, **spans, **self.access)


def add_common(parser: argparse.ArgumentParser, *, before: bool = False) -> None:
    """Add the common options; those `before` the verb are kept under names of their own, to be merged."""
    prefix = _BEFORE if before else ""
    group = parser.add_argument_group("connection and output (before or after the verb)")
    group.add_argument(
        "--hosts",
        dest=f"{prefix}hosts",
        metavar="HOSTS",
        help=f"host:port,host:port (env ZKMQ_HOSTS, else {DEFAULT_HOSTS})",
    )
    group.add_argument(
        "--root", dest=f"{prefix}root", metavar="ROOT", help=f"znode of the queues (env ZKMQ_ROOT, else {DEFAULT_ROOT})"
    )
    group.add_argument(
        "--auth",
        dest=f"{prefix}auth",
        metavar="USER:PASSWORD",
        help="credentials; prefer env ZKMQ_AUTH, which other users of the machine cannot see",
    )
    group.add_argument("--json", dest=f"{prefix}json", action="store_true", help="answer in JSON")
    spans = [("session", "session", "how long (10s)"), ("request", "request", "how long (30s)")]
    spans += [
        ("connect", "connect", f"how long a server is waited for ({QUICK:g}s where nobody listens, else {PATIENT:g}s)")
    ]
    if parser.get_default(OWN_TIMEOUT) is None:
        spans += [("", "connect", "the same as --connect-timeout")]
    for name, about, text in spans:
        option, dest = f"--{name}-timeout" if name else "--timeout", f"{prefix}{about}_timeout"
        group.add_argument(option, dest=dest, type=duration, metavar="DURATION", help=text)
    add_tls(parser, prefix)


def common(args: argparse.Namespace) -> Common:
    """The common options of a command line and the environment; the later on the line wins.

    What the environment says of servers is not about queue files.
    """
    password = _pick(args, "tls_key_password_env", None)
    options = environment_options(lambda name: _pick(args, name, None), read_file)
    return Common(
        hosts=options["hosts"],
        root=options["root"],
        auth=options["auth"],
        as_json=bool(getattr(args, "json", False) or args.before_json),
        session_timeout=_pick(args, "session_timeout", None),
        connect_timeout=_pick(args, "connect_timeout", None),
        request_timeout=_pick(args, "request_timeout", None),
        access={name: options[name] for name in ("tls", "allow_open")},
        secret=frozenset() if password is None else frozenset({password}),
    )


def _pick(args: argparse.Namespace, name: str, default: T) -> T:
    values: tuple[T | None, ...] = (getattr(args, name, None), getattr(args, _BEFORE + name, None))
    return next((value for value in values if value is not None), default)


def pairs(option: str, texts: Iterable[str] | None) -> dict[str, str]:
    """A mapping from ``name=value`` texts, each name once. Raises `UsageError`."""
    values: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text!r} is not understood: write name=value")
        if name in values:
            raise UsageError(f"{option} {name!r} is given twice")
        values[name] = value
    return values


def duration(text: str) -> float:
    """Seconds from what people write: ``90``, ``5m``, ``1h30m``, ``250ms``, ``PT1H30M``."""
    from ..engine import ConfigError, parse_duration

    try:
        return parse_duration(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def moment(text: str) -> datetime:
    """A moment from ISO 8601 with a zone."""
    from ..engine import ConfigError, parse_moment

    try:
        return parse_moment(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def attempts(text: str) -> int | str:
    """A number of attempts, or ``unbounded``."""
    return text if text == "unbounded" else int(text)


def read_file(path: Path) -> bytes:
    """What a file holds. Raises `UsageError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
