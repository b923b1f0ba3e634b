"""Deferred waits of sensors and operators: what is stored for a trigger, who ends the wait, what happens in between."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from unittest.mock import AsyncMock

import pytest
from airflow.models.crypto import get_fernet
from airflow.models.trigger import Trigger
from airflow.sdk import DAG, Asset, task
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, AirflowSkipException
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import TaskSuccessEvent
from cryptography.fernet import Fernet

from airflow_provider_zkmq.engine import Message
from airflow_provider_zkmq.hooks import compact_task_ids, deferring
from airflow_provider_zkmq.hooks.compact_task_ids import ARGUMENT_BYTES, awaited_ids, first_within, fits, series_ids
from airflow_provider_zkmq.hooks.deferring import deferral_limit, hold_back
from airflow_provider_zkmq.hooks.task_instance import origin_of
from airflow_provider_zkmq.operators.enqueuing import series_key
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger
from tests.airflow.conftest import Heard, batch_of, deferral, enqueuing, finish, fire, fired, kill, sensor

#: MySQL's column for the encrypted arguments holds so many bytes.
COLUMN = 65_535
MANY = 10_000


@pytest.fixture
def encrypting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Airflow has a key to encrypt with."""
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
    get_fernet.cache_clear()
    assert get_fernet().is_encrypted
    yield
    get_fernet.cache_clear()


def test_stored_arguments_are_bounded(encrypting, subtests):
    """With 10 000 tasks the arguments, serialised and encrypted as Airflow stores them, fit into MySQL's column."""
    for name, ids in (
        ("series", series_ids("0" * 32, MANY)),
        ("generated", [f"{number:016x}-{number:08x}" for number in range(MANY)]),
        ("longest", ["x" * 115 + f"{number:06d}" for number in range(MANY)]),
    ):
        with subtests.test(ids=name):
            awaited = awaited_ids(ids, "0" * 32)
            trigger = ZkmqTaskTrigger(**awaited, queue="q" * 121, deadline=time.time(), deferred_at=time.time())
            _, kwargs = trigger.serialize()
            stored = Trigger.encrypt_kwargs(kwargs)
            assert len(stored) < COLUMN
            assert "task_ids" not in stored
            assert Trigger._decrypt_kwargs(stored) == kwargs


def test_a_deferred_wait_tells_what_it_waits_for(queue, context, monkeypatch):
    """Queue and number of the open tasks, with what to type; and at once if no live consumer accepts the first."""
    monkeypatch.setattr(ZkmqTaskSensor, "log", log := Heard())
    ids = queue.enqueue_many([Message("x"), Message("y")])
    deferral(sensor(task_ids=ids, deferrable=True).execute, context)
    see = f"see: airflow zkmq --conn-id zkmq_default show jobs {ids[0]} --why"
    assert log.lines == [f"Waiting for 2 open task(s) of queue 'jobs'; the first is {ids[0]}; {see}"]
    assert log.warnings[-1:] == [f"No live consumer of queue 'jobs' accepts task {ids[0]}: none is registered"]


def test_of_many_ids_as_many_as_fit_are_waited_for_first():
    """At most the room that there is, one at least, and those that have not ended; few take it all."""
    ids = series_ids("k", 5)
    assert [first_within(ids, room) for room in (0, 12, 24, 1000)] == [ids[:1], ids[:1], ids[:2], ids]
    assert len(json.dumps(first_within(series_ids("k" * 32, MANY), ARGUMENT_BYTES))) <= ARGUMENT_BYTES
    assert (fits(ids, 60), fits(ids, 59)) == (True, False)
    many = [f"{number:0100d}" for number in range(MANY)]
    awaited = awaited_ids(many, None, many[500:])
    assert (awaited["partial"], awaited["task_ids"][0]) == (True, many[500])
    assert awaited_ids(many[:3], None) == {"task_ids": many[:3]}


def test_an_event_is_held_back_for_seconds_and_airflow_waits_longer(monkeypatch):
    """Until some seconds after the deferral, whatever the worker's clock says; Airflow's time-out would forget it."""
    monkeypatch.setattr(deferring, "HELD_BACK", 6.0)
    said = [hold_back(deferred_at, 100.0) for deferred_at in (None, 99.0, 94.0, 10.0, 100.0, 5000.0)]
    assert said == [0.0, 5.0, 0.0, 0.0, 6.0, 6.0]
    assert deferral_limit(None) is None
    now = time.time()
    assert deferral_limit(now + 1).total_seconds() == 10
    assert 300 <= deferral_limit(now + 300).total_seconds() <= 301


