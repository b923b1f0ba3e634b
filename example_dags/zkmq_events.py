"""Event-driven: this DAG runs when there is work in a queue, and claims, handles and settles it itself.

The triggerer watches the queue and claims nothing. Its event starts a run, which takes tasks until none is left or it
has had ``MOST``; each is settled by its own outcome, and a task whose run dies is delivered again. What a run leaves is
told of again after ``REFIRE`` seconds. With ``max_active_runs=1`` events that come meanwhile start one run more.

The environment variables ``ZKMQ_EVENTS_QUEUE`` (``orders``) and ``ZKMQ_EVENTS_REFIRE`` set other values.
"""

from __future__ import annotations

import os
from typing import Any

import pendulum
from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger

QUEUE = os.environ.get("ZKMQ_EVENTS_QUEUE", "orders")
REFIRE = os.environ.get("ZKMQ_EVENTS_REFIRE", "60")
#: A run takes no more tasks than this, so that it ends however fast new ones come.
MOST = 1_000

orders = Asset(
    "zkmq_orders",
    watchers=[AssetWatcher(name="zkmq_orders", trigger=ZkmqEventTrigger(zkmq_queue=QUEUE, refire=REFIRE))],
)


def process(data: bytes) -> str:
    """Do the work of one task. What it raises fails the task, which is tried again by its queue's policy."""
    if not data:
        raise ValueError("an empty order")
    return data.decode().upper()


@dag(
    dag_id="zkmq_events",
    schedule=orders,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    doc_md=__doc__,
)
def zkmq_events() -> None:
    """Take what is there."""

    @task
    def handle() -> dict[str, Any]:
        """Claim, process and settle, one task after the other; return how many were completed, and how many failed."""
        done = failed = 0
        with ZkmqHook(queue=QUEUE) as hook:
            queue = hook.queue()
            while done + failed < MOST and (claim := queue.claim()) is not None:
                try:
                    result = process(claim.task.data)
                except Exception as error:  # noqa: BLE001  a task that breaks its handler fails, not those beside it
                    claim.fail(f"{type(error).__name__}: {error}")
                    failed += 1
                else:
                    claim.complete(result)
                    done += 1
        return {"done": done, "failed": failed}

    handle()


zkmq_events()
