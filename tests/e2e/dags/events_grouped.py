"""Event-driven, one run at a time, each with a group: its mapped work is acknowledged instance by instance.

As in ``events_burst``, some tasks fail once and one always.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_zkmq.operators.task_group import ZkmqTaskGroup
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger

MOST = 25
grouped = Asset(
    "grouped", watchers=[AssetWatcher(name="grouped", trigger=ZkmqEventTrigger(zkmq_queue="burst", refire=3))]
)

with (
    DAG(
        "events_grouped",
        schedule=grouped,
        start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
        catchup=False,
        max_active_runs=1,
    ),
    ZkmqTaskGroup("tasks", zkmq_queue="burst", max_tasks=MOST, each=True, lease=120) as tasks,
):

    @task(retries=3, retry_delay=1)
    def work(claim: dict[str, Any]) -> str:
        """Fail for good where the queue is to try again; what is killed is tried again by Airflow."""
        if claim["id"] == "poison" or (claim["id"].endswith("0") and claim["attempt"] == 1):
            raise AirflowFailException(f"{claim['id']} on attempt {claim['attempt']}")
        return claim["id"]

    tasks.result = work.expand(claim=tasks.claims)
