"""What a claim, its keeping and its settling are in a DAG that its author has laid by hand."""

from __future__ import annotations

import pendulum
import pytest
from airflow.sdk import DAG, TaskGroup, task

from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.operators.keeping import ZkmqKeepOperator
from airflow_provider_zkmq.operators.settling import ZkmqSettleOperator
from airflow_provider_zkmq.operators.verdicts import note_error


@task.zkmq
def handled(parcel, claims):
    """Its signature."""


@pytest.mark.parametrize(
    ("follower", "least"),
    [
        (None, 3.0),
        (lambda claims: ZkmqSettleOperator(task_id="settle", claims=claims, work="claim"), 3.0),
        (lambda claims: ZkmqKeepOperator(task_id="keep", claims=claims), 60.0),
        (lambda claims: handled(claims=claims), 60.0),
        (lambda claims: handled.expand(claims=claims), 60.0),
    ],
)
def test_a_lease_is_as_short_as_asked_for_where_nobody_is_to_hold_it(follower, least):
    """What is to hold the claims must have begun first: Airflow takes its time. A dispatcher's are held by others."""
    with DAG("d", schedule=None, start_date=pendulum.datetime(2026, 1, 1, tz="UTC")):
        taking = ZkmqClaimOperator(task_id="claim", lease=3)
        if follower is not None:
            follower(taking.output)
    assert taking._first_lease == least
    assert ZkmqClaimOperator(task_id="claim", lease=3, ahead=True)._first_lease == 60.0


def test_the_claims_are_pushed_whatever_the_dag_s_defaults_are():
    """Without the XCom nothing would be settled."""
    with DAG("d", schedule=None, default_args={"do_xcom_push": False}):
        assert ZkmqClaimOperator(task_id="claim").do_xcom_push


@task
def work(claims):
    """Its signature."""


def told(context):
    """Be a user's own callback."""


def test_work_that_is_named_by_a_node_notes_its_exception_once():
    """Beside what its author has called: it is the reason that the queue's task keeps. An id tells of no task."""
    with DAG("d", schedule=None, default_args={"on_failure_callback": told}) as dag:
        taking = ZkmqClaimOperator(task_id="claim")
        one, several = work.override(task_id="one")(taking.output), work.expand(claims=taking.output)
        with TaskGroup("inner") as inner:
            work.override(task_id="in")(taking.output)
        work.override(task_id="named")(taking.output)
        ZkmqSettleOperator(task_id="first", claims=taking.output, work=[one, several, inner, "named"])
        ZkmqSettleOperator(task_id="second", claims=taking.output, work=one)
    for name in ("one", "work", "inner.in"):
        assert list(dag.get_task(name).on_failure_callback) == [told, note_error]
    for name in ("named", "claim", "first"):
        assert list(dag.get_task(name).on_failure_callback) == [told]
