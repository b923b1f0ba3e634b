"""Queues as DataFrames, finished tasks to Parquet, and their history from there. Needs the extra ``[spark]``.

Importing this package loads neither PySpark nor a ZooKeeper client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_zkmq.spark.history.bronze import ArchiveReport, archive_queue
    from airflow_provider_zkmq.spark.history.pipeline import PipelineFailed, PipelineReport, run_pipeline
    from airflow_provider_zkmq.spark.history.reading import (
        percentiles,
        read_consumers,
        read_deliveries,
        read_history,
        read_hourly,
        read_runs,
    )
    from airflow_provider_zkmq.spark.history.tables import Retention
    from airflow_provider_zkmq.spark.reporting.report import Report, report
    from airflow_provider_zkmq.spark.session import spark_session
    from airflow_provider_zkmq.spark.source import register
    from airflow_provider_zkmq.spark.source.enqueueing import enqueue
    from airflow_provider_zkmq.spark.source.options import py_files
    from airflow_provider_zkmq.spark.source.reading import ReadReport, read_report
    from airflow_provider_zkmq.spark.source.writing import WriteReport

_HOME = {
    "ArchiveReport": "history.bronze",
    "PipelineFailed": "history.pipeline",
    "PipelineReport": "history.pipeline",
    "ReadReport": "source.reading",
    "Report": "reporting.report",
    "Retention": "history.tables",
    "WriteReport": "source.writing",
    "archive_queue": "history.bronze",
    "enqueue": "source.enqueueing",
    "percentiles": "history.reading",
    "py_files": "source.options",
    "read_consumers": "history.reading",
    "read_deliveries": "history.reading",
    "read_history": "history.reading",
    "read_hourly": "history.reading",
    "read_report": "source.reading",
    "read_runs": "history.reading",
    "register": "source",
    "report": "reporting.report",
    "run_pipeline": "history.pipeline",
    "spark_session": "session",
}
__all__ = [
    "ArchiveReport",
    "PipelineFailed",
    "PipelineReport",
    "ReadReport",
    "Report",
    "Retention",
    "WriteReport",
    "archive_queue",
    "enqueue",
    "percentiles",
    "py_files",
    "read_consumers",
    "read_deliveries",
    "read_history",
    "read_hourly",
    "read_report",
    "read_runs",
    "register",
    "report",
    "run_pipeline",
    "spark_session",
]


def __getattr__(name: str) -> object:
    """Import on first use: PySpark is optional and slow to load."""
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
