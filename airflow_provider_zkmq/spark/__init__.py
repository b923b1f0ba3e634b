"""Queues as DataFrames, finished tasks to Parquet, and their history from there. Needs the extra ``[spark]``.

Importing this package loads neither PySpark nor a ZooKeeper client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_zkmq.spark.history.bronze import ArchiveReport, archive_queue
    from airflow_provider_zkmq.spark.history.reading import percentiles, read_history
    from airflow_provider_zkmq.spark.session import spark_session
    from airflow_provider_zkmq.spark.source import register
    from airflow_provider_zkmq.spark.source.counting import ReadReport, read_report
    from airflow_provider_zkmq.spark.source.enqueueing import enqueue
    from airflow_provider_zkmq.spark.source.receipts import WriteReport
    from airflow_provider_zkmq.spark.source.shipping import py_files

_HOME = {
    "ArchiveReport": "history.bronze",
    "ReadReport": "source.counting",
    "WriteReport": "source.receipts",
    "archive_queue": "history.bronze",
    "enqueue": "source.enqueueing",
    "percentiles": "history.reading",
    "py_files": "source.shipping",
    "read_history": "history.reading",
    "read_report": "source.counting",
    "register": "source",
    "spark_session": "session",
}
__all__ = [
    "ArchiveReport",
    "ReadReport",
    "WriteReport",
    "archive_queue",
    "enqueue",
    "percentiles",
    "py_files",
    "read_history",
    "read_report",
    "register",
    "spark_session",
]


def __getattr__(name: str) -> object:
    """Import on first use: PySpark is optional and slow to load."""
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
