"""As many waits as the test asks for, none of which is tried again: enqueues that wait deferred, and sensors."""

from __future__ import annotations

import os

from airflow.sdk import DAG, task_group

from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor

WAITS = [str(number) for number in range(int(os.environ.get("ZKMQ_E2E_ENQUEUES", "4")))]


@task_group
def handed_over(data: str) -> None:
    """One task enqueues, and another one waits."""
    put = ZkmqEnqueueOperator(task_id="put", zkmq_queue="fast", data=data, retries=0)
    ZkmqTaskSensor(task_id="wait", zkmq_queue="fast", task_ids=put.output, deferrable=True, timeout=3600, retries=0)


with DAG("waiting_enqueues", schedule=None, max_active_tasks=len(WAITS)):
    ZkmqEnqueueOperator.partial(
        task_id="work", zkmq_queue="fast", wait_for_completion=True, deferrable=True, timeout=3600, retries=0
    ).expand(data=WAITS[::2])
    handed_over.expand(data=WAITS[1::2])
