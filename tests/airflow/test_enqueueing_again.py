"""`ZkmqEnqueueOperator` again: what an earlier try wrote is adopted or refused; while ZooKeeper is away it goes on.

Neither writes anything twice.
"""

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
    Message,
    OutcomeUnknown,
    SessionLost,
    TlsRefused,
    Unavailable,
)
from airflow_provider_zkmq.engine.core.tasks import enqueue
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.hooks.origins import origin_of
from airflow_provider_zkmq.operators import once, patience
from airflow_provider_zkmq.operators.zkmq import ZkmqEnqueueOperator
from airflow_provider_zkmq.triggers import backoff
from tests.airflow.conftest import Heard, deferral, define, enqueuing, finish, instance, kill
from tests.faulty import CutAfter, Faulty, Once

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


def test_own_id_makes_a_second_try_harmless(queue, context):
    """A second try with the same id adopts the task that notes it; another operator's or run's is refused."""
    arguments = {"data": "x", "zkmq_task_id": "once"}
    operator = enqueuing(**arguments)
    assert operator.execute(context) == operator.execute(instance(try_number=3)) == "once"
    refused = [
        (enqueuing(**arguments, on_duplicate="fail"), context),
        (enqueuing(**arguments, idempotency="none"), context),
        (enqueuing(**arguments, idempotency="try"), instance(try_number=3)),
        *((operator, instance(**other)) for other in ({"run_id": "s"}, {"map_index": 4}, {"task_id": "u"})),
    ]
    for each, where in refused:
        with pytest.raises(DuplicateTask):
            each.execute(where)
    assert queue.counts()["inserted"] == 1


def test_an_own_id_that_has_ended_runs_again_for_another_run_only(queue):
    """A retry leaves what its first try has had done; for the next run its id is free, also where none may be there."""
    for name, more in (("nightly", {}), ("once", {"on_duplicate": "fail"})):
        operator = enqueuing(data="x", zkmq_task_id=name, **more)
        operator.execute(instance(try_number=1))
        finish(queue)
        if not more:
            operator.execute(instance(try_number=2))
        assert queue.task(name).state == "finished"
        assert operator.execute(instance(run_id="next", try_number=1)) == name
        assert queue.task(name).state == "inserted"
        finish(queue)


def test_an_own_id_of_an_earlier_try_is_refused_whatever_became_of_it(queue, subtests):
    """With ``on_duplicate="fail"``; an ended task would run again if it was written once more."""
    for name, end in (("finished", finish), ("dead", lambda queue: kill(queue, "e")), ("open", None)):
        with subtests.test(ended=name):
            operator = enqueuing(data="x", zkmq_task_id=name, on_duplicate="fail")
            assert operator.execute(instance(try_number=1)) == name
            if end is not None:
                end(queue)
            before = queue.task(name)
            with pytest.raises(DuplicateTask, match=f"enqueued by an earlier try, the first is {name}") as refused:
                operator.execute(instance(try_number=2))
            assert refused.value.duplicates == (name,)
            assert queue.task(name) == before


def test_what_a_try_wrote_is_adopted_by_the_next(queue):
    """Killed after its write, cleared, tried again: the tasks of a run are enqueued once, whatever became of them."""
    operator = enqueuing(messages=["a", {"data": "b", "task_id": "own"}, "c"])
    ids = operator.execute(instance(try_number=1))
    finish(queue)
    assert operator.execute(instance(try_number=2)) == operator.execute(instance(try_number=3)) == ids
    assert sorted(task.id for task in queue.tasks()) == sorted(ids)
    assert queue.counts()["inserted"] == 2
    others = [{"run_id": "s"}, {"dag_id": "e"}, {"map_index": 4}, {"task_id": "u"}]
    plain = enqueuing(messages=["a", "c"])
    told = [tuple(plain.execute(instance(**fields))) for fields in ({}, *others)]
    assert len({task_id for each in told for task_id in each}) == 2 * len(told)


