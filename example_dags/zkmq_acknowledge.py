"""Acknowledge on success: a run takes a task of a queue, and completes it only when all its work has succeeded.

The watch starts a run when there is work; the run takes one task, works on it, and ends it by what became of the work:
where a task of Airflow's fails for good, the queue's task is tried again by its queue's policy, in another run, and is
a dead letter after the last attempt, with the exception as its reason. While the run works, ``orders.keep`` holds the
task; where Airflow is gone, it is delivered again after the lease.

The environment variables ``ZKMQ_ACKNOWLEDGE_QUEUE`` (``orders``), ``ZKMQ_ACKNOWLEDGE_REFIRE`` and
``ZKMQ_ACKNOWLEDGE_LEASE`` (seconds) set other values.
"""

from __future__ import annotations

import os
from typing import Any

import pendulum
from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.task_group import ZkmqTaskGroup
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger

QUEUE = os.environ.get("ZKMQ_ACKNOWLEDGE_QUEUE", "orders")
REFIRE = os.environ.get("ZKMQ_ACKNOWLEDGE_REFIRE", "30")
LEASE = os.environ.get("ZKMQ_ACKNOWLEDGE_LEASE", "300")

orders_asset = Asset(
    "zkmq_acknowledge",
    watchers=[AssetWatcher(name="zkmq_acknowledge", trigger=ZkmqEventTrigger(zkmq_queue=QUEUE, refire=REFIRE))],
)


def price(data: bytes, attempt: int) -> str:
    """Work out one order: ``poison`` never can be, ``again`` only on a second attempt."""
    text = data.decode()
    if text == "poison" or (text == "again" and attempt == 1):
        raise ValueError(f"no price for {text!r}")
    return text.upper()


@dag(
    dag_id="zkmq_acknowledge",
    schedule=orders_asset,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    doc_md=__doc__,
)
def zkmq_acknowledge() -> None:
    """Take up to ten orders; each is settled by its own instance of the mapped work."""
    with ZkmqTaskGroup("orders", zkmq_queue=QUEUE, max_tasks=10, lease=LEASE, each=True) as orders:

        @task
        def work(claim: dict[str, Any]) -> str:
            """Read what is in the task, and do it."""
            with ZkmqHook() as hook:
                return price(hook.queue(claim["queue"]).task(claim["id"]).data, claim["attempt"])

        orders.result = work.expand(claim=orders.claims)


zkmq_acknowledge()
