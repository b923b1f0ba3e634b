"""`ZkmqEnqueueOperator` while ZooKeeper is away: its write and its wait go on, and write nothing twice."""

from __future__ import annotations

import itertools
import math
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowException, TaskDeferred

from airflow_provider_zkmq.engine import (
    AccessDenied,
    DuplicateTask,
    OutcomeUnknown,
    SessionLost,
    TlsRefused,
    Unavailable,
)
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.operators.zkmq import ZkmqEnqueueOperator
from airflow_provider_zkmq.triggers import backoff
from tests.airflow.conftest import Heard, deferral, define, enqueuing, finish, instance
from tests.faulty import CutAfter, Faulty, Once

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


def loses(proxy, marker=b"marked"):
    """It goes down with the reply to the first request that holds these bytes."""
    proxy.plan = Once(lambda request: marker in request.body, CutAfter(math.inf))


@pytest.fixture
def proxy(queue, zookeeper, root, monkeypatch):
    """What stands between the operators and ZooKeeper; the queue of the test has its own way."""
    between = Faulty(zookeeper)
    times = {"connect_timeout": 0.5, "request_timeout": 0.5, "session_timeout": 4}
    define(monkeypatch, host=between.hosts, extra={"root": root, "queue": "jobs"} | times)
    yield between
    between.close()


@pytest.fixture
def log(monkeypatch):
    """What the operators log."""
    heard = Heard()
    monkeypatch.setattr(ZkmqEnqueueOperator, "log", heard)
    return heard


@pytest.fixture
def pauses(monkeypatch):
    """What happens in the pauses between two tries, in their order; the last again and again."""
    coming = []

    def pause(_seconds):
        (coming.pop(0) if len(coming) > 1 else coming[0])()

    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=pause))
    return coming


def spied(monkeypatch, verb, before=lambda: None):
    """How the calls of one of the engine's verbs end, in their order; `before` is done before the first."""
    ends, real = [], getattr(Queue, verb)

    def spy(self, *given, **named):
        if not ends:
            before()
        try:
            result = real(self, *given, **named)
        except Exception as error:
            ends.append(type(error))
            raise
        ends.append(None)
        return result

    monkeypatch.setattr(Queue, verb, spy)
    return ends


def told_of(log):
    """How many were enqueued and adopted, by the log."""
    return [line.partition(" task(s)")[0] for line in log.lines if line.startswith(("Enqueued", "Adopted"))]


OWN = {"data": "marked", "zkmq_task_id": "own"}
BATCH = {"messages": ["marked"], "batch": "b"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "handled"),
    [
        ({"data": "marked"}, False),
        ({"data": "marked", "on_duplicate": "fail"}, False),
        ({"data": "marked", "on_duplicate": "fail"}, True),
        ({"data": "marked", "idempotency": "none"}, False),
        (OWN, False),
        (OWN | {"on_duplicate": "fail"}, False),
        (OWN | {"idempotency": "none"}, True),
        (BATCH, False),
        (BATCH | {"on_duplicate": "fail"}, True),
    ],
)
def test_a_write_whose_reply_is_lost_with_zookeeper_is_one_task(
    queue, proxy, log, pauses, monkeypatch, arguments, handled
):
    """The operator succeeds with what its own write made, and adopts nothing, also where it was handled meanwhile."""
    ends = [spied(monkeypatch, verb) for verb in ("enqueue_new", "enqueue_many")]
    loses(proxy)
    pauses += [lambda: finish(queue) if handled else None, proxy.up]
    told = enqueuing(**arguments).execute(instance())
    [task] = queue.tasks()
    assert told == arguments.get("batch", task.id)
    assert (task.status, task.data) == ("done-awaiting-gc" if handled else "queued", b"marked")
    [tries] = [each for each in ends if each]
    assert (tries[0], tries[-1], len(queue.tasks())) == (OutcomeUnknown, None, 1)
    assert told_of(log) == ["Enqueued 1"]
    assert handled or finish(queue) == task.id
    assert queue.claim() is None


@pytest.mark.parametrize("marker", [b"three", b"four"])
def test_many_of_unknown_outcome_beside_those_of_an_earlier_try(queue, proxy, log, pauses, marker):
    """Adopted is what an earlier try wrote, and nothing else, of a series and of the caller's ids; each runs once."""
    messages = ["one", {"data": "two", "task_id": "own-2"}, "three", {"data": "four", "task_id": "own-4"}]
    ids = enqueuing(messages=messages[:2]).execute(instance(try_number=1))
    log.lines.clear()
    operator = enqueuing(messages=messages)
    loses(proxy, marker)
    pauses.append(proxy.up)
    told = operator.execute(instance(try_number=2))
    assert (told[:2], told[3], told_of(log)) == (ids, "own-4", ["Enqueued 2", "Adopted 2"])
    assert operator.execute(instance(try_number=3)) == told
    assert sorted(finish(queue) for _ in told) == sorted(told)
    assert queue.claim() is None


def test_the_first_part_of_a_write_is_no_earlier_try_s_to_the_second(queue, proxy, log, pauses):
    """A series is written, then the caller's ids, whose reply is lost with ZooKeeper: nothing is refused or adopted."""
    loses(proxy)
    pauses.append(proxy.up)
    messages = ["one", {"data": "marked", "task_id": "own"}]
    ids = enqueuing(messages=messages, on_duplicate="fail").execute(instance())
    assert told_of(log) == ["Enqueued 2"]
    assert {finish(queue), finish(queue)} == set(ids)
    assert queue.claim() is None


