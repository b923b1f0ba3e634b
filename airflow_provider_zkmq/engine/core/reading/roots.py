"""The queues under a root."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.model.paths import Paths
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Pipeline, Procedure, Stat


def queue_names(root: str) -> Procedure[list[str]]:
    """The names of the queues under `root`, sorted; what is no queue is left out. Empty where there is no such root."""
    names = sorted((yield Children(root)) or ())
    stats: list[Stat | None] = yield Pipeline(tuple(Exists(Paths(f"{root}/{name}").at("tasks")) for name in names))
    return [name for name, stat in zip(names, stats, strict=True) if stat is not None]
