"""Enqueues whose callers were not told what became of them. Owner: `core.tasks.repeat`; the last `KEPT_CALLS` calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

KEPT_SECONDS: Final = 60.0
KEPT_CALLS: Final = 64


@dataclass(frozen=True, slots=True)
class Mark:
    """A task that may have been written; ``written``: it was."""

    content: bytes
    task_id: str
    stamp: str
    nonce: str
    written: bool


@dataclass(slots=True)
class CallLeft:
    """What is kept of one call; ``batch``: the content of a whole batch."""

    at: float
    marks: list[Mark]
    batch: bytes | None = None
    nonce: str = ""
    restored: int = 0
    """How often the servers had gone back by then."""


@dataclass(slots=True, eq=False)
class Unresolved:
    """What calls left, the oldest first."""

    calls: list[CallLeft] = field(default_factory=list)

    def keep(self, call: CallLeft) -> None:
        """Remember a call."""
        self.calls = [*self.calls, call][-KEPT_CALLS:]

    def expire(self, now: float) -> None:
        """Forget what was taken over or is too old."""
        oldest = now - KEPT_SECONDS
        self.calls = [call for call in self.calls if call.at >= oldest and (call.marks or call.batch)]

    def outlast(self, now: float) -> None:
        """No server was there for somebody who may have been asking again: the time of an outage does not count."""
        for call in self.calls:
            call.at = now

    def doubt(self, restored: int) -> None:
        """What was written before the servers went back for the `restored`-th time may be gone."""
        for call in self.calls:
            if call.restored < restored:
                call.marks, call.batch = [replace(mark, written=False) for mark in call.marks], None

    def take(self, content: bytes) -> Mark | None:
        """A mark of the same content; nobody else gets it."""
        for call in self.calls:
            for mark in call.marks:
                if mark.content == content:
                    call.marks.remove(mark)
                    return mark
        return None

    def take_batch(self, content: bytes) -> str | None:
        """The nonce of a batch of the same content; nobody else gets it."""
        for call in self.calls:
            if call.batch == content:
                call.batch = None
                return call.nonce
        return None
