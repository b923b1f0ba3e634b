"""`ZkmqSettleOperator`: no task is completed, and no run is green, whose work was not done."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_zkmq.engine import CorruptRecord, RetryPolicy, Unavailable
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.operators.groups import ZkmqTaskGroup
from airflow_provider_zkmq.operators.settling import ZkmqSettleOperator
from airflow_provider_zkmq.operators.verdicts import Work, apart, share
from tests.airflow.test_settling import Instance, Store, run, settle, taken

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


class Asked(Instance):
    """A run that is told of as Airflow does: by names that a task may have, too, and of the asked tasks alone."""

    def get_task_states(self, dag_id, task_ids, run_ids):
        """Return the states of the asked tasks' instances, the later one of two that have one name."""
        assert (dag_id, run_ids) == ("d", ["r"])
        asked = [(work, state) for work, state in self.states if work[0] in task_ids]
        return {"r": {name if index < 0 else f"{name}_{index}": state for (name, index), state in asked}}


def test_an_instance_that_is_named_as_another_task_is_not_taken_for_it(queue):
    """Airflow tells of both by one name; the failed one is seen all the same."""
    queue.configure(policy=RetryPolicy(attempts=1))
    context = run([(("load", 0), "success"), (("load", 1), "failed"), (("load_1", -1), "success")])
    context["ti"] = Asked(**vars(context["ti"]))
    with pytest.raises(AirflowFailException, match=r"load\[1\] failed"):
        settle(taken(queue, "a"), context, ["load", "load_1"])
    assert queue.task("a").state == "dead"
    assert apart(["a", "a_1", "a_1_2", "b_1", "a_x"]) == [["a", "a_x", "b_1"], ["a_1"], ["a_1_2"]]


def test_where_instances_are_not_one_for_each_claim_none_is_completed(queue):
    """By its index, an instance could be another claim's: its own failures and skips are told as they are."""
    queue.configure(policy=RetryPolicy(attempts=1))
    with pytest.raises(AirflowFailException, match=r"task 'b' .* is dead after attempt 1: work\[1\] not done"):
        settle(taken(queue, "a", "b"), run({"work_0": "success", "first": "success"}), ["work", "first"], each=True)
    told = "whose work it is is not known: work has 1 instance(s) for 2 claim(s)"
    assert [(queue.task(name).state, queue.task(name).error) for name in "ab"] == [
        ("dead", told), ("dead", "work[1] not done")
    ]  # fmt: skip
    assert share([Work("none", -1, None)], 1) == [Work("none", -1, None)]
    with pytest.raises(AirflowFailException, match=r"work has 2 instance\(s\) for 1 claim\(s\)"):
        settle(taken(queue, "c"), run({"work_0": "success", "work_1": "success"}), each=True)
    assert (queue.task("c").state, queue.task("c").result) == ("dead", None)


def test_work_of_none_that_was_skipped_as_a_whole_may_complete(queue):
    """A mapped task that was not expanded has no instances that could be anybody's."""
    claims = taken(queue, "a", "b")
    settle(claims, run({"work": "skipped", "first_0": "success", "first_1": "success"}), ["work", "first"], each=True,
           on_skipped="complete")  # fmt: skip
    assert [queue.task(name).state for name in "ab"] == ["finished"] * 2


def test_work_that_is_no_claim_s_fails_the_run(queue):
    """Airflow judges the run by the settling alone: also where a claim was lost, or there is none."""
    [claim] = taken(queue, "b")
    queue.cancel("b")
    for state in ("failed", "skipped"):
        with pytest.raises(AirflowFailException, match="the work was not done: "):
            settle([claim], run({"work": state}), on_lost="ignore")
    with pytest.raises(AirflowFailException, match="the work was not done: work failed"):
        settle(None, run({"work": "failed"}))
    with pytest.raises(AirflowFailException, match=r"the work was not done: work\[1\] failed"):
        settle(None, run({"work_0": "success", "work_1": "failed"}), each=True)


def test_a_later_try_tells_how_a_task_was_settled(queue, monkeypatch):
    """One that failed as its result was too large stays so, also where the other is settled by the later try."""
    queue.configure(policy=RetryPolicy(attempts=1))
    store, claims, away = Store(), taken(queue, "a", "b"), ["b"]
    complete = Queue.complete

    def sometimes(self, task_id, token, result=None):
        if task_id in away:
            raise Unavailable("nobody answers")
        complete(self, task_id, token, result)

    monkeypatch.setattr(Queue, "complete", sometimes)
    results = {"each": True, "result": ["x" * 2_000_000, "B"]}
    work = {"work_0": "success", "work_1": "success"}
    with pytest.raises(AirflowException, match="not settled: task 'b'"):
        settle(claims, run(work, store), **results)
    away.clear()
    with pytest.raises(AirflowFailException, match="task 'a' of queue 'jobs' is dead"):
        settle(claims, run(work, store, number=2), **results)
    assert [queue.task(name).state for name in "ab"] == ["dead", "finished"]


