"""Enqueues, sensors and watches on a real Airflow, whose triggerer is killed; and the demo."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import Integer, Message
from tests.e2e.conftest import LONG, TOP, Airflow, eventually

SENSORS = int(os.environ.get("ZKMQ_E2E_SENSORS", "6"))
DAGS = ("many_sensors", "this_run", "waiting_enqueues", "zkmq_events")
SETTINGS = {"ZKMQ_EVENTS_REFIRE": "5"}
pytestmark = pytest.mark.xdist_group("heavy")


@pytest.mark.full
@pytest.mark.timeout(1500 + 3 * SENSORS)
def test_sensors_survive_the_triggerer(airflow: Airflow) -> None:
    """The triggerer is killed while sensors are deferred, their tasks end meanwhile; a new triggerer fires them all.

    What Airflow has reported of a blocked loop until then is printed: `ZKMQ_E2E_SENSORS=1000` on a quiet machine.
    """
    q = airflow.zk.queue("many")
    q.enqueue_many([Message(b"x", task_id=f"task-{number}") for number in range(SENSORS)])
    before = airflow.handed_back
    airflow.run("many_sensors")
    eventually(lambda: airflow.in_state("many_sensors", "deferred") == SENSORS, within=LONG + 3 * SENSORS)
    # Airflow fails a task that is queued again before its scheduler has heard of the end of the process that
    # deferred it; that process may outlive the deferral by seconds.
    eventually(lambda: airflow.handed_back - before >= SENSORS, within=LONG + 3 * SENSORS)
    blocked = re.findall(r"thread was blocked for ([0-9.]+) seconds", airflow.logged(airflow.triggerer))
    print(f"{SENSORS} sensors deferred by workers: the loop was reported as blocked for {blocked} s")  # noqa: T201
    airflow.kill(airflow.triggerer)
    q.worker(lambda task: task.id.upper(), threads=4).run(until_empty=True)
    assert airflow.in_state("many_sensors", "deferred") == SENSORS
    airflow.launch("triggerer-sensors")
    assert airflow.ended("many_sensors") == "success", airflow.said()
    assert airflow.in_state("many_sensors", "success") == SENSORS


def test_a_run_s_own_moment_reaches_the_queue(airflow: Airflow) -> None:
    """`since` and `not_before` of a real run: what an earlier run finished ends no wait, and what is later waits."""
    q = airflow.zk.queue("runs")
    q.configure(filters={"size": Integer()})
    q.enqueue(b"an earlier run's", {"size": 9}, task_id="early")
    q.worker(lambda task: task.id).run(until_empty=True)
    before = airflow.handed_back
    airflow.run("this_run")
    waiting = {"later": "success", "wait": "deferred"}
    eventually(lambda: airflow.api.task_states("this_run", "r") == waiting, within=LONG)
    eventually(lambda: airflow.handed_back - before >= 2, within=LONG)
    run = airflow.api.call("GET", "/api/v2/dags/this_run/dagRuns/r")
    due, start = q.task("later").due_ms, datetime.fromisoformat(run["start_date"])
    assert due is not None
    assert 0 <= due - start.timestamp() * 1000 - 86_400_000 < 2
    q.enqueue(b"this run's", {"size": 9}, task_id="late")
    q.worker(lambda task: task.id).run(until_empty=True)
    assert airflow.ended("this_run") == "success", airflow.said()
    returned = str(airflow.api.returned("this_run", "r", "wait"))
    assert "late" in returned
    assert "early" not in returned


@pytest.mark.full
def test_waiting_enqueues_with_fast_workers(airflow: Airflow) -> None:
    """Workers finish within seconds of the deferrals: no try fails, none is made again, and nothing comes twice."""
    q = airflow.zk.queue("fast")
    q.configure()
    worker = q.worker(lambda _: time.sleep(random.uniform(0, 5)), threads=8)  # the work itself
    worker.start()
    before = len(airflow.logged("scheduler"))
    airflow.run("waiting_enqueues")
    airflow.ended("waiting_enqueues")
    worker.stop()
    told = airflow.instances("waiting_enqueues")
    assert {(each["state"], each["try_number"]) for each in told} == {("success", 1)}, airflow.said()
    assert q.counts()["finished"] == sum(each["task_id"] != "handed_over.wait" for each in told)
    assert "state attribute is" not in airflow.logged("scheduler")[before:]


@pytest.mark.full
def test_work_starts_runs_of_a_dag_that_its_triggerer_watches_for(airflow: Airflow) -> None:
    """Tasks of bursts before and after the triggerer was killed are done on their first attempt; no payload is logged.

    What was enqueued while the DAG was paused is told of when it is not any more; the watch claims nothing.
    """
    q = airflow.zk.queue("orders")
    early = q.enqueue_many([Message(b"marker-payload", task_id=f"early-{number}") for number in range(5)])
    airflow.unpause("zkmq_events")
    eventually(lambda: q.counts()["finished"] == 5, within=LONG)
    airflow.kill(airflow.triggerer)
    airflow.launch("triggerer-events")
    late: list[str] = []

    def told_again() -> bool:
        """A run for events of before may take what is there: there is always some."""
        if not q.counts()["inserted"]:
            late.append(q.enqueue(b"marker-payload"))
        return "Trigger fired event" in airflow.logged("triggerer-events")

    eventually(told_again, within=LONG)
    eventually(lambda: q.counts()["finished"] == 5 + len(late), within=LONG)
    airflow.unpause("zkmq_events", paused=True)
    assert {q.task(task_id).attempt for task_id in early + late} == {1}
    runs = airflow.api.call("GET", "/api/v2/dags/zkmq_events/dagRuns")["dag_runs"]
    assert {run["state"] for run in runs} <= {"success", "running", "queued"}, airflow.said()
    told = airflow.told("zkmq_orders")
    assert told
    assert all(set(each["payload"]) == {"queue", "selector", "counts"} for each in told)
    logs = airflow.logs()
    assert "Trigger fired event" in logs
    assert "marker-payload" not in logs


@pytest.mark.full
def test_the_demo_runs_and_leaves_nothing(tmp_path: Path) -> None:
    """The main job, on the real parts: exit code 0, the tables, the sensor seen deferred, no process left."""
    environment = {**os.environ, "ZKMQ_CENSUS_FILES": "60"}
    done = subprocess.run(
        [sys.executable, str(TOP / "example_dags" / "demo.py")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "all finished, archived and collected: True; sensor seen deferred: True" in done.stdout
    assert "The ten largest modules" in done.stdout
    left = subprocess.run(["pgrep", "-af", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert left.strip() == ""
