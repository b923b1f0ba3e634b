"""The way to ZooKeeper from wherever Spark runs code: no credentials come with it, they are looked up there."""

from __future__ import annotations

import os
from typing import Any

from airflow_provider_zkmq.engine import AnyClient, ConfigError, Zkmq
from airflow_provider_zkmq.environment import environment_options
from airflow_provider_zkmq.spark.source.options import Options

_CLIENTS: dict[tuple[int, str], AnyClient] = {}


def connect(options: Options) -> AnyClient:
    """Open a connection that takes no part in clean-up. Raises what `Zkmq.connect` raises."""
    return Zkmq.connect(**connection(options), gc=False)


def cached(options: Options) -> AnyClient:
    """This process's connection for such options, opened by the first who asks and left open."""
    key = os.getpid(), repr(sorted(_addressed(options).items()))
    if key not in _CLIENTS:
        _CLIENTS[key] = connect(options)
    return _CLIENTS[key]


def connection(options: Options) -> dict[str, Any]:
    """The arguments of `Zkmq.connect`, with the credentials that are looked up here; never to be shown.

    An option that is given wins over the Airflow connection and the environment.
    """
    conn_id, addressed = options.text("conn_id"), _addressed(options)
    return (environment_options(addressed.get) if conn_id is None else _airflow_connection(conn_id)) | addressed


def _addressed(options: Options) -> dict[str, str]:
    names = {"hosts": "hosts", "root": "root", "connecttimeout": "connect_timeout", "requesttimeout": "request_timeout"}
    return {there: text for here, there in names.items() if (text := options.text(here)) is not None}


def _airflow_connection(conn_id: str) -> dict[str, Any]:
    """What Airflow, where this runs, knows as the connection `conn_id`. Raises `ConfigError` where there is none."""
    try:
        from airflow_provider_zkmq.hooks.connections import look_up_options
    except ImportError as error:
        raise ConfigError(f"conn_id {conn_id!r} cannot be looked up: Airflow is not installed here ({error})") from None
    options = look_up_options(conn_id)
    options.pop("queue")
    return options
