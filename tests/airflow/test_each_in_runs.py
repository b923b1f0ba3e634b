"""Runs of groups, by Airflow itself: each task is settled by its own work, with its own result or its reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pendulum
import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_zkmq.engine import Message, RetryPolicy

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core
DAGS = """
from airflow.sdk import DAG, task, task_group
from airflow.sdk.exceptions import AirflowSkipException
from airflow_provider_zkmq.operators.groups import ZkmqTaskGroup

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


@pytest.fixture(scope="module")
def dags():
    """The DAGs, read from a file as Airflow reads them, and Airflow's own database."""
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)
    file = Path(os.environ["AIRFLOW_HOME"]) / "dags" / "each_in_runs.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(DAGS)
    found = DagBag(file)
    assert not found.import_errors
    return found.dags


def settled(queue, dag, *names, state="failed"):
    """Run a DAG on tasks of these ids; return their states, results and errors."""
    queue.configure(policy=RetryPolicy(attempts=1))
    queue.enqueue_many([Message(b"x", task_id=name) for name in names])
    assert dag.test(logical_date=pendulum.datetime(2026, 3, 1, tz="UTC")).state == state
    tasks = [queue.task(name) for name in names]
    return [(task.state, task.result, task.error) for task in tasks]


def test_steps_for_each_claim_are_a_mapped_group_in_the_body(queue, dags):
    """One that returned nothing moves no other one's result, and neither does one that failed."""
    nothing, bad, good = settled(queue, dags["steps"], "nothing", "bad", "good")
    assert nothing == ("finished", b"second of None", None)
    assert good == ("finished", b"second of good", None)
    assert bad[:2] == ("dead", None)
    assert "orders.steps.first[1]: ValueError: no such order" in bad[2]


def test_what_is_mapped_over_mapped_work_is_nobody_s_where_some_returned_nothing(queue, dags):
    """Airflow makes two instances of three claims: none of the claims gets the work, or the result, of another."""
    ends = settled(queue, dags["chain"], "nothing", "one", "two")
    assert [(state, result) for state, result, _ in ends] == [("dead", None)] * 3
    told = "whose work it is is not known: orders.second has 2 instance(s) for 3 claim(s)"
    assert [error for _, _, error in ends] == [told, told, "orders.second[2] not done"]


def test_what_is_made_of_a_result_is_made_where_there_is_one(queue, dags):
    """Work that failed has none, which Airflow complains of: its task is failed all the same, with its reason."""
    [bad] = settled(queue, dags["made"], "bad")
    assert bad == ("dead", None, "orders.total: ValueError: no such order")
    [nothing] = settled(queue, dags["made"], "nothing")
    told = "result is neither bytes, text nor JSON: AttributeError: 'NoneType' object has no attribute 'upper'"
    assert nothing == ("dead", None, told)
    [skipped] = settled(queue, dags["made"], "skip")
    assert skipped == ("dead", None, "result is neither bytes, text nor JSON: AirflowSkipException: not this one")
    assert settled(queue, dags["made"], "good", state="success") == [("finished", b'["GOOD"]', None)]


def test_what_has_results_within_is_made_where_there_are_some(queue, dags):
    """In whatever they stand, beside templates: failed work is settled with its reason."""
    [bad] = settled(queue, dags["within"], "bad")
    assert bad == ("dead", None, "orders.total: ValueError: no such order")
    told = b'{"names": ["good"], "from": "orders.settle"}'
    assert settled(queue, dags["within"], "good", state="success") == [("finished", told, None)]


def test_the_list_of_what_mapped_work_returned_is_the_result_of_all(queue, dags):
    """Where claims are not told apart; where one failed, each is failed."""
    told = ("finished", b'["good", "well"]', None)
    assert settled(queue, dags["all"], "good", "well", state="success") == [told] * 2
    ends = settled(queue, dags["all"], "bad", "fine")
    assert ends == [("dead", None, "orders.first[0]: ValueError: no such order")] * 2
