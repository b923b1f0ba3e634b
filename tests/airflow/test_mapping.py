"""Mapped operators, results and groups: what would be taken for another's is refused where the DAG is parsed."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, TaskGroup, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.operators.groups import ZkmqTaskGroup
from airflow_provider_zkmq.operators.keeping import ZkmqKeepOperator
from airflow_provider_zkmq.operators.settling import ZkmqSettleOperator
from tests.airflow.test_settling import run, settle, taken

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


@task
def work(claim):
    """Do something about a claim, or about all."""


def changed(value):
    """Return a result made of what a task returned."""
    return value


def tasks_of_the_next_dag():
    """The ids of a DAG that is made afterwards in this process: it is in no group of another one."""
    with DAG("next", schedule=None) as dag:
        work([])
    return dag.task_ids


@pytest.mark.parametrize("operator", [ZkmqClaimOperator, ZkmqKeepOperator, ZkmqSettleOperator])
def test_what_sets_up_and_tears_down_is_not_mapped(operator):
    """Airflow would run it as another task, a settling before the work; it is said what to map instead."""
    with DAG("d", schedule=None) as dag, pytest.raises(ValueError, match="map a task group around ZkmqTaskGroup"):
        operator.partial(task_id="t").expand(claims=[[], []])
    assert dag.task_ids == []
    with DAG("d", schedule=None) as dag:
        operator(task_id="t", claims=[], **({"work": "w"} if operator is ZkmqSettleOperator else {}))
    assert dag.task_ids == ["t"]


def test_a_task_group_is_mapped_around_a_group_of_ours():
    """Each instance claims, keeps and settles for itself, as setup and teardown tasks."""

    @task_group
    def one(selector):
        with ZkmqTaskGroup("orders", selector=selector) as orders:
            orders.result = work(orders.claims)

    with DAG("d", schedule=None) as dag:
        one.expand(selector=["size>1", "size<=1"])
    claim, keep, settling = (dag.get_task(f"one.orders.{name}") for name in ("claim", "keep", "settle"))
    assert (claim.is_setup, keep.is_teardown, settling.is_teardown) == (True,) * 3
    assert settling.upstream_task_ids == {"one.orders.claim", "one.orders.work"}


MADE = {
    "map": lambda one, _: one.map(changed),
    "zip": lambda one, other: other.zip(one),
    "concat": lambda one, other: other.concat(one),
    "map of a zip": lambda one, other: one.zip(other).map(changed),
    "a list": lambda one, other: [one, other],
}


@pytest.mark.parametrize("how", MADE)
def test_what_is_made_of_mapped_results_is_no_result_of_each(how):
    """Airflow leaves out the instances that returned nothing: a task would get the next one's."""
    with DAG("d", schedule=None), pytest.raises(ValueError, match="mapped task 'orders.work'.*in the task itself"):
        with ZkmqTaskGroup("orders", each=True) as orders:
            orders.result = MADE[how](work.expand(claim=orders.claims), work.override(task_id="other")([]))
    assert tasks_of_the_next_dag() == ["work"]


def test_what_is_made_of_mapped_results_may_be_the_result_of_all():
    """As it may of what one task returned, a list for each claim."""
    with DAG("d", schedule=None):
        with ZkmqTaskGroup("all") as orders:
            orders.result = work.expand(claim=orders.claims).map(changed)
        with ZkmqTaskGroup("each", each=True) as orders:
            orders.result = work(orders.claims).map(changed)
        work_of = ZkmqSettleOperator(task_id="settle", claims=[], work=[work(orders.claims).map(changed)]).work
    assert work_of == ["work"]


@pytest.mark.parametrize("how", ["group", "group within a group", "operator"])
def test_in_a_mapped_group_claims_are_not_told_apart(how):
    """Its instances have the index of the group, and would settle the claims by the work of others."""

    @task_group
    def one(claim):
        if how == "group":
            with ZkmqTaskGroup("orders", each=True) as orders:
                work.expand(claim=orders.claims)
        elif how == "operator":
            ZkmqSettleOperator(task_id="settle", claims=claim, work="one.work", each=True)
        else:
            with TaskGroup("inner"), ZkmqTaskGroup("orders", each=True) as orders:
                work(orders.claims)

    with DAG("d", schedule=None), pytest.raises(ValueError, match="no meaning in the mapped task group 'one'"):
        one.expand(claim=[1, 2])
    assert tasks_of_the_next_dag() == ["work"]


def test_where_that_is_known_late_the_claims_are_left_alone(queue):
    """As where the settling was moved into the group: nothing is settled, and who holds the claims may go on."""
    claims = taken(queue, "a", "b")
    with pytest.raises(AirflowFailException, match="nothing is settled: each=True has no meaning"):
        settle(claims, run({"work_0": "success", "work_1": "success"}, map_index=1), each=True)
    assert [queue.task(name).state for name in "ab"] == ["claimed"] * 2
    for claim in claims:
        queue.complete(claim["id"], claim["token"])


@pytest.mark.parametrize("arguments", [{"lease": 1}, {"max_tasks": 0}, {"each": "yes"}, {"on_lost": "x"}])
def test_a_group_that_is_refused_leaves_other_dags_alone(arguments):
    """Those of the same process, which would have their tasks in it."""
    with (
        DAG("d", schedule=None),
        pytest.raises(ValueError, match="is not"),
        ZkmqTaskGroup("orders", **arguments) as made,
    ):
        work(made.claims)
    assert tasks_of_the_next_dag() == ["work"]
