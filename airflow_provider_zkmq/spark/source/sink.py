"""Bulk enqueue of a stream: each row of a micro-batch becomes one task, also where the micro-batch is run again."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_zkmq.spark.source.access import connect
from airflow_provider_zkmq.spark.source.errors import SourceError, plainly
from airflow_provider_zkmq.spark.source.loading import Target
from airflow_provider_zkmq.spark.source.options import SINK, Options
from airflow_provider_zkmq.spark.source.receipts import WriteReport
from airflow_provider_zkmq.spark.source.writing import checked, mapped


class TaskSink(DataSourceStreamArrowWriter):
    """Enqueues rows whose ids no task has.

    A micro-batch that is run again after a restart has the same rows, which find their tasks: exactly once, as long as
    finished tasks are kept (`task_gc_lifetime`) until the restart.
    """

    def __init__(self, schema: StructType, options: Options, overwrite: bool) -> None:
        options.check(SINK, "streams that are written")
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
