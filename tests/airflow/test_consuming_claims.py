"""`@task.zkmq` over claims that another task took, as by mapping; against a real ZooKeeper."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pendulum
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout as airflow_timeout

from airflow_provider_zkmq.decorators.zkmq import ZkmqDecoratedOperator
from airflow_provider_zkmq.engine import (
    AccessDenied,
    Claim,
    ClaimLost,
    ConfigError,
    Message,
    Queue,
    RetryPolicy,
    Unavailable,
)
from airflow_provider_zkmq.hooks.claims import told
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from tests.airflow.conftest import define, instance
from tests.airflow.test_consume import Heard, operator
from tests.faulty import Faulty
from tests.integration.test_docs import blocks
from tests.support import eventually


@pytest.fixture
def claims(queue, context):
    """Three tasks that `ZkmqClaimOperator` took."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    queue.enqueue_many([Message(f"of {name}", task_id=name) for name in ("a", "b", "c")])
    return ZkmqClaimOperator(task_id="claim", zkmq_queue=queue.name, max_tasks=3, lease=60).execute(context)


def test_mapped_over_claims_each_is_settled_by_its_own_outcome(queue, context, claims):
    """One instance for each claim: what one makes of its task is nobody else's."""
    queue.enqueue("x", task_id="another")
    with DAG("d", schedule=None):

        @task.zkmq
        def handle(job, claims):
            if job.id == "b":
                raise ValueError("no such file")
            return job.data + b" done"

        mapped = handle.expand(claims=claims).operator
    summaries = [
        ZkmqDecoratedOperator(task_id="h", python_callable=mapped.python_callable, op_kwargs={"claims": claim}).execute(
            context
        )
        for claim in claims
    ]
    assert [(each["finished"], each["failed"]) for each in summaries] == [(1, 0), (0, 1), (1, 0)]
    assert summaries[1]["errors"] == [{"id": "b", "error": "ValueError: no such file"}]
    assert {each.id: (str(each.state), each.attempt) for each in queue.tasks()} == {
        "a": ("finished", 1),
        "b": ("inserted", 1),
        "c": ("finished", 1),
        "another": ("inserted", 0),
    }
    assert queue.task("a").result == b"of a done"


def test_several_claims_in_one_task(queue, context, claims):
    """As an argument of the decorator, rendered text too, in as many threads as are asked for."""
    together = threading.Barrier(3)

    def handle(job):
        together.wait(30)

    made = operator(handle, claims=str(claims), threads=3)
    assert made.execute(context)["finished"] == 3
    assert queue.counts()["finished"] == 3


def test_what_does_not_hold_any_more_is_passed_over(queue, context, claims):
    """Its task is not handled, whoever has it now; the log says what it is."""
    queue.complete("a", claims[0]["token"])
    queue.release("b", claims[1]["token"])
    again = queue.claim_task("b", lease=60)
    handled = []
    made = operator(lambda job: handled.append(job.id), claims=claims)
    made._cached_logger = heard = Heard()
    summary = made.execute(context)
    assert (summary["finished"], handled) == (1, ["c"])
    now = "does not hold any more: it is done-awaiting-gc, attempt 1"
    assert f"Claim {claims[0]['token']} of task 'a' of queue 'jobs' {now}" in heard.lines["info"]
    again.complete()


def test_one_that_is_damaged_is_passed_over(queue, context, claims):
    """Whatever is wrong with one of them, the others are handled."""
    queue._session.client.set(queue._context.paths.task("a", "state"), b"{")
    made = operator(lambda _: None, claims=claims)
    made._cached_logger = heard = Heard()
    assert made.execute(context)["finished"] == 2
    assert f"Claim {claims[0]['token']} of task 'a' of queue 'jobs' is passed over" in heard.lines["warning"][-1]


@pytest.mark.parametrize(
    ("on_empty", "raised"),
    [("wait", AirflowSkipException), ("skip", AirflowSkipException), ("fail", AirflowFailException)],
)
def test_where_none_holds(queue, context, claims, on_empty, raised):
    """There is nothing to wait for; a pending task that nobody claimed for it is left alone.

    A later try takes what was given back, as the same delivery, but none that has failed meanwhile.
    """
    first = instance(try_number=1)
    for claim in claims:
        queue.release(claim["id"], claim["token"])
    with pytest.raises(raised, match=r"none of the 3 claim\(s\) holds any more"):
        operator(lambda _: None, claims=claims, on_empty=on_empty).execute(first)
    for given in (claims, []):
        assert operator(lambda _: None, claims=given, on_empty="succeed").execute(first)["finished"] == 0
    assert queue.counts()["inserted"] == 3
    queue.claim_task("a", lease=60).fail("broken", backoff=0)
    assert operator(lambda _: None, claims=claims).execute(context)["finished"] == 2
    assert queue.task("a").attempt == 1


