"""A DAG that hands out two tasks and waits for them: one of them fails, and the sensor with it."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor

with DAG("page_orders", schedule=None, default_args={"zkmq_queue": "paper"}):
    hand_out = ZkmqEnqueueOperator(task_id="hand_out", messages=["good", "bad"], policy={"attempts": 1})
    ZkmqTaskSensor(task_id="wait", task_ids=hand_out.output, deferrable=True, timeout=timedelta(minutes=20))
