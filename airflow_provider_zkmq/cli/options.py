"""The options that every verb takes, and the text forms of values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ..environment import DEFAULT_HOSTS, DEFAULT_ROOT, FILES, KEY_PASSWORD, environment_options
from .reachability import anybody_listens

if TYPE_CHECKING:
    from ..engine import AnyClient


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
        from ..engine import ConnectionConfig, Unavailable, Zkmq

        spans = {"session_timeout": self.session_timeout, "request_timeout": self.request_timeout}
        connect = partial(Zkmq.connect, self.hosts, self.root, gc=gc, auth=self.auth, **spans, **self.access)
        if self.hosts.startswith(FILES) or self.connect_timeout is not None:
            return connect(connect_timeout=self.connect_timeout)
        try:
            return connect(connect_timeout=seconds)
        except Unavailable as error:
            if type(error) is not Unavailable:  # others do not mend by waiting
                raise
            if seconds < PATIENT and anybody_listens(ConnectionConfig.of(self.hosts).hosts, _LOOK):
                return connect(connect_timeout=PATIENT)
            raise Unavailable(f"{error}; --timeout waits longer") from None


def duration(text: str) -> float:
    """Seconds from what people write: ``90``, ``5m``, ``1h30m``, ``250ms``, ``PT1H30M``."""
    from ..engine import ConfigError, parse_duration

    try:
        return parse_duration(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


#: What an option that takes a duration is added with.
DURATION: Final[dict[str, Any]] = {"type": duration, "metavar": "DURATION"}
#: No password stands on the command line, where others could see it.
_FILES: Final = {
    "ca": "PEM file of those who sign the servers' certificates; nobody else is trusted",
    "cert": "PEM file of your certificate, which is then your identity",
    "key": "PEM file of its private key",
}


def add_common(parser: argparse.ArgumentParser, *, before: bool = False) -> None:
    """Add the common options; those `before` the verb are kept under names of their own, to be merged."""

    def add(group: argparse._ArgumentGroup, option: str, text: str, **more: Any) -> None:
        dest = more.pop("dest", option.removeprefix("--").replace("-", "_"))
        group.add_argument(option, dest=f"{_BEFORE}{dest}" if before else dest, help=text, **more)

    group = parser.add_argument_group("connection and output (before or after the verb)")
    add(group, "--hosts", f"host:port,host:port (env ZKMQ_HOSTS, else {DEFAULT_HOSTS})", metavar="HOSTS")
    add(group, "--root", f"znode of the queues (env ZKMQ_ROOT, else {DEFAULT_ROOT})", metavar="ROOT")
    hidden = "credentials; prefer env ZKMQ_AUTH, which other users of the machine cannot see"
    add(group, "--auth", hidden, metavar="USER:PASSWORD")
    add(group, "--json", "answer in JSON", action="store_true")
    add(group, "--session-timeout", "how long (10s)", **DURATION)
    add(group, "--request-timeout", "how long (30s)", **DURATION)
    waited = f"how long a server is waited for ({QUICK:g}s where nobody listens, else {PATIENT:g}s)"
    add(group, "--connect-timeout", waited, **DURATION)
    if parser.get_default(OWN_TIMEOUT) is None:
        add(group, "--timeout", "the same as --connect-timeout", dest="connect_timeout", **DURATION)

    group = parser.add_argument_group("TLS and access (before or after the verb)")
    flag: dict[str, Any] = {"action": "store_true", "default": None}
    add(group, "--tls", "speak TLS (env ZKMQ_TLS=1); the files below imply it", **flag)
    for name, text in _FILES.items():
        add(group, f"--tls-{name}", f"{text} (env ZKMQ_TLS_{name.upper()})", metavar="FILE")
    named = f"the variable that holds the key's password (else {KEY_PASSWORD})"
    add(group, "--tls-key-password-env", named, metavar="NAME")
    first_line = f"the file whose first line is the key's password (env {KEY_PASSWORD}_FILE)"
    add(group, "--tls-key-password-file", first_line, metavar="FILE")
    opened = "with credentials: use znodes, too, that anyone may use (env ZKMQ_ALLOW_OPEN=1)"
    add(group, "--allow-open", opened, **flag)


def common(args: argparse.Namespace) -> Common:
    """The common options of a command line and the environment; the later on the line wins."""

    def pick(name: str) -> Any:
        given = getattr(args, name, None)
        return getattr(args, _BEFORE + name, None) if given is None else given

    password = pick("tls_key_password_env")
    options = environment_options(pick, read_file)
    return Common(
        hosts=options["hosts"],
        root=options["root"],
        auth=options["auth"],
        as_json=bool(getattr(args, "json", False) or args.before_json),
        session_timeout=pick("session_timeout"),
        connect_timeout=pick("connect_timeout"),
        request_timeout=pick("request_timeout"),
        access={name: options[name] for name in ("tls", "allow_open")},
        secret=frozenset() if password is None else frozenset({password}),
    )


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
