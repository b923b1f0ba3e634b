"""Streams of what ended: their offsets and batches, and a row for each run, exactly as Spark's checkpoint says."""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ... import engine
from ...engine import AnyClient, AnyQueue, ConfigError, Ended, QueueNotFound, State, Task
from ...engine.queue_internals import internals
from . import connecting
from . import options as access
from .errors import SourceError, plainly
from .options import SourceOptions
from .reading import Query, batch, columns_of, parts

# --- How far a stream has come, as Spark's checkpoint holds it: a position in each queue, by zxid.

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EXAMPLE: Final = '{"census": 4294967300, "other": "latest"}'


class Position(NamedTuple):
    """Where a batch ends in a queue: it has the runs whose ends are numbered above ``after``, up to ``zxid``.

    It says where it begins, since Spark keeps the ends of batches only. ``mark``: the number of the mark by which the
    queue keeps what ended; another queue by that name has another one. ``truncated_at``: up to where clean-up had
    deleted when the stream began, or when it last lost something.
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


def _beginning(text: str | None) -> tuple[str, Mapping[str, str | int]]:
    """The option ``startingOffsets``: a word for all queues, and for some another word, or a zxid, from JSON."""
    if text is None or text.lower() in (EARLIEST, LATEST):
        return (text or EARLIEST).lower(), {}
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict) and isinstance(parsed.get("queues"), dict):  # the offset that a query's progress shows
        parsed = {name: position.zxid for name, position in Offset.decode(parsed).queues.items()}
    starts = parsed.values() if isinstance(parsed, dict) else [None]
    if not all(start >= 0 if type(start) is int else start in (EARLIEST, LATEST) for start in starts):
        raise SourceError(f"option startingOffsets must be earliest, latest or JSON like {_EXAMPLE}, not {text!r}")
    return EARLIEST, parsed


# --- What a stream has lost, or seems to have: an error, unless ``failOnDataLoss`` is false.

log = logging.getLogger("airflow_provider_zkmq.spark")
ENDED: Final = (State.FINISHED, State.DEAD, State.CANCELLED)


@dataclass(frozen=True, slots=True)
class DataLoss:
    """Whether losses end the stream (`strict`), or are logged as warnings."""

    strict: bool = True

    def check(self, queue: str, after: int, position: Position, now: engine.Truncation | None) -> None:
        """Tell of runs that ended after `after`, of a queue with the mark `now`, and may have been deleted unread."""
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
            raise SourceError(f"{what}; set failOnDataLoss=false to go on with what is there")
        log.warning("%s", what)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the options of a stream say: `queues` to follow, all without any; `most` runs to a batch, 0 for no limit.

    It begins at `start`, a word, or where `starts` says for a queue: a word, or after a number.
    """

    query: Query
    queues: list[str]
    start: str
    starts: Mapping[str, str | int]
    data_loss: DataLoss
    most: int

    @classmethod
    def of(cls, options: SourceOptions, columns: Sequence[str]) -> Self:
        """Raises `SourceError` for an option that streams do not have, or that says what cannot be."""
        options.check(access.STREAM, "streams")
        query = Query.of(options, columns)
        for state in query.states:
            if state not in ENDED:
                raise SourceError(f"a stream has runs that ended: states are {', '.join(ENDED)}, not {state!r}")
        strict = (options.text("failOnDataLoss") or "true").lower()
        if strict not in ("true", "false"):
            raise SourceError(f"option failOnDataLoss must be true or false, not {options.text('failOnDataLoss')!r}")
        start, most = _beginning(options.text("startingOffsets")), options.count("maxTasksPerTrigger", 0)
        return cls(query, options.queues(), *start, DataLoss(strict=strict == "true"), most)


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

    A horizon is a number up to which everything that ended is to be seen; one is asked for in all queues before any of
    them is listed, so that what one transaction ended in several queues is seen together.
    """

    def __init__(self, client: AnyClient, settings: Settings) -> None:
        self._client, self._settings = client, settings
        self._wanted, self._data_loss = settings.queues, settings.data_loss
        self._marked: set[str] = set()  # queues that keep what ended
        self._at = Offset()  # where what is ahead begins
        self.ahead: list[Run] = []  # listed for later batches
        self._batch: list[Run] = []  # planned last, up to `_at`
        self._positions: dict[str, Position] = {}
        self._seen: dict[str, int] = {}  # up to where each queue was listed
        self._target: int | None = None  # the horizon of a stream that is to end there
        self._targeted: Sequence[str] = []  # and its queues

    def begin(self) -> Offset:
        """Where a new stream begins. Raises `QueueNotFound` for a wanted queue that is not there."""
        names, start, starts = self._names(), self._settings.start, self._settings.starts
        for name in set(starts) - set(names):
            raise SourceError(f"startingOffsets names queue {name!r}, which is none of {', '.join(names) or 'any'}")
        queues = {name: self._first(name, starts.get(name, start)) for name in names}
        return Offset(queues, noted=LATEST not in (start, *starts.values()))

    def aim(self) -> None:
        """Let the stream end with what has ended by now. What is not there is a matter of the batches."""
        self._targeted = self._names()
        if not self._targeted:  # with nothing to follow it would end at once, whatever is meant
            connecting.all_queues(self._client)
        self._target = max((self._latest_end(name) or 0 for name in self._targeted), default=0)

    def plan(self, start: Offset, most: int | None) -> Offset:
        """The end of the batch that begins at `start`, of at most so many runs; `start` itself where nothing ended."""
        if not start.noted:
            return Offset(start.queues)
        if self._at != start:
            self._at, self.ahead, self._batch, self._seen = start, [], [], {}
            self._positions = dict(start.queues)
        if not self.ahead:
            self._look()
        if not self.ahead:
            return start
        count = len(self.ahead) if most is None else most
        if count < len(self.ahead):
            # What one transaction ended stays together: where it is more than `most`, it makes a larger batch.
            versions = [run.version for run in self.ahead]
            count = bisect_left(versions, versions[count]) or bisect_right(versions, versions[0])
        self._batch, self.ahead = self.ahead[:count], self.ahead[count:]
        last = {run.queue: run.version for run in self._batch}
        for name, position in self._positions.items():
            self._positions[name] = position._replace(zxid=last.get(name, position.zxid), after=position.zxid)
        begun = {name: at for name, at in self._positions.items() if name in start.queues or name in last}
        self._at = Offset(begun, len(self._batch))
        return self._at

    def runs(self, start: Offset, end: Offset) -> list[Run]:
        """The runs of the batch that ends at `end`, the same ones as when it was planned."""
        if start == end:
            return []
        if self._at == end:
            return self._batch
        runs = list[Run]()
        for name, position in end.queues.items():
            if position.after >= position.zxid:
                continue
            try:
                queue = self._queue(name)
                self._data_loss.refuse_foreign(name, position, internals(queue).latest_end())
                again = _runs(queue, position.after, position.zxid)
                self._data_loss.check(name, position.after, position, internals(queue).truncated_at())
            except QueueNotFound:
                self._data_loss.gone(name)
            else:
                runs += again
        return sorted(runs)

    def _look(self) -> None:
        """List what ended since, in the order in which it did.

        Where there is news in one queue, all are listed up to the same horizon: what is news there may have ended here
        by the same transaction, after this queue was asked. A look that is cut off leaves nothing behind.
        """
        newest, news = dict[str, int](), set[str]()
        for name in self._names():
            end = self._latest_end(name)
            if end is not None:
                newest[name] = end
            elif name in self._at.queues:
                self._data_loss.gone(name)
            elif self._wanted:
                self._client.queue(name).conf()  # says that it is not there, and which ones come close
        for name, end in newest.items():
            if name not in self._positions:
                self._positions[name] = self._first(name, EARLIEST)
            self._data_loss.refuse_foreign(name, self._positions[name], end)
            if name not in self._seen or end > self._listed(name):
                news.add(name)
        if not news:
            return
        found = list[Run]()
        horizon = max(newest.values()) if self._target is None else self._target
        for name, end in newest.items():
            queue, after, position = self._queue(name), self._listed(name), self._positions[name]
            runs = _runs(queue, after, horizon) if horizon > after else []
            if any(run.version > end for run in runs):
                # Records that were written by hand since have the number of that write, which says nothing of the end,
                # and a position by it would be ahead of the queue: they count as damaged, and as the newest.
                last = internals(queue).latest_end()
                runs = [run if run.version <= last else run._replace(version=last, readable=False) for run in runs]
            found += runs
            if name in news or runs:  # only now it can be said that nothing of it had been deleted before
                self._data_loss.check(name, position.zxid, position, internals(queue).truncated_at())
                now = self._mark(name)
                truncated = max(position.truncated_at, now.last_zxid)
                self._positions[name] = position._replace(mark=now.since, truncated_at=truncated)
        self._seen |= {name: max(horizon, self._listed(name)) for name in newest}
        self.ahead = sorted(found)

    def _listed(self, name: str) -> int:
        return max(self._positions[name].zxid, self._seen.get(name, 0))

    def _names(self) -> Sequence[str]:
        """The queues to look at. Those that the stream has read from and that are not there any more are losses."""
        names = (self._wanted or self._client.queues()) if self._target is None else self._targeted
        for name in () if self._wanted else sorted(set(self._at.queues) - set(names)):
            self._data_loss.gone(name)
        return names

    def _latest_end(self, name: str) -> int | None:
        """A queue's latest end; None where there is no such queue."""
        try:
            return internals(self._queue(name)).latest_end()
        except QueueNotFound:
            return None

    def _queue(self, name: str) -> AnyQueue:
        """A queue that keeps what ended for streams, from now on at the latest."""
        queue = self._client.queue(name)
        if name not in self._marked:
            self._mark(name)
        return queue

    def _mark(self, name: str) -> engine.Truncation:
        """The mark by which a queue keeps what ended, set where there is none."""
        queue = self._client.queue(name)
        while (mark := internals(queue).truncated_at()) is None:
            queue.conf()  # raises where there is no such queue: `configure` would make one
            queue.configure(follow=True)
        self._marked.add(name)
        return mark

    def _first(self, name: str, start: str | int) -> Position:
        """Where a stream begins in a queue; a number that was given must not have been trimmed before."""
        mark = self._mark(name)
        if isinstance(start, int):
            return Position(start, start, mark.since, 0)
        zxid = internals(self._queue(name)).latest_end() if start == LATEST else 0
        return Position(zxid, zxid, mark.since, mark.last_zxid)


