"""The way to ZooKeeper from wherever Spark runs code: no credentials come with it, they are looked up there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ... import engine
from ...engine import AnyClient, ConfigError, Zkmq, parse_duration
from ...environment import environment_options
from .options import CONNECTION, SourceOptions

_CLIENTS: dict[tuple[int, str], AnyClient] = {}


def connect(options: SourceOptions) -> AnyClient:
    """Open a connection that takes no part in clean-up. Raises what `Zkmq.connect` raises."""
    return Zkmq.connect(**connection(options), gc=False)


def cached(options: SourceOptions) -> AnyClient:
    """The connection of this process, such as a Python worker of Spark, for such options, opened once and left open."""
    key = os.getpid(), repr([options.text(name) for name in CONNECTION])
    client = _CLIENTS.get(key)
    if client is None or client.closed:
        client = _CLIENTS[key] = connect(options)
    return client


def connection(options: SourceOptions) -> dict[str, Any]:
    """The arguments of `Zkmq.connect`, which hold credentials: never to be shown. What an option says, wins."""
    given: dict[str, Any] = {name: text for name in ("hosts", "root") if (text := options.text(name)) is not None}
    for name, option in (("connect_timeout", "connectTimeout"), ("request_timeout", "requestTimeout")):
        if (text := options.text(option)) is not None:
            given[name] = parse_duration(text)
    conn_id = options.text("connId")
    if conn_id is None:
        try:
            return environment_options(given.get, Path.read_bytes) | given
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror or error}") from None
    try:
        from ...hooks.connection_options import look_up_options
    except ImportError as error:
        raise ConfigError(f"connId {conn_id!r} cannot be looked up: Airflow is not installed here ({error})") from None
    known = look_up_options(conn_id)
    known.pop("queue")
    return known | given


def all_queues(client: AnyClient) -> list[str]:
    """The queues of a root. Raises `ConfigError` where there is none: it is another root that is meant."""
    if not (names := client.queues()):
        raise ConfigError(
            f"there is no queue under {client.queue('any').root!r}: give another root, or make a queue first"
        )
    return names


#: How to reach ZooKeeper: the arguments of `Zkmq.connect`, a function that can be pickled and connects, or the options
#: of the data source, by which credentials are looked up where the code runs.
Connect: TypeAlias = Mapping[str, Any] | Callable[[], AnyClient] | SourceOptions


def open_client(source: Connect) -> AnyClient:
    """Open a connection of its own that takes no part in clean-up. Raises what `Zkmq.connect` raises."""
    if isinstance(source, SourceOptions):
        return connect(source)
    return source() if callable(source) else engine.Zkmq.connect(**{**source, "gc": False})
