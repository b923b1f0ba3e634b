"""The Airflow classes over files: a connection whose host is ``textqueue:///path/dir``."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.filequeue import FileQueue
from tests.airflow.conftest import define


@pytest.fixture
def conn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, host=f"textqueue://{folder}", extra={"queue": "census"})


async def test_nothing_but_the_connection_differs(q: FileQueue, conn: None, folder: Path) -> None:
    """The operator enqueues, the sensor finds outcomes, the Test button counts queues; the triggerer is refused."""
    from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
    from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator
    from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
    from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

    context: Any = {"ti": None}
    messages = ["one", {"data": "two", "filters": {"performance_class": "low"}}]
    ids = ZkmqEnqueueOperator(task_id="t", messages=messages, add_origin=False).execute(context)
    q.worker(lambda task: task.data.upper()).run(until_empty=True)
    outcomes = ZkmqTaskSensor(task_id="s", task_ids=ids, timeout=20).execute(context)
    assert [outcome["result"] for outcome in outcomes] == ["ONE", "TWO"]
    worked, told = ZkmqHook().test_connection()
    assert worked
    assert f"textqueue://{folder}: 1 queue(s)" in told
    events = [event.payload async for event in ZkmqTaskTrigger(task_ids=["a"]).run()]
    assert events[0]["status"] == "error"
    assert "asynchronous" in events[0]["message"]


def test_a_function_consumes_a_file(q: FileQueue, conn: None) -> None:
    """`@task.zkmq` settles each task by its own outcome, as on ZooKeeper; where there is nothing it waits for it."""
    from airflow_provider_zkmq.decorators.zkmq import zkmq_task

    def handle(job: Any) -> str:
        if job.data == b"bad":
            raise ValueError("no such file")
        return str(job.data.decode().upper())

    context: Any = {"ti": None}
    consume = zkmq_task(handle, task_id="t", max_tasks=2, selector="performance_class==low")().operator
    coming = threading.Timer(0.3, lambda: q.enqueue("good", {"performance_class": "low"}, task_id="good"))
    coming.start()
    assert consume.execute(context)["finished"] == 1
    for data in ("bad", "good", "good"):
        q.enqueue(data, {"performance_class": "low"}, task_id=None if data == "good" else data)
    told = consume.execute(context)
    assert (told["finished"], told["failed"], q.task("good").result) == (1, 1, b"GOOD")
    assert q.counts()["inserted"] == 2
