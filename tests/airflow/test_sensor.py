"""`ZkmqTaskSensor`, executed against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pendulum
import pytest
from airflow.sdk import DAG, Asset, task
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import ConfigError, Message, Zkmq
from airflow_provider_zkmq.engine.fronts import runtime
from airflow_provider_zkmq.hooks import deferring, outcomes
from airflow_provider_zkmq.hooks.telling import size
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger
from tests.airflow.conftest import Heard, define, finish, kill
from tests.support import eventually


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


def test_what_is_told_can_be_stored_by_postgresql(queue, context):
    """A result with a NUL is base64, though it is UTF-8; in an error another character stands for it."""
    ids = [queue.enqueue("a"), queue.enqueue("b")]
    finish(queue, b"\x00\x01 text")
    kill(queue, "bad byte \x00 in \ud800 input")
    done, failed = sensor(task_ids=ids, fail_on="none").execute(context)
    assert (base64.b64decode(done["result_b64"]), done["result"]) == (b"\x00\x01 text", None)
    assert failed["error"] == "bad byte \ufffd in \\ud800 input"
    assert "\\u0000" not in json.dumps([done, failed])


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
    assert kwargs.pop("deferred_at") > 0
    assert kwargs == {
        "task_ids": [task_id],
        "series": None,
        "partial": False,
        "selector": None,
        "min_tasks": 1,
        "since": None,
        "batch": None,
        "event": "completion",
        "log_progress": False,
        "success": None,
        "cancels": None,
        "queue": None,
        "zkmq_conn_id": "zkmq_default",
    }


async def test_deferred_to_the_end(queue, context):
    """The whole way: defer, the trigger rebuilt from its arguments fires, the results are read on the worker."""
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


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"task_ids": "a", "selector": "b==c"},
        {"task_ids": "a", "batch": "b"},
        {"task_ids": "a", "event": "lunch"},
        {"batch": "b", "event": "claim"},
        {"batch": "b", "log_progress": True},
        {"task_ids": "a", "since": "2026-11-22T10:00:00Z"},
        {"batch": "b", "since": "2026-11-22T10:00:00Z"},
    ],
)
def test_contradictions_are_found_when_the_dag_is_parsed(arguments):
    """Wrong arguments fail while the DAG is built."""
    with pytest.raises((ValueError, ConfigError)):
        sensor(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"task_ids": ""},
        {"task_ids": "  "},
        {"task_ids": []},
        {"task_ids": "[]"},
        {"task_ids": [[], ["", ()]]},
        {"selector": " "},
        {"batch": ""},
        {"selector": "all()", "min_tasks": 0},
        {"selector": "all()", "min_tasks": -1},
        {"selector": "all()", "min_tasks": True},
        {"selector": "all()", "min_tasks": "2"},
    ],
)
def test_nothing_to_wait_for_is_found_when_the_dag_is_parsed(arguments):
    """A sensor that would succeed at once is a mistake, told while the DAG is built."""
    with pytest.raises(ValueError, match="there would be nothing to wait for|a whole number, 1 or more"):
        sensor(**arguments)


@pytest.mark.parametrize("rendered", ["", "  ", "[]", [], [[], []]])
@pytest.mark.parametrize("deferrable", [False, True])
def test_nothing_to_wait_for_is_found_after_templating(queue, context, rendered, deferrable):
    """Ids that an XCom leaves blank fail the sensor, which waits for nobody; so they do in mode reschedule."""
    queue.enqueue("a")
    context["ti"].get_first_reschedule_date = lambda _context: None
    for more in ({"deferrable": deferrable}, {"mode": "reschedule"}):
        waiting = sensor(task_ids="{{ ids }}", **more)
        waiting.render_template_fields({"ids": rendered})
        waiting.task_ids = rendered
        with pytest.raises(AirflowException, match="task_ids is blank after templating: there is nothing to wait for"):
            waiting.execute(context)


def test_a_blank_selector_or_batch_after_templating_is_an_error(queue, context):
    """Nothing is not everything: both fail the sensor with what is wrong."""
    for field, told in (("selector", "selector '' is not understood"), ("batch", "batch '' is not allowed")):
        waiting = sensor(**{field: "{{ nothing }}"})
        waiting.render_template_fields({"nothing": ""})
        with pytest.raises(AirflowException, match=told):
            waiting.execute(context)


def test_an_earlier_run_s_tasks_count_unless_left_out(queue, context):
    """What matches and finished in an earlier run ends the wait at once; `since` has the sensor wait for this run's."""
    early = queue.enqueue("early", {"size": 9})
    finish(queue)
    (start,) = [queue.task(early).enqueued_at.add(microseconds=1000)]
    assert sensor(selector="size>5").execute(context)[0]["id"] == early
    waiting = sensor(selector="size>5", since="{{ dag_run.start_date }}", timeout=0.2)
    waiting.render_template_fields({"dag_run": SimpleNamespace(start_date=start)})
    with pytest.raises(AirflowSensorTimeout, match=r"has 0 task\(s\) that match size>5, enqueued since"):
        waiting.execute(context)
    eventually(lambda: pendulum.now("UTC") > start)
    late = queue.enqueue("late", {"size": 9})
    finish(queue)
    for since in (start, start.isoformat(), str(start.in_timezone("Europe/Berlin"))):
        assert [each["id"] for each in sensor(selector="size>5", since=since).execute(context)] == [late]


