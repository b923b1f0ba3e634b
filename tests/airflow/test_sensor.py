"""`ZkmqTaskSensor` on the worker: what it waits for, what it tells, and how it fails, with a real ZooKeeper."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pendulum
import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from airflow_provider_zkmq.engine import ConfigError, Message, Zkmq
from airflow_provider_zkmq.hooks import outcome_logs
from airflow_provider_zkmq.hooks.xcom_results import size
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from tests.airflow.conftest import Heard, batch_of, deferral, finish, fired, kill, sensor
from tests.support import eventually


def test_what_is_told_can_be_stored_by_postgresql(queue, context):
    """Outcomes, not deferred, in the order of the ids: no text, and a NUL, is base64, in an error it is replaced."""
    ids = [queue.enqueue(name) for name in "abcde"]
    for result in ("text", b"\xff\x00", b"\x00\x01 text", None):
        finish(queue, result)
    kill(queue, "bad byte \x00 in \ud800 input")
    for deferrable in (False, True):
        said = sensor(task_ids=[ids], fail_on="none", deferrable=deferrable).execute(context)
        assert [each["id"] for each in said] == ids
        assert said[0] == {"id": ids[0], "state": "finished", "attempt": 1, "error": None, "result": "text"}
        assert [base64.b64decode(each["result_b64"]) for each in said[1:3]] == [
            b"\xff\x00",
            b"\x00\x01 text",
        ]
        assert (said[2]["result"], said[3]["result"] or None) == (None, None)
        assert said[4]["error"] == "bad byte \ufffd in \\ud800 input"
        assert "\\u0000" not in json.dumps(said)
    said = sensor(task_ids=ids[:4], results=False).execute(context)
    assert said == [{"id": task_id, "state": "finished"} for task_id in ids[:4]]


def test_it_waits_on_the_worker(queue, context):
    """The sensor goes on when another has completed its task, or each member of its batch."""
    task_id = queue.enqueue("a")
    batch_of(queue, "b", 3)
    waiting = sensor(batch="{{ name }}")
    waiting.render_template_fields({"name": "b"})
    with ThreadPoolExecutor(1) as consumer:
        consumer.submit(lambda: [finish(queue, "done") for _ in range(4)])
        assert sensor(task_ids=task_id).execute(context)[0]["result"] == "done"
        assert waiting.execute(context) == {"batch": "b", "total": 3, "failed": []}


def test_in_mode_reschedule_it_looks_once_a_poke(queue, context):
    """Each look gives the worker's slot back, and the outcomes come when they are there, of tasks and of a batch."""
    context["ti"].get_first_reschedule_date = lambda _context: None
    [task_id] = batch_of(queue, "b", 1)
    for wanted in ({"task_ids": task_id}, {"batch": "b"}):
        with pytest.raises(AirflowRescheduleException):
            sensor(**wanted, mode="reschedule").execute(context)
    finish(queue, "r")
    assert sensor(task_ids=task_id, mode="reschedule").execute(context)[0]["result"] == "r"
    assert sensor(batch="b", mode="reschedule").execute(context)["total"] == 1


def test_a_claim_is_enough_where_asked(queue, context):
    """The wait for a claim ends while the task is worked on; one given back since the trigger saw it counts."""
    task_id = queue.enqueue("a")
    claim, waiting = queue.claim(), sensor(task_ids=task_id, event="claim")
    assert waiting.execute(context)[0]["state"] == "claimed"
    claim.release()
    assert waiting.execute_complete(context, {"status": "done", "ids": [task_id]})[0]["state"] == "inserted"


