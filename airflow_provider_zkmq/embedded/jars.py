"""The class path of a ZooKeeper server: some of the jars in PySpark's ``jars`` folder."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from airflow_provider_zkmq.embedded.errors import ServerError

# Fewer do not do: without metrics-core and snappy-java the server listens and answers `ruok` while its
# main thread is dead; without the log4j four its reasons for failing are lost. All of the folder starts
# more than twice as slowly.
_JARS = (
    "zookeeper",
    "zookeeper-jute",
    "metrics-core",
    "snappy-java",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
# What serves TLS, which the rest can do without.
_NETTY = (
    "netty-buffer",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
)
_INSTALL = 'pip install "airflow-provider-zkmq[spark]"'


def class_path(*, tls: bool = False) -> str:
    """Return the class path of the server, found without importing PySpark (importing it is slow).

    Raises:
        ServerError: PySpark is not installed, or comes without the jars.
    """
    folder = spark_jars()
    return os.pathsep.join(str(_find(folder, name)) for name in (_JARS + _NETTY if tls else _JARS))


def spark_jars() -> Path:
    """Return the folder of PySpark's jars, found without importing PySpark.

    Raises:
        ServerError: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        message = f"ZooKeeper's jars come with PySpark, which is not installed: run `{_INSTALL}`"
        raise ServerError(message)
    return Path(next(iter(spec.submodule_search_locations)), "jars")


def _find(folder: Path, name: str) -> Path:
    # The digit keeps `zookeeper` from matching zookeeper-jute; the version follows PySpark's.
    jars = sorted(folder.glob(f"{name}-[0-9]*.jar"))
    if not jars:
        message = f"{folder} has no {name} jar (pyspark-client has none at all): run `{_INSTALL}`"
        raise ServerError(message)
    return jars[-1]
