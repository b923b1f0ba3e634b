"""Enqueues whose callers were not told what became of them, by task id. Owner: `core.tasks.repeat`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

KEPT_SECONDS: Final = 3600.0
#: So many marks are kept beside those of the call that comes last.
KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A task that may have been written, or a batch; ``written``: it was. ``said``: tells other messages apart."""

    at: float
    said: int
    nonce: str
    stamp: str = ""
    written: bool = False
    restored: int = 0
    """How often the servers had gone back by then."""


@dataclass(slots=True, eq=False)
class Unresolved:
    """What calls left, the oldest first."""

    marks: dict[str, Mark] = field(default_factory=dict)

    def keep(self, marks: Mapping[str, Mark]) -> None:
        """Remember what one call left, and forget the oldest of what others did."""
        others = {name: mark for name, mark in self.marks.items() if name not in marks}
        self.marks = {**dict(islice(others.items(), max(0, len(others) - KEPT), None)), **marks}

    def take(self, name: str, said: int, now: float) -> Mark | None:
        """The mark of this id, for a call that says the same; whatever the call says, nobody gets it after that."""
        mark = self.marks.pop(name, None)
        return mark if mark is not None and mark.said == said and now - mark.at <= KEPT_SECONDS else None
