"""The faulty door under the names of two modules that know it as a gate."""

from __future__ import annotations

import math

from tests.faulty import CutAfter, Faulty, Once, is_multi


class Gate(Faulty):
    """A door that is shut by hand, or at the reply to a chosen transaction."""

    @property
    def lost(self) -> int:
        """How many replies were lost."""
        return self.faults["CutAfter"]

    def shut(self) -> None:
        """End every connection; new ones end at once."""
        self.down()

    def open(self) -> None:
        """Let everybody through again."""
        self.up()

    def shut_at_reply(self, write: int, seconds: float = math.inf) -> None:
        """Shut when the reply to a transaction comes, which is lost: to the next one (0), or so many later."""
        self.plan = Once(is_multi, CutAfter(seconds), write)
