"""The example of an event-driven DAG: what Airflow finds in it, and what a run does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_zkmq.engine import RetryPolicy
from airflow_provider_zkmq.triggers.events import ZkmqEventTrigger

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core
EXAMPLE = Path(__file__).parents[2] / "example_dags" / "zkmq_events.py"


@pytest.fixture
def example(monkeypatch):
    """The DAG, found in Airflow's own folder as the DAG processor finds it."""
    monkeypatch.setenv("ZKMQ_EVENTS_QUEUE", "jobs")
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    found = DagBag(shutil.copy(EXAMPLE, folder))
    assert not found.import_errors
    return found.dags["zkmq_events"]


def test_the_dag_is_scheduled_on_an_asset_that_our_trigger_watches(example):
    """One run at a time, and the watcher's arguments are the example's."""
    (watcher,) = example.timetable.asset_condition.watchers
    assert example.max_active_runs == 1
    assert watcher.trigger.serialize() == ZkmqEventTrigger(zkmq_queue="jobs", refire=60).serialize()


def test_a_run_takes_what_is_there(example, queue):
    """Each task is settled by its own outcome; a run that finds nothing, since another one took it, is a success."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    for number in range(3):
        queue.enqueue(f"order {number}", task_id=f"good-{number}")
    queue.enqueue("", task_id="bad")
    handle = example.get_task("handle").python_callable
    assert handle() == {"done": 3, "failed": 1}
    assert [queue.task(f"good-{number}").result for number in range(3)] == [b"ORDER 0", b"ORDER 1", b"ORDER 2"]
    bad = queue.task("bad")
    assert (bad.state, bad.attempt, bad.error) == ("inserted", 1, "ValueError: an empty order")
    assert handle() == {"done": 0, "failed": 0}
