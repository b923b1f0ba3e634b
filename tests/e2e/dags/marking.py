"""Work in two steps that goes on as files are there, for a user to interfere with; and a wait for a hundred tasks."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_zkmq.operators.task_group import ZkmqTaskGroup
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor

GATES = Path(__file__).parents[1] / "gates"


def step(name: str, claims: Any) -> Any:
    """A task that notes that it has begun, waits for a file of its run, and fails where that says so."""

    @task(task_id=name)
    def wait(_claims: list[dict[str, Any]]) -> str:
        run = get_current_context()["run_id"]
        with (GATES / "begun").open("a", encoding="utf-8") as begun:
            begun.write(f"{run} {name}\n")
        gate = GATES / f"{run} {name}"
        while not gate.exists():
            time.sleep(0.2)
        if gate.read_text(encoding="utf-8"):
            raise ValueError(f"{name} of {run} was told to fail")
        return "done"

    return wait(claims)


def steps(dag: DAG) -> None:
    """The group in a DAG, which takes the task of the queue that is named as the run."""
    with dag, ZkmqTaskGroup("orders", zkmq_queue="{{ run_id }}") as orders:
        first, last = step("first", orders.claims), step("last", orders.claims)
        first >> last
        orders.result = last


marking = DAG("marking", schedule=None, default_args={"pool": "gated"})
timed_out = DAG("timed_out", schedule=None, dagrun_timeout=timedelta(seconds=60))
steps(marking)
steps(timed_out)

with DAG("hundred", schedule=None) as hundred:
    ids = [f"task-{number}" for number in range(100)]
    ZkmqTaskSensor(task_id="wait", zkmq_queue="hundred", task_ids=ids, deferrable=True, timeout=3600)
