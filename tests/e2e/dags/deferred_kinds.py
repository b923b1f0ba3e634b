"""What a triggerer runs: a sensor for a task, an enqueue that waits for its batch, a watch that claims for nobody."""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Asset, AssetWatcher, dag, task

from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger

with DAG("deferred_kinds", schedule=None):
    ZkmqTaskSensor(task_id="sensor", zkmq_queue="kinds", task_ids=["awaited"], deferrable=True, timeout=3600)
    ZkmqEnqueueOperator(
        task_id="enqueue",
        zkmq_queue="kinds",
        messages=["a", "b"],
        batch="{{ run_id }}",
        wait_for_completion=True,
        deferrable=True,
        timeout=3600,
        retries=0,
    )

claims = ZkmqEventTrigger(zkmq_queue="held", mode="claim", max_in_flight=4, lease=900)
held = Asset("held", watchers=[AssetWatcher(name="held", trigger=claims)])


@dag(schedule=held, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), catchup=False, max_active_runs=1)
def events_held() -> None:
    """Accept nothing: the claims stay as the trigger left them."""

    @task
    def handle() -> None:
        pass

    handle()


events_held()
