"""Consume in a task: an Airflow task claims what a queue has, and runs a function for each task of it.

For work that comes from anywhere and is to be done by Airflow's workers, in bulk: each run does what is there, a mapped
task for each region. Where there is nothing, the task is deferred, holds no slot and claims nothing; it goes on as soon
as there is work. Each queue task is settled by its own outcome: what fails is tried again by the queue's policy, and is
a dead letter in the end, whatever becomes of the others. The Airflow task is green all the same, and its XCom says how
many finished and why others did not; ``fail_on="any"`` would make it red.

The environment variable ``ZKMQ_CONSUME_QUEUE`` (``parcels``) sets another queue.
"""

from __future__ import annotations

import os
from typing import Any

import pendulum
from airflow.sdk import dag, task

from airflow_provider_zkmq.engine import OrderedEnum, RetryPolicy, Snooze
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook

QUEUE = os.environ.get("ZKMQ_CONSUME_QUEUE", "parcels")
REGIONS = ("eu", "us")


@dag(
    dag_id="zkmq_consume",
    schedule=None,  # such as "@hourly"
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    doc_md=__doc__,
)
def zkmq_consume() -> None:
    """Make the queue, consume each region, report."""

    @task
    def prepare() -> list[str]:
        """Declare what tasks are told apart by, and return a selector for each region."""
        with ZkmqHook() as hook:
            hook.queue(QUEUE).configure(filters={"region": OrderedEnum(*REGIONS)}, policy=RetryPolicy(attempts=3))
        return [f"region=={region}" for region in REGIONS]

    @task.zkmq(zkmq_queue=QUEUE, max_tasks=1_000, threads=2, deferrable=True)
    def handle(parcel: Any, selector: str) -> str | Snooze:
        """Handle one task; the argument ``selector``, which is mapped over, says which tasks this instance claims."""
        if not parcel.data:
            raise ValueError("an empty parcel")
        if parcel.data == b"not today":
            return Snooze(86_400)
        parcel.report(0.5, f"half of what {selector} needs")
        return parcel.data.decode().upper()

    @task
    def report(results: list[dict[str, Any]]) -> dict[str, int]:
        """Add up what the regions say."""
        results = list(results)
        return {name: sum(each[name] for each in results) for name in ("finished", "failed", "released")}

    report(handle.expand(selector=prepare()))


zkmq_consume()
