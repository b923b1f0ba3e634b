"""A root: the version of its layout, which its own data are, and the queues under it."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.model.paths import Paths, check_layout
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Get, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.nodes import read_stats
from airflow_provider_zkmq.engine.core.reading.parts import THERE


def queue_names(root: str) -> Procedure[list[str]]:
    """The names of the queues under `root`, sorted. Empty where there is no such root.

    What is no queue is left out; so is one whose deletion has begun.
    """
    names = sorted((yield Children(root)) or ())
    stats = yield from read_stats([Paths(f"{root}/{name}").at(THERE) for name in names])
    return [name for name, stat in zip(names, stats, strict=True) if stat is not None]


def refuse_another_layout(root: str) -> Procedure[None]:
    """Raise `ConfigError` where what stands under the root is not of our layout. A root may be missing, or empty."""
    node: Node | None = yield Get(root)
    if node is not None and (node.data or (yield from queue_names(root))):
        check_layout(root, node.data)