def test_what_is_missing_is_written_by_the_next_try(queue, context):
    """A try that was cut off half way leaves tasks that are adopted; the others come once, unless none may be there."""
    key = once.series_key("run", origin_of(context))
    ids = [message.task_id for message in once.named([Message("x")] * 3, key)]
    queue.enqueue_new([Message("b", task_id=ids[1])])
    assert enqueuing(messages=["a", "b", "c"]).execute(context) == ids
    assert sorted(queue.task(task_id).data for task_id in ids) == [b"a", b"b", b"c"]
    with pytest.raises(DuplicateTask, match=rf"2 task\(s\) of queue 'jobs' .* the first is {ids[0]}") as caught:
        enqueuing(messages=["a", "b"], on_duplicate="fail").execute(context)
    assert (len(caught.value.duplicates), len(queue.tasks())) == (2, 3)


def test_each_try_or_each_call_enqueues_again_where_asked(queue):
    """``try``: once by each try; ``none``: by each call. Both let what an earlier try wrote alone."""
    for idempotency, told in (("try", 2), ("none", 3)):
        operator = enqueuing(data="x", idempotency=idempotency)
        tries = [instance(task_id=idempotency, try_number=number) for number in (1, 1, 2)]
        assert len({operator.execute(each) for each in tries}) == told
    far = instance(dag_id="d" * 250, run_id="r" * 250, task_id="t" * 250)
    assert len(enqueuing(data="x").execute(far)) < 121, "a queue takes the longest names that Airflow takes"


def dying(real):
    """A step of the engine that dies after the first of the trees it was given, or before its work."""

    def died(context, what, *rest):
        if isinstance(what, list):
            yield from real(context, what[:1], *rest)
        raise SessionLost("the worker died")
        yield

    return died


@pytest.mark.parametrize("step", ["write_trees", "seal_batch"])
def test_a_second_try_goes_on_with_a_half_written_batch(queue, context, monkeypatch, step):
    """Whatever the first try had written, the second leaves each member once; a third adopts the batch, or fails."""
    operator = enqueuing(messages=["a", "b", "c"], batch="b", then={"data": "d"})
    with monkeypatch.context() as patch:
        patch.setattr(enqueue, step, dying(getattr(enqueue, step)))
        patch.setattr(patience, "PATIENCE", 0.0)
        with pytest.raises(OutcomeUnknown, match="the worker died"):
            operator.execute(context)
    assert operator.execute(context) == "b"
    assert [finish(queue) for _ in range(3)] == MEMBERS
    assert queue.batch("b").done
    assert queue.claim().task.data == b"d"
    assert queue.claim() is None
    assert operator.execute(context) == "b"
    operator.on_duplicate = "fail"
    with pytest.raises(DuplicateTask, match="enqueued before, completely"):
        operator.execute(context)


@pytest.mark.parametrize("gone", [[0], [0, 1], [2]])
def test_a_batch_some_of_whose_members_were_dropped_is_adopted(queue, gone):
    """Whichever member is left tells whose it is."""
    operator = enqueuing(messages=["a", "b", "c"], batch="b")
    operator.execute(instance(try_number=1))
    for _ in MEMBERS:
        kill(queue, "e")
    for position in gone:
        queue.drop(MEMBERS[position])
    assert operator.execute(instance(try_number=2)) == "b"
    assert queue.counts()["inserted"] == 0
    with pytest.raises(DuplicateTask, match="was enqueued before"):
        operator.execute(instance(run_id="another"))


def test_a_complete_batch_is_told_as_it_stands(queue, context):
    """A batch that another run wrote is refused, with how it stands; so is one that does not note who wrote it."""
    arguments = {"messages": ["a", "b"], "batch": "b"}
    enqueuing(**arguments).execute(context)
    bad = kill(queue, "x")
    plain = enqueuing(messages=["a"], batch="plain", add_origin=False)
    plain.execute(context)
    stands = rf"2 task\(s\), 1 open, 1 failed \(first: {bad}\)"
    for operator, where, told in (
        (enqueuing(**arguments), instance(run_id="s"), stands),
        (enqueuing(**arguments, on_duplicate="fail"), context, stands),
        (enqueuing(**arguments, idempotency="none"), context, stands),
        (plain, context, "enqueued before, completely"),
    ):
        with pytest.raises(DuplicateTask, match=told):
            operator.execute(where)
    assert len(queue.tasks()) == 3


