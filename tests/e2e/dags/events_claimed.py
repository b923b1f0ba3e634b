"""Event-driven, one run at a time: one DAG claims in its run, the other accepts what its trigger has claimed for it."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider_zkmq.engine import ClaimLost, TaskNotFound
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.triggers.events import ZkmqEventTrigger

START = pendulum.datetime(2026, 1, 1, tz="UTC")
woken = ZkmqEventTrigger(zkmq_queue="woken", refire=3)
claimed = ZkmqEventTrigger(zkmq_queue="claimed", mode="claim", max_in_flight=8, lease=20)
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
    """Accept what was claimed."""

    @task
    def handle(triggering_asset_events: Any = None) -> dict[str, int]:
        """Begin, extend and complete by token; what is lost by now is told of again."""
        told = [event.extra["payload"]["claims"] for events in triggering_asset_events.values() for event in events]
        done = lost = 0
        with ZkmqHook(queue="claimed") as hook:
            queue = hook.queue()
            for claim in (claim for group in told for claim in group):
                try:
                    queue.begin(claim["id"], claim["token"])
                    queue.extend(claim["id"], claim["token"], 60)
                    queue.complete(claim["id"], claim["token"], b"done")
                    done += 1
                except (ClaimLost, TaskNotFound):
                    lost += 1
        return {"done": done, "lost": lost}

    handle()


events_woken()
events_claimed()
