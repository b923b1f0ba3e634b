"""`@task.zkmq`, executed against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.timeout import timeout as airflow_timeout

from airflow_provider_zkmq.decorators import zkmq
from airflow_provider_zkmq.decorators.zkmq import ZkmqDecoratedOperator, zkmq_task
from airflow_provider_zkmq.engine import (
    Claim,
    ConfigError,
    Error,
    Message,
    QueueNotFound,
    Retry,
    RetryPolicy,
    Snooze,
    Success,
    TlsRefused,
    Zkmq,
)
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.triggers.zkmq import ZkmqReadyTrigger, ZkmqTaskTrigger
from tests.airflow.conftest import Heard, deferral, define, fire
from tests.support import eventually


def operator(function, **options: Any) -> ZkmqDecoratedOperator:
    """The operator that a DAG gets of the decorated function."""
    arguments = options.pop("op_kwargs", {})
    return zkmq_task(function, task_id="t", **options)(**arguments).operator


def log_of(made: ZkmqDecoratedOperator) -> Heard:
    """What the operator logs from now on."""
    made._cached_logger = heard = Heard()
    return heard


def time_out() -> None:
    """Airflow's alarm rings now."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)


@pytest.fixture
def extended(monkeypatch):
    """The ids of the tasks whose claims are extended, and for how long each time."""
    spans, extend = [], Claim.extend

    def noted(claim, span):
        extend(claim, span)
        spans.append((claim.task.id, span))

    monkeypatch.setattr(Claim, "extend", noted)
    return spans


@pytest.fixture
def waits(monkeypatch):
    """Is set when an operator begins to wait for work on its worker."""
    begun, block = threading.Event(), zkmq.claiming.block_until_ready
    monkeypatch.setattr(zkmq.claiming, "block_until_ready", lambda *given: (begun.set(), block(*given)))
    return begun


