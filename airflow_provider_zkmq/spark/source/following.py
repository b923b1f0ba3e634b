"""Streams of what ended."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_zkmq.spark.source.options import Options


class TaskStream(DataSourceStreamReader):
    """Reads what ended, a row for each run."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self.schema, self.options = schema, options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        raise NotImplementedError
