"""As many enqueues that wait deferred as the test asks for, none of which is tried again."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_provider_zkmq.operators.zkmq import ZkmqEnqueueOperator

ENQUEUES = int(os.environ.get("ZKMQ_E2E_ENQUEUES", "20"))

with DAG("waiting_enqueues", schedule=None, max_active_tasks=ENQUEUES):
    ZkmqEnqueueOperator.partial(
        task_id="work", zkmq_queue="fast", wait_for_completion=True, deferrable=True, timeout=3600, retries=0
    ).expand(data=[str(number) for number in range(ENQUEUES)])
