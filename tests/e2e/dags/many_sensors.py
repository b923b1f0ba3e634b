"""As many deferred sensors as the test asks for, each waiting for a task of its own."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor

SENSORS = int(os.environ.get("ZKMQ_E2E_SENSORS", "6"))

with DAG("many_sensors", schedule=None, max_active_tasks=SENSORS):
    ZkmqTaskSensor.partial(task_id="wait", zkmq_queue="many", deferrable=True, timeout=3600).expand(
        task_ids=[f"task-{number}" for number in range(SENSORS)]
    )
