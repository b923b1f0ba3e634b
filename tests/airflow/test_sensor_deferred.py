"""`ZkmqTaskSensor` deferred: what its trigger is given, who ends it, and what happens between the two of them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

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
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from tests.airflow.conftest import Heard, deferral, define, finish, fired, kill
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


def test_what_was_redriven_since_the_trigger_looked_is_waited_for(queue, context):
    """A task, or a batch's member, had ended and is open again: the sensor defers again, within the same time."""
    deadline = datetime.now(UTC).timestamp() + 100
    for batch in (None, "b"):
        (task_id,) = batch_of(queue, batch, 1)
        event = {"status": "done", **({"batch": batch} if batch else {"ids": [task_id]})}
        waiting = sensor(**({"batch": batch} if batch else {"task_ids": task_id}), deferrable=True)
        kill(queue, "broken")
        with pytest.raises(AirflowException, match=task_id):
            waiting.execute_complete(context, event, deadline=deadline)
        queue.redrive(task_id)
        deferred = deferral(waiting.execute_complete, context, event, deadline=deadline)
        assert deferred.trigger.batch == batch
        assert deferred.trigger.deadline == deferred.kwargs["deadline"] == deadline
        if batch is None:
            with pytest.raises(AirflowSensorTimeout, match=task_id):
                waiting.execute_complete(context, event, deadline=deadline - 200)
        finish(queue)
        told = waiting.execute_complete(context, event)
        assert told == {"batch": batch, "total": 1, "failed": []} if batch else told[0]["state"] == "finished"


def test_many_ids_are_waited_for_in_rounds(queue, context, monkeypatch):
    """The trigger is given those that fit and have not ended; then the sensor looks at all, and tells of all."""
    monkeypatch.setattr(deferring, "EVENT_BYTES", 20)
    monkeypatch.setattr(deferring, "ARGUMENT_BYTES", 20)
    ids = [queue.enqueue("x", task_id=f"own-{at}") for at in range(5)]
    finish(queue)
    waiting, given = sensor(task_ids=ids, deferrable=True), []
    call, kwargs = waiting.execute, {}
    for _ in range(2):
        deferred = deferral(call, context, **kwargs)
        given.append((deferred.trigger.task_ids, deferred.trigger.partial))
        finish(queue)
        finish(queue)
        call, kwargs = waiting.execute_complete, {"event": {"status": "done", "count": 2}, **deferred.kwargs}
    assert given == [(["own-1", "own-2"], True), (["own-3", "own-4"], True)]
    assert [told["id"] for told in call(context, **kwargs)] == ids


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
