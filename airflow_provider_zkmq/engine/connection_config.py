"""How to reach ZooKeeper: validated once, at the edge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from ..environment import DEFAULT_HOSTS, DEFAULT_ROOT
from .core.model.values import seconds
from .core.model.znode_names import check_root
from .errors import ConfigError

#: Servers take no longer packet than 1 MiB.
_LONGEST_AUTH = 1 << 16
#: No file's name is longer, and no path that anybody writes.
_LONGEST_PATH = 255
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?\Z")


class Secret(str):
    """A text that is not shown where an object that holds it is: not by `repr`, nor in what `asdict` makes of it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"

    def __deepcopy__(self, _memo: dict[int, object]) -> str:
        """`dataclasses.asdict` copies what it finds; the objects below, which hold secrets, copy as themselves."""
        return "…"


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to ZooKeeper's secure port. Paths to PEM files.

    ``ca``: who signs the servers' certificates, and nobody else is trusted; without it the system's authorities are.
    ``cert`` and ``key``: the client's own certificate, which is then its identity. A server's certificate must name the
    host that was asked for.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            path = getattr(self, name)
            try:
                readable = path is None or Path(path).is_file()
            except (OSError, ValueError):  # their messages hold the path, which may be the key itself
                readable = False
            if not readable:
                msg = f"tls {name} {_as_path(path)} is not a readable file: give the path of a PEM file"
                raise ConfigError(msg)
        if not isinstance(self.key_password, str | None):
            msg = f"tls key_password must be text, not {type(self.key_password).__name__}"
            raise ConfigError(msg)
        if self.key_password is not None:
            object.__setattr__(self, "key_password", Secret(self.key_password))

    def __deepcopy__(self, _memo: dict[int, object]) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """Where ZooKeeper is, as whom to speak to it, and how long to wait for it (seconds)."""

    hosts: str = DEFAULT_HOSTS
    root: str = DEFAULT_ROOT
    auth: tuple[str, str] | None = field(default=None, repr=False)
    tls: Tls | None = None
    session_timeout: float = 10.0
    connect_timeout: float = 10.0
    request_timeout: float = 30.0
    allow_open: bool = False
    """Whether to use what anyone may use although credentials were given."""

    def __post_init__(self) -> None:
        if self.auth is not None:
            user, password = self.auth
            object.__setattr__(self, "auth", (user, Secret(password)))

    def __deepcopy__(self, _memo: dict[int, object]) -> Self:
        return self

    @classmethod
    def of(cls, hosts: object = DEFAULT_HOSTS, root: object = DEFAULT_ROOT, **options: Any) -> ConnectionConfig:
        """A validated configuration. Raises `ConfigError` naming the value that is wrong."""
        spans: dict[str, Any] = {
            name: seconds(name, options.pop(name)) for name in _SPANS if options.get(name) is not None
        }
        for name, span in spans.items():
            if not 0.1 <= span <= 3600:
                msg = f"{name} {span!r} is not allowed: 0.1 to 3600 seconds"
                raise ConfigError(msg)
        allow_open = options.pop("allow_open", None)
        if not isinstance(allow_open, bool | None):
            msg = f"allow_open must be True or False, not {type(allow_open).__name__}"
            raise ConfigError(msg)
        auth, tls = _auth(options.pop("auth", None)), _tls(options.pop("tls", None))
        if unknown := sorted(name for name, value in options.items() if value is not None):
            known = ", ".join(("auth", "tls", "allow_open", *_SPANS))
            msg = f"unknown connection option(s) {', '.join(unknown)}; known: {known}"
            raise ConfigError(msg)
        return cls(
            hosts=check_hosts(hosts), root=check_root(root), auth=auth, tls=tls, allow_open=bool(allow_open), **spans
        )


_SPANS = tuple(spec.name for spec in fields(ConnectionConfig) if spec.name.endswith("_timeout"))


def check_hosts(hosts: object) -> str:
    """``host:port,host:port`` each with its port, 2181 where none is given. Raises `ConfigError`."""
    checked: list[str] = []
    for part in hosts.split(",") if isinstance(hosts, str) else ():
        host = _HOST.match(part.strip())
        port = int((host and host[2]) or 2181)
        if host is None or not 1 <= port <= 65_535:
            checked = []
            break
        checked.append(f"{host[1]}:{port}")
    if not checked:
        shown = re.sub(r"(?s).*@", "…@", hosts) if isinstance(hosts, str) else type(hosts).__name__
        msg = f"hosts {shown!r} is not understood: write 'host:port' or 'host1:port,host2:port'"
        raise ConfigError(msg)
    return ",".join(checked)


def _auth(value: object) -> tuple[str, str] | None:
    """Digest credentials from ``"user:password"`` or ``(user, password)``."""
    if value is None:
        return None
    if isinstance(value, str):
        value = tuple(value.split(":", 1))
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(part, str) and part for part in value):
        user, password = value
        if user == "digest" and ":" in password:
            user, password = password.split(":", 1)
        if ":" not in user:
            # What cannot be sent would end the connection's thread, or have every server drop the connection.
            try:
                size = len(f"{user}:{password}".encode())
                why = f"has {size:,} bytes, more than {_LONGEST_AUTH:,}" if size > _LONGEST_AUTH else None
            except UnicodeEncodeError:
                why = "cannot be written as UTF-8"
            if why:
                msg = f"auth is not understood: what is given {why}"
                raise ConfigError(msg) from None
            return user, password
    msg = "auth is not understood: give 'user:password' or (user, password), the user without a colon"
    raise ConfigError(msg)


def _as_path(path: Any) -> str:
    """What is shown of a path: not the text of a key, which somebody has given in its place."""
    text = str(path)
    if "\n" in text or "-----BEGIN" in text or len(text) > _LONGEST_PATH:
        return f"(a text of {len(text):,} characters, which is not shown)"
    return repr(path)


def _tls(value: object) -> Tls | None:
    if value is None or isinstance(value, Tls):
        return value
    if value is True or value is False:
        return Tls() if value else None
    if isinstance(value, Mapping):
        try:
            return Tls(**value)
        except TypeError as error:
            msg = f"tls is not understood: {error}; known: ca, cert, key, key_password"
            raise ConfigError(msg) from error
    msg = f"tls must be True, False, Tls(…) or a mapping, not {type(value).__name__}"
    raise ConfigError(msg)
