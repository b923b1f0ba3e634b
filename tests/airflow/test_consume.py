"""`@task.zkmq`, executed against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.timeout import timeout as airflow_timeout

from airflow_provider_zkmq.decorators.zkmq import ZkmqDecoratedOperator, zkmq_task
from airflow_provider_zkmq.engine import (
    ConfigError,
    Error,
    Message,
    Retry,
    RetryPolicy,
    Snooze,
    Success,
    TlsRefused,
)
from airflow_provider_zkmq.triggers.zkmq import ZkmqReadyTrigger
from tests.airflow.conftest import define
from tests.support import eventually


class Heard:
    """Takes the place of a log, and keeps what it was told by level."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {"info": [], "warning": [], "error": []}

    def __getattr__(self, level: str) -> Any:
        return lambda text, *values, **_: self.lines[level].append(text % values)


def operator(function, **options: Any) -> ZkmqDecoratedOperator:
    """The operator that a DAG gets of the decorated function."""
    arguments = options.pop("op_kwargs", {})
    return zkmq_task(function, task_id="t", **options)(**arguments).operator


def test_each_task_is_settled_by_its_own_outcome(queue, context):
    """Results, verdicts and exceptions as with workers; the XCom has their numbers and the first errors."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    outcomes = {
        "none": None,
        "text": "done",
        "bytes": b"\xff",
        "success": Success("s"),
        "error": Error("broken for good"),
        "retry": Retry("later"),
        "snooze": Snooze(600),
        "json": {"a": [1, None]},
        "nonsense": object(),
        "raises": ValueError("no such file"),
    }
    queue.enqueue_many([Message(b"x", task_id=name) for name in outcomes])

    def handle(job):
        if isinstance(outcome := outcomes[job.id], Exception):
            raise outcome
        return outcome

    told = operator(handle).execute(context)
    assert {name: told[name] for name in ("finished", "failed", "released", "lost")} == {
        "finished": 5,
        "failed": 4,
        "released": 1,
        "lost": 0,
    }
    errors = {each["id"]: each["error"] for each in told["errors"]}
    assert errors.keys() == {"error", "retry", "nonsense", "raises"}
    assert errors["raises"] == "ValueError: no such file"
    assert "result is neither bytes, text nor JSON" in errors["nonsense"]
    assert json.loads(json.dumps(told)) == told
    states = {name: str(queue.task(name).state) for name in outcomes}
    assert {name for name, state in states.items() if state == "finished"} == {
        "none",
        "text",
        "bytes",
        "success",
        "json",
    }
    assert {name for name, state in states.items() if state == "dead"} == {"error"}
    assert [queue.task(name).result for name in ("text", "json")] == [b"done", b'{"a": [1, null]}']
    assert [queue.task(name).attempt for name in ("raises", "snooze")] == [1, 0]


def test_at_most_so_many_tasks_and_those_that_fit(queue, context):
    """`max_tasks` bounds a try, `selector` says which: the others are untouched."""
    for size in range(10):
        queue.enqueue(b"x", {"size": size})
    told = operator(lambda _: None, selector="size>=5", max_tasks=3).execute(context)
    assert (told["finished"], queue.counts()["finished"], queue.counts()["inserted"]) == (3, 3, 7)
    told = operator(lambda _: None, selector="size>=5", max_tasks=3).execute(context)
    assert (told["finished"], queue.counts()["inserted"]) == (2, 5)


def test_the_errors_are_bounded(queue, context):
    """However many fail and however long their errors are, the XCom stays small; each dead one is an error line."""
    queue.configure(policy=RetryPolicy(attempts=1))
    queue.enqueue_many([Message(b"x") for _ in range(50)])
    heard = Heard()

    def handle(job):
        raise ValueError("y" * 10_000)

    made = operator(handle)
    made._cached_logger = heard
    told = made.execute(context)
    assert (told["failed"], len(told["errors"])) == (50, 5)
    assert len(json.dumps(told)) < 4_000
    assert len(heard.lines["error"]) == 20
    assert all("is dead on attempt 1" in line and "zkmq show jobs " in line for line in heard.lines["error"])
    assert any("30 more task(s)" in line for line in heard.lines["warning"])


def test_an_error_that_no_database_keeps_is_told_all_the_same(queue, context):
    """PostgreSQL refuses an XCom for a NUL, or for half a surrogate pair as in the name of a file."""
    queue.enqueue(b"x")

    def handle(job):
        raise ValueError("caf\udce9 and a \x00")

    (error,) = operator(handle).execute(context)["errors"]
    assert ascii(error["error"]) == ascii("ValueError: caf\\udce9 and a \ufffd")


@pytest.mark.parametrize(
    ("fail_on", "outcomes", "fails"),
    [
        ("none", ["bad", "bad"], False),
        ("any", ["good", "bad"], True),
        ("any", ["good"], False),
        ("all", ["good", "bad"], False),
        ("all", ["bad"], True),
    ],
)
def test_which_failures_fail_the_airflow_task(queue, context, fail_on, outcomes, fails):
    """Only after all have been handled; by default none does."""
    queue.configure(policy=RetryPolicy(attempts=1))
    queue.enqueue_many([Message(data) for data in outcomes])
    made = operator(lambda job: Error("it is bad") if job.data == b"bad" else None, fail_on=fail_on)
    if fails:
        with pytest.raises(AirflowException, match="failed.*it is bad"):
            made.execute(context)
    else:
        assert made.execute(context)["failed"] == outcomes.count("bad")
    assert queue.counts()["inserted"] == 0


def test_nothing_to_claim(queue, context):
    """An empty queue skips, fails or succeeds as was asked; the default waits, and fails when the time is over."""
    assert operator(lambda _: None, on_empty="succeed").execute(context)["finished"] == 0
    with pytest.raises(AirflowSkipException):
        operator(lambda _: None, on_empty="skip").execute(context)
    with pytest.raises(AirflowException, match="no task came into queue 'jobs' in time"):
        operator(lambda _: None, on_empty="fail").execute(context)
    for limit in ({"timeout": 0.1}, {"timeout": "100ms"}, {"execution_timeout": timedelta(seconds=0.1)}):
        with pytest.raises(AirflowException, match="in time"):
            operator(lambda _: None, **limit).execute(context)


def test_it_waits_on_the_worker(queue, context):
    """Not deferrable, it waits for the first task, and handles it."""
    told: list[dict[str, Any]] = []
    running = threading.Thread(target=lambda: told.append(operator(lambda _: "r", deferrable=False).execute(context)))
    running.start()
    task_id = queue.enqueue(b"x")
    running.join(60)
    assert (told[0]["finished"], queue.task(task_id).result) == (1, b"r")


async def test_deferred_while_there_is_nothing(queue, context):
    """It claims nothing meanwhile; it goes on when there is work, and defers again where others were faster."""
    made = operator(lambda _: "r", deferrable=True, timeout=600, selector="size>3")
    with pytest.raises(TaskDeferred) as deferred:
        await asyncio.to_thread(made.execute, context)
    path, kwargs = deferred.value.trigger.serialize()
    assert path == "airflow_provider_zkmq.triggers.zkmq.ZkmqReadyTrigger"
    assert json.loads(json.dumps(kwargs)) == kwargs
    waiting = asyncio.create_task(anext(ZkmqReadyTrigger(**kwargs).run()))
    await asyncio.to_thread(queue.enqueue, b"x", {"size": 1})
    task_id = await asyncio.to_thread(queue.enqueue, b"x", {"size": 9})
    event = (await waiting).payload
    assert event == {"status": "done"}
    assert queue.task(task_id).attempt == 0
    after = deferred.value.kwargs
    assert (await asyncio.to_thread(made.execute_complete, context, event, **after))["finished"] == 1
    with pytest.raises(TaskDeferred) as again:
        await asyncio.to_thread(made.execute_complete, context, event, **after)
    assert again.value.kwargs == after


async def test_a_deferral_ends_in_time(queue, context):
    """A wait that was in vain fails the task with what it waited for; ZooKeeper's refusal does so at once."""
    made = operator(lambda _: None, deferrable=True)
    for kwargs, told in (
        ({"deadline": time.time() + 0.2, "selector": "size>3"}, "no task that fits size>3 came into queue 'jobs'"),
        ({"selector": "unknown==1"}, "unknown"),
    ):
        (event,) = [each.payload async for each in ZkmqReadyTrigger(**kwargs).run()]
        with pytest.raises(AirflowException, match=told):
            made.execute_complete(context, event)


