"""Operators that wait, one on a worker and one deferred, and cancel what is open where a user ends them."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator

with DAG("ended_by_user", schedule=None, default_args={"retries": 0, "zkmq_queue": "ended", "timeout": 1800}):
    for name, deferrable in (("deferred", True), ("running", False)):
        ZkmqEnqueueOperator(
            task_id=name,
            messages=["a", "b", "c"],
            wait_for_completion=True,
            cancel_on_kill=True,
            deferrable=deferrable,
        )
