"""Work that waits for a pool which the test opens, and whose claims would run out if nobody kept them."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_zkmq.operators.task_group import ZkmqTaskGroup

with (
    DAG("acknowledging", schedule=None, default_args={"retries": 1}),
    ZkmqTaskGroup("orders", zkmq_queue="held", lease=90) as orders,
):

    @task(pool="narrow")
    def work(claims: list[dict[str, Any]]) -> str:
        """Say which task it is."""
        return claims[0]["id"]

    orders.result = work(orders.claims)
