"""Batch reads: ids are listed once, where the query is planned, and each partition reads its share of the tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_zkmq.spark.source.columns import COLUMNS
from airflow_provider_zkmq.spark.source.options import READ, STREAM, Options


def check_loadable(options: Options) -> list[str]:
    """The columns asked for. Raises `SourceError` for whatever neither a read nor a stream could do."""
    options.check(tuple(dict.fromkeys((*READ, *STREAM))), "reads and streams")
    return options.names("columns") or list(COLUMNS)


class TaskReader(DataSourceReader):
    """Reads tasks, a row for each."""

    def __init__(self, schema: StructType, options: Options) -> None:
        options.check(READ, "reads")
        self.columns = schema.fieldNames()
        self.options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        raise NotImplementedError
