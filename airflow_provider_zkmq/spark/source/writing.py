"""Bulk enqueue of a DataFrame: planned on the driver, written by the executors, completed or given up by the driver."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_zkmq.engine import AnyQueue
from airflow_provider_zkmq.spark.source.access import connect
from airflow_provider_zkmq.spark.source.errors import SourceError, plainly
from airflow_provider_zkmq.spark.source.loading import Target
from airflow_provider_zkmq.spark.source.mapping import RowMapping, map_columns
from airflow_provider_zkmq.spark.source.options import WRITE, Options
from airflow_provider_zkmq.spark.source.receipts import WriteReport, check_place


def checked(options: Options, overwrite: bool) -> str:
    """The queue to write to. Raises `SourceError` for options that no write could do with."""
    queue = options.text("queue")
    if queue is None:
        raise SourceError("option queue is missing: the queue to write to")
    if overwrite:
        raise SourceError('tasks can only be added: use mode("append"), or outputMode("append") for a stream')
    check_place(options.text("report"))
    return queue


def mapped(queue: AnyQueue, schema: StructType, options: Options) -> RowMapping:
    """What becomes of each column. Raises `SourceError`, and `QueueNotFound` where there is no such queue."""
    return map_columns(schema, options, queue.conf().filters)


class TaskWriter(DataSourceArrowWriter):
    """Enqueues rows whose ids no task has, each once, whatever is tried again."""

    def __init__(self, schema: StructType, options: Options, overwrite: bool) -> None:
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
