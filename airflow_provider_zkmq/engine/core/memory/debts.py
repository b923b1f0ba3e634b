"""What calls left to be put right, besides claims.

Owners: `core.writing.closing`, `core.tasks.holder`, `core.upkeep.lock`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Debts:
    """At most what is in flight when a connection is lost."""

    batches: set[str] = field(default_factory=set)
    """Batches whose last member may be off, and which were not ended."""
    orphans: dict[str, str] = field(default_factory=dict)
    """Of claims that were lost while their session lives: the task by the note, which may still stand."""
    paying: bool = False
    """A thread puts things right in the background; changed with the client's lock held."""


@dataclass(slots=True, eq=False)
class Maintenance:
    """The maintenance lock, as far as this client has to do with it."""

    content: str | None = None
    """What the lock holds when it is this client's: made before it is first sent, kept for good."""
    busy: bool = False
    left: bool = False
    """A clean-up of this client was cut short or never heard of its end: its lock may still stand."""
