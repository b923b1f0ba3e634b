"""The maintenance DAG, as far as it is about queues: what it does before the archive is begun."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_zkmq.engine import ConfigError
from tests.airflow.conftest import finish
from tests.support import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core
EXAMPLE = Path(__file__).parents[2] / "example_dags" / "zkmq_maintenance.py"


@pytest.fixture
def maintenance():
    """The DAG, found in Airflow's own folder as the DAG processor finds it."""
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    found = DagBag(shutil.copy(EXAMPLE, folder))
    assert not found.import_errors
    return found.dags["zkmq_maintenance"]


@pytest.fixture
def mark(maintenance, monkeypatch):
    """What its first step does for the queues that its parameters name."""
    step = maintenance.get_task("mark").python_callable

    def run(queues):
        monkeypatch.setitem(step.__globals__, "get_current_context", lambda: {"params": {"queues": queues}})
        return step()

    return run


def test_marking_comes_before_anything_else(maintenance):
    """The queues are said to be archived before Spark is started; then archive, collect, report."""
    order = [task.task_id for task in maintenance.topological_sort()]
    assert order == ["mark", "archive", "collect", "report"]


def test_its_first_step_keeps_what_no_archive_holds(mark, queue):
    """All queues, or those that are named: whoever cleans up from then on keeps what has ended."""
    queue.enqueue("x", task_id="a")
    finish(queue)
    assert mark(None) == ["jobs"]
    assert queue.conf().archive
    eventually(lambda: queue.collect_garbage(lifetime=0).kept_unarchived == 1)
    assert queue.ids() == ["a"]
    assert mark(["jobs"]) == ["jobs"]


def test_a_queue_that_does_not_exist_is_not_made(mark, queue):
    """A mistyped name is refused, and no queue comes of it."""
    with pytest.raises(ConfigError, match="does not exist"):
        mark(["jobz"])
    assert mark(None) == ["jobs"]
