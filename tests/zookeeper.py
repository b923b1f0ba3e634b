"""The ZooKeeper that tests run against, as the fixture ``zookeeper``.

Register it with ``pytest_plugins = ["tests.zookeeper"]`` or ``-p tests.zookeeper``. Under pytest-xdist each
worker has its own, unless ``ZKMQ_TEST_HOSTS`` names one for all.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import time
import warnings
from typing import TYPE_CHECKING

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer, ServerError, node

if TYPE_CHECKING:
    from collections.abc import Iterator

_IMAGE = "zookeeper:3.9"
_CLIENT_PORT = 2181
_PING_TIMEOUT_S = 2
_READY_TIMEOUT_S = 60.0
_POLL_S = 0.1

# What EmbeddedServer sets, in the words of the image.
_IMAGE_SETTINGS = {
    "ZOO_TICK_TIME": "500",
    "ZOO_MAX_CLIENT_CNXNS": "0",
    "ZOO_ADMINSERVER_ENABLED": "false",
    "ZOO_4LW_COMMANDS_WHITELIST": "srvr,mntr,ruok,stat,cons,conf,wchs",
    "ZOO_CFG_EXTRA": "minSessionTimeout=1000 maxSessionTimeout=60000 extendedTypesEnabled=true forceSync=no",
}


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the hosts of a ZooKeeper for the whole session."""
    with some_zookeeper(tmp_path_factory) as hosts:
        yield hosts


@contextlib.contextmanager
def some_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the hosts of the ZooKeeper configured, else of a container's, else of an embedded server's."""
    configured = os.environ.get("ZKMQ_TEST_HOSTS")
    if configured:
        yield configured
    elif docker_answers():
        with _container() as hosts:
            yield hosts
    else:
        with EmbeddedServer(tmp_path_factory.mktemp("zookeeper"), force_sync=False) as server:
            yield server.hosts


def docker_answers() -> bool:
    """Say whether a Docker engine answers; machines with only the command line tool have none."""
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        answers = _ping_docker()
        # The Docker client forgets to close the socket that did not connect. Collected here, it does not
        # fail whichever test the collector happens to interrupt, where warnings are errors.
        gc.collect()
    return answers


def _ping_docker() -> bool:
    try:
        docker = importlib.import_module("docker")  # comes with testcontainers, which is optional
    except ImportError:
        return False
    try:
        with contextlib.closing(docker.from_env(timeout=_PING_TIMEOUT_S)) as client:
            return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False


@contextlib.contextmanager
def _container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(_IMAGE).with_exposed_ports(_CLIENT_PORT)
    for name, value in _IMAGE_SETTINGS.items():
        container = container.with_env(name, value)
    with container:
        host, port = container.get_container_host_ip(), int(container.get_exposed_port(_CLIENT_PORT))
        _await_ready(host, port)
        yield f"{host}:{port}"


def _await_ready(host: str, port: int) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while True:
        try:
            node.srvr(host, port)
        except ServerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)  # the pause of a poll that has a deadline
        else:
            return
