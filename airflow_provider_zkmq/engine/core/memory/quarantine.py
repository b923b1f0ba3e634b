"""Foreign and damaged znodes that were told of: each once. Owner: `Context.report`; bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_QUARANTINE: Final = 10_000


@dataclass(slots=True, eq=False)
class Quarantine:
    """Paths that are stepped over, and damages that were told of."""

    paths: set[str] = field(default_factory=set)
    damages: set[str] = field(default_factory=set)
    """What was told to be the matter: one damaged record is met from many sides."""
    waiting: set[str] = field(default_factory=set)
    """Entries that are stepped over without being damaged themselves, while the queue's policy cannot be read."""

    def __contains__(self, path: str) -> bool:
        return path in self.paths or path in self.waiting

    def wait(self, path: str) -> None:
        """Step over it for the time being."""
        if len(self.waiting) >= MAX_QUARANTINE:
            self.waiting.clear()
        self.waiting.add(path)

    def is_news(self, damage: str) -> bool:
        """Whether something damaged is met for the first time."""
        if not damage or damage in self.damages:
            return not damage
        if len(self.damages) >= MAX_QUARANTINE:
            self.damages.clear()
        self.damages.add(damage)
        return True

    def add(self, path: str) -> bool:
        """Step over it from now on; False if that was so already."""
        if path in self.paths:
            return False
        if len(self.paths) >= MAX_QUARANTINE:
            self.paths.clear()
        self.paths.add(path)
        return True
