"""Deferred waits of sensors and operators: what a trigger is given, who ends the wait, what happens in between."""

from __future__ import annotations

import itertools
import threading
import time
from datetime import timedelta

import pendulum
import pytest
from airflow.sdk import DAG, Asset, task
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_zkmq.engine import Zkmq
from airflow_provider_zkmq.hooks import deferring
from airflow_provider_zkmq.hooks.origins import origin_of
from airflow_provider_zkmq.operators import once
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from airflow_provider_zkmq.triggers import zkmq
from tests.airflow.conftest import Heard, deferral, define, enqueuing, finish, fired, kill
from tests.airflow.test_sensor import batch_of, sensor
from tests.support import eventually


def test_deferral_carries_the_timeout_and_no_secret(queue, context):
    """The deferral is bounded by the sensor's time, and by a shorter execution_timeout; the trigger is plain JSON."""
    task_id, longest = queue.enqueue("a"), timedelta(seconds=300)
    deferred = deferral(
        sensor(task_ids=[task_id], deferrable=True, timeout=600, execution_timeout=longest).execute, context
    )
    assert deferred.timeout is not None
    assert timedelta(seconds=200) < deferred.timeout <= longest
    _, kwargs = deferred.trigger.serialize()
    assert kwargs.pop("deadline") > 0
    assert kwargs.pop("deferred_at") > 0
    nothing = ("series", "selector", "since", "batch", "success", "cancels", "queue")
    assert kwargs == dict.fromkeys(nothing) | {
        "task_ids": [task_id],
        "partial": False,
        "min_tasks": 1,
        "event": "completion",
        "log_progress": False,
        "zkmq_conn_id": "zkmq_default",
    }


def test_the_whole_way(queue, context, subtests):
    """Defer, fire, resume: the worker tells the results; a dead member fails the sensor, or skips with soft_fail."""
    for batch, outlets, end in (
        (None, [], finish),
        ("ready", [Asset("done")], finish),
        ("bad", [Asset("done")], kill),
        ("left to a worker", [], kill),
    ):
        with subtests.test(batch=batch):
            name = batch and batch.replace(" ", "-")
            ids = batch_of(queue, name, 1)
            wanted = {"batch": name} if name else {"task_ids": ids}
            waiting = sensor(**wanted, deferrable=True, outlets=outlets)
            trigger = deferral(waiting.execute, context).trigger
            end(queue, "r")
            event = fired(trigger).payload
            assert event == {"status": "done", **({"batch": name} if name else {"ids": ids})}
            resumed = ("execute_complete", {"event": event}, context)
            if end is kill:
                with pytest.raises(AirflowException, match=ids[0]):
                    waiting.resume_execution(*resumed)
                with pytest.raises(AirflowSkipException):
                    sensor(**wanted, soft_fail=True).resume_execution(*resumed)
            elif name:
                assert waiting.resume_execution(*resumed) == {"batch": name, "total": 1, "failed": []}
            else:
                assert waiting.resume_execution(*resumed)[0]["result"] == "r"


def test_since_goes_with_the_trigger(queue, context):
    """Deferred, the moment travels as text, and the trigger waits for the tasks that came since then."""
    early = queue.enqueue("early", {"size": 9})
    finish(queue)
    start = queue.task(early).enqueued_at.add(microseconds=1000)
    waiting = sensor(selector="size>5", since=start, deferrable=True)
    trigger = deferral(waiting.execute, context).trigger
    assert trigger.serialize()[1]["since"] == start.isoformat()
    eventually(lambda: pendulum.now("UTC") > start)
    late = queue.enqueue("late", {"size": 9})
    finish(queue)
    event = fired(trigger).payload
    assert event == {"status": "done", "ids": [late]}
    assert [each["id"] for each in waiting.execute_complete(context, event)] == [late]


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


def test_what_was_redriven_since_the_trigger_looked_is_waited_for(queue, context, subtests):
    """A task, or a batch's member, had ended and is open again: who waits defers again, within the same time."""
    deadline = time.time() + 100
    for kind, batch in itertools.product(("sensor", "operator"), (None, "b")):
        with subtests.test(kind=kind, batch=batch):
            name = batch and f"{batch}-{kind}"
            if kind == "sensor":
                ids = batch_of(queue, name, 1)
                waiting = sensor(**({"batch": name} if name else {"task_ids": ids}), deferrable=True)
            else:
                waiting = enqueuing(messages=["a"], batch=name, wait_for_completion=True, deferrable=True)
                deferral(waiting.execute, context)
            task_id = kill(queue, "broken")
            event = {"status": "done", **({"batch": name} if name else {"ids": [task_id]})}
            with pytest.raises(AirflowException, match=task_id):
                waiting.execute_complete(context, event, deadline=deadline)
            queue.redrive(task_id)
            deferred = deferral(waiting.execute_complete, context, event, deadline=deadline)
            assert (deferred.trigger.batch, deferred.trigger.task_ids) == (name, None if name else [task_id])
            assert deferred.trigger.deadline == deferred.kwargs["deadline"] == deadline
            if kind == "sensor" and name is None:
                with pytest.raises(AirflowSensorTimeout, match=task_id):
                    waiting.execute_complete(context, event, deadline=deadline - 200)
            finish(queue)
            told = waiting.execute_complete(context, event)
            if kind == "operator":
                assert told == (name or [task_id])
            else:
                assert told == {"batch": name, "total": 1, "failed": []} if name else told[0]["state"] == "finished"


