# The public names of the package, each with the module that holds it: see `airflow_provider_zkmq.lazy_imports`.

from .history.pipeline import (
    PipelineFailed as PipelineFailed,
    PipelineReport as PipelineReport,
    run_pipeline as run_pipeline,
)
from .history.table_reader import read as read
from .history.retention import Retention as Retention
from .reporting.report import Report as Report, report as report
from .session import spark_session as spark_session
from .source import enqueue as enqueue, register as register
from .source.executor_zip import py_files as py_files
from .source.writing import WriteReport as WriteReport
