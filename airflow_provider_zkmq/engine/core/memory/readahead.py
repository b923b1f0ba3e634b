"""Candidates that were read before they are claimed. Owner: `core.claiming.candidates`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_zkmq.engine.core.protocol.ops import Node

#: So many candidates are read at once, and so many bytes of theirs at the most, by what they had so far.
MOST: Final = 16
MOST_BYTES: Final = 64_000
#: Of claims that happen to follow one another so many at first, since it is not known how large they are.
FIRST: Final = 4
#: Claims that follow one another within so many seconds read ahead; what was read longer ago is read again.
PACE_SECONDS: Final = 1.0
#: A client remembers what it read for so many kinds of claims.
MOST_KINDS: Final = 8


@dataclass(slots=True, eq=False)
class ReadAhead:
    """What claims of one kind that follow one another read for those to come."""

    tasks: dict[str, Sequence[Node | None]] = field(default_factory=dict)
    """Candidates, by entry: as they were then, which the transaction that claims one of them finds out.

    A later run of the same id has another entry: what was not there, or damaged, before that is no matter of its.
    """
    most: int = MOST
    """So many are worth to be read at once."""
    read_at: float = float("-inf")
    asked_at: float = float("-inf")
    """When one of the claims began."""
    busy: bool = False
    """One of them is reading for those to come."""

    def learn(self, count: int, size: int, now: float) -> None:
        """So many were read, which had so many bytes."""
        self.most = max(1, min(MOST, 2 * self.most, MOST_BYTES * count // max(1, size)))
        if not self.tasks:  # else those that were read before tell how old all of it is
            self.read_at = now

    def forget_old(self, now: float) -> None:
        """What was read too long ago may have changed."""
        if now - self.read_at > PACE_SECONDS:
            self.tasks.clear()


@dataclass(slots=True, eq=False)
class Paces:
    """Which kinds of claims of a client follow one another closely."""

    monotonic: Callable[[], float]
    kinds: dict[Hashable, ReadAhead] = field(default_factory=dict)

    def ask(self, kind: Hashable) -> ReadAhead | None:
        """A claim of this kind begins; what it may read ahead with, if another one has begun just before."""
        now = self.monotonic()
        ahead = self.kinds.pop(kind, None) or ReadAhead(most=FIRST)
        self.kinds[kind] = ahead
        while len(self.kinds) > MOST_KINDS:
            del self.kinds[next(iter(self.kinds))]
        close, ahead.asked_at = now - ahead.asked_at <= PACE_SECONDS, now
        return ahead if close else None
