"""Waiting for work of a queue that nobody has enqueued into yet: DAGs that consume may be there before any producer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskDeferred

from airflow_provider_zkmq.decorators.zkmq import ZkmqDecoratedOperator, zkmq_task
from airflow_provider_zkmq.engine import QueueNotFound, Zkmq
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.triggers.zkmq import ZkmqReadyTrigger
from tests.airflow.conftest import instance

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


@pytest.fixture
def elsewhere(zookeeper: str, root: str) -> Iterator[Queue]:
    """A queue that is not there before it is used."""
    with Zkmq.connect(zookeeper, root, gc=False, connect_timeout=20) as zk:
        yield zk.queue("elsewhere")


def consume(function, **options: Any) -> ZkmqDecoratedOperator:
    return zkmq_task(function, task_id="t", **options)().operator


def claim(**arguments):
    operator = ZkmqClaimOperator(task_id="claim", lease=30, **arguments)
    return operator.execute(instance() | {"task_state_store": None})


def test_who_consumes_from_a_queue_that_is_not_there_has_nothing(queue, context, elsewhere):
    """Whoever enqueues first makes it: it is waited for, here and deferred; where nothing is a failure, it is told."""
    missing = {"zkmq_queue": "elsewhere"}
    assert consume(lambda _: None, on_empty="succeed", **missing).execute(context)["finished"] == 0
    with pytest.raises(AirflowSkipException):
        consume(lambda _: None, on_empty="skip", **missing).execute(context)
    with pytest.raises(QueueNotFound, match="elsewhere"):
        consume(lambda _: None, on_empty="fail", **missing).execute(context)
    with pytest.raises(AirflowException, match="no task came into queue 'elsewhere' in time"):
        consume(lambda _: None, timeout=0.1, **missing).execute(context)
    with pytest.raises(TaskDeferred) as deferred:
        consume(lambda _: None, deferrable=True, **missing).execute(context)
    told: list[dict[str, Any]] = []
    waiting = consume(lambda _: "r", deferrable=False, **missing)
    running = threading.Thread(target=lambda: told.append(waiting.execute(context)))
    running.start()
    elsewhere.enqueue(b"x", task_id="a")
    running.join(60)
    assert (told[0]["finished"], elsewhere.task("a").result) == (1, b"r")
    assert isinstance(deferred.value.trigger, ZkmqReadyTrigger)


async def test_a_deferred_wait_is_also_for_the_queue(queue, elsewhere):
    """The event comes when the queue has its first task, and none before."""
    waiting = asyncio.create_task(anext(ZkmqReadyTrigger(zkmq_queue="elsewhere").run()))
    await asyncio.to_thread(elsewhere.configure)
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    await asyncio.to_thread(elsewhere.enqueue, b"x")
    assert (await waiting).payload == {"status": "done"}
    (event,) = [each async for each in ZkmqReadyTrigger(zkmq_queue="nowhere", deadline=time.time() + 0.1).run()]
    assert event.payload["status"] == "timeout"


def test_a_queue_that_is_not_there_has_nothing_to_take(queue, elsewhere):
    """It is skipped, waited for here and deferred; where nothing is a failure, it is told."""
    missing = {"zkmq_queue": "elsewhere"}
    with pytest.raises(AirflowSkipException, match="no task of queue 'elsewhere'"):
        claim(**missing)
    with pytest.raises(QueueNotFound, match="elsewhere"):
        claim(on_empty="fail", **missing)
    with pytest.raises(TaskDeferred):
        claim(on_empty="wait", deferrable=True, **missing)
    told = []
    running = threading.Thread(target=lambda: told.append(claim(on_empty="wait", **missing)))
    running.start()
    elsewhere.enqueue(b"x", task_id="a")
    running.join(60)
    assert [each["id"] for each in told[0]] == ["a"]
