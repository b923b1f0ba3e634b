"""How far a stream has come, what it has lost, and the planning of its batches."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from airflow_provider_zkmq.engine import AnyClient, AnyQueue, QueueNotFound, Truncation, Unreadable
from airflow_provider_zkmq.spark.source.options import SourceError

# --- How far a stream has come, as Spark's checkpoint holds it: a position in each queue, by zxid.

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EXAMPLE: Final = '{"census": 4294967300, "other": "latest"}'


class Position(NamedTuple):
    """Where a batch ends in a queue: it has the runs whose ends are numbered above ``after``, up to ``zxid``.

    That a batch says itself where it begins makes it the same batch again when it is repeated: Spark keeps the ends of
    batches only, and asks anew where the first one begins. ``mark``: the number of the mark by which the queue keeps
    what ended for streams; another queue by that name has another one. ``trimmed``: up to where clean-up had deleted
    when the stream began, or when it last lost something.
    """

    zxid: int
    after: int
    mark: int
    truncated_at: int


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch: a position in each queue, and how many runs the batch has, damaged ones included.

    ``noted`` is False of a beginning that holds for this moment only, until a first, empty batch has noted it.
    """

    queues: Mapping[str, Position] = field(default_factory=dict)
    runs: int = 0
    noted: bool = True

    def encode(self) -> dict[str, Any]:
        """What Spark stores as JSON: of equal offsets always the same text."""
        queues = {name: self.queues[name]._asdict() for name in sorted(self.queues)}
        return {"queues": queues, "runs": self.runs} | ({} if self.noted else {"noted": False})

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> Self:
        """Read what `encode` made. Raises `SourceError` for anything else."""
        try:
            queues = {name: Position(**position) for name, position in stored["queues"].items()}
            return cls(queues, stored["runs"], stored.get("noted", True))
        except (KeyError, TypeError, AttributeError):
            msg = f"the checkpoint's offset is not one of a stream of zkmq: {stored}; give the query another checkpoint"
            raise SourceError(msg) from None


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a stream without a checkpoint begins: the option ``startingOffsets``."""

    everywhere: str = EARLIEST
    queues: Mapping[str, str | int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Read the option: a word, or JSON with a word or a zxid for each queue. Raises `SourceError`.

        The offset that a query's progress shows is taken as well. A queue that is not named begins at its earliest.
        """
        if text is None or text.lower() in (EARLIEST, LATEST):
            return cls((text or EARLIEST).lower())
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict) and isinstance(parsed.get("queues"), dict):
            parsed = {name: position.zxid for name, position in Offset.decode(parsed).queues.items()}
        if not isinstance(parsed, dict) or not all(map(_is_start, parsed.values())):
            raise SourceError(f"option startingOffsets must be earliest, latest or JSON like {_EXAMPLE}, not {text!r}")
        return cls(EARLIEST, parsed)

    def of(self, queue: str) -> str | int:
        """A word, or the number after which a queue's runs are wanted."""
        return self.queues.get(queue, self.everywhere)


def _is_start(value: object) -> bool:
    return value in (EARLIEST, LATEST) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


# --- What a stream has lost, or seems to have: an error, unless ``failOnDataLoss`` is false.

log = logging.getLogger("airflow_provider_zkmq.spark")
_ANYWAY = "set failOnDataLoss=false to go on with what is there"


@dataclass(frozen=True, slots=True)
class DataLoss:
    """Whether losses end the stream (`strict`), or are logged as warnings."""

    strict: bool = True

    def check(self, queue: str, after: int, position: Position, now: Truncation | None) -> None:
        """Tell of runs that ended after `after` and may have been deleted before they were read.

        `position`: what the stream knows of the queue's mark; `now`: the mark as it is.
        """
        if now is None or now.since != position.mark:
            self._lost(
                f"queue {queue!r} was deleted and made again, or was not followed for a while "
                f"(configure(follow=False)): runs that ended after {after} may be gone"
            )
        elif now.last_zxid > max(after, position.truncated_at):
            self._lost(
                f"runs of queue {queue!r} that ended after {after}, where the stream has come, are gone: clean-up has "
                f"deleted what ended up to {now.last_zxid}. Streams must be no further behind than task_gc_lifetime"
            )

    def gone(self, queue: str) -> None:
        """Tell of a queue that the stream has read from and that is not there any more."""
        self._lost(f"queue {queue!r} was deleted: what ended there and had not been read is gone")

    def refuse_foreign(self, queue: str, position: Position, newest: int) -> None:
        """Raise `SourceError` for a position that ZooKeeper has not come to: nothing would be read, for long."""
        if position.zxid > newest:
            raise SourceError(
                f"the stream has read queue {queue!r} up to {position.zxid}, but in ZooKeeper nothing has ended after "
                f"{newest}: its checkpoint (or startingOffsets) is of another ensemble, or of one that was restored; "
                "give the query the right hosts, or another checkpoint"
            )

    def _lost(self, what: str) -> None:
        if self.strict:
            raise SourceError(f"{what}; {_ANYWAY}")
        log.warning("%s", what)


