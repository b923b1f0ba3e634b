"""A transactional pipeline: a stage takes a task from one queue and puts its result into the next, or does neither.

Each stage is an Airflow task that runs its function for each queue task in a transaction: what the function puts is
written together with the completion of what it took. A process that dies in between has done neither, so nothing is
lost on the way and nothing comes out twice. Stages need not run in step: what a run leaves in a queue, the next takes.

The environment variable ``ZKMQ_PIPELINE_QUEUE`` (``readings``) sets another first queue; the second has the same name
and ``-checked`` behind it.
"""

from __future__ import annotations

import os
from typing import Any

import pendulum
from airflow.sdk import dag, task

from airflow_provider_zkmq.engine import RetryPolicy
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook

RAW = os.environ.get("ZKMQ_PIPELINE_QUEUE", "readings")
CHECKED = f"{RAW}-checked"


@dag(
    dag_id="zkmq_pipeline",
    schedule=None,  # such as "@hourly"
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    doc_md=__doc__,
)
def zkmq_pipeline() -> None:
    """Check, then store."""

    @task
    def prepare() -> None:
        """Make both queues: the second is there before anything is put into it."""
        with ZkmqHook() as hook:
            for name in (RAW, CHECKED):
                hook.queue(name).configure(policy=RetryPolicy(attempts=3))

    @task.zkmq(zkmq_queue=RAW, transactional=True, on_empty="succeed")
    def check(reading: Any, unit: Any) -> None:
        """Take a reading, put a number for each of its values; one that is no number refuses the whole reading."""
        for value in reading.data.decode().split():
            unit.put(CHECKED, str(float(value)), metadata={"from": reading.id})

    @task.zkmq(zkmq_queue=CHECKED, on_empty="succeed")
    def store(number: Any) -> str:
        """Do the last step; its result stays with the task."""
        return f"{float(number.data) * 2:g}"

    prepare() >> check() >> store()


zkmq_pipeline()
