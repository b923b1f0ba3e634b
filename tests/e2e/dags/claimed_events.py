"""Runs that are started by events which tell of claims, and take these over."""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.task_group import ZkmqTaskGroup
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger

claimed = Asset(
    "claimed_events",
    watchers=[
        AssetWatcher(
            name="claimed_events",
            trigger=ZkmqEventTrigger(zkmq_queue="claimed", mode="claim", max_in_flight=4, lease=120),
        )
    ],
)

with (
    DAG("claimed_events", schedule=claimed, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), catchup=False),
    ZkmqTaskGroup("tasks", from_events=True, lease=120) as tasks,
):

    @task
    def work(claims: list[dict[str, str]]) -> str:
        """Read what is in the tasks."""
        with ZkmqHook() as hook:
            return " ".join(hook.queue(claim["queue"]).task(claim["id"]).data.decode() for claim in claims)

    tasks.result = work(tasks.claims)
