"""Bulk enqueue of a stream."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_zkmq.spark.source.options import Options


class TaskSink(DataSourceStreamWriter):
    """Enqueues rows."""

    def __init__(self, schema: StructType, options: Options, overwrite: bool) -> None:
        self.schema, self.options, self.overwrite = schema, options, overwrite

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Enqueue the rows of a partition."""
        raise NotImplementedError
