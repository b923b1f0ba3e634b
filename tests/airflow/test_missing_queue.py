"""Waiting for work of a queue that nobody has enqueued into yet: DAGs that consume may be there before any producer."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskDeferred

from airflow_provider_zkmq.decorators.zkmq import zkmq_task
from airflow_provider_zkmq.engine import QueueNotFound, Zkmq
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.triggers.zkmq import ZkmqReadyTrigger, ZkmqTaskTrigger
from tests.airflow.conftest import fire

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


def consume(context: Any, **options: Any) -> Any:
    return zkmq_task(lambda _: "r", task_id="t", zkmq_queue="consumed", **options)().operator.execute(context)


def claim(context: Any, **options: Any) -> Any:
    operator = ZkmqClaimOperator(task_id="claim", lease=30, zkmq_queue="claimed", **options)
    return operator.execute(context | {"task_state_store": None})


def test_who_consumes_from_a_queue_that_is_not_there_has_nothing(queue, context, zookeeper, root, subtests):
    """A function or a claim is skipped, failed, or waits, here or deferred, for whoever enqueues first and makes it."""
    for verb, options, error, told in (
        (consume, {"on_empty": "skip"}, AirflowSkipException, ""),
        (consume, {"on_empty": "fail"}, QueueNotFound, "consumed"),
        (consume, {"timeout": 0.1}, AirflowException, "no task came into queue 'consumed' in time"),
        (consume, {"deferrable": True}, TaskDeferred, None),
        (claim, {}, AirflowSkipException, "no task of queue 'claimed'"),
        (claim, {"on_empty": "fail"}, QueueNotFound, "claimed"),
        (claim, {"on_empty": "wait", "deferrable": True}, TaskDeferred, None),
    ):
        with subtests.test(verb=verb, options=options):
            with pytest.raises(error, match=told) as raised:
                verb(context, **options)
            assert told is not None or isinstance(raised.value.trigger, ZkmqReadyTrigger)
    assert consume(context, on_empty="succeed")["finished"] == 0
    with Zkmq.connect(zookeeper, root, gc=False, connect_timeout=20) as zk, ThreadPoolExecutor(2) as pool:
        assert zk.queues() == ["jobs"]
        consuming = pool.submit(consume, context, deferrable=False)
        claiming = pool.submit(claim, context, on_empty="wait")
        for name in ("consumed", "claimed"):
            zk.queue(name).enqueue(b"x", task_id="a")
        assert (consuming.result(60)["finished"], zk.queue("consumed").task("a").result) == (1, b"r")
        assert [each["id"] for each in claiming.result(60)] == ["a"]


@pytest.mark.parametrize("wait", [{"zkmq_queue": "later"}, {"selector": "all()", "event": "claim", "queue": "later"}])
async def test_a_deferred_wait_is_also_for_the_queue(queue, zookeeper, root, wait):
    """The event comes when the queue has its first task, or a selector's that is claimed, and none before."""
    kind, done = (ZkmqReadyTrigger, {}) if "zkmq_queue" in wait else (ZkmqTaskTrigger, {"ids": ["a"]})
    waiting = asyncio.create_task(anext(kind(**wait).run()))
    with Zkmq.connect(zookeeper, root, gc=False, connect_timeout=20) as zk:
        await asyncio.to_thread(zk.queue("later").configure)
        told, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not told
        await asyncio.to_thread(zk.queue("later").enqueue, b"x", task_id="a")
        if done:
            await asyncio.to_thread(zk.queue("later").claim, timeout=20)
        assert (await waiting).payload == {"status": "done", **done}
    (event,) = await fire(ZkmqReadyTrigger(zkmq_queue="nowhere", deadline=time.time() + 0.1))
    assert event["status"] == "timeout"
