"""The queues under a root."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.model.paths import Paths
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Procedure
from airflow_provider_zkmq.engine.core.reading.nodes import read_stats


def queue_names(root: str) -> Procedure[list[str]]:
    """The names of the queues under `root`, sorted. Empty where there is no such root.

    What is no queue is left out; so is one whose deletion has begun.
    """
    names = sorted((yield Children(root)) or ())
    stats = yield from read_stats([Paths(f"{root}/{name}").conf("layout") for name in names])
    return [name for name, stat in zip(names, stats, strict=True) if stat is not None]