def test_many_ids_are_waited_for_in_rounds(queue, context, monkeypatch):
    """The trigger is given those that fit and have not ended; then who waits looks at all, within the same time."""
    monkeypatch.setattr(deferring, "EVENT_BYTES", 20)
    monkeypatch.setattr(deferring, "ARGUMENT_BYTES", 20)
    ids = [f"own-{at}" for at in range(5)]
    messages = [{"data": "x", "task_id": task_id} for task_id in ids[1:]]
    queue.enqueue("x", task_id=ids[0], priority=1)
    operator = enqueuing(messages=messages, wait_for_completion=True, deferrable=True, timeout=600)
    by_operator = deferral(operator.execute, context)
    finish(queue)
    by_sensor, event = deferral(sensor(task_ids=ids, deferrable=True).execute, context), {"status": "done", "count": 2}
    for round_of in (["own-1", "own-2"], ["own-3", "own-4"]):
        for deferred in (by_operator, by_sensor):
            assert (deferred.trigger.task_ids, deferred.trigger.partial) == (round_of, True)
        finish(queue)
        finish(queue)
        if round_of[0] == "own-1":
            deadline, kwargs = by_operator.kwargs["deadline"], by_sensor.kwargs
            by_operator = deferral(operator.execute_complete, context, event, **by_operator.kwargs)
            by_sensor = deferral(sensor(task_ids=ids, deferrable=True).execute_complete, context, event, **kwargs)
    assert by_operator.kwargs["deadline"] == deadline == by_operator.trigger.deadline
    assert operator.execute_complete(context, event, **by_operator.kwargs) == ids[1:]
    told = sensor(task_ids=ids, deferrable=True).execute_complete(context, event, **by_sensor.kwargs)
    assert [each["id"] for each in told] == ids


def test_a_series_is_deferred_in_little_room(queue, context, monkeypatch):
    """Many tasks go by their key and number; the event names none, and the Airflow task knows them all the same."""
    for module in (deferring, zkmq):
        monkeypatch.setattr(module, "EVENT_BYTES", 100)
    operator = enqueuing(messages=["x"] * 20, wait_for_completion=True, deferrable=True)
    deferred = deferral(operator.execute, context)
    kwargs = deferred.trigger.serialize()[1]
    assert (kwargs["series"], kwargs["task_ids"]) == ([once.series_key("run", origin_of(context)), 20], None)
    done = [finish(queue) for _ in range(20)]
    event = fired(deferred.trigger).payload
    assert event == {"status": "done", "count": 20}
    assert sorted(operator.execute_complete(context, event, **deferred.kwargs)) == sorted(done)


def test_many_that_match_are_found_again(queue, context):
    """An event that names none: the sensor tells of the tasks that match and have ended, not of those come since."""
    done = [queue.enqueue("x", {"size": 9}) for _ in range(3)]
    for _ in done:
        finish(queue)
    queue.enqueue("late", {"size": 9})
    event = {"status": "done", "count": 3}
    told = sensor(selector="size>5", deferrable=True).execute_complete(context, event)
    assert sorted(each["id"] for each in told) == sorted(done)
    deferral(sensor(selector="size>5", min_tasks=4, deferrable=True).execute_complete, context, event)


