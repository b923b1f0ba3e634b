"""For how long a call waits for servers: its limits, each with the name under which callers know it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

#: A call whose own time is over goes on so many seconds with what a healthy server answers at once.
GRACE: Final = 1.5


@dataclass(frozen=True, slots=True)
class Limit:
    """A span that callers can set, by its name."""

    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name} ({self.seconds:g} s)"


class Patience:
    """How long one call waits still, whatever it waits for: a reply, the connection, another call of its client.

    It ends ``request_timeout`` after the last answer that the call got from a server: the work of others is no answer,
    so callers that queue behind one another end together. A call with a time of its own (`Within`) ends with that.
    """

    def __init__(self, span: float, name: str = "request_timeout") -> None:
        self._silence = Limit(name, span)
        self._waiting_since: float | None = None
        self._answered = time.monotonic()
        self._own: tuple[float, Limit] | None = None

    def begin(self) -> None:
        """The call waits from now on, unless it does already: what it computes in between takes none of its time."""
        if self._waiting_since is None:
            self._waiting_since = self._answered = time.monotonic()

    def answered(self) -> None:
        """A server has answered, or what the call waited for on its own account is over."""
        self._waiting_since, self._answered = None, time.monotonic()

    def missed(self) -> None:
        """One of several replies did not come: it has been waited for since the last one that did."""
        if self._waiting_since is None:
            self._waiting_since = self._answered

    def within(self, seconds: float, name: str = "timeout", grace: float = GRACE) -> None:
        """The call ends in so many seconds, and `grace`, whatever is answered; never later than told before."""
        own = (time.monotonic() + seconds + grace, Limit(name, seconds))
        self._own = own if self._own is None or own[0] < self._own[0] else self._own

    def deadline(self, since: float | None = None) -> float:
        """When it is over, by the monotonic clock. `since`: when what it waits for began, if that is longer ago."""
        begun = time.monotonic() if self._waiting_since is None else self._waiting_since
        end = (begun if since is None else min(begun, since)) + self._silence.seconds
        return end if self._own is None else min(end, self._own[0])

    @property
    def limit(self) -> Limit:
        """Which limit it is that ends first."""
        return self._own[1] if self._own is not None and self._own[0] <= self.deadline() else self._silence


def left(deadline: float) -> float:
    """Seconds to a deadline."""
    return max(0.0, deadline - time.monotonic())


def over(deadline: float) -> bool:
    """Whether a deadline has passed."""
    return time.monotonic() >= deadline
