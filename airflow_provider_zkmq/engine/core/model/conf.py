"""A queue's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.model.filters import FilterType
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy


@dataclass(frozen=True, slots=True)
class Conf:
    """A queue's configuration as last read; times in seconds."""

    types: dict[str, FilterType]
    policy: RetryPolicy
    gc_lifetime: float
    gc_interval: float
    paused: bool
    archive: int | None = None
    """Where an archive is configured: the zxid up to which finished tasks are archived."""
    lock: float | None = None
    order: str = "default"

    @property
    def ordered(self) -> bool:
        """Whether tasks are handed out in strict order."""
        return self.order == "fifo"
