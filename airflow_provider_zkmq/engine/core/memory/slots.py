"""Where the next entries go: the newest segments of lanes, and buckets known to exist. Owner: `core.writing.place`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from airflow_provider_zkmq.engine.core.model.lanes import Lane
from airflow_provider_zkmq.engine.core.protocol.ops import Signal
from airflow_provider_zkmq.engine.core.protocol.writes import Create, WriteOp

#: Lanes whose newest segment a client remembers.
MAX_OPEN: Final = 256
MAX_BUCKETS: Final = 64


@dataclass(slots=True, eq=False)
class OpenSegment:
    """A lane's segment that takes entries: ``ops`` go into the transaction that writes the next one.

    ``then`` takes their place once they are committed; ``ordered``: by the rules of a queue of strict order.
    """

    lane: Lane
    segment: str
    count: int
    ops: list[WriteOp]
    then: list[WriteOp]
    ordered: bool

    @property
    def opens(self) -> bool:
        """Whether writing to it creates it."""
        return any(isinstance(op, Create) for op in self.ops)


@dataclass(slots=True, eq=False)
class Slots:
    """A bounded memory: what was used last is kept."""

    open: dict[str, OpenSegment] = field(default_factory=dict)
    """By the name of the lane that was wanted."""
    opening: dict[str, Signal] = field(default_factory=dict)
    """Lanes whose newest segment a call is looking for, each with what is fired when it has; the others wait."""
    buckets: set[str] = field(default_factory=set)

    def remember(self, name: str, segment: OpenSegment) -> None:
        """Keep what was used last; a producer of ever new filters does not grow."""
        self.open.pop(name, None)
        while len(self.open) >= MAX_OPEN:
            del self.open[next(iter(self.open))]
        self.open[name] = segment

    def keep_lanes(self, names: set[str]) -> None:
        """Forget lanes that are not there any more, but for those that are about to be made."""
        for name, segment in list(self.open.items()):
            if segment.lane.name not in names and not segment.opens:
                del self.open[name]

    def add_bucket(self, bucket: str) -> None:
        """A bucket is there."""
        if len(self.buckets) >= MAX_BUCKETS:
            self.buckets.clear()
        self.buckets.add(bucket)
