"""Bulk enqueue: of a DataFrame or a stream, in pieces that are tried again, and what a write did."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_zkmq.engine import AnyQueue, BadMessage, NewTasks, TaskTooLarge, TransportError
from airflow_provider_zkmq.spark.source.mapping import Row, RowMapping, map_columns, refusal, rows_of
from airflow_provider_zkmq.spark.source.options import (
    STREAM_WRITE,
    WRITE,
    SourceError,
    SourceOptions,
    cached,
    connect,
    plainly,
)

# --- What a write did: for each partition and altogether, as an object and as JSON.


@dataclass(frozen=True)
class PartitionReport(WriterCommitMessage):
    """What became of the rows of one partition, in the attempt that Spark took for good.

    ``written``: the tasks that this attempt wrote. ``existing``: rows whose tasks were there: from an earlier attempt
    or an earlier write, of another row with the same id, or of anybody else.
    """

    partition: int
    attempt: int
    rows: int
    written: int
    existing: int


@dataclass(frozen=True)
class WriteReport:
    """What a write did.

    ``complete`` is False for one that failed: what it wrote stays, and the same write made again completes it.
    ``epoch``: which micro-batch of a stream. Every row is counted once, as written or as existing.
    """

    queue: str
    complete: bool
    rows: int
    written: int
    existing: int
    partitions: tuple[PartitionReport, ...]
    batch: str | None = None
    epoch: int | None = None

    @classmethod
    def of(
        cls,
        queue: str,
        messages: Iterable[object],
        *,
        complete: bool,
        batch: str | None = None,
        epoch: int | None = None,
    ) -> Self:
        """The report of what the partitions told."""
        reports = sorted(
            (each for each in messages if isinstance(each, PartitionReport)), key=lambda each: each.partition
        )
        rows, written = sum(each.rows for each in reports), sum(each.written for each in reports)
        return cls(queue, complete, rows, written, rows - written, tuple(reports), batch, epoch)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The report that a write left."""
        fields: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        fields["partitions"] = tuple(PartitionReport(**each) for each in fields["partitions"])
        return cls(**fields)

    def leave(self, path: str | None) -> None:
        """Write it to a file, whole or not at all; None: nobody wants it."""
        if path is None:
            return
        place = Path(path)
        temporary = place.with_name(f".{place.name}.{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        temporary.replace(place)


def check_place(path: str | None) -> None:
    """Raise `SourceError` for a report that could not be left where it is wanted."""
    if path is not None and not (Path(path).parent.is_dir() and os.access(Path(path).parent, os.W_OK)):
        raise SourceError(f"option report: the folder of {path!r} is not there, or cannot be written to")


# --- One partition's rows into the queue: in pieces, each of which is tried again until it is known what became of it.

#: A piece has at most so many rows, and no more once its data have so many bytes.
PIECE_ROWS: Final = 1_600
PIECE_BYTES: Final = 4_000_000
#: How often a piece is tried where ZooKeeper does not answer; each try waits for as long as a request may take.
TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go, and how: what the driver found out, for the executors."""

    options: SourceOptions
    queue: str
    mapping: RowMapping
    batch: str | None = None
    since: datetime | None = None

    def load(self, batches: Iterator[pa.RecordBatch]) -> PartitionReport:
        """Enqueue the rows of a partition that are not there yet. Raises `SourceError` for the first bad one."""
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
        queue = cached(self.options).queue(self.queue)
        rows = written = 0
        for piece in _pieces(rows_of(batches, self.mapping, partition)):
            rows += len(piece)
            written += len(self._enqueue(queue, piece, partition).written)
        return PartitionReport(partition, attempt, rows, written, rows - written)

    def _enqueue(self, queue: AnyQueue, rows: Sequence[Row], partition: int) -> NewTasks:
        """One piece; of rows with the same id the first one is taken."""
        first: dict[str, Row] = {}
        for row in rows:
            first.setdefault(row.id, row)
        distinct = list(first.values())
        queue.conf()  # one that was deleted meanwhile is refused, and not made anew without its filters
        try:
            return _insistently(queue, distinct, self.batch, self.since)
        except BadMessage as error:
            bad = distinct[error.position]
            raise self._refused(bad, partition, error) from None

    def _refused(self, row: Row, partition: int, error: BadMessage) -> SourceError:
        column = self.mapping.column("data" if isinstance(error.__cause__, TaskTooLarge) else error.part)
        return refusal(f"row {row.number} of partition {partition}", row.id, column, error)


def _insistently(queue: AnyQueue, rows: Sequence[Row], batch: str | None, since: datetime | None) -> NewTasks:
    """Try again where the connection failed: the same client's second call tells what the first one wrote."""
    messages = [row.message for row in rows]
    for _ in range(TRIES - 1):
        try:
            return queue.enqueue_new(messages, batch=batch, since=since)
        except TransportError:
            continue
    return queue.enqueue_new(messages, batch=batch, since=since)


def _pieces(rows: Iterator[Row]) -> Iterator[list[Row]]:
    piece: list[Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row.message.data)
        if len(piece) >= PIECE_ROWS or size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


# --- Bulk enqueue of a DataFrame: planned on the driver, written by the executors, completed or given up by the driver.


def checked(options: SourceOptions, overwrite: bool) -> str:
    """The queue to write to. Raises `SourceError` for options that no write could do with."""
    queue = options.text("queue")
    if queue is None:
        raise SourceError("option queue is missing: the queue to write to")
    if overwrite:
        raise SourceError('tasks can only be added: use mode("append"), or outputMode("append") for a stream')
    check_place(options.text("report"))
    return queue


def mapped(queue: AnyQueue, schema: StructType, options: SourceOptions) -> RowMapping:
    """What becomes of each column. Raises `SourceError`, and `QueueNotFound` where there is no such queue."""
    return map_columns(schema, options, queue.conf().filters)


class TaskWriter(DataSourceArrowWriter):
    """Enqueues rows whose ids no task has, each once, whatever is tried again."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        options.check(WRITE, "writes")
        name, batch = checked(options, overwrite), options.text("batch")
        with connect(options) as zk:
            queue = zk.queue(name)
            mapping = mapped(queue, schema, options)
            since = queue.now() if batch is None else None
            if batch is not None:
                queue.open_batch(batch)
        self.target = Target(options, name, mapping, batch, since)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Enqueue the rows of a partition."""
        with plainly():
            return self.target.load(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All partitions are written: the batch is complete, and the report is left."""
        target = self.target
        with plainly():
            if target.batch is not None:
                with connect(target.options) as zk:
                    zk.queue(target.queue).seal_batch(target.batch)
            self._report(messages, complete=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The write failed: what it wrote stays, its batch says that it is not written, and a report tells of it."""
        with plainly():
            self._report(messages, complete=False)

    def _report(self, messages: list[WriterCommitMessage | None], *, complete: bool) -> None:
        target = self.target
        report = WriteReport.of(target.queue, messages, complete=complete, batch=target.batch)
        report.leave(target.options.text("report"))


# --- Bulk enqueue of a stream: each row of a micro-batch becomes one task, also where the micro-batch is run again.


class TaskStreamWriter(DataSourceStreamArrowWriter):
    """Enqueues rows whose ids no task has.

    A micro-batch that is run again after a restart has the same rows, which find their tasks: exactly once, as long as
    finished tasks are kept (`task_gc_lifetime`) until the restart.
    """

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        options.check(STREAM_WRITE, "streams that are written")
        name = checked(options, overwrite)
        if options.text("batch") is not None:
            raise SourceError("option batch is for writes of a DataFrame: a stream has no end at which it is complete")
        with connect(options) as zk:
            mapping = mapped(zk.queue(name), schema, options)
        self.target = Target(options, name, mapping)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Enqueue the rows of a partition."""
        with plainly():
            return self.target.load(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """A micro-batch is written: the report tells of it, and of no other."""
        self._report(messages, batchId, complete=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """A micro-batch failed; it is run again."""
        self._report(messages, batchId, complete=False)

    def _report(self, messages: list[WriterCommitMessage | None], epoch: int, *, complete: bool) -> None:
        with plainly():
            report = WriteReport.of(self.target.queue, messages, complete=complete, epoch=epoch)
            report.leave(self.target.options.text("report"))
