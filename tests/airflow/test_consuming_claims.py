"""`@task.zkmq` over claims that another task took, as by mapping; against a real ZooKeeper."""

from __future__ import annotations

import threading

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout as airflow_timeout

from airflow_provider_zkmq.decorators.zkmq import ZkmqDecoratedOperator
from airflow_provider_zkmq.engine import AccessDenied, Claim, ConfigError, Message, Queue, RetryPolicy, Unavailable
from airflow_provider_zkmq.hooks.claim_references import claim_reference
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from tests.airflow.conftest import instance
from tests.airflow.test_consume import extended, log_of, operator, time_out  # noqa: F401  `extended` is a fixture
from tests.support import eventually


@pytest.fixture
def claims(queue, context):
    """Three tasks that `ZkmqClaimOperator` took."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    queue.enqueue_many([Message(f"of {name}", task_id=name) for name in ("a", "b", "c")])
    return ZkmqClaimOperator(task_id="claim", zkmq_queue=queue.name, max_tasks=3, lease=60).execute(context)


def nothing(_job, _unit=None):
    """A function that handles a task, in a transaction if it is to."""


def test_mapped_over_claims_each_is_settled_by_its_own_outcome(queue, context, claims):
    """One instance for each claim: what one makes of its task is nobody else's."""
    queue.enqueue("x", task_id="another")
    with DAG("d", schedule=None):

        @task.zkmq
        def handle(job, claims):
            if job.id == "b":
                raise ValueError("no such file")
            if job.id == "c":
                queue.claim_handle("c", claims["token"]).complete("another's")
            return job.data + b" done"

        function = handle.expand(claims=claims).operator.python_callable
    each = [ZkmqDecoratedOperator(task_id="h", python_callable=function, op_kwargs={"claims": one}) for one in claims]
    summaries = [made.execute(context) for made in each]
    assert [
        (claim_reference["finished"], claim_reference["failed"], claim_reference["lost"])
        for claim_reference in summaries
    ] == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert summaries[1]["errors"] == [{"id": "b", "error": "ValueError: no such file"}]
    assert {each.id: (str(each.state), each.attempt) for each in queue.tasks()} == {
        "a": ("finished", 1),
        "b": ("inserted", 1),
        "c": ("finished", 1),
        "another": ("inserted", 0),
    }
    assert [queue.task(name).result for name in "ac"] == [b"of a done", b"another's"]


def test_several_claims_in_one_task(queue, context, claims):
    """As an argument of the decorator, rendered text too, in as many threads as are asked for; each is handled once."""
    together, handled = threading.Barrier(3), []

    def handle(job):
        together.wait(30)
        handled.append(job.id)

    assert operator(handle, claims=str([*claims, claims[0]]), threads=3).execute(context)["finished"] == 3
    assert (queue.counts()["finished"], sorted(handled)) == (3, ["a", "b", "c"])


def test_what_does_not_hold_any_more_is_passed_over(queue, context, claims):
    """Its task is not handled, whoever has it now; the log says what it is."""
    queue.claim_handle("a", claims[0]["token"]).complete()
    queue.claim_handle("b", claims[1]["token"]).release()
    again = queue.claim_task("b", lease=60)
    handled = []
    made = operator(lambda job: handled.append(job.id), claims=claims)
    log = log_of(made)
    assert (made.execute(context)["finished"], handled) == (1, ["c"])
    now = "does not hold any more: it is done-awaiting-gc, attempt 1"
    assert f"Claim {claims[0]['token']} of task 'a' of queue 'jobs' {now}" in log.lines
    again.complete()


def test_one_that_is_refused_costs_no_other_an_attempt(queue, context, claims):
    """A claim that ends with another's session, or that is damaged, is passed over: the others are handled.

    By itself it is refused by an error: it holds still.
    """
    queue.enqueue("x", task_id="bound")
    bound = queue.claim_task("bound")
    queue._session.client.set(queue._context.paths.task("a", "state"), b"{")
    made = operator(nothing, claims=[claim_reference(queue.name, bound), *claims], threads=2)
    log = log_of(made)
    assert made.execute(context)["finished"] == 2
    passed = f"Claim {claims[0]['token']} of task 'a' of queue 'jobs' is passed over"
    assert any(passed in line for line in log.warnings)
    with pytest.raises(ConfigError, match="ends with the session"):
        operator(nothing, claims=claim_reference(queue.name, bound)).execute(context)
    bound.complete()


def test_where_none_holds(queue, context, claims, subtests):
    """There is nothing to wait for; a pending task that nobody claimed for it is left alone.

    A later try takes what was given back, as the same delivery, but none that has failed meanwhile. Where the queue is
    gone, no claim holds: it is no error of the one who comes late.
    """
    first, over = instance(try_number=1), r"none of the 3 claim\(s\) holds any more"
    for claim in claims:
        queue.claim_handle(claim["id"], claim["token"]).release()
    for on_empty, raised in (
        ("wait", AirflowSkipException), ("skip", AirflowSkipException), ("fail", AirflowFailException)
    ):  # fmt: skip
        with subtests.test(on_empty=on_empty), pytest.raises(raised, match=over):
            operator(nothing, claims=claims, on_empty=on_empty).execute(first)
    for given in (claims, []):
        assert operator(nothing, claims=given, on_empty="succeed").execute(first)["finished"] == 0
    assert queue.counts()["inserted"] == 3
    queue.claim_task("a", lease=60).fail("broken", backoff=0)
    assert operator(nothing, claims=claims).execute(context)["finished"] == 2
    assert queue.task("a").attempt == 1
    queue.delete(confirm=True, force=True)
    with pytest.raises(AirflowSkipException, match=over):
        operator(nothing, claims=claims).execute(context)


