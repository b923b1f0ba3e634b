"""`ZkmqEnqueueOperator`: neither its tries nor an outage of ZooKeeper write anything twice, or fail what goes on."""

from __future__ import annotations

import itertools
import math
import time
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

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
from airflow_provider_zkmq.engine.api.internal_methods import QueueInternals
from airflow_provider_zkmq.engine.api.queue import Queue
from airflow_provider_zkmq.engine.core.tasks import enqueue
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.hooks import outages
from airflow_provider_zkmq.hooks.task_instance import origin_of
from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator, named, series_key
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


def test_an_own_id_of_an_earlier_try_is_refused_whatever_became_of_it(queue, subtests):
    """With ``on_duplicate="fail"``, else it is adopted; neither runs again, but for another run an ended one's does."""
    for name, fails, end in (
        ("adopted", {}, finish),
        ("finished", {"on_duplicate": "fail"}, finish),
        ("dead", {"on_duplicate": "fail"}, lambda queue: kill(queue, "e")),
        ("open", {"on_duplicate": "fail"}, lambda _: None),
    ):
        with subtests.test(ended=name):
            operator = enqueuing(data="x", zkmq_task_id=name, **fails)
            assert operator.execute(instance(try_number=1)) == name
            end(queue)
            before = queue.task(name)
            if fails:
                said = f"enqueued by an earlier try, the first is {name}"
                with pytest.raises(DuplicateTask, match=said) as refused:
                    operator.execute(instance(try_number=2))
                assert refused.value.duplicates == (name,)
            else:
                assert operator.execute(instance(try_number=2)) == name
            assert queue.task(name) == before
            if end is finish:
                assert operator.execute(instance(run_id="next", try_number=1)) == finish(queue) == name


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
    said = [tuple(plain.execute(instance(**fields))) for fields in ({}, *others)]
    assert len({task_id for each in said for task_id in each}) == 2 * len(said)


def test_what_is_missing_is_written_by_the_next_try(queue, context):
    """A try that was cut off half way leaves tasks that are adopted; the others come once, unless none may be there."""
    key = series_key("run", origin_of(context), queue.name)
    ids = [message.task_id for message in named([Message("x")] * 3, key)]
    internals(queue).enqueue_new([Message("b", task_id=ids[1])])
    assert enqueuing(messages=["a", "b", "c"]).execute(context) == ids
    assert sorted(queue.task(task_id).data for task_id in ids) == [b"a", b"b", b"c"]
    with pytest.raises(DuplicateTask, match=rf"2 task\(s\) of queue 'jobs' .* the first is {ids[0]}") as caught:
        enqueuing(messages=["a", "b"], on_duplicate="fail").execute(context)
    assert (len(caught.value.duplicates), len(queue.tasks())) == (2, 3)


def test_each_try_or_each_call_enqueues_again_where_asked(queue):
    """``try``: once by each try; ``none``: by each call. Both let what an earlier try wrote alone."""
    for idempotency, said in (("try", 2), ("none", 3)):
        operator = enqueuing(data="x", idempotency=idempotency)
        tries = [instance(task_id=idempotency, try_number=number) for number in (1, 1, 2)]
        assert len({operator.execute(each) for each in tries}) == said
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


