"""Event-driven, one run at a time: some tasks fail once, one always; a run takes no more than its share of a burst."""

from __future__ import annotations

import time

import pendulum
from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger

MOST = 50
burst = Asset("burst", watchers=[AssetWatcher(name="burst", trigger=ZkmqEventTrigger(zkmq_queue="burst", refire=3))])


@dag(schedule=burst, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), catchup=False, max_active_runs=1)
def events_burst() -> None:
    """Take some of what is there."""

    @task(retries=2, retry_delay=1)
    def handle() -> int:
        """Settle each task by its own outcome."""
        done = 0
        with ZkmqHook(queue="burst") as hook:
            queue = hook.queue()
            while done < MOST and (claim := queue.claim()) is not None:
                time.sleep(0.05)  # so that whatever is killed is killed in the middle
                name, done = claim.task.id, done + 1
                if name == "poison" or (name.endswith("0") and claim.task.attempt == 1):
                    claim.fail(f"ValueError: {name} on attempt {claim.task.attempt}")
                else:
                    claim.complete(name)
        return done

    handle()


events_burst()