def test_a_failure_is_not_tried_again_by_airflow(queue, context, claims):
    """The claim is over with it: the queue's policy says what comes next."""
    with pytest.raises(AirflowFailException, match=r"1 of 1 task\(s\) of queue 'jobs' failed"):
        operator(lambda _: 1 / 0, claims=claims[0], fail_on="any").execute(context)
    assert (queue.task("a").attempt, queue.task("a").state) == (1, "inserted")
    assert queue.counts()["claimed"] == 2


def test_it_is_extended_from_its_beginning_on(queue, context):
    """A claim outlives a function that takes longer than its lease; so do those that wait for a thread meanwhile."""
    queue.enqueue_many([Message(b"x", task_id=name) for name in "ab"])
    claims = [told(queue.name, claim) for claim in queue.claim_many(2, lease=5)]
    passed = threading.Event()

    def handle(job):
        passed.wait(7 if job.id == "a" else 0)
        assert queue.claim() is None

    assert operator(handle, claims=claims).execute(context)["finished"] == 2
    assert {task.attempt for task in queue.tasks()} == {1}


@pytest.mark.full
@pytest.mark.parametrize(("first", "then"), [(60, 2), (2, 600)])
def test_its_own_lease_is_what_it_is_extended_by(queue, context, monkeypatch, first, then):
    """Each time, and as often as that lease asks for, whatever the claim was made with."""
    queue.enqueue(b"x", task_id="a")
    claim = told(queue.name, queue.claim(lease=first))
    spans, extend = [], Claim.extend
    monkeypatch.setattr(Claim, "extend", lambda mine, span: (spans.append(span), extend(mine, span))[1])

    passed = threading.Event()

    def handle(job):
        passed.wait(4)
        assert queue.claim() is None

    assert operator(handle, claims=claim, lease=then).execute(context)["finished"] == 1
    assert set(spans) == {float(then)}
    assert queue.task("a").attempt == 1


def test_a_claim_that_is_named_twice_is_handled_once(queue, context, claims):
    """Also by several threads, which could both have it."""
    handled = []
    made = operator(lambda job: handled.append(job.id), claims=[claims[0], claims[1], claims[0]], threads=3)
    assert made.execute(context)["finished"] == 2
    assert sorted(handled) == ["a", "b"]


def test_one_that_is_refused_costs_no_other_an_attempt(queue, context, claims):
    """A claim that ends with another's session is passed over, and the others are handled to their end.

    By itself it is refused by an error: it holds still.
    """
    queue.enqueue("x", task_id="bound")
    bound = queue.claim_task("bound")
    made = operator(lambda _: None, claims=[told(queue.name, bound), *claims], threads=2)
    assert made.execute(context)["finished"] == 3
    with pytest.raises(ConfigError, match="ends with the session"):
        operator(lambda _: None, claims=told(queue.name, bound)).execute(context)
    bound.complete()


def test_what_is_refused_is_no_skip(queue, context, claims, monkeypatch):
    """Nor is what was taken over and could not be settled: the claims hold, and somebody must know."""

    def refused(*_, **__):
        raise AccessDenied("not allowed to write")

    with monkeypatch.context() as patched:
        patched.setattr(Claim, "extend", refused)
        with pytest.raises(AccessDenied, match="not allowed to write"):
            operator(lambda _: None, claims=claims).execute(context)
    assert queue.counts()["claimed"] == 3


def test_after_a_time_out_airflow_does_not_try_again(queue, context, claims):
    """The claim in hand is over, by a failed attempt; what no thread had got to is given back, and counts none."""

    def handle(job):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(5)  # the alarm interrupts it

    made = operator(handle, claims=claims, fail_on="any")
    with pytest.raises(AirflowFailException, match="no other try could handle"), airflow_timeout(60):
        made.execute(context)
    eventually(lambda: queue.counts()["claimed"] == 0)
    assert {task.id: task.attempt for task in queue.tasks(state="inserted")} == {"a": 1, "b": 0, "c": 0}


def test_a_time_out_before_anything_has_begun_leaves_all_to_the_next_try(queue, context, claims, monkeypatch):
    """ZooKeeper does not answer, say: the claims hold, and Airflow's retry takes them over."""

    def away(*_, **__):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(1)  # the alarm interrupts it
        raise Unavailable("nobody answers")

    with monkeypatch.context() as patched:
        patched.setattr(Queue, "take_over", away)
        with pytest.raises(AirflowTaskTimeout), airflow_timeout(60):
            operator(lambda _: None, claims=claims).execute(context)
    assert queue.counts()["claimed"] == 3
    assert operator(lambda _: None, claims=claims).execute(context)["finished"] == 3


def test_an_outage_is_outlived_at_its_beginning(queue, context, claims, monkeypatch, zookeeper, root):
    """The servers are away when the first claim is taken over, for longer than a call waits."""
    with Faulty(zookeeper) as proxy:
        limits = {"connect_timeout": 2, "request_timeout": 2, "session_timeout": 4}
        define(monkeypatch, host=proxy.hosts, extra={"root": root, "queue": queue.name} | limits)
        connect = ZkmqHook.queue

        def connected(*given):
            made = connect(*given)
            proxy.down(5)
            return made

        monkeypatch.setattr(ZkmqHook, "queue", connected)
        assert operator(lambda _: None, claims=claims).execute(context)["finished"] == 3
    assert {task.attempt for task in queue.tasks()} == {1}


