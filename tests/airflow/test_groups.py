"""`ZkmqTaskGroup`: what it lays around the work, and a run of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pendulum
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TaskGroup, task
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_zkmq.engine import RetryPolicy
from airflow_provider_zkmq.operators.groups import ZkmqTaskGroup
from airflow_provider_zkmq.operators.settling import ZkmqSettleOperator
from airflow_provider_zkmq.operators.verdicts import note_error

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core
EXAMPLES = Path(__file__).parents[2] / "example_dags"


@task
def before():
    """Come before the group."""


@task
def work(claim):
    """Do something about one claim."""


@task
def total(outcomes):
    """Look at all of them."""


@task
def after():
    """Come after the group."""


def told(context):
    """Be a user's own callback."""


@pytest.fixture
def dag():
    """A group with mapped tasks, a group in it, and tasks before and after it."""
    with DAG("d", schedule=None, default_args={"on_failure_callback": told}) as made:
        with ZkmqTaskGroup("orders", zkmq_queue="jobs", max_tasks=3) as orders:
            total(work.expand(claim=orders.claims))
            with TaskGroup("inner"):
                before.override(task_id="one")() >> after.override(task_id="two")()
        before() >> orders >> after()
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
    assert dag.get_task("orders.claim").in_place
    settle = dag.get_task("orders.settle")
    assert (settle.is_teardown, settle.on_failure_fail_dagrun, dag.get_task("orders.claim").is_setup) == (True,) * 3
    assert settle.work == ["orders.inner.one", "orders.inner.two", "orders.total", "orders.work"]
    keep = dag.get_task("orders.keep")
    assert (keep.settle, keep.pool, keep.retries, settle.retries) == ("orders.settle", "default_pool", 3, 12)


def test_the_reason_of_a_failure_is_kept_beside_the_user_s_own_callback(dag):
    """Of each task of the work, mapped or not; what is around it is left alone."""
    for name in ("orders.work", "orders.total", "orders.inner.one"):
        assert list(dag.get_task(name).on_failure_callback) == [told, note_error]
    assert list(dag.get_task("orders.settle").on_failure_callback) == [told]
    assert list(dag.get_task("after").on_failure_callback) == [told]


@pytest.mark.parametrize("downstream", [True, False])
def test_who_clears_work_clears_what_takes_keeps_and_settles(dag, downstream):
    """In the DAG as Airflow's scheduler knows it."""
    known = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    cleared = known.partial_subset(
        task_ids=["orders.work"], include_downstream=downstream, include_upstream=False
    ).task_dict
    around = {"orders.claim", "orders.keep", "orders.work", "orders.settle"}
    assert set(cleared) == (around | {"orders.total", "after"} if downstream else around)


def test_a_group_without_work_is_refused():
    """And claims are for its body."""
    with DAG("d", schedule=None), pytest.raises(ValueError, match="'orders' has no work"), ZkmqTaskGroup("orders"):
        pass
    with DAG("d", schedule=None), pytest.raises(ValueError, match="for the tasks in its body"):
        work(ZkmqTaskGroup("orders").claims)


def test_a_settling_of_one_s_own_follows_what_it_names():
    """Tasks, mapped tasks and groups; a teardown task counts where its failure fails the run."""
    with DAG("d", schedule=None) as dag:
        with TaskGroup("inner") as inner:
            total.override(task_id="cleanup")([]).as_teardown()
            before()
        first = work.expand(claim=[1, 2])
        settle = ZkmqSettleOperator(task_id="settle", claims=[], work=[inner, first, "elsewhere"])
    assert settle.work == ["elsewhere", "inner.before", "work"]
    assert dag.get_task("settle").upstream_task_ids == {"inner.before", "work"}


def test_a_result_is_asked_for_where_there_is_one():
    """What failed has none, which Airflow's templates would complain of; of mapped work it is asked for by index."""
    with DAG("d", schedule=None), ZkmqTaskGroup("orders") as orders:
        orders.result = before()
    assert orders["settle"].result_of == ("orders.before", "return_value", False)
    with DAG("d", schedule=None), ZkmqTaskGroup("orders", each=True) as orders:
        orders.result = work.expand(claim=orders.claims)
    settle = orders["settle"]
    assert (settle.result_of, settle.result) == (("orders.work", "return_value", True), None)


@pytest.mark.usefixtures("database")
def test_a_run_settles_each_task_by_its_own_work(queue, monkeypatch):
    """The example in ``dag.test()``, without a triggerer: what is done has its result, what failed its reason."""
    monkeypatch.setenv("ZKMQ_ACKNOWLEDGE_QUEUE", "jobs")
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    found = DagBag(shutil.copy(EXAMPLES / "zkmq_acknowledge.py", folder))
    assert not found.import_errors
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    queue.enqueue("good", task_id="a-good")
    queue.enqueue("again", task_id="b-again")
    run = found.dags["zkmq_acknowledge"].test(logical_date=pendulum.datetime(2026, 3, 1, tz="UTC"))
    assert run.state == "failed"
    good, again = queue.task("a-good"), queue.task("b-again")
    assert (good.state, good.result) == ("finished", b"GOOD")
    assert (again.state, again.attempt) == ("inserted", 1)
    assert again.error == "orders.work[1]: ValueError: no price for 'again'"
