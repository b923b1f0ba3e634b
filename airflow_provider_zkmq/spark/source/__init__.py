"""The data source `zkmq`: queues as DataFrames, to read, to write and to follow."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructField, StructType

from . import connecting, options, reading, streaming
from .errors import SourceError, plainly
from .options import REPORT, SECRETS, SourceOptions
from .reading import TaskReader
from .streaming import TaskStream
from .writing import TaskStreamWriter, TaskWriter, WriteReport

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


def enqueue(df: DataFrame, queue: str, **options: object) -> WriteReport:
    """Enqueue a task for each row whose id no task has; `options` are those of ``df.write.format("zkmq")``.

    Such as ``hosts=…, id="flight", data="payload"``. Made again, the same call completes what an earlier one left.
    Raises `SourceError` for what is refused, Spark's own errors for what goes wrong elsewhere.
    """
    register(df.sparkSession)
    with tempfile.TemporaryDirectory(prefix="zkmq-report-") as folder:
        given = SourceOptions.of({name: str(value) for name, value in options.items()} | {"queue": queue})
        place = str(Path(folder, "report.json"))
        try:
            df.write.format(FORMAT).mode("append").options(**given.values, **{REPORT: place}).save()
        except PySparkException as error:
            own = re.search(rf"{SourceError.__name__}: (.+)", str(error))
            raise (error if own is None else SourceError(own[1])) from None
        return WriteReport.read(place)


class ZkmqDataSource(DataSource):
    """Spark's way to the queues. It is made, and asked for its parts, in processes that Spark starts for planning."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` is given."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns that a read has; asked for by ``load``, which therefore refuses what cannot be read."""
        with plainly():
            chosen = SourceOptions.of(self.options)
            chosen.check(tuple(dict.fromkeys((*options.READ, *options.STREAM))), "reads and streams")
            query = reading.Query.of(chosen)
            if any(chosen.text(name) for name in options.STREAM if name not in options.READ):
                streaming.Settings.of(chosen, query.columns)  # of what its reader would say Spark shows nothing
            with connecting.connect(chosen) as client:
                reading.queues_of(chosen, client, query.selector)
            return StructType([StructField(name, reading.COLUMNS[name].spark) for name in query.columns])

    def reader(self, schema: StructType) -> TaskReader:
        """The reader of a batch query."""
        with plainly():
            return TaskReader(schema, SourceOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> TaskWriter:
        """The writer of a batch query."""
        with plainly():
            return TaskWriter(schema, SourceOptions.of(self.options), overwrite)

    def streamReader(self, schema: StructType) -> TaskStream:  # noqa: N802  Spark's name
        """The reader of a stream."""
        with plainly():
            return TaskStream(schema, SourceOptions.of(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TaskStreamWriter:  # noqa: N802  Spark's name
        """The writer of a stream."""
        with plainly():
            return TaskStreamWriter(schema, SourceOptions.of(self.options), overwrite)
