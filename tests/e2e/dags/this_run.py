"""A DAG that hands out work not before its run's own time, and waits for the tasks of its run alone."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor

with DAG("this_run", schedule=None, default_args={"zkmq_queue": "runs"}):
    ZkmqEnqueueOperator(
        task_id="later",
        data="later",
        zkmq_task_id="later",
        not_before="{{ dag_run.start_date + macros.timedelta(days=1) }}",
        policy={"max_backoff": "5m"},
    )
    ZkmqTaskSensor(
        task_id="wait",
        selector="size>5",
        since="{{ dag_run.start_date }}",
        deferrable=True,
        timeout=timedelta(minutes=20),
    )
