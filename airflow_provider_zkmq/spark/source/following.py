"""Streams of what ended: a row for each run, exactly as Spark's checkpoint says."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from airflow_provider_zkmq.engine import (
    AnyClient,
    AnyQueue,
    ConfigError,
    Ended,
    Part,
    QueueNotFound,
    State,
    Status,
    Task,
    parse_selector,
)
from airflow_provider_zkmq.spark.source import options as access
from airflow_provider_zkmq.spark.source.offsets import Beginning, DataLoss, EndOffsets, Offset, Position, Run, log
from airflow_provider_zkmq.spark.source.options import STREAM, SourceError, SourceOptions, plainly
from airflow_provider_zkmq.spark.source.reading import batch, columns_of, parts

# --- Reading a stream's runs where its partitions are: as they ended, however late they are read.

#: So many whole runs are in memory together.
AT_ONCE: Final = 128
#: What is not read where its column is not asked for.
PARTS: Final[tuple[Part, ...]] = ("data", "metadata", "result")
ENDED: Final = (State.FINISHED, State.DEAD, State.CANCELLED)


@dataclass(frozen=True, slots=True)
class RunSelection:
    """Which runs are asked for, by state and selector, and which columns of them."""

    columns: list[str]
    states: frozenset[str]
    selector: str | None
    data_loss: DataLoss

    @classmethod
    def of(cls, columns: list[str], options: SourceOptions, data_loss: DataLoss) -> Self:
        """What the options ask for. Raises `SourceError` for a state in which no run ends, or a bad selector."""
        states, selector = options.names("states") or [str(state) for state in ENDED], options.text("selector")
        for state in states:
            if state not in ENDED:
                raise SourceError(f"a stream has runs that ended: states are {', '.join(ENDED)}, not {state!r}")
        try:
            parse_selector(selector or "all()")
        except ConfigError as error:
            raise SourceError(f"option selector: {error}") from None
        return cls(columns, frozenset(states), selector, data_loss)

    def rows(self, queue: AnyQueue, runs: Sequence[Run], position: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a queue's runs. What cannot be read any more is logged; what clean-up deleted is a loss."""
        try:
            yield from self._read(queue, runs, position)
        except QueueNotFound:
            self.data_loss.gone(queue.name)

    def _read(self, queue: AnyQueue, runs: Sequence[Run], position: Position) -> Iterator[pa.RecordBatch]:
        gone = list[Run]()
        for start in range(0, len(runs), AT_ONCE):
            chunk = runs[start : start + AT_ONCE]
            tasks = queue.read_ended([Ended(run.id, run.version, run.place) for run in chunk], parts=self._parts)
            read = {(task.id, task.version) for task in tasks}
            gone += [run for run in chunk if (run.id, run.version) not in read]
            yield self._batch(queue.name, self._wanted(queue, tasks))
        if gone:
            self.data_loss.check(queue.name, min(run.version for run in gone) - 1, position, queue.truncated_at())
            log.warning("%d runs cannot be read any more and are left out, such as %s", len(gone), shown(gone))

    def _batch(self, queue: str, tasks: Sequence[Task]) -> pa.RecordBatch:
        lists = {part: [_part_of(task, part) for task in tasks] for part in parts(self.columns)}
        return batch(queue, self.columns, lists)

    @property
    def _parts(self) -> list[Part]:
        return [part for part in PARTS if part in self.columns]

    def _wanted(self, queue: AnyQueue, tasks: Sequence[Task]) -> list[Task]:
        ended = [task for task in tasks if task.state in self.states]
        if self.selector is None or not ended:
            return ended
        types = queue.conf().filters
        try:
            selector = parse_selector(self.selector).bind(types)
        except ConfigError as error:
            log.warning("no task of queue %r can be one that %s accepts: %s", queue.name, self.selector, error)
            return []
        return [task for task in ended if selector.matches(task.filters, types)]


def _part_of(task: Task, part: str) -> object:
    """What a run says of itself; what a dedupe window or a run in escrow make of its status later is no part of it."""
    if part == "status" and task.state is State.FINISHED:
        return Status.DONE_AWAITING_GC
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


class RunsPartition(InputPartition):
    """Some of a batch's runs, by name: what executors read does not depend on when they do."""

    def __init__(self, runs: Sequence[Run], positions: Mapping[str, Position]) -> None:
        self.runs, self.positions = list(runs), dict(positions)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the options of a stream say; `partitions` and `most` are 0 where they say nothing."""

    queues: list[str]
    beginning: Beginning
    data_loss: DataLoss
    run_selection: RunSelection
    most: int
    partitions: int

    @classmethod
    def of(cls, options: SourceOptions, columns: list[str]) -> Self:
        """Raises `SourceError` for an option that streams do not have, or that says what cannot be."""
        options.check(STREAM, "streams")
        data_loss = DataLoss(strict=_flag(options, "failOnDataLoss", default=True))
        return cls(
            options.names("queues"),
            Beginning.parse(options.text("startingOffsets")),
            data_loss,
            RunSelection.of(columns, options, data_loss),
            options.count("maxTasksPerTrigger", 0),
            options.count("numPartitions", 0),
        )


class TaskStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark plans batches with one of these, in one process, and reads partitions with copies of another.

    It can be made with any options: of an error while it is made Spark shows nothing but one of its own.
    """

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
        settings = self._settings
        self._client = access.connect(self._options)
        return EndOffsets(self._client, settings.queues, settings.beginning, settings.data_loss)

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
        return None if self._last is None else self._last.encode() | {"waiting": self._end_offsets.waiting}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A batch's runs in shares, the same batch each time it is asked for."""
        with plainly():
            here = Offset.decode(end)
            runs = self._end_offsets.runs(Offset.decode(start), here)
            damaged = [run for run in runs if not run.readable]
            if damaged:
                log.warning("%d runs cannot be read and are left out, such as %s", len(damaged), shown(damaged))
            return self._shares([run for run in runs if run.readable], here)

    def _shares(self, runs: list[Run], end: Offset) -> list[InputPartition]:
        shares = self._settings.partitions
        size = -(-len(runs) // shares) if shares else RUNS_PER_PARTITION
        return [RunsPartition(runs[at : at + size], end.queues) for at in range(0, len(runs), size or 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share, by a connection that this Python worker keeps for the next one."""
        if not isinstance(partition, RunsPartition):
            raise TypeError(type(partition).__name__)
        with plainly():
            client, run_selection = access.cached(self._options), self._settings.run_selection
            runs = sorted(partition.runs, key=attrgetter("queue", "version"))
            for name, share in groupby(runs, attrgetter("queue")):
                yield from run_selection.rows(client.queue(name), list(share), partition.positions[name])

    def stop(self) -> None:
        """End the connection with the stream."""
        if self._client is not None:
            self._client.close()


def _flag(options: SourceOptions, name: str, *, default: bool) -> bool:
    text = options.text(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise SourceError(f"option {name} must be true or false, not {text!r}")
    return text.lower() == "true"
