"""How many tasks a worker may still claim, where it is to end after so many."""

from __future__ import annotations

import threading


class Budget:
    """What is left of a worker's limit. One lock guards it: several threads claim.

    Who claims takes out first what it asks for, and puts back what it did not get and what nobody has begun: together
    the threads never have more than the limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self._lock = threading.Lock()

    @property
    def spent(self) -> bool:
        """Whether nothing is left of it now."""
        return self._left == 0

    def take(self, most: int) -> int:
        """How many may be claimed, at the most `most`; they are taken out."""
        with self._lock:
            if self._left is None:
                return most
            count = min(most, self._left)
            self._left -= count
            return count

    def put_back(self, count: int) -> None:
        """So many of them were not claimed, or not begun."""
        with self._lock:
            if self._left is not None:
                self._left += count
