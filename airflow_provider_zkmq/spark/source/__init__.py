"""The data source `zkmq`: queues as DataFrames, to read, to write and to follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from airflow_provider_zkmq.spark.source.options import SECRETS, SourceOptions, plainly
from airflow_provider_zkmq.spark.source.query import schema

if TYPE_CHECKING:
    from airflow_provider_zkmq.spark.source.following import TaskStream
    from airflow_provider_zkmq.spark.source.reading import TaskReader
    from airflow_provider_zkmq.spark.source.writing import TaskStreamWriter, TaskWriter

FORMAT = "zkmq"
#: Spark shows no values of options whose names are like this.
_REDACTION = "spark.sql.redaction.options.regex"


def register(spark: SparkSession) -> None:
    """Make ``format("zkmq")`` known to a session, for reading, writing and both kinds of stream.

    Options that are refused since they look like passwords are hidden from what Spark writes of its statements: a
    ``CREATE VIEW … USING zkmq`` is in its event log before anybody is asked.
    """
    spark.dataSource.register(ZkmqDataSource)
    hidden, secrets = spark.conf.get(_REDACTION), f"(?i){'|'.join(SECRETS)}"
    if hidden is None or secrets not in hidden:
        spark.conf.set(_REDACTION, f"{hidden}|{secrets}" if hidden else secrets)


class ZkmqDataSource(DataSource):
    """Spark's way to the queues. It is made, and asked for its parts, in processes that Spark starts for planning."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` is given."""
        return FORMAT

    def schema(self) -> str:
        """The columns that a read has; asked for by ``load``, which therefore refuses what cannot be read."""
        from airflow_provider_zkmq.spark.source.reading import check_loadable

        with plainly():
            return schema(check_loadable(SourceOptions.of(self.options)))

    def reader(self, schema: StructType) -> TaskReader:
        """The reader of a batch query."""
        from airflow_provider_zkmq.spark.source.reading import TaskReader

        with plainly():
            return TaskReader(schema, SourceOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> TaskWriter:
        """The writer of a batch query."""
        from airflow_provider_zkmq.spark.source.writing import TaskWriter

        with plainly():
            return TaskWriter(schema, SourceOptions.of(self.options), overwrite)

    def streamReader(self, schema: StructType) -> TaskStream:  # noqa: N802  Spark's name
        """The reader of a stream."""
        from airflow_provider_zkmq.spark.source.following import TaskStream

        with plainly():
            return TaskStream(schema, SourceOptions.of(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TaskStreamWriter:  # noqa: N802  Spark's name
        """The writer of a stream."""
        from airflow_provider_zkmq.spark.source.writing import TaskStreamWriter

        with plainly():
            return TaskStreamWriter(schema, SourceOptions.of(self.options), overwrite)