# --- Looking at what ended, and planning a stream's batches from that: in one process, where Spark plans them.


class Run(NamedTuple):
    """A run that ended, in the order of the streams: by the number of its end; those of one transaction by name."""

    version: int
    queue: str
    id: str
    place: str | None
    readable: bool


class EndOffsets:
    """What ended in the queues of a stream, and its batches. Nothing here is needed to plan a batch again.

    `wanted`: the queues to follow; without any, all that there are and come to be. A horizon is a number up to which
    everything that ended is to be seen; one is asked for in all queues before any of them is listed, so that what one
    transaction ended in several queues is seen together.
    """

    def __init__(self, client: AnyClient, wanted: Sequence[str], beginning: Beginning, data_loss: DataLoss) -> None:
        self._client, self._wanted, self._beginning, self._data_loss = client, wanted, beginning, data_loss
        self._marked: set[str] = set()  # queues that keep what ended
        self._at: Offset | None = None  # where what is ahead begins
        self._next: list[Run] = []  # listed, not planned yet
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
        self._target = max((self._wanted_start(name) or 0 for name in self._targeted), default=0)

    def plan(self, start: Offset, most: int | None) -> Offset:
        """The end of the batch that begins at `start`, of at most so many runs; `start` itself where nothing ended.

        What one transaction ended stays together: where it is more than `most`, it makes a larger batch.
        """
        if not start.noted:
            return Offset(start.queues)
        if self._at != start:
            self._at, self._next, self._batch, self._seen = start, [], [], {}
            self._positions = dict(start.queues)
        if not self._next:
            self._look()
        if not self._next:
            return start
        count = _cut(self._next, most)
        self._batch, self._next = self._next[:count], self._next[count:]
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
        return len(self._next)

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
        requested = newest.items() if news else ()
        runs = [run for name, end in requested for run in self._list(name, horizon, end, sure=name in news)]
        if news:
            self._seen |= {name: max(horizon, self._listed(name)) for name in newest}
        self._next = sorted(runs)

    def _is_news(self, name: str, newest: int) -> bool:
        """Whether something may have ended in a queue since it was listed."""
        if name not in self._positions:
            self._positions[name] = self._first(name, EARLIEST)
        self._data_loss.refuse_foreign(name, self._positions[name], newest)
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
            self._data_loss.check(name, position.zxid, position, queue.truncated_at())
            now = self._mark(name)
            self._positions[name] = position._replace(
                mark=now.since, truncated_at=max(position.truncated_at, now.last_zxid)
            )
        return runs

    def _again(self, name: str, position: Position) -> list[Run]:
        """The runs of a batch in one queue, as they were planned before."""
        if position.after >= position.zxid:
            return []
        try:
            queue = self._queue(name)
            self._data_loss.refuse_foreign(name, position, queue.latest_end())
            runs = _runs(queue, position.after, position.zxid)
            self._data_loss.check(name, position.after, position, queue.truncated_at())
        except QueueNotFound:
            self._data_loss.gone(name)
            return []
        return runs

    def _names(self) -> Sequence[str]:
        """The queues to look at. Those that the stream has read from and that are not there any more are losses."""
        names = (self._wanted or self._client.queues()) if self._target is None else self._targeted
        for name in () if self._wanted else sorted(self._known - set(names)):
            self._data_loss.gone(name)
        return names

    @property
    def _known(self) -> set[str]:
        return set() if self._at is None else set(self._at.queues)

    def _newest(self, name: str) -> int | None:
        newest = self._wanted_start(name)
        if newest is None and name in self._known:
            self._data_loss.gone(name)
        elif newest is None and self._wanted:
            self._client.queue(name).conf()  # says that it is not there, and which ones come close
        return newest

    def _wanted_start(self, name: str) -> int | None:
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

    def _mark(self, name: str) -> Truncation:
        """The mark by which a queue keeps what ended, set where there is none."""
        queue = self._client.queue(name)
        while (mark := queue.truncated_at()) is None:
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
        return Position(zxid, zxid, mark.since, mark.last_zxid)


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
