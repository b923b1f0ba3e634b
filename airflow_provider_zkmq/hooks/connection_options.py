"""An Airflow connection of type ``zkmq``, read as the arguments of `Zkmq.connect`; and what kazoo logs of it."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from ..engine import ConfigError
from ..environment import FILES
from .arguments import flag, kind_of, span


class OneAMinute(logging.Filter):
    """Lets a line pass if none has passed for a minute; errors always pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._passed: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is to be logged."""
        now = self._clock()
        if record.levelno >= logging.ERROR:
            return True
        if self._passed is not None and now - self._passed < 60.0:
            return False
        self._passed = now
        return True


_ONE_A_MINUTE: Final = OneAMinute()


def limit_kazoo_logging() -> None:
    """Thin out what kazoo logs in this process; once is enough."""
    logging.getLogger("airflow_provider_zkmq.kazoo").addFilter(_ONE_A_MINUTE)


DEFAULT_CONN_ID: Final = "zkmq_default"
DEFAULT_QUEUE: Final = "queue"
_PLAIN: Final = ("root", "session_timeout", "connect_timeout", "request_timeout")
_TLS: Final = ("ca", "cert", "key", "key_password")
_KNOWN: Final = frozenset({*_PLAIN, "queue", "allow_open", "tls", *(f"tls_{name}" for name in _TLS)})


def connection_options(conn: Connection, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an Airflow connection as the arguments of `Zkmq.connect` plus ``queue``, the default queue's name.

    The result holds the password: it is to be passed on, never logged. `extra`: the connection's, if the caller has
    read it already, which on an event loop takes an ``await``. Raises `ConfigError`, which names the connection.
    """
    where = f"connection {conn.conn_id!r}"
    if extra is None:
        extra = extra_of(conn)
    values = _known(where, extra)
    if not conn.host:
        raise ConfigError(f"{where} has no host: give 'host' and 'port', or 'host1:port,host2:port' and port 0")
    options: dict[str, Any] = {"hosts": _hosts(conn.host, conn.port), "queue": values.get("queue", DEFAULT_QUEUE)}
    if "root" in values:
        options["root"] = values["root"]
    options |= {name: _seconds(f"{where}: {name}", values[name]) for name in _PLAIN[1:] if name in values}
    if conn.login or conn.password:
        if not (conn.login and conn.password):
            raise ConfigError(f"{where}: give both login and password, or neither")
        options["auth"] = [conn.login, conn.password]
    tls = {name: values[f"tls_{name}"] for name in _TLS if f"tls_{name}" in values}
    # The form sends its check boxes whether or not they were touched: a file says that TLS is meant, whatever they say.
    if flag(f"{where}: tls", values.get("tls", False)) or tls.keys() - {"key_password"}:
        options["tls"] = tls
    if flag(f"{where}: allow_open", values.get("allow_open", False)):
        options["allow_open"] = True
    return options


def look_up_options(conn_id: str) -> dict[str, Any]:
    """Look up a connection where this runs, in a task or outside of Airflow; see `connection_options`."""
    return connection_options(look_up(conn_id))


def look_up(conn_id: str) -> Connection:
    """Look up a connection of whatever type where this runs. Raises `ConfigError` where there is none."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigError(
            f"connection {conn_id!r} is not known here ({error}): outside of Airflow's tasks, such as in Spark's "
            f"executors, it is looked up in AIRFLOW_CONN_{conn_id.upper()} and the secrets backends"
        ) from None


def extra_of(conn: Connection) -> Any:
    """Return a connection's extra, and have Airflow mask what it holds. Raises `ConfigError` for what is no JSON."""
    _parsed(conn)
    return conn.extra_dejson


async def async_connection_options(conn_id: str) -> dict[str, Any]:
    """Look up a connection without blocking the event loop; see `connection_options`.

    Raises `AirflowNotFoundException` where there is none, and `ConfigError` where it is not understood.
    """
    conn = await BaseHook.aget_connection(conn_id)
    extra = _parsed(conn)
    if hasattr(conn, "aextra_dejson"):  # it masks the secrets without blocking the loop, as the rest does before 3.3.2
        extra = await conn.aextra_dejson()
    else:
        from airflow.sdk.log import amask_secret

        await amask_secret(extra)
    return connection_options(conn, extra)


def _parsed(conn: Connection) -> Any:
    """Return a connection's extra, unmasked. Raises `ConfigError` for what is no JSON, showing nothing of it.

    Airflow takes that for an empty one, and so would go on without TLS, under another root.
    """
    try:
        return json.loads((conn.extra or "").strip() or "{}")
    except ValueError:
        raise ConfigError(f"connection {conn.conn_id!r}: extra must be a JSON object") from None


def _known(where: str, extra: object) -> dict[str, Any]:
    """Return what an extra says. Raises `ConfigError` for what is unknown, or of another kind."""
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{where}: extra must be a JSON object")
    values = {name: value for name, value in extra.items() if value not in (None, "")}
    if unknown := sorted(set(values) - _KNOWN):
        names = [name for name in unknown if re.fullmatch("[a-z_]+", name)]
        if len(names) < len(unknown):  # in a URI it may be a part of a password
            names.append("whose name is not shown (in a connection's URI, & within a value must be written as %26)")
        raise ConfigError(f"{where}: unknown extra {', '.join(names)}; known: {', '.join(sorted(_KNOWN))}")
    for name in ("root", "queue"):
        if not isinstance(values.get(name, ""), str):
            raise ConfigError(f"{where}: {name} must be text, not {kind_of(values[name])}")
    return values


def _seconds(what: str, value: object) -> float | None:
    """Return a duration in seconds. Raises `ConfigError`, which does not show what was given: it may be a secret."""
    try:
        return span(what, value)
    except ConfigError:
        raise ConfigError(f"{what} is no duration, but {kind_of(value)}; such as 30, '30s' or '1m'") from None


def _hosts(host: str, port: int | None) -> str:
    if host.strip().startswith(FILES):  # a path, in which a comma parts nothing, and which has no port
        return host.strip()
    parts = [part.strip() for part in host.split(",")]
    if not port:  # 0 is what forms say for none
        return ",".join(parts)
    return ",".join(part if ":" in part.rpartition("]")[2] else f"{part}:{port}" for part in parts)
