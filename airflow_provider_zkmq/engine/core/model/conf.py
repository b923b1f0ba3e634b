"""A queue's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.model.filters import FilterTypes
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy


@dataclass(frozen=True, slots=True)
class Conf:
    """A queue's configuration as last read; times in seconds."""

    types: FilterTypes
    policy: RetryPolicy
    gc_lifetime: float
    gc_interval: float
    paused: bool
    archive: int | None = None
    """Where an archive is configured: the zxid up to which ended runs are archived."""
    lock: float | None = None
    order: str = "default"
    policy_error: str | None = None
    """Why the policy cannot be read, where this client never could: ``policy`` stands in for it."""

    follow: bool = False
    """Streams follow what ends: runs that leave are kept for them."""

    @property
    def has_readers(self) -> bool:
        """Whether anybody may still want a run that leaves what lists it."""
        return self.follow or self.archive is not None

    def wants(self, version: int) -> bool:
        """Whether a run that leaves, and ended in that transaction, is to be kept; 0: it ends with this one."""
        if self.follow or self.archive is None:
            return self.follow
        return version == 0 or version > self.archive

    def may_deliver(self, attempt: int, own: object) -> bool:
        """Whether it is known that a task that was delivered so often, with a policy of its own or None, may be again.

        How often it may be is the policy's to say; no policy forbids the first delivery.
        """
        return attempt == 0 or own is not None or self.policy_error is None

    @property
    def ordered(self) -> bool:
        """Whether tasks are handed out in strict order."""
        return self.order == "fifo"
