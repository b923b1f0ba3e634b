"""Foreign and damaged znodes that were told of: each once. Owner: `Context.report`; bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_QUARANTINE: Final = 10_000


@dataclass(slots=True, eq=False)
class Quarantine:
    """Paths that are stepped over."""

    paths: set[str] = field(default_factory=set)

    def __contains__(self, path: str) -> bool:
        return path in self.paths

    def add(self, path: str) -> bool:
        """Step over it from now on; False if that was so already."""
        if path in self.paths:
            return False
        if len(self.paths) >= MAX_QUARANTINE:
            self.paths.clear()
        self.paths.add(path)
        return True
