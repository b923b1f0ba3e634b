"""When to look again: at what comes due, and at what was refused. Owner: this module; at most `MAX_LATER` refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

#: The first pause before something refused is tried again, and the longest, in seconds.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 30.0
MAX_LATER: Final = 1_000


@dataclass(slots=True, eq=False)
class Agenda:
    """When one look at a queue is to be followed by another, by our monotonic clock. Each look has its own."""

    monotonic: Callable[[], float]
    due: float | None = None
    more: bool = False
    """There is more to look after than this look was allowed to do, and it got on: another one follows at once."""

    def within(self, seconds: float) -> None:
        """Look again in so many seconds at the latest."""
        at = self.monotonic() + max(0.0, seconds)
        self.due = at if self.due is None else min(at, self.due)

    def left(self, most: float) -> float:
        """Seconds until the next look, at most so many."""
        return most if self.due is None else max(0.0, min(most, self.due - self.monotonic()))


@dataclass(slots=True)
class Pause:
    """Until when something that was refused is left alone, by our monotonic clock, and how often it was refused."""

    until: float
    tries: int


@dataclass(slots=True, eq=False)
class Postponed:
    """What was refused to those who look after the queue, by its path: each time it is left alone for longer."""

    monotonic: Callable[[], float]
    pauses: dict[str, Pause] = field(default_factory=dict)

    def waits(self, path: str, agenda: Agenda) -> bool:
        """Whether something that was refused is not to be tried again yet; then it is on the agenda."""
        pause = self.pauses.get(path)
        if pause is None or pause.until <= self.monotonic():
            return False
        agenda.within(pause.until - self.monotonic())
        return True

    def postpone(self, path: str, agenda: Agenda) -> None:
        """Something was refused: try again soon, and less and less often while it goes on being refused."""
        known = self.pauses.get(path)
        if known is not None and known.until > self.monotonic():  # another call was refused at the same moment
            agenda.within(known.until - self.monotonic())
            return
        tries = 0 if known is None else known.tries + 1
        seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries)
        if len(self.pauses) >= MAX_LATER:  # most of it is gone by now, and was never asked for again
            old = self.monotonic() - LONGEST_PAUSE
            self.pauses = {other: pause for other, pause in self.pauses.items() if pause.until > old}
        self.pauses[path] = Pause(self.monotonic() + seconds, tries)
        agenda.within(seconds)

    def done(self, path: str) -> None:
        """It was carried out, or is no matter any more."""
        self.pauses.pop(path, None)