def test_an_outage_is_outlived_where_claims_begin(queue, context, monkeypatch):
    """Those that were taken ahead: what cannot be said yet is said again, and nothing is given away."""
    queue.enqueue("x", task_id="a")
    claims = ZkmqClaimOperator(task_id="claim", zkmq_queue="jobs", ahead=True, lease=60).execute(context)
    begin, away = Claim.begin, [Unavailable("nobody answers")] * 2

    def beginning(claim):
        if away:
            raise away.pop()
        return begin(claim)

    monkeypatch.setattr(Claim, "begin", beginning)
    assert operator(lambda _: None, claims=claims).execute(context)["finished"] == 1
    assert (away, queue.task("a").attempt) == ([], 1)


def test_claims_of_a_queue_that_is_gone_hold_no_more(queue, context, claims):
    """As those that are over: it is no error of the one who comes late."""
    queue.delete(confirm=True, force=True)
    with pytest.raises(AirflowSkipException, match=r"none of the 3 claim\(s\) holds any more"):
        operator(lambda _: None, claims=claims).execute(context)


def test_no_claims_are_no_reason_to_claim(queue, context):
    """None, as an XCom that there is not, and an argument that the function takes by no name of its own."""
    queue.enqueue("x", task_id="another")

    def handle(job, claims=None):
        return None

    def named(job, **others):
        return None

    for function, given in ((handle, None), (handle, []), (named, [])):
        with pytest.raises(AirflowSkipException, match="there is no claim"):
            operator(function, op_kwargs={"claims": given}).execute(context)
    assert operator(handle).execute(context)["finished"] == 1


def test_told_to_end_its_next_try_handles_all_the_same(queue, context, claims):
    """What is in hand is given back, and claimed anew as the same delivery; what no thread got to is claimed still."""
    begun, done = threading.Event(), threading.Event()

    def handle(job):
        begun.set()
        done.wait(60)

    made = operator(handle, claims=claims)
    killer = threading.Thread(target=lambda: (begun.wait(60), made.on_kill()))
    killer.start()
    try:
        with pytest.raises(AirflowException, match="told to end after 1 task"):
            made.execute(context)
    finally:
        done.set()
    eventually(lambda: queue.counts() | {"inserted": 1, "claimed": 2} == queue.counts())
    assert queue.task("a").attempt == 0
    assert operator(lambda _: None, claims=claims).execute(context)["finished"] == 3
    assert {task.attempt for task in queue.tasks()} == {1}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"selector": "size==1"}, "nothing left to select"),
        ({"transactional": True}, "a transaction takes what it claims itself"),
        ({"zkmq_queue": "others"}, "of several queues, jobs, others"),
        ({"claims": "nonsense"}, "claims"),
        ({"claims": [{"id": "a"}]}, "is no claim"),
    ],
)
def test_what_does_not_go_together_is_refused_and_nothing_is_touched(queue, context, claims, options, why):
    def handle(job, tx=None):
        return "must not be"

    with pytest.raises(ConfigError, match=why):
        operator(handle, **{"claims": claims} | options).execute(context)
    assert queue.counts()["claimed"] == 3


def test_what_another_settles_meanwhile_is_lost(queue, context, claims):
    """As where a worker claims: the function's outcome changes nothing, and the XCom says so."""
    token = claims[0]["token"]
    made = operator(lambda _: queue.complete("a", token, "another's"), claims=claims[:1])
    assert made.execute(context)["lost"] == 1
    assert queue.task("a").result == b"another's"
    with pytest.raises(ClaimLost):
        queue.complete("a", token)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of Airflow's own imports
@pytest.mark.usefixtures("database")
def test_the_dag_of_the_page_on_patterns(queue):
    """In ``dag.test()``: an instance for each claim, red where its function failed, and only there."""
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    file = folder / "one_by_one.py"
    [code] = [block for block in blocks("docs/patterns.md", "python") if "def one_by_one" in block]
    code = code.replace('zkmq_queue="parcels"', 'zkmq_queue="jobs"')
    file.write_text(code.replace("parcel.data.upper()", "parcel.data.decode().upper()"))
    found = DagBag(file)
    assert not found.import_errors
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    queue.enqueue_many([Message("good", task_id="a"), Message(b"\xff", task_id="b"), Message("good", task_id="c")])
    run = found.dags["one_by_one"].test(logical_date=pendulum.datetime(2026, 3, 1, tz="UTC"))
    assert run.state == "failed"
    instances = {(each.task_id, each.map_index): str(each.state) for each in run.get_task_instances()}
    assert instances == {("claim", -1): "success"} | {
        ("handle", 0): "success", ("handle", 1): "failed", ("handle", 2): "success",
    }  # fmt: skip
    tasks = {each.id: (str(each.state), each.attempt) for each in queue.tasks()}
    assert tasks == {"a": ("finished", 1), "b": ("inserted", 1), "c": ("finished", 1)}
    assert queue.task("c").result == b"GOOD"
