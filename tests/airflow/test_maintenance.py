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
    """The queues are said to be archived before Spark is started; then the pipeline, then its report."""
    order = [task.task_id for task in maintenance.topological_sort()]
    assert order == ["mark", "pipeline", "report"]


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


def test_the_pipeline_runs_with_progress_in_the_log(maintenance, monkeypatch, queue, tmp_path, capsys):
    """Its step hands the parameters on; lines of progress are the log's, and the report is a page beside the tables."""
    from airflow_provider_zkmq import spark
    from airflow_provider_zkmq.spark import Retention
    from airflow_provider_zkmq.spark.history.pipeline import PipelineReport, QueueReport

    asked = {}

    def run(connect, names, directory, session, *, progress, **rest):
        asked.update(rest, names=names, directory=directory, hosts=connect["hosts"])
        progress("queue jobs: bronze: 3 rows, 0.1 s")
        steps = {"bronze": {"rows": 3, "in all": 5}, "gc": {"deleted": 3, "kept": 0}}
        return PipelineReport((QueueReport("jobs", steps | {"silver": {"runs": 3, "deliveries": 4}}),))

    class Session:
        def stop(self):
            asked["stopped"] = True

    class Page:
        def write_html(self, path):
            path.write_text("<html>")

    step = maintenance.get_task("pipeline").python_callable
    none = dict.fromkeys(("queues", "lifetime", "keep_silver", "keep_gold"))
    params = {**none, "directory": str(tmp_path), "keep_bronze": 7, "delta": False}
    monkeypatch.setitem(step.__globals__, "get_current_context", lambda: {"params": params, "run_id": "manual__1:2"})
    for name, value in (
        ("run_pipeline", run),
        ("spark_session", lambda _name: Session()),
        ("report", lambda *_a, **_k: Page()),
    ):
        monkeypatch.setattr(spark, name, value, raising=False)
    reports = step(["jobs"])
    assert (asked["names"], asked["directory"], asked["stopped"]) == (["jobs"], str(tmp_path), True)
    assert (asked["keep"], asked["lifetime"], asked["delta"]) == (Retention(bronze=7), None, False)
    assert maintenance.get_task("report").python_callable(reports) == {
        "jobs": {"archived": 3, "archive_rows": 5, "collected": 3, "kept": 0, "runs": 3, "deliveries": 4}
    }
    log = capsys.readouterr().out
    assert "queue jobs: bronze: 3 rows, 0.1 s" in log
    assert (tmp_path / "report-manual__1-2.html").as_uri() in log