def test_a_batch_is_adopted_and_waited_for(queue):
    """A retry of the same run goes on waiting for the batch that its first try wrote."""
    operator = enqueuing(messages=["a", "b"], batch="b", wait_for_completion=True, deferrable=True)
    for number in (1, 2):
        assert deferral(operator.execute, instance(try_number=number)).trigger.batch == "b"
    assert [finish(queue), finish(queue)] == MEMBERS[:2]
    assert operator.execute(instance(try_number=3)) == "b"
    assert queue.claim() is None


def test_an_id_in_use_is_no_batch_in_use(queue, context):
    """Where a member's own id is taken, the error names that id; the try after it was freed goes on."""
    queue.enqueue("other", task_id="own", priority=1)
    operator = enqueuing(messages=["a", {"data": "b", "task_id": "own"}], batch="b")
    with pytest.raises(DuplicateTask, match="'own'"):
        operator.execute(context)
    assert finish(queue) == "own"
    operator.execute(context)
    assert {finish(queue), finish(queue)} == {"b.000000", "own"}
    assert queue.batch("b").done


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
def told_of(monkeypatch):
    """How many were enqueued and adopted, by the log of the operators; it is asked once."""
    monkeypatch.setattr(ZkmqEnqueueOperator, "log", heard := Heard())

    def told():
        lines, heard.lines = heard.lines, []
        return [line.partition(" task(s)")[0] for line in lines if line.startswith(("Enqueued", "Adopted"))]

    return told


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


OWN = {"data": "marked", "zkmq_task_id": "own"}
BATCH = {"messages": ["marked"], "batch": "b"}
MEMBERS = ["b.000000", "b.000001", "b.000002"]


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
    queue, proxy, told_of, pauses, monkeypatch, arguments, handled
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
    assert told_of() == ["Enqueued 1"]
    assert handled or finish(queue) == task.id
    assert queue.claim() is None


@pytest.mark.parametrize("marker", [b"three", b"four"])
def test_many_of_unknown_outcome_beside_those_of_an_earlier_try(queue, proxy, told_of, pauses, marker):
    """Adopted is what an earlier try wrote, and nothing else, of a series and of the caller's ids; each runs once."""
    messages = ["one", {"data": "two", "task_id": "own-2"}, "three", {"data": "four", "task_id": "own-4"}]
    ids = enqueuing(messages=messages[:2]).execute(instance(try_number=1))
    assert told_of() == ["Enqueued 2"]
    operator = enqueuing(messages=messages)
    loses(proxy, marker)
    pauses.append(proxy.up)
    told = operator.execute(instance(try_number=2))
    assert (told[:2], told[3], told_of()) == (ids, "own-4", ["Enqueued 2", "Adopted 2"])
    assert operator.execute(instance(try_number=3)) == told
    assert sorted(finish(queue) for _ in told) == sorted(told)
    assert queue.claim() is None


def test_the_first_part_of_a_write_is_no_earlier_try_s_to_the_second(queue, proxy, told_of, pauses):
    """A series is written, then the caller's ids, whose reply is lost with ZooKeeper: nothing is refused or adopted."""
    loses(proxy)
    pauses.append(proxy.up)
    messages = ["one", {"data": "marked", "task_id": "own"}]
    ids = enqueuing(messages=messages, on_duplicate="fail").execute(instance())
    assert told_of() == ["Enqueued 2"]
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
    assert [finish(queue) for _ in range(3)] == MEMBERS
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
    for arguments in ({"data": "marked"}, BATCH):
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
