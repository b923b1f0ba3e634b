"""A real scheduler, DAG processor, API server and triggerer, in processes of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.embedded.ports import free_ports
from airflow_provider_zkmq.engine import Integer, Message, Zkmq
from tests.support import eventually

TOP = Path(__file__).parents[2]
SENSORS = int(os.environ.get("ZKMQ_E2E_SENSORS", "40"))


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo's own way of starting Airflow, in a folder of the test's."""
    spec = importlib.util.spec_from_file_location("zkmq_demo", TOP / "example_dags" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HOME", tmp_path)
    monkeypatch.setattr(module, "DAGS", TOP / "tests" / "e2e" / "dags")
    monkeypatch.setattr(module, "READY_SECONDS", 600.0)
    return module


@contextlib.contextmanager
def airflow(demo: ModuleType, tmp_path: Path, hosts: str) -> Iterator[tuple]:
    """Airflow's four processes and its API, stopped at the end."""
    port, *log_ports = free_ports("127.0.0.1", 3)
    environment = demo.airflow_environment(hosts, port, log_ports, "secret")
    demo.migrate(environment)
    (tmp_path / "logs").mkdir()
    processes = demo.Processes(tmp_path / "logs")
    try:
        for name in ("api-server", "scheduler", "dag-processor", "triggerer"):
            processes.start(name, [sys.executable, "-m", "airflow", name], environment)
        api = demo.Airflow(port, "secret")
        demo.wait_until("Airflow", processes, api.healthy)
        api.log_in()
        yield api, processes, environment
    finally:
        processes.stop()


def handed_back(home: Path) -> int:
    """How many processes of task instances the scheduler knows to have ended."""
    return (home / "logs" / "scheduler.log").read_text(errors="replace").count("Received executor event with state")


def instances(api: Any, run: str) -> list[dict[str, Any]]:
    """All task instances of a run; the API tells of a hundred at a time."""
    found: list[dict[str, Any]] = []
    while page := api.call("GET", f"{run}/taskInstances?limit=100&offset={len(found)}")["task_instances"]:
        found += page
    return found


def said(home: Path) -> str:
    """What Airflow's processes complained of."""
    lines = [line for log in (home / "logs").glob("*.log") for line in log.read_text(errors="replace").splitlines()]
    return "\n".join(line[:500] for line in lines if "[error" in line or "[warning" in line)[-5000:]


@pytest.mark.full
@pytest.mark.timeout(1500 + 3 * SENSORS)
def test_sensors_survive_the_triggerer(demo: ModuleType, tmp_path: Path) -> None:
    """The triggerer is killed while sensors are deferred, their tasks end meanwhile; a new triggerer fires them all.

    What Airflow has reported of a blocked loop until then is printed: `ZKMQ_E2E_SENSORS=1000` on a quiet machine.
    """
    with (
        EmbeddedServer(tmp_path / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False) as zk,
        airflow(demo, tmp_path, server.hosts) as (api, processes, environment),
    ):
        q = zk.queue("many")
        q.enqueue_many([Message(b"x", task_id=f"task-{number}") for number in range(SENSORS)])
        demo.wait_until("the DAG", processes, lambda: api.knows("many_sensors"))
        api.call("PATCH", "/api/v2/dags/many_sensors", {"is_paused": False})
        api.call("POST", "/api/v2/dags/many_sensors/dagRuns", {"dag_run_id": "r", "logical_date": None})

        def in_state(state: str) -> int:
            path = f"/api/v2/dags/many_sensors/dagRuns/r/taskInstances?state={state}&limit=1"
            return int(api.call("GET", path)["total_entries"])

        eventually(lambda: in_state("deferred") == SENSORS, within=900 + 3 * SENSORS)
        # Airflow fails a task that is queued again before its scheduler has heard of the end of the process that
        # deferred it; that process may outlive the deferral by seconds.
        eventually(lambda: handed_back(tmp_path) == SENSORS, within=900 + 3 * SENSORS)
        told = (tmp_path / "logs" / "triggerer.log").read_text(errors="replace")
        blocked = re.findall(r"thread was blocked for ([0-9.]+) seconds", told)
        print(f"{SENSORS} sensors deferred by workers: the loop was reported as blocked for {blocked} s")  # noqa: T201
        triggerer = processes._started.pop("triggerer")
        os.killpg(triggerer.pid, signal.SIGKILL)
        triggerer.wait()
        q.worker(lambda task: task.id.upper(), threads=4).run(until_empty=True)
        assert in_state("deferred") == SENSORS
        processes.start("triggerer", [sys.executable, "-m", "airflow", "triggerer"], environment)
        eventually(lambda: api.run_state("many_sensors", "r") in {"success", "failed"}, within=900 + 3 * SENSORS)
        assert (api.run_state("many_sensors", "r"), in_state("success")) == ("success", SENSORS), said(tmp_path)


def test_a_run_s_own_moment_reaches_the_queue(demo: ModuleType, tmp_path: Path) -> None:
    """`since` and `not_before` of a real run: what an earlier run finished ends no wait, and what is later waits."""
    with (
        EmbeddedServer(tmp_path / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False) as zk,
        airflow(demo, tmp_path, server.hosts) as (api, processes, _),
    ):
        q = zk.queue("runs")
        q.configure(filters={"size": Integer()})
        q.enqueue(b"an earlier run's", {"size": 9}, task_id="early")
        q.worker(lambda task: task.id).run(until_empty=True)
        demo.wait_until("the DAG", processes, lambda: api.knows("this_run"))
        api.call("PATCH", "/api/v2/dags/this_run", {"is_paused": False})
        api.call("POST", "/api/v2/dags/this_run/dagRuns", {"dag_run_id": "r", "logical_date": None})

        def instance(name: str) -> dict[str, str]:
            return dict(api.call("GET", f"/api/v2/dags/this_run/dagRuns/r/taskInstances/{name}"))

        eventually(
            lambda: (instance("later")["state"], instance("wait")["state"]) == ("success", "deferred"), within=900
        )
        eventually(lambda: handed_back(tmp_path) == 2, within=900)
        run = api.call("GET", "/api/v2/dags/this_run/dagRuns/r")
        due, start = q.task("later").due_ms, datetime.fromisoformat(run["start_date"])
        assert due is not None
        assert 0 <= due - start.timestamp() * 1000 - 86_400_000 < 2
        q.enqueue(b"this run's", {"size": 9}, task_id="late")
        q.worker(lambda task: task.id).run(until_empty=True)
        eventually(lambda: api.run_state("this_run", "r") in {"success", "failed"}, within=900)
        assert api.run_state("this_run", "r") == "success", said(tmp_path)
        xcom = api.call("GET", "/api/v2/dags/this_run/dagRuns/r/taskInstances/wait/xcomEntries/return_value")
        assert "late" in str(xcom["value"])
        assert "early" not in str(xcom["value"])


@pytest.mark.full
def test_waiting_enqueues_with_fast_workers(demo: ModuleType, tmp_path: Path) -> None:
    """Workers finish within seconds of the deferrals: no try fails, none is made again, and nothing comes twice."""
    with (
        EmbeddedServer(tmp_path / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False) as zk,
        airflow(demo, tmp_path, server.hosts) as (api, processes, _),
    ):
        q = zk.queue("fast")
        q.configure()
        worker = q.worker(lambda _: time.sleep(random.uniform(0, 5)), threads=8)
        worker.start()
        demo.wait_until("the DAG", processes, lambda: api.knows("waiting_enqueues"))
        api.call("PATCH", "/api/v2/dags/waiting_enqueues", {"is_paused": False})
        api.call("POST", "/api/v2/dags/waiting_enqueues/dagRuns", {"dag_run_id": "r", "logical_date": None})
        eventually(lambda: api.run_state("waiting_enqueues", "r") in {"success", "failed"}, within=3600)
        worker.stop()
        told = instances(api, "/api/v2/dags/waiting_enqueues/dagRuns/r")
        assert {(each["state"], each["try_number"]) for each in told} == {("success", 1)}, said(tmp_path)
        assert q.counts()["finished"] == sum(each["task_id"] != "handed_over.wait" for each in told)
        assert "state attribute is" not in (tmp_path / "logs" / "scheduler.log").read_text(errors="replace")


@pytest.mark.full
def test_work_starts_runs_of_a_dag_that_its_triggerer_watches_for(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of bursts before and after the triggerer was killed are done on their first attempt; no payload is logged.

    What was enqueued while the DAG was paused is told of when it is not any more; the watch claims nothing.
    """
    monkeypatch.setattr(demo, "DAGS", tmp_path / "dags")
    monkeypatch.setenv("ZKMQ_EVENTS_REFIRE", "5")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # what a killed triggerer has logged is in its file
    demo.DAGS.mkdir()
    shutil.copy(TOP / "example_dags" / "zkmq_events.py", demo.DAGS)
    with (
        EmbeddedServer(tmp_path / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False) as zk,
        airflow(demo, tmp_path, server.hosts) as (api, processes, environment),
    ):
        q = zk.queue("orders")
        early = q.enqueue_many([Message(b"marker-payload", task_id=f"early-{number}") for number in range(5)])
        demo.wait_until("the DAG", processes, lambda: api.knows("zkmq_events"))
        api.call("PATCH", "/api/v2/dags/zkmq_events", {"is_paused": False})
        eventually(lambda: q.counts()["finished"] == 5, within=300)

        def states() -> set[str]:
            return {run["state"] for run in api.call("GET", "/api/v2/dags/zkmq_events/dagRuns")["dag_runs"]}

        triggerer = processes._started.pop("triggerer")
        os.killpg(triggerer.pid, signal.SIGKILL)
        triggerer.wait()
        processes.start("triggerer-2", [sys.executable, "-m", "airflow", "triggerer"], environment)
        late: list[str] = []

        def told_again() -> bool:
            """A run for events of before may take what is there: there is always some."""
            if not q.counts()["inserted"]:
                late.append(q.enqueue(b"marker-payload"))
            return "Trigger fired event" in (tmp_path / "logs" / "triggerer-2.log").read_text(errors="replace")

        eventually(told_again, within=300)
        eventually(lambda: q.counts()["finished"] == 5 + len(late), within=300)
        assert {q.task(task_id).attempt for task_id in early + late} == {1}
        assert states() <= {"success", "running", "queued"}, said(tmp_path)
        (event, *_) = api.call("GET", "/api/v2/assets/events")["asset_events"]
        assert set(event["extra"]["payload"]) == {"queue", "selector", "counts"}
    logs = "".join(log.read_text(errors="replace") for log in tmp_path.rglob("*.log") if log.is_file())
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