async def test_the_trigger_holds_its_event_back(monkeypatch):
    """What has happened already is told only when the deferral's process has surely ended."""
    pause, done = AsyncMock(), {"status": "done", "ids": ["a"]}
    monkeypatch.setattr(deferring, "HELD_BACK", 6.0)
    monkeypatch.setattr("airflow_provider_zkmq.triggers.zkmq.asyncio.sleep", pause)
    monkeypatch.setattr(ZkmqTaskTrigger, "_outcome", AsyncMock(return_value=done))
    assert await fire(ZkmqTaskTrigger(task_ids=["a"], deferred_at=time.time())) == [done]
    [seconds] = pause.await_args.args
    assert (pause.await_count, 0 < seconds <= 6) == (1, True)


def test_deferral_carries_the_timeout_and_no_secret(queue, context):
    """The deferral is bounded by the sensor's time, and by a shorter execution_timeout; the trigger is plain JSON."""
    task_id, longest = queue.enqueue("a"), timedelta(seconds=300)
    waiting = sensor(task_ids=[task_id], deferrable=True, timeout=600, execution_timeout=longest)
    deferred = deferral(waiting.execute, context)
    assert deferred.timeout is not None
    assert timedelta(seconds=200) < deferred.timeout <= longest
    _, kwargs = deferred.trigger.serialize()
    assert kwargs.pop("deadline") > kwargs.pop("deferred_at") > 0
    assert {name: value for name, value in kwargs.items() if value} == {
        "task_ids": [task_id], "min_tasks": 1, "event": "completion", "stop_at_failure": True,
        "zkmq_conn_id": "zkmq_default",
    }  # fmt: skip


def test_the_first_dead_task_ends_a_deferred_wait(queue, context):
    """Of those of an operator, of ids, and of those that a selector accepts: it is named while the others are open."""
    messages = [{"data": "x", "task_id": name, "filters": {"size": 9}} for name in "ab"]
    for waiting in (
        enqueuing(messages=messages, wait_for_completion=True, deferrable=True),
        sensor(task_ids=["a", "b"], deferrable=True),
        sensor(selector="size>5", min_tasks=2, deferrable=True),
    ):
        deferred = deferral(waiting.execute, context)
        dead = kill(queue, "boom")
        with pytest.raises(AirflowException, match=rf"^1 task\(s\) of queue 'jobs' failed: {dead} is dead \(boom\)$"):
            waiting.execute_complete(context, fired(deferred.trigger).payload, **deferred.kwargs)
        queue.redrive(dead)


def test_a_time_out_and_an_error_of_the_trigger_become_airflow_s(context):
    """Of a sensor, which skips for a time-out with soft_fail, and of an operator."""
    for waiting, status, error in (
        (sensor(task_ids="x"), "timeout", AirflowSensorTimeout),
        (sensor(task_ids="x", soft_fail=True), "timeout", AirflowSkipException),
        (sensor(task_ids="x"), "error", AirflowException),
        (enqueuing(data="x"), "timeout", AirflowException),
    ):
        with pytest.raises(error, match="gone"):
            waiting.execute_complete(context, {"status": status, "message": "gone"})


def test_the_whole_way(queue, context, subtests):
    """Defer, fire, resume: the dead fail, or skip, who waits; redriven since, they are waited for in the same time."""
    deadline = time.time() + 100
    for kind, name, outlets, end in (
        (sensor, None, [], finish),
        (sensor, None, [], kill),
        (sensor, "ready", [Asset("done")], finish),
        (sensor, "bad", [Asset("done")], kill),
        (sensor, "left-to-a-worker", [], kill),
        (enqueuing, None, [], kill),
        (enqueuing, "enqueued", [], kill),
    ):
        with subtests.test(kind=kind, batch=name, end=end):
            if kind is sensor:
                wanted = {"batch": name} if name else {"task_ids": batch_of(queue, None, 1)}
                _ = name and batch_of(queue, name, 1)
            else:
                wanted = {"messages": ["a"], "batch": name, "wait_for_completion": True}
            waiting = kind(**wanted, deferrable=True, outlets=outlets)
            trigger = deferral(waiting.execute, context).trigger
            task_id = end(queue, "boom")
            event = fired(trigger).payload
            assert event == {"status": "done", **({"batch": name} if name else {"ids": [task_id]})}
            resumed = ("execute_complete", {"event": event, "deadline": deadline}, context)
            if end is kill:
                with pytest.raises(AirflowException, match=task_id if name else f"{task_id} .*boom"):
                    waiting.resume_execution(*resumed)
                if kind is sensor:
                    with pytest.raises(AirflowSkipException):
                        sensor(**wanted, soft_fail=True).resume_execution(*resumed)
                queue.redrive(task_id)
                deferred = deferral(waiting.resume_execution, *resumed)
                assert (deferred.trigger.batch, deferred.trigger.task_ids) == (name, None if name else [task_id])
                assert deferred.trigger.deadline == deferred.kwargs["deadline"] == deadline
                if kind is sensor and name is None:
                    with pytest.raises(AirflowSensorTimeout, match=task_id):
                        waiting.execute_complete(context, event, deadline=deadline - 200)
                finish(queue, "boom")
            said = waiting.resume_execution(*resumed)
            if kind is enqueuing:
                assert said == (name or [task_id])
            else:
                assert said == {"batch": name, "total": 1, "failed": []} if name else said[0]["result"] == "boom"