def test_a_task_that_cannot_be_read_keeps_no_other_from_being_settled(queue, monkeypatch):
    """What was settled is noted; the rest is tried again."""
    claims, complete, store = taken(queue, "a", "b"), Queue.complete, Store()

    def sometimes(self, task_id, token, result=None):
        if task_id == "a":
            raise CorruptRecord("the record of task 'a' is no JSON")
        complete(self, task_id, token, result)

    monkeypatch.setattr(Queue, "complete", sometimes)
    with pytest.raises(AirflowException, match="not settled: task 'a' .*is no JSON"):
        settle(claims, run({"work": "success"}, store))
    assert (queue.task("b").state, len(store["zkmq_settled"])) == ("finished", 1)


def test_what_failed_is_not_told_as_done_where_its_work_was_marked_since(queue):
    """A user marks the work as success and clears the settling: the queue's task stays failed, and the run red."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    store, claims = Store(), taken(queue, "a")
    with pytest.raises(AirflowFailException, match="the work failed"):
        settle(claims, run({"work": "failed"}, store))
    with pytest.raises(AirflowFailException, match="so an earlier try settled it"):
        settle(claims, run({"work": "success"}, store, number=2))
    assert queue.task("a").state == "inserted"


def test_each_has_its_own_of_a_list_that_one_task_returns(queue):
    """As of a list that is given."""
    made = ZkmqSettleOperator(task_id="settle", claims=taken(queue, "a", "b"), work="work", each=True)
    made.result_of = ("total", "return_value", False)
    context = run({"work_0": "success", "work_1": "success"})
    context["ti"].xcom_pull = lambda **_asked: ["A", "B"]
    made.execute(context)
    assert [queue.task(name).result for name in "ab"] == [b"A", b"B"]


@pytest.mark.parametrize("values", [["B"], ["A", "B", "C"], [], {"A", "B"}], ids=["less", "more", "none", "a set"])
def test_no_task_gets_a_result_that_may_be_another_s(queue, values):
    """Where the values are not one for each claim, in order, what succeeded is failed with that for its reason."""
    queue.configure(policy=RetryPolicy(attempts=1))
    states = {"work_0": "success", "work_1": "failed"}
    with pytest.raises(AirflowFailException, match="'a' of queue 'jobs' is dead after attempt 1: result "):
        settle(taken(queue, "a", "b"), run(states), each=True, result=values)
    assert [(queue.task(name).state, queue.task(name).result) for name in "ab"] == [("dead", None)] * 2
    assert queue.task("a").error.startswith("result is a set" if isinstance(values, set) else "result has ")
    assert queue.task("b").error == "work[1] failed"
    queue.redrive("a")
    queue.claim_task("a").complete("its own")


@pytest.mark.parametrize(
    ("value", "kept"), [(None, b""), ("text", b"text"), (b"bytes", b"bytes"), ({"rows": 1}, b'{"rows": 1}'), (5, b"5")]
)
def test_what_is_no_list_is_kept_by_each(queue, value, kept):
    """As the result of all of them."""
    settle(taken(queue, "a", "b"), run({"work_0": "success", "work_1": "success"}), each=True, result=value)
    assert [queue.task(name).result for name in "ab"] == [kept] * 2


@task
def one(claims):
    """Do something."""


def test_settling_waits_for_all_work_and_for_no_other_run():
    """A task fails at once where one before it did, while others go on; and the claims are not held for ever."""
    arguments = {"depends_on_past": True, "wait_for_downstream": True, "retries": 0}
    with DAG("d", schedule=None, default_args=arguments) as dag, ZkmqTaskGroup("orders", each=True) as orders:
        last = one.override(task_id="last")([one(orders.claims), one.override(task_id="slow")(orders.claims)])
        one.override(task_id="cluster")(orders.claims).as_setup() >> last
    with dag:
        settle_it = ZkmqSettleOperator(task_id="settle", claims=[], work=orders)
    around = {"orders.one", "orders.slow", "orders.last"}
    assert dag.get_task("orders.settle").upstream_task_ids == around | {"orders.claim"}
    assert settle_it.upstream_task_ids >= around
    assert "orders.cluster" not in settle_it.upstream_task_ids
    for name, retries in (("orders.keep", 3), ("orders.settle", 12)):
        made = dag.get_task(name)
        assert (made.depends_on_past, made.wait_for_downstream, made.retries) == (False, False, retries)
    assert dag.get_task("orders.claim").in_place
