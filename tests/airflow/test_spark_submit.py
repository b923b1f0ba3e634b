"""The pipeline by Airflow's provider for Spark, which needs an environment of its own: ``make test-spark-provider``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("airflow.providers.apache.spark")

from airflow_provider_zkmq.embedded import spark_java_home
from airflow_provider_zkmq.spark import read, spark_session
from tests.airflow.conftest import example, finish

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's providers warn of its core


@pytest.mark.usefixtures("database")
def test_spark_submit_runs_the_pipeline(queue, zookeeper, tmp_path, monkeypatch) -> None:
    """What has ended is in the archive's tables after a run of the DAG, which was submitted to a master of its own."""
    queue.enqueue("x", task_id="a")
    finish(queue)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # has spark-submit
    monkeypatch.setenv("JAVA_HOME", str(spark_java_home(tmp_path)))
    monkeypatch.setenv("ZKMQ_HOSTS", zookeeper)
    monkeypatch.setenv("ZKMQ_ROOT", queue.root)
    monkeypatch.setenv("ZKMQ_ARCHIVE_DIR", str(tmp_path / "archive"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    run = example("zkmq_maintenance_submit").test(run_conf={"queues": [queue.name]})
    assert run.state == "success"
    rows = read(spark_session("zkmq-tests", "local[2]"), tmp_path / "archive", "runs", queue.name)
    assert [(row.task_id, row.state) for row in rows.collect()] == [("a", "finished")]


def test_without_a_folder_for_the_archive_nothing_is_submitted(tmp_path, monkeypatch) -> None:
    """A folder called "None" would be made, and what was archived there deleted from ZooKeeper."""
    monkeypatch.delenv("ZKMQ_ARCHIVE_DIR", raising=False)
    dag = example("zkmq_maintenance_submit")
    step = dag.get_task("pack").python_callable
    monkeypatch.setitem(step.__globals__, "get_current_context", lambda: {"params": {"directory": None}})
    with pytest.raises(ValueError, match="say where the archive is"):
        step()
    assert dag.get_task("pipeline").upstream_task_ids == {"pack"}
