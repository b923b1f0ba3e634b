"""What an earlier try of an enqueue wrote, with ids of the caller's own and in a batch: found whatever became of it."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine import DuplicateTask
from airflow_provider_zkmq.operators.zkmq import ZkmqEnqueueOperator
from tests.airflow.conftest import finish, instance, kill


@pytest.mark.parametrize("end", [None, finish, lambda queue: kill(queue, "e")])
def test_an_own_id_of_an_earlier_try_is_refused_whatever_became_of_it(queue, end):
    """With ``on_duplicate="fail"``; an ended task would run again if it was written once more."""
    operator = ZkmqEnqueueOperator(task_id="t", data="x", zkmq_task_id="mine", on_duplicate="fail")
    assert operator.execute(instance(try_number=1)) == "mine"
    if end is not None:
        end(queue)
    before = queue.task("mine")
    with pytest.raises(DuplicateTask, match="enqueued by an earlier try, the first is mine") as refused:
        operator.execute(instance(try_number=2))
    assert refused.value.duplicates == ("mine",)
    assert queue.task("mine") == before


def test_an_ended_task_of_another_run_is_no_duplicate(queue):
    """Its id is free again, as for everybody."""
    arguments = {"task_id": "t", "data": "x", "zkmq_task_id": "mine", "on_duplicate": "fail"}
    ZkmqEnqueueOperator(**arguments).execute(instance(run_id="r1"))
    finish(queue)
    assert ZkmqEnqueueOperator(**arguments).execute(instance(run_id="r2")) == "mine"
    assert queue.task("mine").state == "inserted"


@pytest.mark.parametrize("gone", [[0], [0, 1], [2]])
def test_a_batch_some_of_whose_members_were_dropped_is_adopted(queue, gone):
    """Whichever member is left tells whose it is."""
    operator = ZkmqEnqueueOperator(task_id="t", messages=["a", "b", "c"], batch="b")
    operator.execute(instance(try_number=1))
    for _ in range(3):
        kill(queue, "e")
    for position in gone:
        queue.drop(f"b.{position:06d}")
    assert operator.execute(instance(try_number=2)) == "b"
    assert queue.counts()["inserted"] == 0
    with pytest.raises(DuplicateTask, match="was enqueued before"):
        operator.execute(instance(run_id="another"))