def _runs(queue: AnyQueue, after: int, until: int) -> list[Run]:
    ended = internals(queue).ended_between(after, until)
    return [
        Run(each.version, queue.name, each.id, each.place, not isinstance(each, engine.Unreadable)) for each in ended
    ]


# --- Reading a stream's runs where its partitions are: as they ended, however late they are read.

#: So many whole runs are in memory together.
AT_ONCE: Final = 128
#: What is not read where its column is not asked for.
_LARGE: Final[tuple[engine.Part, ...]] = ("data", "metadata", "result")


def rows(settings: Settings, queue: AnyQueue, runs: Sequence[Run], position: Position) -> Iterator[pa.RecordBatch]:
    """The rows of a queue's runs. What cannot be read any more is logged; what clean-up deleted is a loss."""
    columns, gone = settings.query.columns, list[Run]()
    large: list[engine.Part] = [part for part in _LARGE if part in columns]
    try:
        for start in range(0, len(runs), AT_ONCE):
            chunk = runs[start : start + AT_ONCE]
            tasks = internals(queue).read_ended([Ended(run.id, run.version, run.place) for run in chunk], parts=large)
            read = {(task.id, task.version) for task in tasks}
            gone += [run for run in chunk if (run.id, run.version) not in read]
            wanted = _wanted(settings.query, queue, tasks)
            yield batch(
                queue.name, columns, {part: [_part_of(each, part) for each in wanted] for part in parts(columns)}
            )
        if gone:
            settings.data_loss.check(queue.name, min(gone).version - 1, position, internals(queue).truncated_at())
            log.warning("%d runs cannot be read any more and are left out, such as %s", len(gone), shown(gone))
    except QueueNotFound:
        settings.data_loss.gone(queue.name)