def test_many_ids_are_waited_for_in_rounds(queue, context, monkeypatch):
    """The trigger is given those that fit and have not ended; then who waits looks at all, within the same time."""
    monkeypatch.setattr(compact_task_ids, "EVENT_BYTES", 20)
    monkeypatch.setattr(compact_task_ids, "ARGUMENT_BYTES", 20)
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
    said = sensor(task_ids=ids, deferrable=True).execute_complete(context, event, **by_sensor.kwargs)
    assert [each["id"] for each in said] == ids


def test_a_series_is_deferred_in_little_room(queue, context, monkeypatch):
    """Many tasks go by their key and number; the event names none, and the Airflow task knows them all the same."""
    monkeypatch.setattr(compact_task_ids, "EVENT_BYTES", 100)
    operator = enqueuing(messages=["x"] * 20, wait_for_completion=True, deferrable=True)
    deferred = deferral(operator.execute, context)
    kwargs = deferred.trigger.serialize()[1]
    assert (kwargs["series"], kwargs["task_ids"]) == (
        [series_key("run", origin_of(context), queue.name), 20],
        None,
    )
    done = [finish(queue) for _ in range(20)]
    event = fired(deferred.trigger).payload
    assert event == {"status": "done", "count": 20}
    assert sorted(operator.execute_complete(context, event, **deferred.kwargs)) == sorted(done)


def test_many_that_match_are_found_again(queue, context):
    """An event that names none: the sensor tells of the tasks that match and have ended, not of those come since."""
    done = [queue.enqueue("x", {"size": 9}) for _ in range(3)]
    assert {finish(queue) for _ in done} == {*done}
    queue.enqueue("late", {"size": 9})
    event = {"status": "done", "count": 3}
    said = sensor(selector="size>5", deferrable=True).execute_complete(context, event)
    assert {each["id"] for each in said} == {*done}
    deferral(sensor(selector="size>5", min_tasks=4, deferrable=True).execute_complete, context, event)


STATES = [{"id": f"b.00000{at}", "state": "finished"} for at in range(2)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch": "b"}, [{"batch": "b", "total": 2, "failed": []}]),
        ({"task_ids": [each["id"] for each in STATES], "results": False}, [STATES]),
        ({"selector": "all()", "min_tasks": 2, "results": False}, [STATES]),
        ({"batch": "b", "do_xcom_push": False}, []),
        *((each, None) for each in ({"messages": ["a", "b"]}, {"messages": ["a", "b"], "batch": "b"}, {"data": "x"})),
    ],
)
def test_the_triggerer_ends_what_needs_no_worker(queue, context, pushed, arguments, said):
    """A batch, tasks without results, an enqueue: the event is Airflow's own for a success, with the XCom pushed."""
    if said is None:
        waiting = enqueuing(**arguments, wait_for_completion=True, deferrable=True)
    else:
        batch_of(queue, "b", 2)
        waiting = sensor(**arguments, deferrable=True)
    trigger = deferral(waiting.execute, context).trigger
    for _ in range(queue.counts()["inserted"]):
        finish(queue, "r")
    event = fired(trigger)
    assert (type(event), event.xcoms) == (TaskSuccessEvent, None)
    values = [each.pop("value") for each in pushed]
    if "selector" in arguments:
        values[0].sort(key=lambda each: each["id"])
    assert values == ([waiting.execute(context)] if said is None else said)
    of = {"key": "return_value", "dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 3}
    assert pushed == [of] * len(values)


def test_an_xcom_that_cannot_be_written_is_left_to_a_worker(queue, context, monkeypatch):
    """What the triggerer cannot do ends nothing."""
    monkeypatch.setattr(XCom, "aset", AsyncMock(side_effect=OSError("no API server")))
    batch_of(queue, "b", 1)
    trigger = deferral(sensor(batch="b", deferrable=True).execute, context).trigger
    finish(queue)
    assert fired(trigger).payload == {"status": "done", "batch": "b"}


class Subclass(ZkmqTaskSensor):
    """A sensor that does something more when it has succeeded."""

    def post_execute(self, context, result=None):
        """Do it."""


def test_what_only_a_worker_can_do_is_left_to_it(queue, context, subtests):
    """Asset events, callbacks, a subclass, and XComs that are results, split, mapped over or kept elsewhere."""
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
