"""What an earlier try of an enqueue wrote is adopted or refused by the next, whatever became of it; so is a batch."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine import DuplicateTask, Message, OutcomeUnknown, SessionLost
from airflow_provider_zkmq.engine.core.tasks import enqueue
from airflow_provider_zkmq.hooks.origins import origin_of
from airflow_provider_zkmq.operators import once, patience
from tests.airflow.conftest import deferral, enqueuing, finish, instance, kill


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


@pytest.mark.parametrize("end", [None, finish, lambda queue: kill(queue, "e")])
def test_an_own_id_of_an_earlier_try_is_refused_whatever_became_of_it(queue, end):
    """With ``on_duplicate="fail"``; an ended task would run again if it was written once more."""
    operator = enqueuing(data="x", zkmq_task_id="mine", on_duplicate="fail")
    assert operator.execute(instance(try_number=1)) == "mine"
    if end is not None:
        end(queue)
    before = queue.task("mine")
    with pytest.raises(DuplicateTask, match="enqueued by an earlier try, the first is mine") as refused:
        operator.execute(instance(try_number=2))
    assert refused.value.duplicates == ("mine",)
    assert queue.task("mine") == before


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
    assert [finish(queue) for _ in range(3)] == ["b.000000", "b.000001", "b.000002"]
    assert queue.batch("b").done
    assert queue.claim().task.data == b"d"
    assert queue.claim() is None
    assert operator.execute(context) == "b"
    operator.on_duplicate = "fail"
    with pytest.raises(DuplicateTask, match="enqueued before, completely"):
        operator.execute(context)


def dying(real):
    """A step of the engine that dies after the first of the trees it was given, or before its work."""

    def died(context, what, *rest):
        if isinstance(what, list):
            yield from real(context, what[:1], *rest)
        raise SessionLost("the worker died")
        yield

    return died


@pytest.mark.parametrize("gone", [[0], [0, 1], [2]])
def test_a_batch_some_of_whose_members_were_dropped_is_adopted(queue, gone):
    """Whichever member is left tells whose it is."""
    operator = enqueuing(messages=["a", "b", "c"], batch="b")
    operator.execute(instance(try_number=1))
    for _ in range(3):
        kill(queue, "e")
    for position in gone:
        queue.drop(f"b.{position:06d}")
    assert operator.execute(instance(try_number=2)) == "b"
    assert queue.counts()["inserted"] == 0
    with pytest.raises(DuplicateTask, match="was enqueued before"):
        operator.execute(instance(run_id="another"))


def test_a_complete_batch_is_told_as_it_stands(queue, context):
    """A batch that another run wrote is refused, with how it stands; so is one that does not note who wrote it."""
    arguments = {"messages": ["a", "b"], "batch": "b"}
    enqueuing(**arguments).execute(context)
    bad = kill(queue, "x")
    refused = [
        (enqueuing(**arguments), instance(run_id="s")),
        (enqueuing(**arguments, on_duplicate="fail"), context),
        (enqueuing(**arguments, idempotency="none"), context),
    ]
    for operator, where in refused:
        with pytest.raises(DuplicateTask, match=rf"2 task\(s\), 1 open, 1 failed \(first: {bad}\)"):
            operator.execute(where)
    plain = enqueuing(messages=["a"], batch="plain", add_origin=False)
    plain.execute(context)
    with pytest.raises(DuplicateTask, match="enqueued before, completely"):
        plain.execute(context)
    assert len(queue.tasks()) == 3


def test_a_batch_is_adopted_and_waited_for(queue):
    """A retry of the same run goes on waiting for the batch that its first try wrote."""
    operator = enqueuing(messages=["a", "b"], batch="b", wait_for_completion=True, deferrable=True)
    for number in (1, 2):
        assert deferral(operator.execute, instance(try_number=number)).trigger.batch == "b"
    assert [finish(queue), finish(queue)] == ["b.000000", "b.000001"]
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