def test_a_failure_is_not_tried_again_by_airflow(queue, context, claims):
    """The claim is over with it: the queue's policy says what comes next."""
    with pytest.raises(AirflowFailException, match=r"1 of 1 task\(s\) of queue 'jobs' failed"):
        operator(lambda _: 1 / 0, claims=claims[0], fail_on="any").execute(context)
    assert (queue.task("a").attempt, queue.task("a").state) == (1, "inserted")
    assert queue.counts()["claimed"] == 2


def test_it_is_extended_from_its_beginning_on(queue, context, extended):  # noqa: F811
    """A claim outlives a function that takes longer than its lease; so do those that wait for a thread meanwhile."""
    queue.enqueue_many([Message(b"x", task_id=name) for name in "ab"])
    claims = [claim_reference(queue.name, claim) for claim in queue.claim_many(2, lease=6)]

    def handle(job):
        if job.id == "a":
            eventually(lambda: min(extended.count((name, 6.0)) for name in "ab") > 4)  # four thirds of a lease
        assert queue.claim() is None

    assert operator(handle, claims=claims).execute(context)["finished"] == 2
    assert {task.attempt for task in queue.tasks()} == {1}


def test_its_own_lease_is_what_it_is_extended_by(queue, context, extended, subtests):  # noqa: F811
    """Each time, and as often as that lease asks for, whatever the claim was made with."""
    for first, then, often in ((60, 2.0, 3), (6, 600.0, 1)):
        with subtests.test(first=first, then=then):
            ids = queue.enqueue_many([Message(b"x")] * 2)
            claims = {claim.task.id: claim_reference(queue.name, claim) for claim in queue.claim_many(2, lease=first)}
            mine, other = ids

            def handle(job, other=other, often=often):
                eventually(lambda: len(extended) >= often)
                if often == 1:  # by its first lease it would be over now
                    assert queue.ready(timeout=60)
                    assert queue.task(other).state == "inserted"

            extended.clear()
            assert operator(handle, claims=claims[mine], lease=then).execute(context)["finished"] == 1
            assert (set(extended), queue.task(mine).attempt) == ({(mine, then)}, 1)


def test_what_is_refused_is_no_skip(queue, context, claims, monkeypatch):
    """Nor is what was taken over and could not be settled: the claims hold, and somebody must know."""

    def refused(*_, **__):
        raise AccessDenied("not allowed to write")

    monkeypatch.setattr(Claim, "extend", refused)
    with pytest.raises(AccessDenied, match="not allowed to write"):
        operator(nothing, claims=claims).execute(context)
    assert queue.counts()["claimed"] == 3


def test_after_a_time_out_airflow_does_not_try_again(queue, context, claims, monkeypatch):
    """The claim in hand is over, by a failed attempt; what no thread had got to is given back, and counts none.

    Before anything has begun, as where ZooKeeper does not answer, the claims hold, and Airflow's retry takes them over.
    """

    def away(*_, **__):
        time_out()
        raise Unavailable("nobody answers")

    with monkeypatch.context() as patched:
        patched.setattr(Queue, "claim_handle", away)
        with pytest.raises(AirflowTaskTimeout), airflow_timeout(60):
            operator(nothing, claims=claims).execute(context)
    assert queue.counts()["claimed"] == 3
    done = threading.Event()
    made = operator(lambda _: (time_out(), done.wait(60)), claims=claims, fail_on="any")
    with pytest.raises(AirflowFailException, match="no other try could handle"), airflow_timeout(60):
        made.execute(context)
    done.set()
    eventually(lambda: queue.counts()["claimed"] == 0)
    assert {task.id: task.attempt for task in queue.tasks(state="inserted")} == {"a": 1, "b": 0, "c": 0}


def test_an_outage_is_outlived_where_claims_begin(queue, context, monkeypatch):
    """Those that were prefetched: what cannot be said yet is said again, and nothing is given away."""
    queue.enqueue("x", task_id="a")
    claims = ZkmqClaimOperator(task_id="claim", zkmq_queue="jobs", prefetch=True, lease=60).execute(context)
    begin, away = Claim.begin, [Unavailable("nobody answers")] * 2

    def beginning(claim):
        if away:
            raise away.pop()
        return begin(claim)

    monkeypatch.setattr(Claim, "begin", beginning)
    assert operator(nothing, claims=claims).execute(context)["finished"] == 1
    assert (away, queue.task("a").attempt) == ([], 1)


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
    made = operator(lambda _: (begun.set(), done.wait(60)), claims=claims)
    killer = threading.Thread(target=lambda: (begun.wait(60), made.on_kill()), daemon=True)
    killer.start()
    try:
        with pytest.raises(AirflowException, match="told to end after 1 task"):
            made.execute(context)
    finally:
        done.set()
    eventually(lambda: queue.counts() | {"inserted": 1, "claimed": 2} == queue.counts())
    assert queue.task("a").attempt == 0
    assert operator(nothing, claims=claims).execute(context)["finished"] == 3
    assert {task.attempt for task in queue.tasks()} == {1}


def test_what_does_not_go_together_is_refused_and_nothing_is_touched(queue, context, claims, subtests):
    """Before any of the claims is taken over."""
    for options, why in (
        ({"selector": "size==1"}, "nothing left to select"),
        ({"transactional": True}, "a transaction takes what it claims itself"),
        ({"zkmq_queue": "others"}, "of several queues, jobs, others"),
        ({"claims": "nonsense"}, "claims"),
        ({"claims": [{"id": "a"}]}, "is no claim"),
    ):
        with subtests.test(options=options), pytest.raises(ConfigError, match=why):
            operator(nothing, **{"claims": claims} | options).execute(context)
    assert queue.counts()["claimed"] == 3