@pytest.mark.parametrize("step", ["write_all", "seal_batch"])
def test_a_second_try_goes_on_with_a_half_written_batch(queue, context, monkeypatch, step):
    """Whatever the first try had written, the second leaves each member once; a third adopts the batch, or fails."""
    operator = enqueuing(messages=["a", "b", "c"], batch="b", then={"data": "d"})
    with monkeypatch.context() as patch:
        patch.setattr(enqueue, step, dying(getattr(enqueue, step)))
        patch.setattr(outages, "RETRY_SECONDS", 0.0)
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
    """A retry goes on waiting for the batch that its first try wrote; whichever member is left tells whose it is."""
    messages = {"messages": ["a", "b", "c"], "batch": "b"}
    waiting = enqueuing(**messages, wait_for_completion=True, deferrable=True)
    for number in (1, 2):
        assert deferral(waiting.execute, instance(try_number=number)).trigger.batch == "b"
    for _ in MEMBERS:
        kill(queue, "e")
    for position in gone:
        queue.drop(MEMBERS[position])
    operator = enqueuing(**messages)
    assert operator.execute(instance(try_number=3)) == "b"
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
    for operator, where, said in (
        (enqueuing(**arguments), instance(run_id="s"), stands),
        (enqueuing(**arguments, on_duplicate="fail"), context, stands),
        (enqueuing(**arguments, idempotency="none"), context, stands),
        (plain, context, "enqueued before, completely"),
    ):
        with pytest.raises(DuplicateTask, match=said):
            operator.execute(where)
    assert len(queue.tasks()) == 3


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

    def said():
        lines, heard.lines = heard.lines, []
        return [line.partition(" task(s)")[0] for line in lines if line.startswith(("Enqueued", "Adopted"))]

    return said


@pytest.fixture
def pauses(monkeypatch):
    """What happens in the pauses between two tries, in their order; the last again and again."""
    coming = []

    def pause(_seconds):
        (coming.pop(0) if len(coming) > 1 else coming[0])()

    monkeypatch.setattr(outages, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic, time=time.time))
    return coming


def spied(monkeypatch, verb, before=lambda: None):
    """How the calls of one of the engine's verbs end, in their order; `before` is done before the first."""
    kind = QueueInternals if verb == "enqueue_new" else Queue
    ends, real = [], getattr(kind, verb)

    def spy(self, *given, **named):
        if not ends:
            before()
        ends.append(None)
        try:
            return real(self, *given, **named)
        except Exception as error:
            ends[-1] = type(error)
            raise

    monkeypatch.setattr(kind, verb, spy)
    return ends


FAIL = {"on_duplicate": "fail"}
OWN = {"data": "marked", "zkmq_task_id": "own"}
BATCH = {"messages": ["marked"], "batch": "b"}
MEMBERS = ["b.000000", "b.000001", "b.000002"]
OF_EARLIER = ["one", {"data": "two", "task_id": "own-2"}]


@pytest.mark.parametrize(
    ("arguments", "earlier", "handled"),
    [
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                ({"data": "marked"}, 0, False),
                ({"data": "marked"} | FAIL, 0, False),
                ({"data": "marked"} | FAIL, 0, True),
                ({"data": "marked", "idempotency": "none"}, 0, False),
                (OWN, 0, False),
                (OWN | FAIL, 0, False),
                (OWN | {"idempotency": "none"}, 0, True),
                (BATCH, 0, False),
                (BATCH | FAIL, 0, True),
            )
        ),
        ({"messages": ["a", "marked", "c"], "batch": "b", "then": {"data": "then"}}, 0, False),
        # A series is written, then the caller's ids: the second part does not meet the first as an earlier try's.
        ({"messages": ["one", {"data": "marked", "task_id": "own"}]} | FAIL, 0, False),
        ({"messages": [*OF_EARLIER, "marked", {"data": "four", "task_id": "own-4"}]}, 2, False),
        ({"messages": [*OF_EARLIER, "three", {"data": "marked", "task_id": "own-4"}]}, 2, False),
    ],
)
def test_a_write_whose_reply_is_lost_with_zookeeper_is_made_once(
    queue, proxy, told_of, pauses, monkeypatch, arguments, earlier, handled
):
    """Adopted is what an earlier try wrote, nothing of its own, also where it was handled meanwhile; each runs once."""
    messages = arguments.get("messages", [arguments.get("data")])
    if earlier:
        ids = enqueuing(messages=messages[:earlier]).execute(instance(try_number=1))
        assert told_of() == [f"Enqueued {earlier}"]
    ends = [spied(monkeypatch, verb) for verb in ("enqueue_new", "enqueue_many")]
    loses(proxy)
    ran = []
    pauses += [lambda: ran.append(finish(queue)) if handled else None, proxy.up]
    said = enqueuing(**arguments).execute(instance(try_number=2))
    assert told_of() == [f"Enqueued {len(messages) - earlier}", *([f"Adopted {earlier}"] if earlier else [])]
    assert OutcomeUnknown in itertools.chain(*ends)
    assert ({each[-1] for each in ends if each}, len(queue.tasks())) == ({None}, len(messages))
    if earlier:
        assert (said[:earlier], said[3]) == (ids, "own-4")
        assert enqueuing(**arguments).execute(instance(try_number=3)) == said
    ran += [finish(queue) for _ in messages[len(ran) :]]
    if "batch" in arguments:
        assert (said, ran) == ("b", MEMBERS[: len(messages)])
    else:
        assert sorted(ran) == sorted(said if "messages" in arguments else [said])
    if "then" in arguments:
        assert (queue.claim().task.data, queue.batch(said).done) == (b"then", True)
    assert queue.claim() is None


