"""`ZkmqTaskGroup`, and what is laid by hand: which tasks there are around the work, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TaskGroup, task, task_group
from airflow.sdk.exceptions import AirflowSkipException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_zkmq.hooks.claim_references import claim_reference as claimed
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.operators.dag_run_work import note_end, note_error
from airflow_provider_zkmq.operators.leases import ZkmqKeepOperator
from airflow_provider_zkmq.operators.settling import ZkmqSettleOperator
from airflow_provider_zkmq.operators.task_group import ZkmqTaskGroup
from tests.airflow.conftest import Heard, batch_of, instance

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core


def dags_of(name, code):
    """The DAGs of a file of this name in Airflow's folder, as its processor reads them."""
    file = Path(os.environ["AIRFLOW_HOME"]) / "dags" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)
    found = DagBag(file)
    assert not found.import_errors
    return found.dags


@task
def work(claim):
    """Do something about one claim, or about all."""


@task.zkmq
def handled(parcel, claims):
    """Handle claims itself."""


def claim_reference(context):
    """Be a user's own callback."""


def changed(value):
    """Return a result made of what a task returned."""
    return value


def named(name, *given):
    return work.override(task_id=name)(*given or ([],))


def tasks_of_the_next_dag():
    """The ids of a DAG that is made afterwards in this process: it is in no group of another one."""
    with DAG("next", schedule=None) as dag:
        work([])
    return dag.task_ids


@pytest.fixture
def dag():
    """A group with mapped tasks, a group in it, and tasks before and after it."""
    with DAG("d", schedule=None, default_args={"on_failure_callback": claim_reference}) as made:
        with ZkmqTaskGroup("orders", zkmq_queue="jobs", max_tasks=3) as orders:
            named("total", work.expand(claim=orders.claims))
            with TaskGroup("inner"):
                named("one") >> named("two")
        named("before") >> orders >> named("after")
    made.validate_setup_teardown()
    return made


def test_the_work_stands_between_claim_and_settle(dag):
    """What is at its head follows the claim, each of its tasks is followed by the settling; keeping is beside it."""
    upstream = {each.task_id: each.upstream_task_ids for each in dag.tasks}
    assert upstream == {
        "before": set(),
        "orders.claim": {"before"},
        "orders.keep": {"orders.claim"},
        "orders.work": {"orders.claim"},
        "orders.total": {"orders.work"},
        "orders.inner.one": {"orders.claim"},
        "orders.inner.two": {"orders.inner.one"},
        "orders.settle": {"orders.claim", "orders.work", "orders.total", "orders.inner.one", "orders.inner.two"},
        "after": {"orders.total", "orders.inner.two"},
    }
    claim, keep, settle = (dag.get_task(f"orders.{name}") for name in ("claim", "keep", "settle"))
    assert (claim.is_setup, claim.in_place, settle.is_teardown, settle.on_failure_fail_dagrun) == (True,) * 4
    assert settle.work == ["orders.inner.one", "orders.inner.two", "orders.total", "orders.work"]
    assert (keep.settle, keep.pool, keep.retries, settle.retries) == ("orders.settle", "default_pool", 3, 12)


def test_settling_waits_for_all_work_and_for_no_other_run():
    """A task fails at once where one before it did, while others go on; and the claims are not held for ever."""
    arguments = {"depends_on_past": True, "wait_for_downstream": True, "retries": 0}
    with DAG("d", schedule=None, default_args=arguments) as dag, ZkmqTaskGroup("orders", each=True) as orders:
        last = named("last", [work(orders.claims), named("slow", orders.claims)])
        named("cluster", orders.claims).as_setup() >> last
    with dag:
        settle_it = ZkmqSettleOperator(task_id="settle", claims=[], work=orders)
    around = {"orders.work", "orders.slow", "orders.last"}
    assert dag.get_task("orders.settle").upstream_task_ids == around | {"orders.claim"}
    assert settle_it.upstream_task_ids >= around
    assert "orders.cluster" not in settle_it.upstream_task_ids
    for name, retries in (("orders.keep", 3), ("orders.settle", 12)):
        made = dag.get_task(name)
        assert (made.depends_on_past, made.wait_for_downstream, made.retries) == (False, False, retries)
    assert dag.get_task("orders.claim").in_place


def test_who_clears_work_clears_what_takes_keeps_and_settles(dag, subtests):
    """In the DAG as Airflow's scheduler knows it."""
    known = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    for downstream, more in ((True, {"orders.total", "after"}), (False, set())):
        with subtests.test(downstream=downstream):
            part = known.partial_subset(["orders.work"], include_downstream=downstream, include_upstream=False)
            assert set(part.task_dict) == {"orders.claim", "orders.keep", "orders.work", "orders.settle"} | more