def test_an_earlier_run_s_tasks_count_unless_left_out(queue, context, monkeypatch):
    """What finished in an earlier run ends the wait, as the log tells; `since` leaves it out, also deferred."""
    monkeypatch.setattr(ZkmqTaskSensor, "log", log := Heard())
    queue.enqueue("small", {"size": 1}, priority=-1)
    early = queue.enqueue("early", {"size": 9})
    assert finish(queue, "r") == early
    for since in (None, "2026-01-02T03:04:05+00:00"):
        [said] = sensor(selector="size>5", since=since).execute(context)
        assert (said["id"], said["result"]) == (early, "r")
    without, with_moment = [line for line in log.lines if "Waiting" in line]
    assert "at least 1 task(s) that match size>5" in without
    assert "also by an earlier run" in without
    assert "enqueued since 2026-01-02T03:04:05+00:00" in with_moment
    start = queue.task(early).enqueued_at.add(microseconds=1000)
    waiting = sensor(selector="size>5", since="{{ dag_run.start_date }}", timeout=0.2)
    waiting.render_template_fields({"dag_run": SimpleNamespace(start_date=start)})
    for short in (waiting, sensor(selector="size>5", min_tasks=2, timeout=0.2)):
        with pytest.raises(AirflowSensorTimeout, match=r"has [01] task\(s\) that match size>5") as late:
            short.execute(context)
        assert ("has 0 task(s) that match size>5, enqueued since" in str(late.value)) == (short is waiting)
    deferred = sensor(selector="size>5", since=start, deferrable=True)
    trigger = deferral(deferred.execute, context).trigger
    assert trigger.serialize()[1]["since"] == start.isoformat()
    eventually(lambda: pendulum.now("UTC") > start)
    late = queue.enqueue("late", {"size": 9})
    finish(queue)
    for since in (start, start.isoformat(), str(start.in_timezone("Europe/Berlin"))):
        assert [each["id"] for each in sensor(selector="size>5", since=since).execute(context)] == [late]
    event = fired(trigger).payload
    assert event == {"status": "done", "ids": [late]}
    assert [each["id"] for each in deferred.execute_complete(context, event)] == [late]


def test_what_failed_fails_the_sensor(queue, context, subtests):
    """Tasks that are dead or cancelled are named at once, with errors; of a batch at its end; soft_fail skips."""
    for task_id in ("bad", "gone"):
        queue.enqueue("a", task_id=task_id)
    queue.enqueue("a", {"size": 1}, task_id="open", priority=-1)
    queue.cancel("gone")
    kill(queue, "disk full")
    ids = batch_of(queue, "b", 8)
    kill(queue, "x")
    for task_id in (ids[7], *batch_of(queue, "many", 7)):
        queue.cancel(task_id)
    for _ in range(6):
        finish(queue)
    for arguments, said in (
        ({"task_ids": "bad"}, "bad is dead .*disk full"),
        ({"task_ids": ["open", "gone"]}, "^1 task.* gone is cancelled$"),
        ({"batch": "b"}, rf"2 of 8 task\(s\) of batch 'b' .*: {ids[0]}; {ids[7]}$"),
        ({"batch": "many"}, "and 2 more"),
    ):
        with subtests.test(arguments=arguments):
            with pytest.raises(AirflowException, match=said):
                sensor(**arguments).execute(context)
            with pytest.raises(AirflowSkipException):
                sensor(**arguments, soft_fail=True).execute(context)


@pytest.mark.parametrize("batch", [None, "b"])
def test_failures_that_do_not_fail_the_sensor(queue, context, monkeypatch, batch):
    """With ``fail_on="none"`` the XCom tells of them; the log has lines on the first, and counts the others."""
    monkeypatch.setattr(outcome_logs, "_LINES", 2)
    ids = queue.enqueue_many([Message("x") for _ in range(5)], batch=batch)
    failed = {kill(queue, "boom") for _ in ids[1:]}
    finish(queue)
    waiting = sensor(**({"batch": batch} if batch else {"task_ids": ids}), fail_on="none")
    waiting._cached_logger = log = Heard()
    said = waiting.execute(context)
    if batch:
        assert (said["total"], len(said["failed"])) == (5, 4)
    else:
        assert {(each["state"], each["error"]) for each in said} == {("dead", "boom"), ("finished", None)}
    *lines, last = [line for line in log.lines if line.startswith("ERROR")]
    what, why = ("Dead or cancelled", "") if batch else ("Dead after 1 attempt(s)", ": boom")
    named = [task_id for task_id in ids if task_id in failed][:2]
    see = "see: airflow zkmq --conn-id zkmq_default show jobs"
    assert lines == [f"ERROR {what}: task {each} of queue 'jobs'{why}; {see} {each}" for each in named]
    assert re.match(r"ERROR 2 more task\(s\) of .*'jobs'", last)


