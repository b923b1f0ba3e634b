"""Who this client is as a consumer, and who else lives. Owners: `core.upkeep.consumers`, `core.upkeep.rescue`."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_zkmq.engine.core.protocol.ops import Signal, Watch


@dataclass(slots=True)
class Consumer:
    """A registration under ``consumers``, good for one ZooKeeper session."""

    id: str
    session: int
    accepts: list[str] = field(default_factory=list)
    """The selectors it has announced."""


@dataclass(slots=True, eq=False)
class Registration:
    """This client's own record. Other threads may read ``consumer`` without the lock."""

    consumer: Consumer | None = None
    cancel_watch: Watch | None = None
    joining: dict[int, Signal] = field(default_factory=dict)
    """The threads that register this client, by session; the others wait for the signal."""

    @property
    def heeded(self) -> bool:
        """Whether nothing was told to this consumer since it looked; there is none before it registers."""
        return self.consumer is None or (self.cancel_watch is not None and not self.cancel_watch.fired)


@dataclass(slots=True, eq=False)
class Census:
    """The consumers as last read, and until when the claims hold that have a deadline."""

    live: list[str] = field(default_factory=list)
    unburied: list[str] = field(default_factory=list)
    """Dead consumers that are still on the register."""
    watch: Watch | None = None
    lease_ends: dict[str, int] = field(default_factory=dict)
    """By the path of the lease or lock, in the server's milliseconds."""

    @property
    def stands(self) -> bool:
        """Whether nobody has come or gone since it was read."""
        return self.watch is not None and not self.watch.fired
