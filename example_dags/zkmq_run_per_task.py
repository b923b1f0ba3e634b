"""One run for each task: a dispatcher takes tasks and starts a run for each, which settles it.

``zkmq_dispatch`` runs when there is work. It takes up to ten tasks and starts a run of ``zkmq_handle`` for each, whose
id is made of the task's and of the claim's token: dispatched twice, as by a retry, it is started once. The claim is in
the run's configuration; the run takes it over, holds it while it works, and settles it. A task whose run does not begin
within ``LEASE`` seconds is delivered again, which counts no attempt, and the run that comes too late skips its work.

The environment variables ``ZKMQ_DISPATCH_QUEUE`` (``orders``), ``ZKMQ_DISPATCH_REFIRE`` and ``ZKMQ_DISPATCH_LEASE``
(seconds) set other values.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pendulum
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.operators.task_group import ZkmqTaskGroup
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger

QUEUE = os.environ.get("ZKMQ_DISPATCH_QUEUE", "orders")
REFIRE = os.environ.get("ZKMQ_DISPATCH_REFIRE", "30")
LEASE = os.environ.get("ZKMQ_DISPATCH_LEASE", "900")
START = pendulum.datetime(2026, 1, 1, tz="UTC")

dispatched = Asset(
    "zkmq_dispatch",
    watchers=[AssetWatcher(name="zkmq_dispatch", trigger=ZkmqEventTrigger(zkmq_queue=QUEUE, refire=REFIRE))],
)


def run_of(claim: dict[str, Any]) -> dict[str, Any]:
    """Return the run to start for a claim. What a task's id may have and a run's may not is spelled: ``~40``."""
    name = re.sub(r"[^A-Za-z0-9_.:+-]", lambda found: f"~{ord(found[0]):02x}", claim["id"])
    return {"trigger_run_id": f"zkmq__{name}__{claim['token']}", "conf": {"claims": [claim]}}


@dag(
    dag_id="zkmq_dispatch",
    schedule=dispatched,
    start_date=START,
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    doc_md=__doc__,
)
def zkmq_dispatch() -> None:
    """Take what is there, and start a run for each."""
    claim = ZkmqClaimOperator(task_id="claim", zkmq_queue=QUEUE, max_tasks=10, lease=LEASE, prefetch=True)
    TriggerDagRunOperator.partial(
        task_id="start", trigger_dag_id="zkmq_handle", logical_date=None, skip_when_already_exists=True, retries=2
    ).expand_kwargs(claim.output.map(run_of))


@dag(dag_id="zkmq_handle", schedule=None, start_date=START, catchup=False, tags=["zkmq"], doc_md=__doc__)
def zkmq_handle() -> None:
    """Work on the one task that the run was started for."""
    with ZkmqTaskGroup("order", claims="{{ dag_run.conf['claims'] }}", lease=LEASE) as order:

        @task
        def work(claims: list[dict[str, Any]]) -> str:
            """Read what is in the task, and do it."""
            with ZkmqHook() as hook:
                [claim] = claims
                return hook.queue(claim["queue"]).task(claim["id"]).data.decode().upper()

        order.result = work(order.claims)


zkmq_dispatch()
zkmq_handle()
