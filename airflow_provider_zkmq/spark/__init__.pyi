# The public names of the package, each with the module that holds it: see `airflow_provider_zkmq.lazy`.

from airflow_provider_zkmq.spark.history.bronze import ArchiveReport as ArchiveReport, archive_queue as archive_queue
from airflow_provider_zkmq.spark.history.pipeline import (
    PipelineFailed as PipelineFailed,
    PipelineReport as PipelineReport,
    run_pipeline as run_pipeline,
)
from airflow_provider_zkmq.spark.history.reading import (
    percentiles as percentiles,
    read_consumers as read_consumers,
    read_deliveries as read_deliveries,
    read_history as read_history,
    read_hourly as read_hourly,
    read_runs as read_runs,
)
from airflow_provider_zkmq.spark.history.tables import Retention as Retention
from airflow_provider_zkmq.spark.reporting.report import Report as Report, report as report
from airflow_provider_zkmq.spark.session import spark_session as spark_session
from airflow_provider_zkmq.spark.source import enqueue as enqueue, register as register
from airflow_provider_zkmq.spark.source.options import py_files as py_files
from airflow_provider_zkmq.spark.source.reading import ReadReport as ReadReport, read_report as read_report
from airflow_provider_zkmq.spark.source.writing import WriteReport as WriteReport