def _wanted(query: Query, queue: AnyQueue, tasks: Sequence[Task]) -> list[Task]:
    """Those of the tasks that the options ask for."""
    ended = [task for task in tasks if task.state in (query.states or ENDED)]
    if query.selector is None or not ended:
        return ended
    filters = queue.conf().filters
    try:
        selector = engine.parse_selector(query.selector).bind(filters)
    except ConfigError as error:
        log.warning("no task of queue %r can be one that %s accepts: %s", queue.name, query.selector, error)
        return []
    return [task for task in ended if selector.matches(task.filters, filters)]


def _part_of(task: Task, part: str) -> object:
    """What a run says of itself; what a dedupe window or a run in escrow make of its status later is no part of it."""
    if part == "status" and task.state is State.FINISHED:
        return engine.Status.DONE_AWAITING_GC
    return getattr(task, part)


def shown(runs: Sequence[Run]) -> str:
    """Some runs by name, for people."""
    return ", ".join(f"{run.id} of queue {run.queue}" for run in runs[:5])


# --- Streams of what ended: a row for each run, in the order in which runs ended, exactly as Spark's checkpoint says.

#: Spark asks an idle stream for news a hundred times a second; ZooKeeper is asked after so many seconds at the
#: earliest, and after so many times as long as it took to look: many queues are looked at less often.
PAUSE: Final = 0.25
PAUSES: Final = 4.0
#: So many runs make a partition, unless ``numPartitions`` says how many there are to be.
RUNS_PER_PARTITION: Final = 2_000