def test_what_is_not_there_fails_at_once(queue, context, subtests):
    """Tasks and batches that were never enqueued; of a queue, what comes close is named, and none is created."""
    for arguments, said in (
        ({"task_ids": "nobody"}, "nobody"),
        ({"batch": "nothing"}, "'nothing' is not in queue"),
        ({"task_ids": "a", "zkmq_queue": "jbos"}, r"queue 'jbos' does not exist .*did you mean 'jobs'"),
        ({"batch": "b", "zkmq_queue": "jbos"}, r"queue 'jbos' does not exist .*did you mean 'jobs'"),
    ):
        with subtests.test(arguments=arguments), pytest.raises(AirflowException, match=said):
            sensor(**arguments).execute(context)
    with Zkmq.connect(queue._session.config.hosts, queue.root, gc=False) as zk:
        assert zk.queues() == ["jobs"]


def test_contradictions_and_nothing_to_wait_for_are_found_when_the_dag_is_parsed(subtests):
    """Wrong arguments, and a sensor that would succeed at once, fail while the DAG is built."""
    nothing, values = "there would be nothing to wait for|a whole number, 1 or more", r"not (known|allowed)"
    moment = {"since": "2026-11-22T10:00:00Z"}
    for arguments, said in (
        ({}, None),
        ({"task_ids": "a", "selector": "b==c"}, None),
        ({"task_ids": "a", "batch": "b"}, None),
        ({"task_ids": "a", "event": "lunch"}, None),
        ({"batch": "b", "event": "claim"}, None),
        ({"batch": "b", "log_progress": True}, None),
        *((wanted | moment, None) for wanted in ({"task_ids": "a"}, {"batch": "b"})),
        *(({"task_ids": blank}, nothing) for blank in ("", "  ", [], "[]", [[], ["", ()]])),
        ({"selector": " "}, nothing),
        ({"batch": ""}, nothing),
        *(({"selector": "all()", "min_tasks": none}, nothing) for none in (0, -1, True, "2")),
        ({"task_ids": "x", "fail_on": "all"}, values),
        *(({"task_ids": "x", "max_xcom_bytes": wrong}, values) for wrong in (999, "many")),
    ):
        wrong = ValueError if said else (ValueError, ConfigError)
        with subtests.test(arguments=arguments), pytest.raises(wrong, match=said):
            sensor(**arguments)


def test_nothing_to_wait_for_is_found_after_templating(queue, context, subtests):
    """Ids, a selector, a batch or a moment that a template leaves blank or naive fail the sensor, in each mode."""
    queue.enqueue("a", {"size": 9})
    context["ti"].get_first_reschedule_date = lambda _context: None
    blank = "task_ids is blank after templating: there is nothing to wait for"
    moment, naive = "since .*(has no zone|is no moment)", datetime(2026, 1, 1)  # noqa: DTZ001
    for field, rendered, said in (
        *(("task_ids", nothing, blank) for nothing in ("", "  ", "[]", [], [[], []])),
        ("selector", "", "selector '' is not understood"),
        ("batch", "", "batch '' is not allowed"),
        *(("since", wrong, moment) for wrong in ("2026-11-22T10:00:00", "None", "", naive)),
    ):
        reschedule = [{"mode": "reschedule"}] if field == "task_ids" else []
        for mode in ({"deferrable": False}, {"deferrable": True}, *reschedule):
            others = {"selector": "size>5"} if field == "since" else {}
            waiting = sensor(**others, **{field: "{{ given }}"}, **mode)
            setattr(waiting, field, rendered)
            with (
                subtests.test(field=field, rendered=rendered, mode=mode),
                pytest.raises(AirflowException, match=said),
            ):
                waiting.execute(context)


