"""Event-driven, one run at a time: one DAG claims in its run, the other accepts what its trigger has claimed for it."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.task_group import ZkmqTaskGroup
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger

START = pendulum.datetime(2026, 1, 1, tz="UTC")
woken = ZkmqEventTrigger(zkmq_queue="woken", refire=3)
claimed = ZkmqEventTrigger(zkmq_queue="claimed", mode="claim", max_in_flight=8, lease=30)
wakes = Asset("woken", watchers=[AssetWatcher(name="woken", trigger=woken)])
claims = Asset("claimed", watchers=[AssetWatcher(name="claimed", trigger=claimed)])


@dag(schedule=wakes, start_date=START, catchup=False, max_active_runs=1)
def events_woken() -> None:
    """Claim in the run."""

    @task
    def handle() -> None:
        with ZkmqHook(queue="woken") as hook:
            for claim in hook.queue().claims(timeout=0, lease=30):
                claim.result = b"done"

    handle()


@dag(schedule=claims, start_date=START, catchup=False, max_active_runs=1)
def events_claimed() -> None:
    """Accept what was claimed, and complete it when the work has succeeded."""
    with ZkmqTaskGroup("taken", zkmq_queue="claimed", from_events=True, lease=60) as taken:

        @task
        def handle(claims: list[dict[str, Any]]) -> None:
            assert claims

        handle(taken.claims)


events_woken()
events_claimed()
