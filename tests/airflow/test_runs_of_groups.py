"""Runs of groups, by Airflow itself: each task is settled by its own work, with its own result or its reason."""

from __future__ import annotations

import pendulum
import pytest

from airflow_provider_zkmq.engine import Message, RetryPolicy
from tests.airflow.conftest import example
from tests.airflow.test_groups import dags_of
from tests.integration.test_docs import blocks

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Airflow's standard provider warns of its core
    pytest.mark.usefixtures("database"),
]
DAGS = """
from airflow.sdk import DAG, task, task_group
from airflow.sdk.exceptions import AirflowSkipException
from airflow_provider_zkmq.operators.task_group import ZkmqTaskGroup

@task
def first(claim):
    if claim["id"] == "bad":
        raise ValueError("no such order")
    return None if claim["id"] == "nothing" else claim["id"]

@task
def second(name):
    return f"second of {name}"

@task_group
def steps(claim):
    return second(first(claim))

with DAG("steps", schedule=None):
    with ZkmqTaskGroup("orders", zkmq_queue="jobs", max_tasks=3, each=True) as orders:
        orders.result = steps.expand(claim=orders.claims)

with DAG("chain", schedule=None):
    with ZkmqTaskGroup("orders", zkmq_queue="jobs", max_tasks=3, each=True) as orders:
        orders.result = second.expand(name=first.expand(claim=orders.claims))

@task
def total(claims):
    return [first.function(claim) for claim in claims]

def upper(name):
    if name == "skip":
        raise AirflowSkipException("not this one")
    return name.upper()

with DAG("made", schedule=None):
    with ZkmqTaskGroup("orders", zkmq_queue="jobs", max_tasks=3) as orders:
        orders.result = total(orders.claims).map(upper)

with DAG("within", schedule=None):
    with ZkmqTaskGroup("orders", zkmq_queue="jobs", max_tasks=3) as orders:
        orders.result = {"names": total(orders.claims), "from": "{{ ti.task_id }}"}

with DAG("all", schedule=None):
    with ZkmqTaskGroup("orders", zkmq_queue="jobs", max_tasks=3) as orders:
        orders.result = first.expand(claim=orders.claims)
"""
FAILED = "ValueError: no such order"


@pytest.fixture(scope="module")
def dags():
    """The DAGs, as Airflow reads them."""
    return dags_of("runs_of_groups.py", DAGS)


def run(queue, dag, attempts=1, **data):
    """Run a DAG on tasks of these ids and payloads; return its run, and their states, attempts, results and errors."""
    queue.configure(policy=RetryPolicy(attempts=attempts, factor=3600, max_backoff=7200))
    queue.enqueue_many([Message(payload, task_id=name) for name, payload in data.items()])
    done = dag.test(logical_date=pendulum.datetime(2026, 3, 1, tz="UTC"))
    return done, [(task.state, task.attempt, task.result, task.error) for task in map(queue.task, data)]


def settled(queue, dag, *names, state="failed"):
    """Run a DAG on tasks of these ids; return their states, results and errors."""
    done, tasks = run(queue, dag, **dict.fromkeys(names, b"x"))
    assert done.state == state
    return [(state, result, error) for state, _, result, error in tasks]


def test_the_example_settles_each_task_by_its_own_work(queue, monkeypatch):
    """In ``dag.test()``, without a triggerer: what is done has its result, what failed its reason."""
    monkeypatch.setenv("ZKMQ_ACKNOWLEDGE_QUEUE", "jobs")
    dag = example("zkmq_acknowledge")
    done, tasks = run(queue, dag, attempts=2, good="good", wrong="again")
    assert done.state == "failed"
    assert tasks == [
        ("finished", 1, b"GOOD", None), ("inserted", 1, None, "orders.work[1]: ValueError: no price for 'again'")
    ]  # fmt: skip


def test_steps_for_each_claim_are_a_mapped_group_in_the_body(queue, dags):
    """One that returned nothing moves no other one's result, and neither does one that failed."""
    nothing, bad, good = settled(queue, dags["steps"], "nothing", "bad", "good")
    assert nothing == ("finished", b"second of None", None)
    assert good == ("finished", b"second of good", None)
    assert bad[:2] == ("dead", None)
    assert f"orders.steps.first[1]: {FAILED}" in bad[2]


def test_what_is_mapped_over_mapped_work_is_nobody_s_where_some_returned_nothing(queue, dags):
    """Airflow makes two instances of three claims: none of the claims gets the work, or the result, of another."""
    why = "whose work it is is not known: orders.second has 2 instance(s) for 3 claim(s)"
    errors = [why, why, "orders.second[2] not done"]
    assert settled(queue, dags["chain"], "nothing", "one", "two") == [("dead", None, error) for error in errors]


@pytest.mark.full
def test_what_is_made_of_a_result_is_made_where_there_is_one(queue, dags, subtests):
    """Work that failed has none, which Airflow complains of: its task is failed all the same, with its reason.

    In whatever the results stand, beside templates; of mapped work, they are the result of all, where none failed.
    """
    none = "result is neither bytes, text nor JSON: "
    for dag, names, results, error in (
        ("made", ["bad"], None, f"orders.total: {FAILED}"),
        ("made", ["nothing"], None, f"{none}AttributeError: 'NoneType' object has no attribute 'upper'"),
        ("made", ["skip"], None, f"{none}AirflowSkipException: not this one"),
        ("made", ["good"], b'["GOOD"]', None),
        ("within", ["bad"], None, f"orders.total: {FAILED}"),
        ("within", ["good"], b'{"names": ["good"], "from": "orders.settle"}', None),
        ("all", ["good", "well"], b'["good", "well"]', None),
        ("all", ["bad", "fine"], None, f"orders.first[0]: {FAILED}"),
    ):
        with subtests.test(dag=dag, names=names):
            end = ("dead", None, error) if error else ("finished", results, None)
            state = "failed" if error else "success"
            assert settled(queue, dags[dag], *names, state=state) == [end] * len(names)
        for task in queue.tasks():
            queue.drop(task.id)


@pytest.mark.full
def test_the_dag_of_the_page_on_patterns(queue):
    """An instance for each claim, red where its function failed, and only there."""
    [code] = [block for block in blocks("docs/patterns.md", "python") if "def one_by_one" in block]
    code = code.replace('zkmq_queue="parcels"', 'zkmq_queue="jobs"')
    dags = dags_of("one_by_one.py", code.replace("parcel.data.upper()", "parcel.data.decode().upper()"))
    done, tasks = run(queue, dags["one_by_one"], attempts=2, a="good", b=b"\xff", c="good")
    assert done.state == "failed"
    instances = {(each.task_id, each.map_index): str(each.state) for each in done.get_task_instances()}
    handled = {("handle", 0): "success", ("handle", 1): "failed", ("handle", 2): "success"}
    assert instances == {("claim", -1): "success"} | handled
    assert [task[:3] for task in tasks] == [("finished", 1, b"GOOD"), ("inserted", 1, None), ("finished", 1, b"GOOD")]