def test_arguments_pass_through(queue, context):
    """The task comes first, whatever its name; TaskFlow's arguments, defaults and the context follow."""
    queue.enqueue(b"x", task_id="t")
    seen: list[Any] = []

    with DAG("d", schedule=None):

        @task.zkmq(zkmq_queue="jobs")
        def handle(task, word, *, times=2, ti=None, **rest):
            seen.append((task.id, word, times, ti.task_id, "dag_id" in rest))

        made = handle("w", times=3).operator
    assert made.task_id == "handle"
    made.execute(context)
    assert seen == [("t", "w", 3, "t", False)]


def test_a_transaction_moves_tasks_from_queue_to_queue(queue, context):
    """What the function puts is there when its task is completed, or not at all."""
    queue.configure(policy=RetryPolicy(attempts=1))
    queue.enqueue_many([Message(b"good", task_id="good"), Message(b"bad", task_id="bad")])

    def move(job, unit, suffix):
        unit.put("next", job.data + suffix.encode())
        if job.data == b"bad":
            raise ValueError("bad")
        return "moved"

    told = operator(move, transactional=True, op_kwargs={"suffix": "!"}).execute(context)
    assert (told["finished"], told["failed"]) == (1, 1)
    assert (queue.task("good").result, queue.task("bad").state) == (b"moved", "dead")


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (lambda: None, {}, "must take 1 argument"),
        (lambda *, _: None, {}, "must take 1 argument"),
        (lambda _: None, {"transactional": True}, "must take 2 argument"),
        (lambda _, __: None, {"transactional": True, "lease": 5}, "either transactional or lease"),
        (lambda _: None, {"max_tasks": 0}, "max_tasks 0 is not allowed"),
        (lambda _: None, {"threads": True}, "threads True is not allowed"),
        (lambda _: None, {"fail_on": "some"}, "fail_on 'some' is not known: give none, any, all"),
        (lambda _: None, {"on_empty": "cry"}, "on_empty 'cry' is not known"),
        (lambda _: None, {"lease": "long"}, "lease"),
        (lambda _: None, {"lease": 0}, "lease 0.0 is not allowed"),
        (lambda _: None, {"transactional": "yes"}, "transactional 'yes' is not allowed"),
    ],
)
def test_what_cannot_be_is_found_when_the_dag_is_parsed(function, options, told):
    """A function that takes no task, and arguments that are not known."""
    with pytest.raises(ValueError, match=told):
        operator(function, **options)