@pytest.mark.parametrize("way", ["replace", "requeue"])
def test_a_change_of_another_s_task_is_made_once(queue, proxy, pauses, way):
    """A reply that is lost with ZooKeeper neither refuses the change nor makes it twice."""
    queue.enqueue("old", task_id="theirs")
    claim = queue.claim() if way == "requeue" else None
    loses(proxy)
    pauses.append(proxy.up)
    message = {"data": "marked", "task_id": "theirs", "on_conflict": way}
    assert enqueuing(messages=[message]).execute(instance()) == ["theirs"]
    if claim is not None:
        claim.complete()
    assert queue.claim().task.data == b"marked"
    assert queue.claim() is None


def test_an_id_in_use_is_no_batch_in_use(queue, proxy, pauses, context):
    """Where a member's own id is another's, the error names that id, also after a lost reply; freed, it goes on."""
    queue.enqueue("other", task_id="own", priority=1)
    operator = enqueuing(messages=["again", {"data": "b", "task_id": "own"}], batch="b")
    pauses.append(proxy.up)
    for lose in (lambda _proxy, _marker: None, loses):
        lose(proxy, b"again")
        with pytest.raises(DuplicateTask, match="'own'"):
            operator.execute(context)
    assert finish(queue) == "own"
    operator.execute(context)
    assert {finish(queue), finish(queue)} == {"b.000000", "own"}
    assert queue.batch("b").done


def test_a_write_waits_for_zookeeper(queue, proxy, pauses):
    """Then its task is there, once; where its task may not take so long, the next try goes on, and nothing is there."""
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
            patch.setattr(QueueInternals if verb == "enqueue_new" else Queue, verb, Mock(side_effect=error))
            operator = enqueuing(data="x", wait_for_completion=True, deferrable=deferrable)
            before = len(queue.tasks())
            with pytest.raises((type(error), AirflowException), match=str(error)) as failed:
                operator.execute(instance(run_id=f"r{number}"))
            assert not isinstance(failed.value, TaskDeferred)
            assert len(queue.tasks()) - before == (verb == "wait")


@pytest.mark.parametrize("arguments", [{"data": "x"}, {"messages": ["x"], "batch": "b"}])
def test_a_wait_on_the_worker_goes_on_through_an_outage(queue, proxy, pauses, monkeypatch, arguments):
    """What ends meanwhile ends the wait when ZooKeeper is back; a timeout ends it, too, and the next try goes on."""
    ends = spied(monkeypatch, "wait_batch" if "batch" in arguments else "wait", proxy.down)
    pauses.append(lambda: None)
    with pytest.raises(AirflowException) as failed:
        enqueuing(wait_for_completion=True, timeout=0.2, **arguments).execute(instance())
    assert not isinstance(failed.value, TaskDeferred)
    proxy.up()
    ends.clear()  # so that ZooKeeper is away again

    def back():
        finish(queue)
        proxy.up()

    pauses[:] = [lambda: None, back, lambda: None]
    said = enqueuing(wait_for_completion=True, **arguments).execute(instance())
    assert said == arguments.get("batch", queue.tasks()[0].id)
    assert (ends[0], ends[-1], len(queue.tasks())) == (Unavailable, None, 1)


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
