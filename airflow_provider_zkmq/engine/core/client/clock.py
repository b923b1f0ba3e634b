"""The server's clock, as writes have told it. Owner: this module; one entry, replaced as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from airflow_provider_zkmq.engine.core.protocol.ops import Outcome

#: The server's clock is carried on by our own for so long.
TRUSTED_SECONDS: Final = 300.0
#: What only puts tasks in order goes by it for longer: in this time two clocks part by a second at the most.
ORDERING_SECONDS: Final = 1800.0
#: A write whose reply took longer tells the time too loosely, unless nothing better is known.
SPAN_SECONDS: Final = 1.0
#: By so much two clocks may drift apart while one is carried on by the other.
DRIFT_MS: Final = 30


@dataclass(frozen=True, slots=True)
class ServerTime:
    """What a write told of the server's clock: it stood at `ms` some time between `sent` and `received`, both ours."""

    ms: int
    sent: float
    received: float

    @property
    def span(self) -> float:
        """By how many seconds the time may be wrong."""
        return self.received - self.sent


@dataclass(slots=True, eq=False)
class Clock:
    """The time at the server in milliseconds, carried on by our monotonic clock from when a write was sent."""

    monotonic: Callable[[], float]
    last: ServerTime | None = None
    best: ServerTime | None = None
    """The most exact one of late: by it moments of ours are told, so that their order and distances stay."""

    def learn(self, outcome: Outcome) -> None:
        """Remember the server's clock as a transaction told it.

        A reply that was long on its way says little: it is used only where nothing better is known.
        """
        if outcome.time is None or outcome.sent is None:
            return
        latest = ServerTime(outcome.time, outcome.sent, self.monotonic())
        if latest.span <= SPAN_SECONDS or self.now() is None:
            self.last = latest
        if self.best is None or latest.span <= self.best.span or self._contradicts(latest, self.best):
            self.best = latest

    @staticmethod
    def _contradicts(latest: ServerTime, best: ServerTime) -> bool:
        """Whether the best one is too old, or the server's clock was set, or is another server's."""
        age = latest.sent - best.sent
        lead = best.ms + age * 1000 - latest.ms  # each of the two may be late by its span
        late, early = best.span * 1000 + DRIFT_MS, latest.span * 1000 + DRIFT_MS
        return age > TRUSTED_SECONDS or not -early <= lead <= late

    def at(self, moment: float) -> int | None:
        """The server's clock at a moment of our monotonic one, as far as it is known; rather late than early."""
        return None if self.best is None else math.floor(self.best.ms + (moment - self.best.sent) * 1000)

    def now(self) -> int | None:
        """The server's clock now, as far as it is known, rather late than early; never this machine's calendar."""
        if self.last is None or self.monotonic() - self.last.sent > TRUSTED_SECONDS:
            return None
        return self.last.ms + int((self.monotonic() - self.last.sent) * 1000)

    def exact(self) -> int | None:
        """Like `now`, where it was told by a write that took no longer than `SPAN_SECONDS`."""
        return None if self.last is None or self.last.span > SPAN_SECONDS else self.now()

    def ordering(self) -> int | None:
        """The server's clock for what puts tasks in order: in the middle of what is known, as it is better than late.

        None where nothing is known, or only by a write that took longer than `SPAN_SECONDS`.
        """
        last, now = self.last, self.monotonic()
        if last is None or last.span > SPAN_SECONDS or now - last.sent > ORDERING_SECONDS:
            return None
        return last.ms + int((now - last.sent - last.span / 2) * 1000)

    def certainly_past(self, now: int) -> int:
        """A time that `now` gave, less what it may be ahead of the truth: by this, deadlines are judged."""
        return now if self.last is None else now - math.ceil(self.last.span * 1000)

    def until(self, when: int) -> float:
        """Seconds until a time of the server's clock has certainly come; 0 where the clock is not known any more."""
        now = self.now()
        return 0.0 if now is None else (when - self.certainly_past(now)) / 1000
