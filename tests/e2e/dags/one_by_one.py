"""An instance for each claim of another task: one is killed while it handles, one fails."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pendulum
from airflow.sdk import dag, task

from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator


@dag(
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    default_args={"retries": 1, "retry_delay": timedelta(0)},
)
def one_by_one():
    """Claim three tasks, and handle each in an instance of its own."""
    claimed = ZkmqClaimOperator(task_id="claim", zkmq_queue="single", max_tasks=3, in_place=True)

    @task.zkmq(fail_on="any")
    def handle(job, claims, ti=None):
        if job.id == "killed" and ti.try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if job.id == "raises":
            raise ValueError("no such file")
        return job.data.upper()

    handle.expand(claims=claimed.output)


one_by_one()