@pytest.mark.parametrize("since", ["2026-11-22T10:00:00", "None", "", datetime(2026, 1, 1)])  # noqa: DTZ001
def test_since_is_a_moment(queue, context, since):
    """A naive time, or a template that rendered to nothing, is refused with what is missing, deferred or not."""
    queue.enqueue("a", {"size": 9})
    for deferrable in (False, True):
        with pytest.raises(AirflowException, match="since .*(has no zone|is no moment)"):
            sensor(selector="size>5", since=since, deferrable=deferrable).execute(context)


async def test_since_goes_with_the_trigger(queue, context):
    """Deferred, the moment travels as text, and the trigger waits for the tasks that came since then."""
    early = await asyncio.to_thread(queue.enqueue, "early", {"size": 9})
    await asyncio.to_thread(finish, queue)
    start = queue.task(early).enqueued_at.add(microseconds=1000)
    waiting = sensor(selector="size>5", since=start, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        await asyncio.to_thread(waiting.execute, context)
    kwargs = json.loads(json.dumps(deferred.value.trigger.serialize()[1]))
    assert kwargs["since"] == start.isoformat()
    await asyncio.to_thread(eventually, lambda: pendulum.now("UTC") > start)
    trigger = ZkmqTaskTrigger(**kwargs)
    firing = asyncio.create_task(anext(trigger.run()))
    late = await asyncio.to_thread(queue.enqueue, "late", {"size": 9})
    await asyncio.to_thread(finish, queue)
    event = await firing
    assert event.payload == {"status": "done", "ids": [late]}
    told = await asyncio.to_thread(waiting.execute_complete, context, event.payload)
    assert [each["id"] for each in told] == [late]


def batch_of(queue, name, size):
    return queue.enqueue_many([Message(f"{number}") for number in range(size)], batch=name)


def test_a_batch_that_was_opened_again_since_the_trigger_looked_is_waited_for(queue, context):
    """Its failed member was redriven between the trigger's event and the task's going on: it defers again."""
    (task_id,) = batch_of(queue, "b", 1)
    waiting, event = sensor(batch="b", deferrable=True), {"status": "done", "batch": "b"}
    kill(queue, "broken")
    with pytest.raises(AirflowException, match=task_id):
        waiting.execute_complete(context, event)
    queue.redrive(task_id)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute_complete(context, event)
    assert deferred.value.trigger.batch == "b"
    finish(queue)
    assert waiting.execute_complete(context, event) == {"batch": "b", "total": 1, "failed": []}


def test_batch(queue, context):
    """The sensor waits until each member of the batch has ended; what it tells is small, however many there are."""
    batch_of(queue, "b", 3)
    consumer = threading.Thread(target=lambda: [finish(queue) for _ in range(3)])
    consumer.start()
    waiting = sensor(batch="{{ name }}")
    waiting.render_template_fields({"name": "b"})
    assert waiting.execute(context) == {"batch": "b", "total": 3, "failed": []}
    consumer.join()


def test_failed_members_fail_the_sensor(queue, context):
    """Members that ended dead or cancelled are named once the batch is done, the first few of them; soft_fail skips."""
    ids = batch_of(queue, "b", 8)
    kill(queue, "x")
    queue.cancel(ids[7])
    for _ in range(6):
        finish(queue)
    with pytest.raises(AirflowException, match=rf"2 of 8 task\(s\) of batch 'b' .*: {ids[0]}; {ids[7]}$"):
        sensor(batch="b").execute(context)
    with pytest.raises(AirflowSkipException):
        sensor(batch="b", soft_fail=True).execute(context)
    many = batch_of(queue, "many", 7)
    for task_id in many:
        queue.cancel(task_id)
    with pytest.raises(AirflowException, match="and 2 more"):
        sensor(batch="many").execute(context)


def test_mapped_over_batches(queue, context):
    """Each instance of a mapped sensor waits for one batch, as the XComs of a mapped operator name them."""
    with DAG("d", schedule=None):
        mapped = ZkmqTaskSensor.partial(task_id="m", deferrable=False).expand(batch=["a", "b"])
    for count, name in enumerate(["a", "b"], 1):
        batch_of(queue, name, count)
        for _ in range(count):
            finish(queue)
        waiting = mapped.unmap({"batch": name, "task_id": "m", "deferrable": False})
        assert waiting.execute(context)["total"] == count


def test_batch_that_does_not_exist(queue, context):
    """A batch that was never enqueued fails at once rather than at the time-out."""
    with pytest.raises(AirflowException, match="'nothing' is not in queue"):
        sensor(batch="nothing").execute(context)


def test_batch_rescheduled(queue, context):
    """In mode reschedule, the batch is looked at once a poke."""
    batch_of(queue, "b", 1)
    context["ti"].get_first_reschedule_date = lambda _context: None
    waiting = sensor(batch="b", mode="reschedule")
    with pytest.raises(AirflowRescheduleException):
        waiting.execute(context)
    finish(queue)
    assert waiting.execute(context)["total"] == 1


@pytest.mark.parametrize("how", ["finished", "dead"])
async def test_batch_deferred_to_the_end(queue, context, how):
    """The whole way for a batch: defer, fire, resume; a dead member fails the sensor, or skips with soft_fail."""
    (task_id,) = await asyncio.to_thread(batch_of, queue, "b", 1)
    waiting = sensor(batch="b", deferrable=True, outlets=[Asset("done")])
    with pytest.raises(TaskDeferred) as deferred:
        await asyncio.to_thread(waiting.execute, context)
    trigger = ZkmqTaskTrigger(**deferred.value.trigger.serialize()[1])
    await asyncio.to_thread(finish if how == "finished" else kill, queue, "r")
    (event,) = [event.payload async for event in trigger.run()]
    assert event == {"status": "done", "batch": "b"}

    def resumed(task):
        return asyncio.to_thread(task.resume_execution, "execute_complete", {"event": event}, context)

    if how == "finished":
        assert await resumed(waiting) == {"batch": "b", "total": 1, "failed": []}
    else:
        with pytest.raises(AirflowException, match=task_id):
            await resumed(waiting)
        with pytest.raises(AirflowSkipException):
            await resumed(sensor(batch="b", soft_fail=True))


WHY = "task slow is queued: no live consumer is registered"


def test_timeout_tells_why(queue, context):
    """A time-out says of the first task that has not ended why nobody handles it: on the worker or deferred."""
    done = queue.enqueue("a")
    queue.cancel(done)
    queue.enqueue("b", task_id="slow")
    for waiting in (sensor(task_ids=[done, "slow"], timeout=0.1), sensor(selector="all()", min_tasks=2, timeout=0.1)):
        with pytest.raises(AirflowSensorTimeout, match=WHY):
            waiting.execute(context)
    deferred = sensor(task_ids=[done, "slow"], deferrable=True)
    late = {"event": {"status": "timeout", "message": "too late"}}
    with pytest.raises(AirflowSensorTimeout, match=f"too late; {WHY}"):
        deferred.resume_execution("execute_complete", late, context)
    with pytest.raises(AirflowSensorTimeout, match=WHY):
        deferred.resume_execution("__fail__", {"error": "Trigger timeout"}, context)


def test_timeout_of_a_reschedule_tells_why(queue, context):
    """The time-out that Airflow finds between two pokes tells why, too."""
    queue.enqueue("b", task_id="slow")
    context["ti"].get_first_reschedule_date = lambda _context: datetime.now(UTC) - timedelta(hours=1)
    with pytest.raises(AirflowSensorTimeout, match=rf"timed out; .*; {WHY}"):
        sensor(task_ids="slow", mode="reschedule").execute(context)


def test_timeout_names_who_refuses(queue, context):
    """A consumer whose filter keeps it from the task is named with the condition; a batch's member is found."""
    queue.enqueue_many([Message("x", {"size": 1}, task_id="slow")], batch="b")
    queue.claim(selector="size>5", timeout=0.1)
    with pytest.raises(
        AirflowSensorTimeout, match=r"task slow is queued: no live consumer accepts it; .* refuses it: .*size"
    ):
        sensor(batch="b", timeout=0.1).execute(context)


def test_timeout_of_a_claim_tells_of_the_unclaimed(queue, context):
    """Where claims are waited for, the task that is being worked on is not the one to ask about."""
    first, _ = queue.enqueue("a"), queue.enqueue("b", task_id="slow")
    claim = queue.claim()
    assert claim.task.id == first
    with pytest.raises(AirflowSensorTimeout, match="task slow is queued"):
        sensor(task_ids=[first, "slow"], event="claim", timeout=0.1).execute(context)


def test_an_error_does_not_hide_the_timeout(queue, context, monkeypatch):
    """Where the reason cannot be had, the time-out stays what it was."""
    monkeypatch.setattr(type(queue), "explain", lambda *_: 1 / 0)
    queue.enqueue("b", task_id="slow")
    with pytest.raises(AirflowSensorTimeout, match=r"within timeout \([0-9.]+ s\): slow$"):
        sensor(task_ids="slow", timeout=0.1).execute(context)


def test_progress_is_logged(queue, context, monkeypatch):
    """With `log_progress`, what the task's handler reports while the sensor waits is logged once; without, never."""
    task_id = queue.enqueue("a")
    claim = queue.claim()
    claim.progress(0.4, "half way")
    log = Heard()
    monkeypatch.setattr(ZkmqTaskSensor, "log", log)
    sensors = sensor(task_ids=task_id, log_progress=True), sensor(task_ids=task_id)
    threads = [threading.Thread(target=each.execute, args=[context]) for each in sensors]
    for thread in threads:
        thread.start()
    eventually(lambda: log.lines == [f"Task {task_id}: 40 %, half way"])
    claim.progress(0.75)
    eventually(lambda: log.lines[1:] == [f"Task {task_id}: 75 %"])
    claim.complete()
    for thread in threads:
        thread.join()
    assert [line for line in log.lines[2:] if "%" in line] == []


@pytest.mark.parametrize("arguments", [{"task_ids": "a"}, {"batch": "b"}])
def test_a_mistyped_queue_fails_a_sensor_that_names_tasks(queue, context, arguments):
    """At once, with the names that come close, as tasks do that do not exist; the queue is not created."""
    with pytest.raises(AirflowException, match=r"queue 'jbos' does not exist .*did you mean 'jobs'"):
        sensor(zkmq_queue="jbos", **arguments).execute(context)
    with Zkmq.connect(queue._session.config.hosts, queue.root, gc=False) as zk:
        assert zk.queues() == ["jobs"]


def test_a_selector_waits_for_a_queue_that_comes_later(queue, context, caplog, monkeypatch):
    """With one warning that names what comes close; a time-out says that there was no queue."""
    monkeypatch.setattr(runtime, "log", logging.getLogger("waiting"))
    with Zkmq.connect(queue._session.config.hosts, queue.root, gc=False) as zk:
        later = zk.queue("jobs-eu")

        def come() -> None:
            eventually(lambda: "'jobs-eu' does not exist" in caplog.text)
            later.configure()
            later.enqueue("x", task_id="a")
            finish(later, "r")

        coming = threading.Thread(target=come)
        coming.start()
        assert sensor(selector="all()", zkmq_queue="jobs-eu").execute(context)[0]["result"] == "r"
        coming.join()
    assert caplog.text.count("did you mean 'jobs'") == 1
    with pytest.raises(AirflowSensorTimeout, match="'absent' did not come in time"):
        sensor(selector="all()", zkmq_queue="absent", timeout=0.2).execute(context)


def test_soft_fail_keeps_the_reason_of_a_time_out(queue, context):
    """Skipped for want of time, in whichever mode: the skip says what the time-out would have said, and why."""
    queue.enqueue("b", task_id="slow")
    context["ti"].get_first_reschedule_date = lambda _context: datetime.now(UTC) - timedelta(hours=1)
    late = {"event": {"status": "timeout", "message": "too late"}}
    deferred = sensor(task_ids=["slow"], deferrable=True, soft_fail=True)
    calls = [
        lambda: sensor(task_ids="slow", timeout=0.1, soft_fail=True).execute(context),
        lambda: sensor(task_ids="slow", mode="reschedule", soft_fail=True).execute(context),
        lambda: sensor(task_ids="slow", mode="reschedule", never_fail=True).execute(context),
        lambda: deferred.resume_execution("execute_complete", late, context),
        lambda: deferred.resume_execution("__fail__", {"error": "Trigger timeout"}, context),
    ]
    for call in calls:
        with pytest.raises(AirflowSkipException, match=WHY):
            call()
    assert deferred.soft_fail


def test_a_selector_says_which_tasks_count(queue, context, monkeypatch):
    """The log tells since when: without a moment, an earlier run's tasks count as well."""
    queue.enqueue("a", {"size": 9})
    finish(queue)
    log = Heard()
    monkeypatch.setattr(ZkmqTaskSensor, "log", log)
    start = "2026-01-02T03:04:05+00:00"
    for since in (None, start):
        sensor(selector="size>5", since=since).execute(context)
    without, with_moment = [line for line in log.lines if "Waiting" in line]
    assert "at least 1 task(s) that match size>5" in without
    assert "also by an earlier run" in without
    assert f"enqueued since {start}" in with_moment


def test_a_redriven_task_is_waited_for_again(queue, context):
    """It had ended when the trigger looked and is open again: the sensor defers, within the same time."""
    task_id = queue.enqueue("a")
    kill(queue, "broken")
    queue.redrive(task_id)
    waiting, deadline = sensor(task_ids=task_id, deferrable=True), datetime.now(UTC).timestamp() + 100
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute_complete(context, {"status": "done", "ids": [task_id]}, deadline=deadline)
    assert deferred.value.trigger.deadline == deferred.value.kwargs["deadline"] == deadline
    with pytest.raises(AirflowSensorTimeout, match=task_id):
        waiting.execute_complete(context, {"status": "done", "ids": [task_id]}, deadline=deadline - 200)


def test_many_ids_are_waited_for_in_rounds(queue, context, monkeypatch):
    """The trigger is given those that fit and have not ended; then the sensor looks at all, and tells of all."""
    monkeypatch.setattr(deferring, "EVENT_BYTES", 20)
    monkeypatch.setattr(deferring, "ARGUMENT_BYTES", 20)
    ids = [queue.enqueue("x", task_id=f"own-{at}") for at in range(5)]
    finish(queue)
    waiting, given = sensor(task_ids=ids, deferrable=True), []
    call, kwargs = waiting.execute, {}
    for _ in range(2):
        with pytest.raises(TaskDeferred) as deferred:
            call(context, **kwargs)
        given.append((deferred.value.trigger.task_ids, deferred.value.trigger.partial))
        finish(queue)
        finish(queue)
        call, kwargs = waiting.execute_complete, {"event": {"status": "done", "count": 2}, **deferred.value.kwargs}
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
    with pytest.raises(TaskDeferred):
        sensor(selector="size>5", min_tasks=4, deferrable=True).execute_complete(context, event)


def test_a_sensor_outlives_zookeeper_being_away(tmp_path, context, monkeypatch):
    """At its first look, on resume, at a poke and on the worker: it waits on, and succeeds when ZooKeeper is back."""
    context["ti"].get_first_reschedule_date = lambda _context: None
    with EmbeddedServer(tmp_path, force_sync=False) as server:
        define(monkeypatch, host=server.hosts, extra={"connect_timeout": 0.5, "request_timeout": 1})
        with Zkmq.connect(server.hosts, gc=False, connect_timeout=30) as zk:
            task_id = zk.queue("queue").enqueue("a")
            finish(zk.queue("queue"), "r")
        server.kill(0)
        deferrable = sensor(task_ids=task_id, deferrable=True)
        for call, arguments in (
            (deferrable.execute, ()),
            (deferrable.execute_complete, ({"status": "done", "ids": [task_id]},)),
        ):
            with pytest.raises(TaskDeferred):
                call(context, *arguments)
        with pytest.raises(AirflowRescheduleException):
            sensor(task_ids=task_id, mode="reschedule").execute(context)
        with pytest.raises(AirflowSensorTimeout):
            sensor(task_ids=task_id, timeout=0.1).execute(context)
        log, told = Warned(), []
        monkeypatch.setattr(ZkmqTaskSensor, "log", log)
        waiting = threading.Thread(target=lambda: told.extend(sensor(task_ids=task_id).execute(context)))
        waiting.start()
        eventually(lambda: log.warnings)
        server.restart(0)
        waiting.join(60)
    assert [each["result"] for each in told] == ["r"]
    assert len([line for line in log.warnings if "Waiting goes on" in line]) == 1


def test_a_large_xcom_is_references(queue, context):
    """Beyond its bytes it has the states' numbers and the ids that fit, by which the results are read."""
    ids = [queue.enqueue("x") for _ in range(50)]
    for _ in ids:
        finish(queue, "r" * 1000)
    whole = sensor(task_ids=ids).execute(context)
    assert (whole["count"], size(whole) <= 48_000) == (50, True)
    told = sensor(task_ids=ids, max_xcom_bytes=10_000).execute(context)
    assert (told["queue"], told["count"], told["states"], told["ids"], told["more"]) == (
        "jobs",
        50,
        {"finished": 50},
        ids,
        0,
    )
    assert told["read"] == "ZkmqHook().queue('jobs').read_many(ids)"
    assert [task.result for task in queue.read_many(told["ids"])] == [b"r" * 1000] * 50
    cut = sensor(task_ids=ids, max_xcom_bytes=2_000).execute(context)
    assert (len(cut["ids"]) + cut["more"], cut["ids"]) == (50, ids[: len(cut["ids"])])
    assert 1 <= len(cut["ids"]) < 50
    assert size(cut) <= 2_000


def test_without_results(queue, context):
    """Ids and states alone, bounded as well."""
    ids = [queue.enqueue("x") for _ in range(3)]
    for _ in ids:
        finish(queue, "r" * 1000)
    told = sensor(task_ids=ids, results=False).execute(context)
    assert told == [{"id": task_id, "state": "finished"} for task_id in ids]


def test_failures_that_do_not_fail_the_sensor(queue, context):
    """With ``fail_on="none"`` the XCom tells which tasks are dead; each is an error line that says what to type."""
    ids = [queue.enqueue("x"), queue.enqueue("y")]
    kill(queue, "boom")
    finish(queue)
    waiting, log = sensor(task_ids=ids, fail_on="none"), Heard()
    waiting._cached_logger = log
    assert {(each["state"], each["error"]) for each in waiting.execute(context)} == {
        ("dead", "boom"),
        ("finished", None),
    }
    (line,) = [line for line in log.lines if line.startswith("ERROR")]
    dead = next(task.id for task in queue.tasks(state="dead"))
    assert line == (f"ERROR Task {dead} of queue 'jobs' is dead after 1 attempt(s): boom; see: zkmq show jobs {dead}")
    batch_of(queue, "b", 2)
    kill(queue, "boom")
    finish(queue)
    told = sensor(batch="b", fail_on="none").execute(context)
    assert (told["total"], len(told["failed"])) == (2, 1)


@pytest.mark.parametrize("batch", [None, "b"])
def test_the_log_says_how_many_failed_beyond_those_that_have_a_line(queue, context, monkeypatch, batch):
    """Of tasks and of a batch's members alike: each that is not named is counted."""
    monkeypatch.setattr(outcomes, "_LINES", 2)
    ids = queue.enqueue_many([Message("x") for _ in range(5)], batch=batch)
    for _ in ids[1:]:
        kill(queue, "boom")
    finish(queue)
    wanted = {"task_ids": ids} if batch is None else {"batch": batch}
    waiting, log = sensor(**wanted, fail_on="none"), Heard()
    waiting._cached_logger = log
    waiting.execute(context)
    *lines, last = [line for line in log.lines if line.startswith("ERROR")]
    assert [line.split()[1] for line in lines] == ["Task", "Task"]
    assert last.startswith("ERROR 2 more task(s) of ")
    assert "'jobs'" in last


@pytest.mark.parametrize("arguments", [{"fail_on": "all"}, {"max_xcom_bytes": 999}, {"max_xcom_bytes": "many"}])
def test_what_is_to_be_told_is_checked_when_the_dag_is_parsed(arguments):
    """Values that are not known."""
    with pytest.raises(ValueError, match=r"not (known|allowed)"):
        sensor(task_ids="x", **arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"batch": "b"}, {"batch": "b", "total": 2, "failed": []}),
        ({"task_ids": "IDS", "results": False}, "STATES"),
        ({"selector": "all()", "min_tasks": 2, "results": False}, "STATES"),
        ({"batch": "b", "do_xcom_push": False}, None),
    ],
)
async def test_the_triggerer_ends_what_needs_no_worker(queue, context, pushed, arguments, told):
    """A batch, or tasks without results: the trigger's event is Airflow's own for a success, with the sensor's XCom."""
    ids = await asyncio.to_thread(batch_of, queue, "b", 2)
    waiting = sensor(**{**arguments, **({"task_ids": ids} if "task_ids" in arguments else {})}, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        await asyncio.to_thread(waiting.execute, context)
    kwargs = json.loads(json.dumps(deferred.value.trigger.serialize()[1]))
    await asyncio.to_thread(lambda: [finish(queue, "r") for _ in ids])
    (event,) = [event async for event in ZkmqTaskTrigger(**kwargs).run()]
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


async def test_an_xcom_that_cannot_be_written_is_left_to_a_worker(queue, context, monkeypatch):
    """What the triggerer cannot do ends nothing."""

    async def refuse(**_):
        raise OSError("no API server")

    monkeypatch.setattr(XCom, "aset", refuse)
    await asyncio.to_thread(batch_of, queue, "b", 1)
    with pytest.raises(TaskDeferred) as deferred:
        await asyncio.to_thread(sensor(batch="b", deferrable=True).execute, context)
    await asyncio.to_thread(finish, queue)
    (event,) = [event async for event in deferred.value.trigger.run()]
    assert event.payload == {"status": "done", "batch": "b"}


async def test_the_triggerer_ends_no_failure(queue, context):
    """A worker fails it, by the sensor's own rules; so it does what would be a large event."""
    (task_id,) = await asyncio.to_thread(batch_of, queue, "b", 1)
    waiting = sensor(batch="b", deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        await asyncio.to_thread(waiting.execute, context)
    await asyncio.to_thread(kill, queue, "boom")
    (event,) = [event async for event in ZkmqTaskTrigger(**deferred.value.trigger.serialize()[1]).run()]
    assert event.payload == {"status": "done", "batch": "b"}
    with pytest.raises(AirflowException, match=task_id):
        await asyncio.to_thread(waiting.execute_complete, context, event.payload)


class Subclass(ZkmqTaskSensor):
    """A sensor that does something more when it has succeeded."""

    def post_execute(self, context, result=None):
        """Do it."""


@pytest.mark.parametrize("why", ["outlets", "callback", "backend", "results", "mapped", "several", "subclass", None])
def test_what_only_a_worker_can_do_is_left_to_it(queue, context, monkeypatch, why):
    """Asset events, callbacks, an XCom back end of one's own, results, and the length that others are mapped over.

    So is an XCom that is split into several, and what a subclass does.
    """
    queue.enqueue("x", task_id="a")
    if why == "backend":
        monkeypatch.setenv("AIRFLOW__CORE__XCOM_BACKEND", "mine.XCom")
    with DAG("d", schedule=None):
        waiting = sensor(
            task_ids="a", deferrable=True, results=why == "results", outlets=[Asset("x")] if why == "outlets" else []
        )
        waiting.__class__ = Subclass if why == "subclass" else ZkmqTaskSensor
        waiting.multiple_outputs = why == "several"
        waiting.on_success_callback = [print] if why == "callback" else []
        if why == "mapped":
            task(lambda item: item, task_id="m").expand(item=waiting.output)
    context["ti"].map_index = -1
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(context)
    assert (deferred.value.trigger.success is None) == (why is not None)


class Warned(Heard):
    """Keeps what it was warned of."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []

    def warning(self, text: str, *values: object) -> None:
        """Keep it."""
        self.warnings.append(text % values)
