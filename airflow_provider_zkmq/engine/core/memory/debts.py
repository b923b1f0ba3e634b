"""What calls left to be put right, besides claims.

Owners: `core.writing.closing`, `core.tasks.holder`, `core.tasks.beginning`, `core.upkeep.lock`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_zkmq.engine.core.memory.claims import Claimed


@dataclass(slots=True, eq=False)
class Debts:
    """At most what is in flight when a connection is lost."""

    batches: set[str] = field(default_factory=set)
    """Batches whose last member may be off, and which were not ended."""
    orphans: dict[str, str] = field(default_factory=dict)
    """Of claims that were lost while their session lives: the task by the note, which may still stand."""
    unmarked: dict[tuple[str, int], Claimed] = field(default_factory=dict)
    """Claims whose handlers have begun, and where that does not stand, by task and token.

    The connection's thread adds to it, without the client's lock: it is read as a copy, and changed by a statement.
    """
    paying: bool = False
    """A thread puts things right in the background; changed with the client's lock held, read without it."""


@dataclass(slots=True, eq=False)
class Maintenance:
    """The maintenance lock, as far as this client has to do with it."""

    content: str | None = None
    """What the lock holds when it is this client's: made before it is first sent, kept for good."""
    busy: bool = False
    leaving: bool = False
    """The client is being closed: a clean-up under way ends soon, where it is. Anybody may set it."""
    left: bool = False
    """A clean-up of this client was cut short or never heard of its end: its lock may still stand."""