WHY = "task slow is queued: no live consumer is registered"


def test_a_time_out_says_why(queue, context, subtests):
    """Of the first task that has not ended it says why nobody handles it, in each mode; soft_fail skips with that."""
    done = queue.enqueue("a")
    queue.cancel(done)
    queue.enqueue("b", task_id="slow")
    context["ti"].get_first_reschedule_date = lambda _context: datetime.now(UTC) - timedelta(hours=1)
    late, gone = {"event": {"status": "timeout", "message": "after timeout (59.9 s)"}}, {"error": "Trigger timeout"}
    both = {"task_ids": [done, "slow"], "fail_on": "none"}
    for arguments, resumed, said in (
        ({**both, "timeout": 0.1}, None, rf"within timeout \(0.1 s\): slow; 1 dead or cancelled: {done}; {WHY}"),
        ({"selector": "all()", "min_tasks": 2, "timeout": 0.1, "fail_on": "none"}, None, WHY),
        ({"selector": "all()", "zkmq_queue": "absent", "timeout": 0.1}, None, r"'absent' did not come within .*\(0.1"),
        ({"task_ids": "slow", "mode": "reschedule"}, None, rf"timed out; .*; {WHY}"),
        ({**both, "deferrable": True}, ("execute_complete", late), rf"after timeout \(60 s\); {WHY}"),
        ({**both, "deferrable": True}, ("__fail__", gone), WHY),
    ):
        never = [{"never_fail": True}] if "mode" in arguments else []
        for softly in ({}, {"soft_fail": True}, *never):
            with subtests.test(arguments=arguments, resumed=resumed, softly=softly):
                waiting = sensor(**arguments, **softly)
                with pytest.raises(AirflowSkipException if softly else AirflowSensorTimeout, match=said):
                    waiting.resume_execution(*resumed, context) if resumed else waiting.execute(context)
                assert waiting.soft_fail == ("soft_fail" in softly)


def test_a_time_out_names_who_refuses_and_what_is_unclaimed(queue, context, monkeypatch):
    """A consumer's filter with its condition, also for a member; where no reason can be had, the time-out remains."""

    def late(said, **arguments):
        with pytest.raises(AirflowSensorTimeout, match=said):
            sensor(**arguments, timeout=0.1).execute(context)

    queue.enqueue_many([Message("x", {"size": 1}, task_id="slow")], batch="b")
    queue.claim(selector="size>5", timeout=0.1)
    late("task slow is queued: no live consumer accepts it; .* refuses it: .*size", batch="b")
    first = queue.enqueue("a", priority=1)
    assert queue.claim().task.id == first
    late("task slow is queued", task_ids=[first, "slow"], event="claim")
    monkeypatch.setattr(type(queue), "explain", lambda *_: 1 / 0)
    late(r"within timeout \(0.1 s\): slow$", task_ids="slow")


def test_a_large_xcom_is_references(queue, context):
    """Beyond its bytes it has the states' numbers and the ids that fit, by which the results are read."""
    ids = [queue.enqueue("x") for _ in range(50)]
    for _ in ids:
        finish(queue, "r" * 1000)
    whole = sensor(task_ids=ids).execute(context)
    assert (whole["count"], size(whole) <= 48_000) == (50, True)
    said = sensor(task_ids=ids, max_xcom_bytes=10_000).execute(context)
    read = "ZkmqHook().queue('jobs').tasks(ids=ids)"
    wanted = {"queue": "jobs", "count": 50, "states": {"finished": 50}, "ids": ids, "more": 0, "read": read}
    assert said | wanted == said
    assert [task.result for task in queue.tasks(ids=said["ids"])] == [b"r" * 1000] * 50
    cut = sensor(task_ids=ids, max_xcom_bytes=2_000).execute(context)
    assert (len(cut["ids"]) + cut["more"], cut["ids"]) == (50, ids[: len(cut["ids"])])
    assert 1 <= len(cut["ids"]) < 50
    assert size(cut) <= 2_000