def test_a_group_without_work_is_refused():
    """And claims are for its body."""
    with DAG("d", schedule=None), pytest.raises(ValueError, match="'orders' has no work"), ZkmqTaskGroup("orders"):
        pass
    with DAG("d", schedule=None), pytest.raises(ValueError, match="for the tasks in its body"):
        work(ZkmqTaskGroup("orders").claims)


def test_a_group_that_is_refused_leaves_other_dags_alone(subtests):
    """Those of the same process, which would have their tasks in it."""
    for arguments in ({"lease": 1}, {"max_tasks": 0}, {"each": "yes"}, {"on_lost": "x"}):
        with subtests.test(arguments=arguments):
            with DAG("d", schedule=None), pytest.raises(ValueError, match="is not"):
                with ZkmqTaskGroup("orders", **arguments) as made:
                    work(made.claims)
            assert tasks_of_the_next_dag() == ["work"]


def test_a_settling_of_one_s_own_follows_what_it_names():
    """Tasks, mapped tasks and groups; a teardown task counts where its failure fails the run."""
    with DAG("d", schedule=None) as dag:
        with TaskGroup("inner") as inner:
            named("cleanup").as_teardown()
            named("before")
        first = work.expand(claim=[1, 2])
        settle = ZkmqSettleOperator(task_id="settle", claims=[], work=[inner, first, "elsewhere"])
    assert settle.work == ["elsewhere", "inner.before", "work"]
    assert dag.get_task("settle").upstream_task_ids == {"inner.before", "work"}


def test_work_that_is_named_by_a_node_notes_its_exception_once(dag):
    """Beside what its author has called, in a group or by hand: it is the reason that the queue's task keeps.

    An id tells of no task, and what is around the work is left alone.
    """
    with DAG("d", schedule=None, default_args={"on_failure_callback": claim_reference}) as by_hand:
        taking = ZkmqClaimOperator(task_id="claim")
        one, several = named("one", taking.output), work.expand(claim=taking.output)
        with TaskGroup("inner") as inner:
            named("in", taking.output)
        named("named", taking.output)
        ZkmqSettleOperator(task_id="first", claims=taking.output, work=[one, several, inner, "named"])
        ZkmqSettleOperator(task_id="second", claims=taking.output, work=one)
    for made, noting, others in (
        (dag, ("orders.work", "orders.total", "orders.inner.one"), ("orders.settle", "after")),
        (by_hand, ("one", "work", "inner.in"), ("named", "claim", "first")),
    ):
        called = {each.task_id: list(each.on_failure_callback) for each in made.tasks}
        assert [called[name] for name in noting] == [[claim_reference, note_error]] * 3
        assert [called[name] for name in others] == [[claim_reference]] * len(others)
        assert [name for name in noting if note_end in made.get_task(name).on_success_callback] == list(noting)


def test_work_that_is_run_again_begins_only_while_its_run_holds_what_it_took(queue):
    """As where only what failed is cleared: each instance looks at its own claim, other work at all of them."""
    log = Heard()
    with DAG("d", schedule=None), ZkmqTaskGroup("orders", each=True, max_tasks=2) as orders:
        named("total", work.expand(claim=orders.claims))
    batch_of(queue, None, 2)
    claims = [claimed("jobs", claim) for claim in queue.claim_many(2, lease=600)]

    def begin(check, index=-1, tries=2, run=None):
        task = SimpleNamespace(log=log)
        claim_reference = instance(map_index=index, try_number=tries, task=task, xcom_pull=lambda **_: claims)
        check({**claim_reference, "dag_run": SimpleNamespace(clear_number=run)})

    mapped, total = orders["work"].partial_kwargs["pre_execute"], orders["total"].pre_execute
    queue.claim_handle(claims[0]["id"], claims[0]["token"]).fail("no")
    for first in ((mapped, 0, 1), (mapped, 1), (total,)):
        begin(*first)
    assert "left out is task" in log.warnings[-1]
    for tries, run in ((2, None), (1, 1)):
        with pytest.raises(AirflowSkipException, match=r"does not hold .*clear orders.claim with what is down"):
            begin(mapped, 0, tries, run)


