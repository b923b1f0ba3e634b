"""One partition's rows into the queue: in pieces, each of which is tried again until it is known what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from airflow_provider_zkmq.engine import AnyQueue, BadMessage, NewTasks, TaskTooLarge, TransportError
from airflow_provider_zkmq.spark.source.access import cached
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.mapping import RowMapping
from airflow_provider_zkmq.spark.source.messages import Row, refusal, rows_of
from airflow_provider_zkmq.spark.source.options import Options
from airflow_provider_zkmq.spark.source.receipts import PartitionReport

#: A piece has at most so many rows, and no more once its data have so many bytes.
PIECE_ROWS: Final = 1_600
PIECE_BYTES: Final = 4_000_000
#: How often a piece is tried where ZooKeeper does not answer; each try waits for as long as a request may take.
TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go, and how: what the driver found out, for the executors."""

    options: Options
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
