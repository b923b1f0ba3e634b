"""Looking at what ended, and planning a stream's batches from that: in one process, where Spark plans them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from airflow_provider_zkmq.engine import AnyClient, AnyQueue, QueueNotFound, Trimmed, Unreadable
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.losses import Losses
from airflow_provider_zkmq.spark.source.offsets import EARLIEST, LATEST, Beginning, Offset, Position


class Run(NamedTuple):
    """A run that ended, in the order of the streams: by the number of its end; those of one transaction by name."""

    version: int
    queue: str
    id: str
    place: str | None
    readable: bool


class Ends:
    """What ended in the queues of a stream, and its batches. Nothing here is needed to plan a batch again.

    `wanted`: the queues to follow; without any, all that there are and come to be. A horizon is a number up to which
    everything that ended is to be seen; one is asked for in all queues before any of them is listed, so that what one
    transaction ended in several queues is seen together.
    """

    def __init__(self, client: AnyClient, wanted: Sequence[str], beginning: Beginning, losses: Losses) -> None:
        self._client, self._wanted, self._beginning, self._losses = client, wanted, beginning, losses
        self._marked: set[str] = set()  # queues that keep what ended
        self._at: Offset | None = None  # where what is ahead begins
        self._ahead: list[Run] = []  # listed, not planned yet
        self._batch: list[Run] = []  # planned last, up to `_at`
        self._positions: dict[str, Position] = {}
        self._seen: dict[str, int] = {}  # up to where each queue was listed
        self._target: int | None = None  # the horizon of a stream that is to end there
        self._targeted: Sequence[str] = []  # and its queues

    def begin(self) -> Offset:
        """Where a new stream begins. Raises `QueueNotFound` for a wanted queue that is not there."""
        names = self._names()
        for name in set(self._beginning.queues) - set(names):
            raise SourceError(f"startingOffsets names queue {name!r}, which is none of {', '.join(names) or 'any'}")
        queues = {name: self._first(name, self._beginning.of(name)) for name in names}
        momentary = LATEST in (self._beginning.everywhere, *self._beginning.queues.values())
        return Offset(queues, noted=not momentary)

    def aim(self) -> None:
        """Let the stream end with what has ended by now. What is not there is a matter of the batches."""
        self._targeted = self._names()
        self._target = max((self._asked(name) or 0 for name in self._targeted), default=0)

    def plan(self, start: Offset, most: int | None) -> Offset:
        """The end of the batch that begins at `start`, of at most so many runs; `start` itself where nothing ended.

        What one transaction ended stays together: where it is more than `most`, it makes a larger batch.
        """
        if not start.noted:
            return Offset(start.queues)
        if self._at != start:
            self._at, self._ahead, self._batch, self._seen = start, [], [], {}
            self._positions = dict(start.queues)
        if not self._ahead:
            self._look()
        if not self._ahead:
            return start
        count = _cut(self._ahead, most)
        self._batch, self._ahead = self._ahead[:count], self._ahead[count:]
        self._at = self._end(start)
        return self._at

    def runs(self, start: Offset, end: Offset) -> list[Run]:
        """The runs of the batch that ends at `end`, the same ones as when it was planned."""
        if start == end:
            return []
        if self._at == end:
            return self._batch
        return sorted(run for name, position in end.queues.items() for run in self._again(name, position))

    @property
    def waiting(self) -> int:
        """How many runs have been listed for later batches."""
        return len(self._ahead)

    def _end(self, start: Offset) -> Offset:
        last = {run.queue: run.version for run in self._batch}
        for name, position in self._positions.items():
            self._positions[name] = position._replace(zxid=last.get(name, position.zxid), after=position.zxid)
        known = {*start.queues, *last}
        return Offset({name: at for name, at in self._positions.items() if name in known}, len(self._batch))

    def _look(self) -> None:
        """List what ended since, in the order in which it did.

        Where there is news in one queue, all are listed up to the same horizon: what is news there may have ended here
        by the same transaction, after this queue was asked. A look that is cut off leaves nothing behind.
        """
        newest = {name: end for name in self._names() if (end := self._newest(name)) is not None}
        horizon = max(newest.values(), default=0) if self._target is None else self._target
        news = {name for name, end in newest.items() if self._is_news(name, end)}
        asked = newest.items() if news else ()
        runs = [run for name, end in asked for run in self._list(name, horizon, end, sure=name in news)]
        if news:
            self._seen |= {name: max(horizon, self._listed(name)) for name in newest}
        self._ahead = sorted(runs)

    def _is_news(self, name: str, newest: int) -> bool:
        """Whether something may have ended in a queue since it was listed."""
        if name not in self._positions:
            self._positions[name] = self._first(name, EARLIEST)
        self._losses.refuse_foreign(name, self._positions[name], newest)
        return name not in self._seen or newest > self._listed(name)

    def _listed(self, name: str) -> int:
        return max(self._positions[name].zxid, self._seen.get(name, 0))

    def _list(self, name: str, horizon: int, newest: int, *, sure: bool) -> list[Run]:
        """What ended in one queue; only then it can be said that nothing of it had been deleted before.

        That is looked at where it is `sure` that something came or went, or where something is listed. `newest`: the
        queue's latest end when it was asked.
        """
        queue, after, position = self._queue(name), self._listed(name), self._positions[name]
        runs = _runs(queue, after, horizon) if horizon > after else []
        if any(run.version > newest for run in runs):
            runs = _numbered(runs, queue.latest_end())
        if sure or runs:
            self._losses.check(name, position.zxid, position, queue.trimmed())
            now = self._mark(name)
            self._positions[name] = position._replace(mark=now.since, trimmed=max(position.trimmed, now.upto))
        return runs

    def _again(self, name: str, position: Position) -> list[Run]:
        """The runs of a batch in one queue, as they were planned before."""
        if position.after >= position.zxid:
            return []
        try:
            queue = self._queue(name)
            self._losses.refuse_foreign(name, position, queue.latest_end())
            runs = _runs(queue, position.after, position.zxid)
            self._losses.check(name, position.after, position, queue.trimmed())
        except QueueNotFound:
            self._losses.gone(name)
            return []
        return runs

    def _names(self) -> Sequence[str]:
        """The queues to look at. Those that the stream has read from and that are not there any more are losses."""
        names = (self._wanted or self._client.queues()) if self._target is None else self._targeted
        for name in () if self._wanted else sorted(self._known - set(names)):
            self._losses.gone(name)
        return names

    @property
    def _known(self) -> set[str]:
        return set() if self._at is None else set(self._at.queues)

    def _newest(self, name: str) -> int | None:
        newest = self._asked(name)
        if newest is None and name in self._known:
            self._losses.gone(name)
        elif newest is None and self._wanted:
            self._client.queue(name).conf()  # says that it is not there, and which ones come close
        return newest

    def _asked(self, name: str) -> int | None:
        try:
            return self._queue(name).latest_end()
        except QueueNotFound:
            return None

    def _queue(self, name: str) -> AnyQueue:
        """A queue that keeps what ended for streams, from now on at the latest."""
        queue = self._client.queue(name)
        if name not in self._marked:
            self._mark(name)
        return queue

    def _mark(self, name: str) -> Trimmed:
        """The mark by which a queue keeps what ended, set where there is none."""
        queue = self._client.queue(name)
        while (mark := queue.trimmed()) is None:
            queue.conf()  # raises where there is no such queue: `configure` would make one
            queue.configure(follow=True)
        self._marked.add(name)
        return mark

    def _first(self, name: str, start: str | int) -> Position:
        """Where a stream begins in a queue; a number that was given must not have been trimmed before."""
        mark = self._mark(name)
        if isinstance(start, int):
            return Position(start, start, mark.since, 0)
        zxid = self._queue(name).latest_end() if start == LATEST else 0
        return Position(zxid, zxid, mark.since, mark.upto)


def _runs(queue: AnyQueue, after: int, until: int) -> list[Run]:
    ended = queue.ended_between(after, until)
    return [Run(each.version, queue.name, each.id, each.place, not isinstance(each, Unreadable)) for each in ended]


def _numbered(runs: Sequence[Run], newest: int) -> list[Run]:
    """The runs; those that seem to have ended after all that ended here are told as damaged, and as the newest.

    Their records were written by hand since, and the number of that write says nothing of the end. A position by it
    would be ahead of the queue, as only one of another ensemble may be.
    """
    return [run if run.version <= newest else run._replace(version=newest, readable=False) for run in runs]


def _cut(runs: Sequence[Run], most: int | None) -> int:
    """How many of the runs make a batch: at most so many, but at least those of the first transaction."""
    if most is None or len(runs) <= most:
        return len(runs)
    last = most
    while last and runs[last].version == runs[last - 1].version:
        last -= 1
    return last or _first_transaction(runs)


def _first_transaction(runs: Iterable[Run]) -> int:
    versions = [run.version for run in runs]
    return versions.count(versions[0])
