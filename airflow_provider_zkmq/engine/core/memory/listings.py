"""What was read under watches, and what was worked out from it. Owner: this module and `core.reading.watched`.

An entry stands for one path and is shared by all threads of the client. It goes when its znode is seen to be gone, or
when nobody waits for it any more: the memory is as large as what claims and waits look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_zkmq.engine.core.protocol.ops import Signal, Watch

Filters = Mapping[str, str]


@dataclass(slots=True, eq=False)
class Reading:
    """Something read under a watch: a listing (names, sorted), or a znode; None where there is none."""

    signal: Signal
    watch: Watch | None = None
    value: Any = None
    pending: bool = False
    """A thread is reading it: the others wait for `signal`."""
    read_at: float = 0.0
    subscribers: dict[Signal, None] = field(default_factory=dict)
    """Who waits for a change, in the order in which they came; thousands may wait for one znode."""
    stock: list[str] | None = None
    """Of a segment's entries those that this client has not tried yet; made anew from each listing."""
    ranks: dict[str, int] = field(default_factory=dict)
    """The ranks of a segment's entries; replaced, never changed."""
    verdicts: dict[str, Filters | None] = field(default_factory=dict)
    """The filters of the entries of a mixed lane's segment; replaced, never changed. None: they cannot be read."""
    lane: Filters | None = None
    """What a lane with a shortened name stands for."""

    @property
    def fresh(self) -> bool:
        """Whether the value still stands."""
        return self.watch is not None and not self.watch.fired


@dataclass(slots=True, eq=False)
class Listings:
    """The readings of one client, by path."""

    new_signal: Callable[[], Signal]
    readings: dict[str, Reading] = field(default_factory=dict)

    def at(self, path: str) -> Reading:
        """The shared memory of what was read at `path`."""
        reading = self.readings.get(path)
        if reading is None:
            reading = self.readings[path] = Reading(self.new_signal())
        return reading

    def forget(self, path: str) -> None:
        """Drop what was read at `path` and below."""
        reading = self.readings.pop(path, None)
        if reading is not None and isinstance(reading.value, list):
            for name in reading.value:
                self.forget(f"{path}/{name}")

    def forget_below(self, path: str, keep: set[str]) -> None:
        """Drop what was read below `path`, but for the children that are to be kept."""
        start = path + "/"
        for other in list(self.readings):
            if other.startswith(start) and other[len(start) :].partition("/")[0] not in keep:
                self.forget(other)

    def forget_unused(self) -> None:
        """Drop what nobody reads or waits for at this moment."""
        self.readings = {path: each for path, each in self.readings.items() if each.pending or each.subscribers}

    def still_listed(self, path: str, name: str) -> bool:
        """Whether a child certainly stands there still: it is in a listing whose watch has not fired."""
        reading = self.readings.get(path)
        return reading is not None and reading.fresh and name in (reading.value or ())

    def restock(self, path: str) -> None:
        """What was tried of a segment is tried again."""
        if path in self.readings:
            self.readings[path].stock = None

    def restock_all(self) -> None:
        """What was tried is tried again."""
        for reading in self.readings.values():
            reading.stock = None