def test_each_task_is_settled_by_its_own_outcome(queue, context):
    """Results, verdicts and exceptions as with workers; the XCom has their numbers and the first errors."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    outcomes = {
        "none": (None, "finished"),
        "text": ("done", "finished"),
        "bytes": (b"\xff", "finished"),
        "success": (Success("s"), "finished"),
        "json": ({"a": [1, None]}, "finished"),
        "error": (Error("broken for good"), "dead"),
        "retry": (Retry("later"), "inserted"),
        "nonsense": ([{1, 2}], "dead"),
        "final": (AirflowFailException("no use"), "dead"),
        "skips": (AirflowSkipException("not today"), "inserted"),
        "raises": (ValueError("no such file"), "inserted"),
        "snooze": (Snooze(600), "inserted"),
        "lost": (None, "cancelled"),
    }
    queue.enqueue_many([Message(b"x", task_id=name) for name in outcomes])

    def handle(job):
        if job.id == "lost":
            queue.cancel("lost")
        if isinstance(outcome := outcomes[job.id][0], Exception):
            raise outcome
        return outcome

    said = operator(handle).execute(context)
    counts = {"finished": 5, "failed": 5, "released": 2, "lost": 1}
    assert {name: said[name] for name in counts} == counts
    errors = {each["id"]: each["error"] for each in said["errors"]}
    assert errors.keys() == {"error", "retry", "nonsense", "final", "raises"}
    assert errors["raises"] == "ValueError: no such file"
    assert "result is neither bytes, text nor JSON: TypeError: a set has no order" in errors["nonsense"]
    assert json.loads(json.dumps(said)) == said
    assert {each.id: str(each.state) for each in queue.tasks()} == {n: state for n, (_, state) in outcomes.items()}
    assert [queue.task(name).result for name in ("text", "json")] == [b"done", b'{"a": [1, null]}']
    assert [queue.task(name).attempt for name in ("raises", "snooze", "skips")] == [1, 0, 0]


def test_at_most_so_many_tasks_and_those_that_fit(queue, context):
    """`max_tasks` bounds a try, `selector` says which: the others are untouched. One that the queue refuses: all."""
    for size in range(10):
        queue.enqueue(b"x", {"size": size})
    for finished, left in ((3, 7), (2, 5)):
        said = operator(lambda _: None, selector="size>=5", max_tasks=3).execute(context)
        assert (said["finished"], queue.counts()["inserted"]) == (finished, left)
    with pytest.raises(ConfigError, match="colour"):
        operator(lambda _: None, selector="colour==red").execute(context)
    assert queue.counts()["inserted"] == 5


def test_the_errors_are_bounded(queue, context):
    """However many fail and however long their errors are, the XCom stays small; each dead one is an error line."""
    queue.configure(policy=RetryPolicy(attempts=1))
    queue.enqueue_many([Message(b"x") for _ in range(50)])

    def handle(job):
        raise ValueError("y" * 10_000)

    made = operator(handle)
    log = log_of(made)
    said = made.execute(context)
    assert (said["failed"], len(said["errors"])) == (50, 5)
    assert len(json.dumps(said)) < 4_000
    errors = [line for line in log.lines if line.startswith("ERROR")]
    assert len(errors) == 20
    assert all("ERROR Failed, and dead on attempt 1: " in line and " show jobs " in line for line in errors)
    assert any("30 more task(s)" in line for line in log.warnings)


def test_an_error_that_no_database_keeps_is_told_all_the_same(queue, context, caplog):
    """PostgreSQL refuses an XCom for a NUL, or for half a surrogate pair as in the name of a file; a log the latter."""
    queue.enqueue(b"x")

    def handle(job):
        raise ValueError("caf\udce9 and a \x00")

    (error,) = operator(handle).execute(context)["errors"]
    assert ascii(error["error"]) == ascii("ValueError: caf\\udce9 and a \ufffd")
    assert b"caf\\udce9" in caplog.text.encode()


def test_which_failures_fail_the_airflow_task(queue, context, subtests):
    """Only after all have been handled; by default none does."""
    queue.configure(policy=RetryPolicy(attempts=1))
    for fail_on, outcomes, fails in (
        ("none", ["bad", "bad"], False),
        ("any", ["good", "bad"], True),
        ("any", ["good"], False),
        ("all", ["good", "bad"], False),
        ("all", ["bad"], True),
    ):
        with subtests.test(fail_on=fail_on, outcomes=outcomes):
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
        with pytest.raises(AirflowException, match=r"within timeout \(0.1 s\)"):
            operator(lambda _: None, **limit).execute(context)


def test_it_waits_on_the_worker(queue, context, waits):
    """Not deferrable, it waits for the first task, and handles it; told to end, it waits no longer."""
    said: list[dict[str, Any]] = []
    made = operator(lambda _: "r", deferrable=False)
    running = threading.Thread(target=lambda: said.append(made.execute(context)), daemon=True)
    running.start()
    assert waits.wait(60)
    task_id = queue.enqueue(b"x")
    running.join(60)
    assert (said[0]["finished"], queue.task(task_id).result) == (1, b"r")
    waits.clear()
    made = operator(lambda _: None)
    killer = threading.Thread(target=lambda: (waits.wait(60), made.on_kill()), daemon=True)
    killer.start()
    with pytest.raises(AirflowException, match="told to end"):
        made.execute(context)
    killer.join(60)


async def test_deferred_while_there_is_nothing(queue, context):
    """It claims nothing meanwhile; it goes on when there is work, and defers again where others were faster."""
    made = operator(lambda _: "r", deferrable=True, timeout=600, selector="size>3")
    deferred = await asyncio.to_thread(deferral, made.execute, context)
    path, kwargs = deferred.trigger.serialize()
    assert path == "airflow_provider_zkmq.triggers.zkmq.ZkmqReadyTrigger"
    assert json.loads(json.dumps(kwargs)) == kwargs
    waiting = asyncio.create_task(anext(ZkmqReadyTrigger(**kwargs).run()))
    await asyncio.to_thread(queue.enqueue, b"x", {"size": 1})
    task_id = await asyncio.to_thread(queue.enqueue, b"x", {"size": 9})
    event = (await waiting).payload
    assert (event, queue.task(task_id).attempt) == ({"status": "done"}, 0)
    assert (await asyncio.to_thread(made.execute_complete, context, event, **deferred.kwargs))["finished"] == 1
    again = await asyncio.to_thread(deferral, made.execute_complete, context, event, **deferred.kwargs)
    assert again.kwargs == deferred.kwargs


async def test_a_deferral_ends_in_time(queue, context):
    """A wait that was in vain fails the task with what it waited for; ZooKeeper's refusal does so at once."""
    made = operator(lambda _: None, deferrable=True)
    for kwargs, said in (
        ({"deadline": time.time() + 0.2, "selector": "size>3"}, "no task that fits size>3 came into queue 'jobs'"),
        ({"selector": "unknown==1"}, "unknown"),
    ):
        (event,) = [each.payload async for each in ZkmqReadyTrigger(**kwargs).run()]
        with pytest.raises(AirflowException, match=said):
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

    said = operator(move, transactional=True, op_kwargs={"suffix": "!"}).execute(context)
    assert (said["finished"], said["failed"]) == (1, 1)
    assert (queue.task("good").result, queue.task("bad").state) == (b"moved", "dead")


async def coroutine(job):
    """Is no plain function."""


