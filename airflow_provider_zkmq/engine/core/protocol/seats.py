"""Who waits for a signal, in which order, and who is woken by what: news of the queue wakes one of each kind.

Of fifty threads of a client that wait for a task of the same kind, one finds out whether there is one, as well as all
fifty would. It takes its *seat* again if there was none, before those who came after it; it has the next one woken
when it leaves, for whatever reason, and when it sees more than it can take. So none of them sleeps over work, and an
event costs a client the same however many of its threads are idle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True, eq=False)
class Seat:
    """A place among those of one ``kind``, for the time of one call; ``kept``: it was taken before."""

    kind: Hashable
    kept: bool = False


class Seats(Generic[T]):
    """The waiters of one signal: those in seats by kind, in the order in which they came, and the others."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, OrderedDict[T, None]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, tuple(self._rows.values())))  # asked without the lock, too

    def take(self, who: T, seat: Seat | None) -> None:
        """Sit down; who has had this seat before is the first of its kind again. None: with those of no kind."""
        row = self._rows.setdefault(_kind(seat), OrderedDict())
        row[who] = None
        if seat is not None:
            if seat.kept:
                row.move_to_end(who, last=False)
            seat.kept = True

    def leave(self, who: T, seat: Seat | None) -> None:
        """Get up, woken or not."""
        row = self._rows.get(_kind(seat), OrderedDict())
        row.pop(who, None)
        if not row:
            self._rows.pop(_kind(seat), None)

    def everybody(self) -> list[T]:
        """All who wait; they have got up."""
        waiting = [who for row in self._rows.values() for who in row]
        self._rows = {}
        return waiting

    def one_of_each(self) -> list[T]:
        """The first of each kind, and all of no kind; they have got up."""
        free = list(self._rows.pop(None, ()))
        return free + [who for kind in list(self._rows) for who in self.next_of(kind)]

    def next_of(self, kind: Hashable) -> list[T]:
        """The first of a kind, who has got up; nobody, where none waits."""
        row = self._rows.get(kind)
        if not row:
            return []
        who, _ = row.popitem(last=False)
        if not row:
            del self._rows[kind]
        return [who]


def _kind(seat: Seat | None) -> Hashable:
    return None if seat is None else seat.kind
