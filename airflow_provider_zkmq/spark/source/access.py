"""The way to ZooKeeper from wherever Spark runs code: no credentials come with it, they are looked up there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_zkmq.engine import AnyClient, ConfigError, Zkmq, parse_duration
from airflow_provider_zkmq.environment import environment_options
from airflow_provider_zkmq.spark.source.options import CONNECTION, Options

_CLIENTS: dict[tuple[int, str], AnyClient] = {}


def connect(options: Options) -> AnyClient:
    """Open a connection that takes no part in clean-up. Raises what `Zkmq.connect` raises."""
    return Zkmq.connect(**connection(options), gc=False)


@contextmanager
def opened(options: Options) -> Iterator[AnyClient]:
    """A connection for the block."""
    client = connect(options)
    try:
        yield client
    finally:
        client.close()


def cached(options: Options) -> AnyClient:
    """This process's connection for such options, opened by the first who asks and left open.

    Spark's Python workers read one partition after the other, each for itself.
    """
    key = os.getpid(), repr([options.text(name) for name in CONNECTION])
    client = _CLIENTS.get(key)
    if client is None or client.closed:
        client = _CLIENTS[key] = connect(options)
    return client


def connection(options: Options) -> dict[str, Any]:
    """The arguments of `Zkmq.connect`, with the credentials that are looked up here; never to be shown.

    An option that is given wins over the Airflow connection and the environment.
    """
    conn_id, addressed = options.text("conn_id"), _addressed(options)
    if conn_id is not None:
        return _airflow_connection(conn_id) | addressed
    return environment_options(addressed.get, _read_file) | addressed


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None


def _addressed(options: Options) -> dict[str, Any]:
    """What the options themselves say of the connection. Raises `ConfigError` for a time-out that is no duration."""
    names = {name: text for name in ("hosts", "root") if (text := options.text(name)) is not None}
    spans = {"connect_timeout": "connectTimeout", "request_timeout": "requestTimeout"}
    times = {name: text for name, option in spans.items() if (text := options.text(option)) is not None}
    return {**names, **{name: parse_duration(text) for name, text in times.items()}}


def _airflow_connection(conn_id: str) -> dict[str, Any]:
    """What Airflow, where this runs, knows as the connection `conn_id`. Raises `ConfigError` where there is none."""
    try:
        from airflow_provider_zkmq.hooks.connections import look_up_options
    except ImportError as error:
        raise ConfigError(f"conn_id {conn_id!r} cannot be looked up: Airflow is not installed here ({error})") from None
    options = look_up_options(conn_id)
    options.pop("queue")
    return options
