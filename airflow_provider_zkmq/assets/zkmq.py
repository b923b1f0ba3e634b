"""Asset URIs of queues, ``zkmq://host:port/root/queue``: one spelling for each queue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset as OpenLineageDataset
    from airflow.sdk import Asset

#: What no part of a password is taken for: names and addresses, each with a port or without.
_HOSTS = re.compile(r"((\[[^]@]*\]|[\w.-]+)(:[0-9]*)?(, *|\Z))*")
_SHAPE = "write zkmq://host:port/root/queue, or zkmq://host1:port,host2:port/root/queue"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return the URI in the one spelling of its queue: hosts in lower case and in order, each with its port.

    Raises `ConfigError` where a part is missing, or is not allowed; credentials belong to the connection.
    """
    from ..engine import ConfigError, ConnectionConfig, check_name

    root, _, queue = uri.path.rpartition("/")
    if not (uri.netloc and root and queue):
        raise ConfigError(f"{_shown(uri)} names no queue: {_SHAPE}")
    if uri.query or "@" in uri.netloc:
        raise ConfigError(f"{_shown(uri)} says more than which queue it is: {_SHAPE}")
    if not _HOSTS.fullmatch(uri.netloc):
        raise ConfigError(f"{_shown(uri)} has hosts that are not understood: {_SHAPE}")
    config = ConnectionConfig.of(uri.netloc.lower(), root)
    hosts = ",".join(sorted(set(config.hosts.split(","))))
    return uri._replace(netloc=hosts, path=f"{config.root}/{check_name('queue', queue)}")


def create_asset(*, hosts: str, queue: str, root: str = "/zkmq", extra: dict[str, Any] | None = None) -> Asset:
    """Return the asset that stands for a queue; its name is its URI, in the one spelling. Raises as `sanitize_uri`.

    An asset that is made of a URI alone is named as that was written: Airflow takes two spellings for two assets that
    are at odds, and switches one of them off. `hosts`: the servers, ``host:port,host:port``; the port is 2181 where
    none is said. `queue`: its name. `root`: the znode under which it lives. `extra`: the asset's.
    """
    from airflow.sdk import Asset

    from ..engine import check_name

    written = f"zkmq://{hosts}/{root.strip('/')}/{check_name('queue', queue)}"  # else it could hold a URI's other parts
    return Asset(uri=sanitize_uri(urlsplit(written)).geturl(), extra=extra)


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> OpenLineageDataset:  # noqa: ARG001
    """Return the queue as OpenLineage's dataset: the servers are its namespace, the znode is its name."""
    from airflow.providers.common.compat.openlineage.facet import Dataset as OpenLineageDataset

    uri = urlsplit(asset.uri)
    return OpenLineageDataset(namespace=f"zkmq://{uri.netloc}", name=uri.path.lstrip("/"))


def _shown(uri: SplitResult) -> str:
    """Return what may be shown of a URI: who wrote credentials into it would find them in the log.

    Of a password with a ``/``, ``?`` or ``#`` in it only the beginning stands before the hosts, and no ``@``.
    """
    if "@" in uri.geturl() or not _HOSTS.fullmatch(uri.netloc):
        return "the asset URI (which is not shown, as a password may be in it)"
    return f"asset URI {uri._replace(query='').geturl()!r}"