def test_what_cannot_be_is_found_when_the_dag_is_parsed(subtests):
    """A function that takes no task, and arguments that are not known; what it returns is one summary."""
    for function, options, said in (
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
        (lambda _: None, {"multiple_outputs": True}, "multiple_outputs"),
        (coroutine, {}, "coroutine is a coroutine function"),
    ):
        with (
            subtests.test(options=options, said=said),
            pytest.raises(ValueError, match=said),
        ):
            operator(function, **options)


def test_an_argument_of_the_function_is_its_selector(queue, context):
    """One that is named so, mapped over or by its default; the operator's own comes before the default."""
    for size in range(6):
        queue.enqueue(b"x", {"size": size}, task_id=str(size))
    with DAG("d", schedule=None):

        @task.zkmq(zkmq_queue="jobs")
        def handle(job, selector="size==0"):
            return selector

        mapped = handle.expand(selector=["size<3", "size>=3"]).operator
    handle = mapped.python_callable
    for options, result, finished in (
        ({}, b"size==0", "0"),
        ({"selector": "size==1"}, b"size==0", "1"),
        ({"op_kwargs": {"selector": "size<3"}, "selector": "size==4"}, b"size<3", "2"),
        ({"op_kwargs": {"selector": "size>=3"}}, b"size>=3", "345"),
    ):
        assert operator(handle, **options).execute(context)["finished"] == len(finished)
        assert {queue.task(task_id).result for task_id in finished} == {result}


def test_told_to_end_it_gives_back_what_is_in_hand(queue, context):
    """By a signal, as Airflow tells it: the task in hand is pending at once and no attempt is counted; it fails."""
    queue.enqueue_many([Message(b"x", task_id=f"t-{number}") for number in range(3)])
    done = threading.Event()

    def handle(job):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        done.wait(60)

    made = operator(handle)
    before = signal.signal(signal.SIGTERM, lambda *_: made.on_kill())
    try:
        with pytest.raises(AirflowException, match="told to end after 1 task"):
            made.execute(context)
    finally:
        signal.signal(signal.SIGTERM, before)
        done.set()
    eventually(lambda: queue.counts()["inserted"] == 3)
    assert {each.attempt for each in queue.tasks()} == {0}
    assert operator(lambda _: None).execute(context)["finished"] == 3


def test_a_time_out_of_airflow_s_counts_as_a_failure(queue, context):
    """What hangs is in the end a dead letter: it is not delivered for ever."""
    queue.configure(policy=RetryPolicy(attempts=1))
    queue.enqueue(b"x", task_id="t")
    done = threading.Event()
    with pytest.raises(BaseException, match=r"(?i)timeout"), airflow_timeout(60):
        operator(lambda _: (time_out(), done.wait(60))).execute(context)
    done.set()
    eventually(lambda: queue.task("t").state == "dead")
    assert "before the handler had ended" in queue.task("t").error


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


# --- queues that nobody has enqueued into yet: DAGs that consume may be there before any producer


def consume(context: Any, **options: Any) -> Any:
    return zkmq_task(lambda _: "r", task_id="t", zkmq_queue="consumed", **options)().operator.execute(context)


def claim(context: Any, **options: Any) -> Any:
    operator = ZkmqClaimOperator(task_id="claim", lease=30, zkmq_queue="claimed", **options)
    return operator.execute(context | {"task_state_store": None})


@pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner
def test_who_consumes_from_a_queue_that_is_not_there_has_nothing(queue, context, zookeeper, root, subtests):
    """A function or a claim is skipped, failed, or waits, here or deferred, for whoever enqueues first and makes it."""
    for verb, options, error, said in (
        (consume, {"on_empty": "skip"}, AirflowSkipException, ""),
        (consume, {"on_empty": "fail"}, QueueNotFound, "consumed"),
        (consume, {"timeout": 0.1}, AirflowException, "no task came into queue 'consumed' within"),
        (consume, {"deferrable": True}, TaskDeferred, None),
        (claim, {}, AirflowSkipException, "no task of queue 'claimed'"),
        (claim, {"on_empty": "fail"}, QueueNotFound, "claimed"),
        (claim, {"on_empty": "wait", "deferrable": True}, TaskDeferred, None),
    ):
        with subtests.test(verb=verb, options=options):
            with pytest.raises(error, match=said) as raised:
                verb(context, **options)
            assert said is not None or isinstance(raised.value.trigger, ZkmqReadyTrigger)
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
        said, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not said
        await asyncio.to_thread(zk.queue("later").enqueue, b"x", task_id="a")
        if done:
            await asyncio.to_thread(zk.queue("later").claim, timeout=20)
        assert (await waiting).payload == {"status": "done", **done}
    (event,) = await fire(ZkmqReadyTrigger(zkmq_queue="nowhere", deadline=time.time() + 0.1))
    assert event["status"] == "timeout"