@dataclass
class RunsPartition(InputPartition):
    """Some of a batch's runs, by name: what executors read does not depend on when they do."""

    runs: list[Run]
    positions: Mapping[str, Position]


class TaskStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark plans batches with one of these, in one process, and reads partitions with copies of another."""

    # It can be made with any options: of an error while it is made Spark shows nothing but one of its own.

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema, self._options = schema, options
        self._looked = self._pause = 0.0
        self._last: Offset | None = None
        self._client: AnyClient | None = None

    @cached_property
    def _settings(self) -> Settings:
        return Settings.of(self._options, columns_of(self._schema))

    @cached_property
    def _end_offsets(self) -> EndOffsets:
        """What is known of the queues, once a batch is to be planned. The connection stays to the stream's end."""
        settings = self._settings  # refuses what the options may not be, before anything is connected
        self._client = connecting.connect(self._options)
        return EndOffsets(self._client, settings)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """How much a batch may read; Spark lifts it where a trigger says so."""
        with plainly():
            most = self._settings.most
            return ReadMaxRows(most) if most else ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Where a stream without a checkpoint begins."""
        with plainly():
            return self._end_offsets.begin().encode()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """The stream is to end with what has ended by now."""
        with plainly():
            self._end_offsets.aim()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The end of the next batch; `start` where nothing has ended since."""
        with plainly():
            self._rest()
            began = time.monotonic()
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            here = Offset.decode(start)
            self._last = self._end_offsets.plan(here, most)
            self._looked = time.monotonic()
            self._pause = max(PAUSE, PAUSES * (self._looked - began)) if self._last == here else 0.0
            return self._last.encode()

    def _rest(self) -> None:
        """Do not look again at once where nothing was to be seen."""
        time.sleep(max(0.0, self._looked + self._pause - time.monotonic()))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """What a query's progress shows as the latest offset: the batch planned, and how many runs wait beyond it."""
        return None if self._last is None else self._last.encode() | {"waiting": len(self._end_offsets.ahead)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A batch's runs in shares, the same batch each time it is asked for."""
        with plainly():
            here = Offset.decode(end)
            runs = self._end_offsets.runs(Offset.decode(start), here)
            damaged = [run for run in runs if not run.readable]
            if damaged:
                log.warning("%d runs cannot be read and are left out, such as %s", len(damaged), shown(damaged))
            readable = [run for run in runs if run.readable]
            shares = self._settings.query.partitions
            size = -(-len(readable) // shares) if shares else RUNS_PER_PARTITION
            starts = range(0, len(readable), size or 1)
            return [RunsPartition(readable[at : at + size], here.queues) for at in starts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share, by a connection that this Python worker keeps for the next one."""
        if not isinstance(partition, RunsPartition):
            raise TypeError(type(partition).__name__)
        with plainly():
            client = connecting.cached(self._options)
            runs = sorted(partition.runs, key=attrgetter("queue", "version"))
            for name, share in groupby(runs, attrgetter("queue")):
                yield from rows(self._settings, client.queue(name), list(share), partition.positions[name])

    def stop(self) -> None:
        """End the connection with the stream."""
        if self._client is not None:
            self._client.close()