def test_several_outputs_are_refused():
    """What it returns is one summary."""
    with pytest.raises(ValueError, match="multiple_outputs"):
        task.zkmq(zkmq_queue="jobs", multiple_outputs=True)


def test_a_coroutine_function_is_refused():
    """The worker's handlers are plain functions here."""

    async def handle(job):
        return None

    with pytest.raises(ValueError, match="handle is a coroutine function"):
        operator(handle)


def test_selectors_are_mapped_over(queue, context):
    """An argument of the function that is named selector says which tasks each mapped instance claims."""
    for size in range(6):
        queue.enqueue(b"x", {"size": size}, task_id=str(size))
    with DAG("d", schedule=None):

        @task.zkmq(zkmq_queue="jobs")
        def handle(job, selector):
            return selector

        mapped = handle.expand(selector=["size<2", "size>=2"]).operator
    finished = []
    for selector in ("size<2", "size>=2"):
        kwargs = {**mapped.partial_kwargs, "op_kwargs": {"selector": selector}, "op_args": []}
        made = ZkmqDecoratedOperator(task_id="h", python_callable=mapped.python_callable, op_kwargs=kwargs["op_kwargs"])
        finished.append(made.execute(context)["finished"])
    assert finished == [2, 4]
    assert {queue.task(str(size)).result for size in range(2)} == {b"size<2"}


def test_a_function_s_default_is_its_selector(queue, context):
    """The operator's own comes before it, and an argument before both."""
    for size in range(3):
        queue.enqueue(b"x", {"size": size}, task_id=str(size))

    def handle(job, selector="size==0"):
        return selector

    assert operator(handle).execute(context)["finished"] == 1
    assert (queue.task("0").result, queue.task("1").state) == (b"size==0", "inserted")
    assert operator(handle, selector="size==1").execute(context)["finished"] == 1
    assert queue.task("1").state == "finished"
    assert operator(handle, selector="size==1", op_kwargs={"selector": "size==2"}).execute(context)["finished"] == 1
    assert queue.task("2").result == b"size==2"


