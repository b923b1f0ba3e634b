"""The options that every verb takes, and the text forms of values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from airflow_provider_zkmq.cli.tls import add_tls
from airflow_provider_zkmq.environment import DEFAULT_HOSTS, DEFAULT_ROOT, environment_options

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyClient

T = TypeVar("T")
STATES = ("inserted", "claimed", "finished", "dead", "cancelled")
_BEFORE = "before_"


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

    def connect(self, *, gc: bool = False) -> AnyClient:
        """Open a connection; by default one that takes no part in clean-up."""
        from airflow_provider_zkmq.engine import Zkmq

        return Zkmq.connect(
            self.hosts,
            self.root,
            gc=gc,
            auth=self.auth,
            session_timeout=self.session_timeout,
            connect_timeout=self.connect_timeout,
            request_timeout=self.request_timeout,
            **self.access,
        )


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
    for name, span in (("session", 10), ("connect", 10), ("request", 30)):
        group.add_argument(
            f"--{name}-timeout",
            dest=f"{prefix}{name}_timeout",
            type=duration,
            metavar="DURATION",
            help=f"how long ({span}s)",
        )
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
    from airflow_provider_zkmq.engine import ConfigError, parse_duration

    try:
        return parse_duration(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def moment(text: str) -> datetime:
    """A moment from ISO 8601 with a zone."""
    from airflow_provider_zkmq.engine import ConfigError, parse_moment

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