def test_a_sensor_outlives_zookeeper_being_away(mortal, root, context, monkeypatch):
    """At its first look, on resume, at a poke and on the worker: it waits on, and succeeds when ZooKeeper is back."""
    context["ti"].get_first_reschedule_date = lambda _context: None
    define(monkeypatch, host=mortal.hosts, extra={"root": root, "connect_timeout": 0.5, "request_timeout": 1})
    with Zkmq.connect(mortal.hosts, root, gc=False, connect_timeout=30) as zk:
        task_id = zk.queue("queue").enqueue("a")
        finish(zk.queue("queue"), "r")
    mortal.kill(0)
    deferrable = sensor(task_ids=task_id, deferrable=True)
    deferral(deferrable.execute, context)
    deferral(deferrable.execute_complete, context, {"status": "done", "ids": [task_id]})
    with pytest.raises(AirflowRescheduleException):
        sensor(task_ids=task_id, mode="reschedule").execute(context)
    with pytest.raises(AirflowSensorTimeout):
        sensor(task_ids=task_id, timeout=0.1).execute(context)
    monkeypatch.setattr(ZkmqTaskSensor, "log", log := Heard())
    told = []
    waiting = threading.Thread(target=lambda: told.extend(sensor(task_ids=task_id).execute(context)))
    waiting.start()
    eventually(lambda: log.warnings)
    mortal.restart(0)
    waiting.join(60)
    assert [each["result"] for each in told] == ["r"]
    assert len([line for line in log.warnings if "Waiting goes on" in line]) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"batch": "b"}, {"batch": "b", "total": 2, "failed": []}),
        ({"task_ids": "IDS", "results": False}, "STATES"),
        ({"selector": "all()", "min_tasks": 2, "results": False}, "STATES"),
        ({"batch": "b", "do_xcom_push": False}, None),
    ],
)
def test_the_triggerer_ends_what_needs_no_worker(queue, context, pushed, arguments, told):
    """A batch, or tasks without results: the trigger's event is Airflow's own for a success, with the sensor's XCom."""
    ids = batch_of(queue, "b", 2)
    waiting = sensor(**{**arguments, **({"task_ids": ids} if "task_ids" in arguments else {})}, deferrable=True)
    trigger = deferral(waiting.execute, context).trigger
    for _ in ids:
        finish(queue, "r")
    event = fired(trigger)
    assert isinstance(event, TaskSuccessEvent)
    if told == "STATES":
        assert sorted(pushed[0]["value"], key=lambda each: each["id"]) == [
            {"id": task_id, "state": "finished"} for task_id in sorted(ids)
        ]
    else:
        assert [each["value"] for each in pushed] == ([] if told is None else [told])
    assert event.xcoms is None
    instance = {"key": "return_value", "dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 3}
    assert all({**each, "value": None} == {**instance, "value": None} for each in pushed)


@pytest.mark.parametrize("arguments", [{"messages": ["a", "b"]}, {"messages": ["a"], "batch": "b"}, {"data": "x"}])
def test_the_triggerer_ends_a_waiting_operator(queue, context, pushed, arguments):
    """Its XCom is what the operator returns, and no worker runs once more."""
    operator = enqueuing(**arguments, wait_for_completion=True, deferrable=True)
    trigger = deferral(operator.execute, context).trigger
    for _ in range(queue.counts()["inserted"]):
        finish(queue)
    event = fired(trigger)
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms is None
    assert [each["value"] for each in pushed] == [operator.execute(context)]


def test_an_xcom_that_cannot_be_written_is_left_to_a_worker(queue, context, monkeypatch):
    """What the triggerer cannot do ends nothing."""

    async def refuse(**_):
        raise OSError("no API server")

    monkeypatch.setattr(XCom, "aset", refuse)
    batch_of(queue, "b", 1)
    trigger = deferral(sensor(batch="b", deferrable=True).execute, context).trigger
    finish(queue)
    assert fired(trigger).payload == {"status": "done", "batch": "b"}


class Subclass(ZkmqTaskSensor):
    """A sensor that does something more when it has succeeded."""

    def post_execute(self, context, result=None):
        """Do it."""


def test_what_only_a_worker_can_do_is_left_to_it(queue, context, subtests):
    """Asset events, callbacks, an XCom back end of one's own, results, and the length that others are mapped over.

    So is an XCom that is split into several, and what a subclass does.
    """
    queue.enqueue("x", task_id="a")
    context["ti"].map_index = -1
    for why in ("outlets", "callback", "backend", "results", "mapped", "several", "subclass", None):
        with subtests.test(why=why), pytest.MonkeyPatch.context() as patch:
            if why == "backend":
                patch.setenv("AIRFLOW__CORE__XCOM_BACKEND", "mine.XCom")
            outlets = [Asset("x")] if why == "outlets" else []
            with DAG("d", schedule=None):
                waiting = sensor(task_ids="a", deferrable=True, results=why == "results", outlets=outlets)
                waiting.__class__ = Subclass if why == "subclass" else ZkmqTaskSensor
                waiting.multiple_outputs = why == "several"
                waiting.on_success_callback = [print] if why == "callback" else []
                if why == "mapped":
                    task(lambda item: item, task_id="m").expand(item=waiting.output)
            deferred = deferral(waiting.execute, context)
            assert (deferred.trigger.success is None) == (why is not None)
