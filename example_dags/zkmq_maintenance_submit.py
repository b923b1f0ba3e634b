"""Maintenance on a Spark cluster: what ``zkmq_maintenance`` does in its own process, by ``spark-submit``.

It is there where Airflow's provider for Spark is (extra ``[spark-provider]``). The connection ``spark_default``, or the
one that the environment variable ``ZKMQ_SPARK_CONN_ID`` names, says which cluster. Executors are given the code as one
zip, and take credentials from their own environment (``ZKMQ_AUTH``, ``ZKMQ_TLS_*``): none goes through Spark's
configuration. Parameters: ``queues`` (none: all), ``directory`` of the archive, a folder that driver and executors see,
or ``s3://bucket/prefix`` (none: the environment variable ``ZKMQ_ARCHIVE_DIR``; without either it is refused). The zip
is written to the archive's folder; ``ZKMQ_SPARK_CODE_DIR`` names another one, which an archive in S3 needs.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pendulum
from airflow.sdk import Param, dag, get_current_context, task

import airflow_provider_zkmq


def spark_provider_is_here() -> bool:
    """Whether Airflow's provider for Spark is installed."""
    try:
        return importlib.util.find_spec("airflow.providers.apache.spark.operators.spark_submit") is not None
    except ModuleNotFoundError:
        return False


def archive_directory(given: str | None) -> str:
    """Where the archive is. Raises ValueError where nobody says it."""
    directory = given or os.environ.get("ZKMQ_ARCHIVE_DIR")
    if not directory:
        message = "say where the archive is: param directory or ZKMQ_ARCHIVE_DIR"
        raise ValueError(message)
    return directory


@dag(
    dag_id="zkmq_maintenance_submit",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    params={
        "queues": Param(None, type=["null", "array"], description="names of queues; none: all"),
        "directory": Param(None, type=["null", "string"], description="folder of the archive"),
    },
    doc_md=__doc__,
)
def zkmq_maintenance_submit() -> None:
    """Pack the code, then submit the job."""
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    @task(multiple_outputs=True)
    def pack() -> dict[str, str]:
        """Put what executors need into one zip in the archive's folder; returns the paths of both."""
        from airflow_provider_zkmq.spark import py_files

        directory = archive_directory(get_current_context()["params"]["directory"])
        return {"code": py_files(os.environ.get("ZKMQ_SPARK_CODE_DIR") or directory), "directory": directory}

    packed = pack()
    SparkSubmitOperator(
        task_id="pipeline",
        conn_id=os.environ.get("ZKMQ_SPARK_CONN_ID", "spark_default"),
        name="zkmq-maintenance",
        application=str(Path(airflow_provider_zkmq.__file__).parent / "spark" / "job.py"),
        py_files=packed["code"],
        application_args=[
            "pipeline",
            *("--hosts", os.environ.get("ZKMQ_HOSTS", "127.0.0.1:2181")),
            *("--root", os.environ.get("ZKMQ_ROOT", "/zkmq")),
            *("--directory", packed["directory"]),
            *("--queues", "{{ (params.queues or []) | join(',') }}"),
        ],
        retries=2,
        retry_delay=pendulum.duration(seconds=30),
    )


if spark_provider_is_here():
    zkmq_maintenance_submit()