def test_a_result_is_asked_for_where_there_is_one():
    """What failed has none, which Airflow's templates would complain of; of mapped work it is asked for by index."""
    with DAG("d", schedule=None), ZkmqTaskGroup("orders") as orders:
        orders.result = named("before")
    assert orders["settle"].result_of == ("orders.before", "return_value", False)
    with DAG("d", schedule=None), ZkmqTaskGroup("orders", each=True) as orders:
        orders.result = work.expand(claim=orders.claims)
    settle = orders["settle"]
    assert (settle.result_of, settle.result) == (("orders.work", "return_value", True), None)


def test_a_lease_is_as_short_as_asked_for_where_nobody_is_to_hold_it(subtests):
    """What is to hold the claims must have begun first: Airflow takes its time. A dispatcher's are held by others."""
    for follower, least in (
        (None, 3.0),
        (lambda claims: ZkmqSettleOperator(task_id="settle", claims=claims, work="claim"), 3.0),
        (lambda claims: ZkmqKeepOperator(task_id="keep", claims=claims), 60.0),
        (lambda claims: handled(claims=claims), 60.0),
        (lambda claims: handled.expand(claims=claims), 60.0),
    ):
        with subtests.test(follower=follower), DAG("d", schedule=None):
            taking = ZkmqClaimOperator(task_id="claim", lease=3)
            if follower is not None:
                follower(taking.output)
            assert taking._first_lease == least
    assert ZkmqClaimOperator(task_id="claim", lease=3, prefetch=True)._first_lease == 60.0


def test_the_claims_are_pushed_whatever_the_dag_s_defaults_are():
    """Without the XCom nothing would be settled."""
    with DAG("d", schedule=None, default_args={"do_xcom_push": False}):
        assert ZkmqClaimOperator(task_id="claim").do_xcom_push


def test_what_sets_up_and_tears_down_is_not_mapped(subtests):
    """Airflow would run it as another task, a settling before the work; it is said what to map instead."""
    for operator, more in ((ZkmqClaimOperator, {}), (ZkmqKeepOperator, {}), (ZkmqSettleOperator, {"work": "w"})):
        with subtests.test(operator=operator):
            with DAG("d", schedule=None) as dag, pytest.raises(ValueError, match="map a task group around ZkmqTask"):
                operator.partial(task_id="t").expand(claims=[[], []])
            assert dag.task_ids == []
            with dag:
                operator(task_id="t", claims=[], **more)
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


def test_what_is_made_of_mapped_results_is_no_result_of_each(subtests):
    """Airflow leaves out the instances that returned nothing: a task would get the next one's.

    It may be the result of all, as what is made of a list that one task returned may be of each.
    """
    for how, make in {
        "map": lambda one, _: one.map(changed),
        "zip": lambda one, other: other.zip(one),
        "concat": lambda one, other: other.concat(one),
        "map of a zip": lambda one, other: one.zip(other).map(changed),
        "a list": lambda one, other: [one, other],
    }.items():
        with subtests.test(how=how):
            claim_reference = "mapped task 'orders.work'.*in the task itself"
            with DAG("d", schedule=None), pytest.raises(ValueError, match=claim_reference):
                with ZkmqTaskGroup("orders", each=True) as orders:
                    orders.result = make(work.expand(claim=orders.claims), named("other"))
            assert tasks_of_the_next_dag() == ["work"]
    with DAG("d", schedule=None):
        with ZkmqTaskGroup("all") as orders:
            orders.result = work.expand(claim=orders.claims).map(changed)
        with ZkmqTaskGroup("each", each=True) as orders:
            orders.result = work(orders.claims).map(changed)
        settle = ZkmqSettleOperator(task_id="settle", claims=[], work=[work(orders.claims).map(changed)])
    assert settle.work == ["work"]


def test_in_a_mapped_group_claims_are_not_told_apart(subtests):
    """Its instances have the index of the group, and would settle the claims by the work of others."""

    def group(claim):
        with ZkmqTaskGroup("orders", each=True) as orders:
            work.expand(claim=orders.claims)

    def group_within_a_group(claim):
        with TaskGroup("inner"), ZkmqTaskGroup("orders", each=True) as orders:
            work(orders.claims)

    def operator(claim):
        ZkmqSettleOperator(task_id="settle", claims=claim, work="one.work", each=True)

    for body in (group, group_within_a_group, operator):
        with subtests.test(body=body):
            with DAG("d", schedule=None), pytest.raises(ValueError, match="no meaning in the mapped task group 'one'"):
                task_group(group_id="one")(body).expand(claim=[1, 2])
            assert tasks_of_the_next_dag() == ["work"]
