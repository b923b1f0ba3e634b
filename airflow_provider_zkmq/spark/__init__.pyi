# The public names of the package, each with the module that holds it: see `airflow_provider_zkmq.lazy_imports`.

from .history.bronze import ArchiveReport as ArchiveReport, archive_queue as archive_queue
from .history.pipeline import (
    PipelineFailed as PipelineFailed,
    PipelineReport as PipelineReport,
    run_pipeline as run_pipeline,
)
from .history.table_reader import (
    percentiles as percentiles,
    read_consumers as read_consumers,
    read_deliveries as read_deliveries,
    read_history as read_history,
    read_hourly as read_hourly,
    read_runs as read_runs,
)
from .history.retention import Retention as Retention
from .reporting.report import Report as Report, report as report
from .session import spark_session as spark_session
from .source import enqueue as enqueue, register as register
from .source.executor_zip import py_files as py_files
from .source.reading import ReadReport as ReadReport, read_report as read_report
from .source.writing import WriteReport as WriteReport
