"""A DataFrame into a queue by one call, which returns what was written."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from airflow_provider_zkmq.spark.source import FORMAT, register
from airflow_provider_zkmq.spark.source.options import SourceError
from airflow_provider_zkmq.spark.source.writing import WriteReport


def enqueue(df: DataFrame, queue: str, **options: object) -> WriteReport:
    """Enqueue a task for each row whose id no task has; `options` are those of ``df.write.format("zkmq")``.

    Such as ``hosts=…, id="flight", data="payload"``. Made again, the same call completes what an earlier one left.
    Raises `SourceError` for what is refused, Spark's own errors for what goes wrong elsewhere.
    """
    register(df.sparkSession)
    with tempfile.TemporaryDirectory(prefix="zkmq-report-") as folder:
        place = {"report": str(Path(folder, "report.json"))} | {name: str(value) for name, value in options.items()}
        try:
            df.write.format(FORMAT).mode("append").options(**place, queue=queue).save()
        except PySparkException as error:
            raise _plain(error) from None
        return WriteReport.read(place["report"])


def _plain(error: PySparkException) -> Exception:
    """Our own error out of Spark's, whose text has it among others; else Spark's."""
    known = re.search(rf"{SourceError.__name__}: (.+)", str(error))
    return error if known is None else SourceError(known[1])