def test_a_selector_that_the_queue_refuses(queue, context):
    """It is a clear error, and nothing is claimed."""
    queue.enqueue(b"x")
    with pytest.raises(ConfigError, match="colour"):
        operator(lambda _: None, selector="colour==red").execute(context)
    assert queue.counts()["inserted"] == 1


def test_told_to_end_it_gives_back_what_is_in_hand(queue, context):
    """By a signal, as Airflow tells it: the task in hand is pending at once and no attempt is counted; it fails."""
    queue.enqueue_many([Message(b"x", task_id=f"t-{number}") for number in range(3)])
    begun, done = threading.Event(), threading.Event()

    def handle(job):
        begun.set()
        done.wait(60)

    made = operator(handle)
    before = signal.signal(signal.SIGTERM, lambda *_: made.on_kill())
    main = threading.main_thread().ident
    assert main is not None
    killer = threading.Thread(target=lambda: (begun.wait(60), signal.pthread_kill(main, signal.SIGTERM)))
    killer.start()
    try:
        with pytest.raises(AirflowException, match="told to end after 1 task"):
            made.execute(context)
    finally:
        signal.signal(signal.SIGTERM, before)
        done.set()
    eventually(lambda: queue.counts()["inserted"] == 3)
    assert {each.attempt for each in queue.tasks()} == {0}
    assert operator(lambda _: None).execute(context)["finished"] == 3


def test_told_to_end_while_it_waits(queue, context):
    """It waits no longer."""
    made = operator(lambda _: None)
    killer = threading.Timer(0.5, made.on_kill)
    killer.start()
    with pytest.raises(AirflowException, match="told to end"):
        made.execute(context)


def test_a_time_out_of_airflow_s_counts_as_a_failure(queue, context):
    """What hangs is in the end a dead letter: it is not delivered for ever."""
    queue.configure(policy=RetryPolicy(attempts=1))
    queue.enqueue(b"x", task_id="t")
    done = threading.Event()
    with pytest.raises(BaseException, match=r"(?i)timeout"):
        with airflow_timeout(3):
            operator(lambda _: done.wait(60)).execute(context)
    done.set()
    eventually(lambda: queue.task("t").state == "dead")
    assert "before the handler had ended" in queue.task("t").error


def test_a_lease_is_extended_while_the_function_runs(queue, context):
    """A function that takes longer than its lease keeps its task."""
    queue.enqueue(b"x", task_id="t")

    def handle(job):
        until = time.monotonic() + 2.5
        eventually(lambda: time.monotonic() > until)
        return "r"

    assert operator(handle, lease=1).execute(context)["finished"] == 1
    assert (queue.task("t").attempt, queue.task("t").result) == (1, b"r")


def test_what_another_finished_is_lost(queue, context):
    """A task that is cancelled while the function has it is neither finished nor failed here."""
    queue.enqueue(b"x", task_id="t")
    told = operator(lambda _: queue.cancel("t")).execute(context)
    assert (told["finished"], told["failed"], told["lost"]) == (0, 0, 1)
    assert queue.task("t").state == "cancelled"


async def test_it_outlives_zookeeper_being_away_at_its_first_look(queue, context, monkeypatch, root):
    """Deferrable, it waits in the triggerer for ZooKeeper, too; nothing had been handled."""
    define(monkeypatch, host="127.0.0.1:1", extra={"root": root, "queue": "jobs", "connect_timeout": 0.2})
    made = operator(lambda _: None, deferrable=True)
    with pytest.raises(TaskDeferred):
        await asyncio.to_thread(made.execute, context)


def test_refused_certificates_end_it(context, monkeypatch):
    """No wait mends them, and whoever operates it is to hear of them."""

    def refused(_hook):
        raise TlsRefused("their certificate")

    monkeypatch.setattr("airflow_provider_zkmq.decorators.zkmq.ZkmqHook.get_conn", refused)
    with pytest.raises(TlsRefused):
        operator(lambda _: None).execute(context)
