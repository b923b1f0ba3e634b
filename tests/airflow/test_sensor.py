"""`ZkmqTaskSensor`, executed against a real ZooKeeper."""

from __future__ import annotations

import base64
import threading
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from tests.airflow.conftest import finish, kill


def sensor(**arguments):
    return ZkmqTaskSensor(task_id="s", **{"deferrable": False, "timeout": 60, **arguments})


def test_returns_results(queue, context):
    """The outcomes come in the order of the ids, text as text and other bytes as base64."""
    ids = [queue.enqueue("a"), queue.enqueue("b"), queue.enqueue("c")]
    for result in ("text", b"\xff\x00", None):
        finish(queue, result)
    told = sensor(task_ids=[ids]).execute(context)
    assert [item["id"] for item in told] == ids
    assert told[0] == {"id": ids[0], "state": "finished", "attempt": 1, "error": None, "result": "text"}
    assert base64.b64decode(told[1]["result_b64"]) == b"\xff\x00"
    assert not told[2]["result"]


def test_waits_on_the_worker(queue, context):
    """The blocking sensor goes on when the task is completed by another."""
    task_id = queue.enqueue("a")
    consumer = threading.Thread(target=lambda: finish(queue, "done"))
    consumer.start()
    assert sensor(task_ids=task_id).execute(context)[0]["result"] == "done"
    consumer.join()


def test_claim_is_enough_where_asked(queue, context):
    """Waiting for the claim ends while the task is still being worked on."""
    task_id = queue.enqueue("a")
    claim = queue.claim()
    assert claim is not None
    assert sensor(task_ids=task_id, event="claim").execute(context)[0]["state"] == "claimed"


def test_selector(queue, context):
    """With a selector, the sensor waits for the tasks that match, and for no other."""
    queue.enqueue("small", {"size": 1}, priority=-1)
    big = queue.enqueue("big", {"size": 9})
    assert finish(queue, "r") == big
    told = sensor(selector="size>5").execute(context)
    assert [(item["id"], item["result"]) for item in told] == [(big, "r")]
    with pytest.raises(AirflowSensorTimeout):
        sensor(selector="size>5", min_tasks=2, timeout=0.2).execute(context)


@pytest.mark.parametrize("how", ["dead", "cancelled"])
def test_failed_tasks_fail_the_sensor(queue, context, how):
    """Dead and cancelled tasks fail the sensor, which names them and their errors; soft_fail skips."""
    task_id = queue.enqueue("a", task_id="bad")
    if how == "dead":
        kill(queue, "disk full")
    else:
        queue.cancel(task_id)
    with pytest.raises(AirflowException, match=f"bad is {how}") as caught:
        sensor(task_ids=task_id).execute(context)
    assert ("disk full" in str(caught.value)) == (how == "dead")
    with pytest.raises(AirflowSkipException):
        sensor(task_ids=task_id, soft_fail=True).execute(context)


def test_timeout(queue, context):
    """The blocking sensor ends at its time-out and names the task; soft_fail skips."""
    task_id = queue.enqueue("a", task_id="slow")
    with pytest.raises(AirflowSensorTimeout, match="slow"):
        sensor(task_ids=task_id, timeout=0.2).execute(context)
    with pytest.raises(AirflowSkipException):
        sensor(task_ids=task_id, timeout=0.2, soft_fail=True).execute(context)


def test_task_that_does_not_exist(queue, context):
    """A task that was never enqueued fails at once rather than at the time-out."""
    with pytest.raises(AirflowException, match="nobody"):
        sensor(task_ids="nobody").execute(context)


def test_reschedule(queue, context):
    """In mode reschedule each look gives the worker's slot back, and the results come when they are there."""
    task_id = queue.enqueue("a")
    context["ti"].get_first_reschedule_date = lambda _context: None
    waiting = sensor(task_ids=task_id, mode="reschedule")
    with pytest.raises(AirflowRescheduleException):
        waiting.execute(context)
    finish(queue, "r")
    assert waiting.execute(context)[0]["result"] == "r"


def test_deferrable_does_not_defer_what_is_done(queue, context):
    """A deferrable sensor whose tasks are done returns at once, without the triggerer."""
    task_id = queue.enqueue("a")
    finish(queue, "r")
    assert sensor(task_ids=task_id, deferrable=True).execute(context)[0]["result"] == "r"


def test_deferral_carries_the_timeout_and_no_secret(queue, context):
    """The deferral is bounded by the sensor's time, and by a shorter execution_timeout; the trigger is plain JSON."""
    task_id = queue.enqueue("a")
    with pytest.raises(TaskDeferred) as deferred:
        sensor(task_ids=[task_id], deferrable=True, timeout=600, execution_timeout=timedelta(seconds=300)).execute(
            context
        )
    assert deferred.value.timeout is not None
    assert timedelta(seconds=200) < deferred.value.timeout <= timedelta(seconds=300)
    _, kwargs = deferred.value.trigger.serialize()
    assert kwargs.pop("deadline") > 0
    assert kwargs == {
        "task_ids": [task_id],
        "selector": None,
        "min_tasks": 1,
        "event": "completion",
        "queue": None,
        "zkmq_conn_id": "zkmq_default",
    }


async def test_deferred_to_the_end(queue, context):
    """The whole way: defer, the trigger rebuilt from its arguments fires, the results are read on the worker."""
    import asyncio

    from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

    task_id = queue.enqueue("a")
    waiting = sensor(task_ids=task_id, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        await asyncio.to_thread(waiting.execute, context)
    trigger = ZkmqTaskTrigger(**deferred.value.trigger.serialize()[1])
    await asyncio.to_thread(finish, queue, "r")
    events = [event.payload async for event in trigger.run()]
    assert events == [{"status": "done", "ids": [task_id]}]
    told = await asyncio.to_thread(waiting.execute_complete, context, events[0])
    assert told[0]["result"] == "r"


def test_after_the_trigger(queue, context):
    """The trigger's time-out and errors become Airflow's; soft_fail skips; a dead task fails there, too."""
    late, broken = {"status": "timeout", "message": "late"}, {"status": "error", "message": "gone"}
    with pytest.raises(AirflowSensorTimeout, match="late"):
        sensor(task_ids="x").execute_complete(context, late)
    with pytest.raises(AirflowSkipException):
        sensor(task_ids="x", soft_fail=True).execute_complete(context, late)
    with pytest.raises(AirflowException, match="gone"):
        sensor(task_ids="x").execute_complete(context, broken)
    task_id = queue.enqueue("a")
    kill(queue, "boom")
    with pytest.raises(AirflowException, match="boom"):
        sensor(task_ids=task_id).execute_complete(context, {"status": "done", "ids": [task_id]})


def test_a_claim_given_back_meanwhile_still_counts(queue, context):
    """What the trigger has seen claimed is reported even if it was released before the worker looks."""
    task_id = queue.enqueue("a")
    claim = queue.claim()
    assert claim is not None
    claim.release()
    told = sensor(task_ids=task_id, event="claim").execute_complete(context, {"status": "done", "ids": [task_id]})
    assert told[0]["state"] == "inserted"


@pytest.mark.parametrize("arguments", [{}, {"task_ids": "a", "selector": "b==c"}, {"task_ids": "a", "event": "lunch"}])
def test_contradictions_are_found_when_the_dag_is_parsed(arguments):
    """Wrong arguments fail while the DAG is built."""
    with pytest.raises((ValueError, ConfigError)):
        sensor(**arguments)
