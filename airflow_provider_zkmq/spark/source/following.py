"""Streams of what ended: a row for each run, in the order in which runs ended, exactly as Spark's checkpoint says."""

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

from airflow_provider_zkmq.engine import AnyClient
from airflow_provider_zkmq.spark.source import access
from airflow_provider_zkmq.spark.source.ends import Ends, Run
from airflow_provider_zkmq.spark.source.errors import SourceError, plainly
from airflow_provider_zkmq.spark.source.losses import Losses, log
from airflow_provider_zkmq.spark.source.offsets import Beginning, Offset, Position
from airflow_provider_zkmq.spark.source.options import STREAM, Options
from airflow_provider_zkmq.spark.source.query import columns_of
from airflow_provider_zkmq.spark.source.taking import Taking, shown

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
    losses: Losses
    taking: Taking
    most: int
    partitions: int

    @classmethod
    def of(cls, options: Options, columns: list[str]) -> Self:
        """Raises `SourceError` for an option that streams do not have, or that says what cannot be."""
        options.check(STREAM, "streams")
        losses = Losses(strict=_flag(options, "failOnDataLoss", default=True))
        return cls(
            options.names("queues"),
            Beginning.parse(options.text("startingOffsets")),
            losses,
            Taking.of(columns, options, losses),
            options.count("maxTasksPerTrigger", 0),
            options.count("numPartitions", 0),
        )


class TaskStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark plans batches with one of these, in one process, and reads partitions with copies of another.

    It can be made with any options: of an error while it is made Spark shows nothing but one of its own.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema, self._options = schema, options
        self._looked = self._pause = 0.0
        self._last: Offset | None = None
        self._client: AnyClient | None = None

    @cached_property
    def _settings(self) -> Settings:
        return Settings.of(self._options, columns_of(self._schema))

    @cached_property
    def _ends(self) -> Ends:
        """What is known of the queues, once a batch is to be planned. The connection stays to the stream's end."""
        settings = self._settings
        self._client = access.connect(self._options)
        return Ends(self._client, settings.queues, settings.beginning, settings.losses)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """How much a batch may read; Spark lifts it where a trigger says so."""
        with plainly():
            most = self._settings.most
            return ReadMaxRows(most) if most else ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Where a stream without a checkpoint begins."""
        with plainly():
            return self._ends.begin().encode()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """The stream is to end with what has ended by now."""
        with plainly():
            self._ends.aim()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The end of the next batch; `start` where nothing has ended since."""
        with plainly():
            self._rest()
            began = time.monotonic()
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            here = Offset.decode(start)
            self._last = self._ends.plan(here, most)
            self._looked = time.monotonic()
            self._pause = max(PAUSE, PAUSES * (self._looked - began)) if self._last == here else 0.0
            return self._last.encode()

    def _rest(self) -> None:
        """Do not look again at once where nothing was to be seen."""
        time.sleep(max(0.0, self._looked + self._pause - time.monotonic()))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """What a query's progress shows as the latest offset: the batch planned, and how many runs wait beyond it."""
        return None if self._last is None else self._last.encode() | {"waiting": self._ends.waiting}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A batch's runs in shares, the same batch each time it is asked for."""
        with plainly():
            here = Offset.decode(end)
            runs = self._ends.runs(Offset.decode(start), here)
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
            client, taking = access.cached(self._options), self._settings.taking
            runs = sorted(partition.runs, key=attrgetter("queue", "version"))
            for name, share in groupby(runs, attrgetter("queue")):
                yield from taking.rows(client.queue(name), list(share), partition.positions[name])

    def stop(self) -> None:
        """End the connection with the stream."""
        if self._client is not None:
            self._client.close()


def _flag(options: Options, name: str, *, default: bool) -> bool:
    text = options.text(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise SourceError(f"option {name} must be true or false, not {text!r}")
    return text.lower() == "true"