@pytest.mark.parametrize("way", ["update", "requeue"])
def test_a_change_of_another_s_task_is_made_once(queue, proxy, pauses, way):
    """A reply that is lost with ZooKeeper neither refuses the change nor makes it twice."""
    queue.enqueue("old", task_id="theirs")
    claim = queue.claim() if way == "requeue" else None
    loses(proxy)
    pauses.append(proxy.up)
    message = {"data": "marked", "task_id": "theirs", way: True}
    assert enqueuing(messages=[message]).execute(instance()) == ["theirs"]
    if claim is not None:
        claim.complete()
    assert queue.claim().task.data == b"marked"
    assert queue.claim() is None


def test_a_batch_of_unknown_outcome_is_followed_once(queue, proxy, pauses):
    """Its members and what follows them are there once, and an own id among them that is another's is still refused."""
    loses(proxy)
    pauses.append(proxy.up)
    operator = enqueuing(messages=["a", "marked", "c"], batch="b", then={"data": "then"})
    assert operator.execute(instance()) == "b"
    assert [finish(queue) for _ in range(3)] == ["b.000000", "b.000001", "b.000002"]
    assert queue.claim().task.data == b"then"
    assert (queue.claim(), queue.batch("b").done) == (None, True)
    queue.enqueue("other", task_id="own")
    loses(proxy, b"again")
    with pytest.raises(DuplicateTask, match="'own'"):
        enqueuing(messages=["again", {"data": "d", "task_id": "own"}], batch="c").execute(instance())


def test_a_write_waits_for_zookeeper(queue, proxy, pauses):
    """It is away as the operator begins, and for several tries; then its task is there, once.

    It waits no longer than its task may take: then the error is ZooKeeper's, nothing is written, and the next try goes
    on.
    """
    for arguments in ({"data": "marked"}, OWN, BATCH):
        proxy.down()
        pauses[:] = [lambda: None, lambda: None, proxy.up]
        enqueuing(**arguments).execute(instance())
        [task] = queue.tasks(state="inserted")
        assert (pauses, finish(queue)) == ([proxy.up], task.id)
    proxy.down()
    operator = enqueuing(data="x", execution_timeout=timedelta(microseconds=1))
    with pytest.raises(Unavailable):
        operator.execute(instance(run_id="s"))
    proxy.up()
    assert queue.counts()["inserted"] == 0
    assert operator.execute(instance(run_id="s")) == finish(queue)


def test_what_no_wait_mends_fails_at_once(queue, subtests):
    """Certificates and passwords that are refused, and a client that was closed, are no outage."""
    errors = TlsRefused("their certificate"), AccessDenied("no"), SessionLost("closed")
    cases = itertools.product(("enqueue_new", "wait"), errors, (False, True))
    for number, (verb, error, deferrable) in enumerate(cases):
        with subtests.test(error=error, verb=verb, deferrable=deferrable), pytest.MonkeyPatch.context() as patch:

            def refused(*_given, error=error, **_named):
                raise error

            patch.setattr(Queue, verb, refused)
            operator = enqueuing(data="x", wait_for_completion=True, deferrable=deferrable)
            before = len(queue.tasks())
            with pytest.raises((type(error), AirflowException), match=str(error)) as failed:
                operator.execute(instance(run_id=f"r{number}"))
            assert not isinstance(failed.value, TaskDeferred)
            assert len(queue.tasks()) - before == (verb == "wait")


@pytest.mark.parametrize("arguments", [{"data": "x"}, {"messages": ["x"], "batch": "b"}])
def test_a_wait_on_the_worker_goes_on_through_an_outage(queue, proxy, pauses, monkeypatch, arguments):
    """However long it lasts, where no timeout is given; what ends meanwhile ends the wait when ZooKeeper is back."""
    ends = spied(monkeypatch, "wait_batch" if "batch" in arguments else "wait", proxy.down)

    def back():
        finish(queue)
        proxy.up()

    pauses += [lambda: None, back, lambda: None]
    told = enqueuing(wait_for_completion=True, **arguments).execute(instance())
    assert told == arguments.get("batch", queue.tasks()[0].id)
    assert (ends[0], ends[-1], len(queue.tasks())) == (Unavailable, None, 1)


def test_a_wait_on_the_worker_ends_with_its_timeout(queue, proxy, pauses, monkeypatch):
    """Through the outage, too; its task is there, and the next try goes on waiting for it."""
    spied(monkeypatch, "wait", proxy.down)
    pauses.append(lambda: None)
    operator = enqueuing(data="x", wait_for_completion=True, timeout=0.2)
    with pytest.raises(AirflowException) as failed:
        operator.execute(instance())
    assert not isinstance(failed.value, TaskDeferred)
    proxy.up()
    task_id = finish(queue)
    assert operator.execute(instance()) == task_id


def test_an_outage_as_it_resumes_fails_nothing_that_has_ended(queue, proxy):
    """It defers again, also beyond its timeout: the tasks were told of in time."""
    operator = enqueuing(data="x", wait_for_completion=True, deferrable=True)
    deferral(operator.execute, instance())
    event = {"status": "done", "ids": [finish(queue)]}
    proxy.down()
    for passed in (-60.0, 3600.0, None):
        deadline = None if passed is None else time.time() + passed
        again = deferral(operator.execute_complete, instance(), event, deadline=deadline).trigger.deadline
        assert again is None if passed is None else again >= max(deadline, time.time())
    proxy.up()
    for deadline in (time.time() - 60, None):
        assert operator.execute_complete(instance(), event, deadline=deadline) == event["ids"][0]
