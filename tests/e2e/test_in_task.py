"""Enqueueing once and consuming in a task, on a real scheduler, triggerer and LocalExecutor."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import Message, RetryPolicy, Zkmq
from tests.e2e.test_airflow import TOP, airflow, demo, said
from tests.support import eventually

__all__ = ["demo"]

pytestmark = pytest.mark.full
MARKER = b"marker-payload"
PASSWORD = "marker-password"
NAMES = ("one", "many", "batch")


def tries(api: Any, dag: str) -> set[tuple[str, str, int]]:
    """The task instances of the run: task, state and try."""
    told = api.call("GET", f"/api/v2/dags/{dag}/dagRuns/r/taskInstances?limit=100")["task_instances"]
    return {(each["task_id"], each["state"], each["try_number"]) for each in told}


def ended(api: Any, dag: str) -> bool:
    """Whether the run has ended."""
    return api.run_state(dag, "r") in {"success", "failed"}


def killed_enqueue(api: Any, zk: Zkmq, rows: Callable[[], str], home: Path) -> None:
    """Killed by SIGKILL after its write, tried again, cleared: each task is there once, and adopted."""
    q = zk.queue("killed")
    eventually(lambda: tries(api, "killed_enqueue") == {(name, "deferred", 2) for name in NAMES}, within=900)
    assert q.counts()["inserted"] == 6
    assert "ZkmqTaskTrigger" in rows()
    q.worker(lambda _: None).run(until_empty=True)
    eventually(lambda: ended(api, "killed_enqueue"), within=600)
    assert tries(api, "killed_enqueue") == {(name, "success", 2) for name in NAMES}, said(home)
    assert api.returned("killed_enqueue", "r", "batch") == "killed_enqueue.r"
    before = {task.id: task.version for task in q.tasks()}
    clear = {"dry_run": False, "dag_run_id": "r", "only_failed": False, "reset_dag_runs": True}
    api.call("POST", "/api/v2/dags/killed_enqueue/clearTaskInstances", clear)
    eventually(lambda: tries(api, "killed_enqueue") == {(name, "success", 3) for name in NAMES}, within=600)
    assert {task.id: task.version for task in q.tasks()} == before


def ended_by_user(api: Any, zk: Zkmq, rows: Callable[[], str], home: Path) -> None:
    """What a user ends that waits, on a worker or deferred, cancels its tasks, as it was asked to."""
    q = zk.queue("ended")
    states = {("deferred", "deferred", 1), ("running", "running", 1)}
    eventually(lambda: tries(api, "ended_by_user") == states and q.counts()["inserted"] == 6, within=600)
    rows()
    # What a user ends before a triggerer has begun to wait for it is told to nobody.
    eventually(lambda: list((home / "airflow" / "logs").glob("dag_id=ended_by_user/**/*.trigger.*.log")), within=300)
    for name in ("deferred", "running"):
        api.call("PATCH", f"/api/v2/dags/ended_by_user/dagRuns/r/taskInstances/{name}", {"new_state": "failed"})
    eventually(lambda: q.counts()["cancelled"] == 6, within=300)


def zkmq_consume(api: Any, zk: Zkmq, rows: Callable[[], str], home: Path) -> None:
    """Deferred while there is nothing, a mapped task for each selector handles what has come."""
    q = zk.queue("parcels")
    eventually(lambda: [state for _, state, _ in tries(api, "zkmq_consume")].count("deferred") >= 1, within=600)
    assert "ZkmqReadyTrigger" in rows()
    for region in ("eu", "us"):
        q.enqueue_many([Message(MARKER, {"region": region}, task_id=f"{region}-{number}") for number in range(10)])
    eventually(lambda: ended(api, "zkmq_consume"), within=600)
    assert api.run_state("zkmq_consume", "r") == "success", said(home)
    left = q.tasks(state="inserted")
    assert api.returned("zkmq_consume", "r", "report") == {"finished": 20 - len(left), "failed": 0, "released": 0}
    assert {task.attempt for task in left} <= {0}
    assert {task.result for task in q.tasks(state="finished")} == {MARKER.upper()}


def zkmq_pipeline(api: Any, zk: Zkmq, _rows: Callable[[], str], home: Path) -> None:
    """What a stage puts is there when what it took is completed; a reading that is refused has put nothing."""
    q, checked = zk.queue("readings"), zk.queue("readings-checked")
    eventually(lambda: ended(api, "zkmq_pipeline"), within=600)
    assert api.run_state("zkmq_pipeline", "r") == "success", said(home)
    assert checked.counts()["finished"] == 30
    assert (q.task("bad").state, q.task("bad").attempt) == ("inserted", 1)
    assert {task.result for task in checked.tasks(state="finished")} == {b"2", b"4", b"6"}


def one_by_one(api: Any, zk: Zkmq, _rows: Callable[[], str], home: Path) -> None:
    """Each claim is settled by its own instance; one that was killed takes the same claim over, as the same delivery.

    What failed is not tried again by Airflow, whose run is red: its claim is over.
    """
    q = zk.queue("single")
    eventually(lambda: ended(api, "one_by_one"), within=600)
    assert sorted(tries(api, "one_by_one")) == [
        ("claim", "success", 1), ("handle", "failed", 1), ("handle", "success", 1), ("handle", "success", 2),
    ], said(home)  # fmt: skip
    assert {task.id: (str(task.state), task.attempt) for task in q.tasks()} == {
        "fine": ("finished", 1),
        "killed": ("finished", 1),
        "raises": ("inserted", 1),
    }
    assert {task.result for task in q.tasks(state="finished")} == {MARKER.upper()}


def rows_of(home: Path) -> str:
    """Airflow's rows of triggers: no key is set, so that they are as they were given."""
    with sqlite3.connect(home / "airflow" / "airflow.db") as database:
        return str(database.execute("select * from trigger").fetchall())


def test_enqueues_and_consumers_on_a_real_scheduler(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part's docstring says what it proves; a payload and a password are in no log and in no trigger's row."""
    monkeypatch.setattr(demo, "DAGS", tmp_path / "dags")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    made = demo.airflow_environment

    def environment(*arguments: Any) -> dict[str, str]:
        told: dict[str, str] = made(*arguments)
        connection = json.loads(told["AIRFLOW_CONN_ZKMQ_DEFAULT"]) | {"login": "airflow", "password": PASSWORD}
        connection["extra"]["allow_open"] = True
        return told | {"AIRFLOW_CONN_ZKMQ_DEFAULT": json.dumps(connection)}

    monkeypatch.setattr(demo, "airflow_environment", environment)
    demo.DAGS.mkdir()
    for name in ("killed_enqueue", "ended_by_user", "one_by_one"):
        shutil.copy(TOP / "tests" / "e2e" / "dags" / f"{name}.py", demo.DAGS)
    for path in ("example_dags/zkmq_consume.py", "example_dags/zkmq_pipeline.py"):
        shutil.copy(TOP / path, demo.DAGS)
    stored: list[str] = []

    def rows() -> str:
        stored.append(rows_of(tmp_path))
        return stored[-1]

    with (
        EmbeddedServer(tmp_path / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False, auth=("airflow", PASSWORD), allow_open=True) as zk,
        airflow(demo, tmp_path, server.hosts) as (api, processes, _),
    ):
        for name in ("killed", "ended"):
            zk.queue(name).configure()
        zk.queue("readings").enqueue_many([Message("1 2 3", task_id=f"r-{number}") for number in range(10)])
        zk.queue("readings").enqueue("4 five", task_id="bad")
        zk.queue("single").configure(policy=RetryPolicy(factor=3600, max_backoff=7200))
        zk.queue("single").enqueue_many([Message(MARKER, task_id=name) for name in ("fine", "killed", "raises")])
        for part in (killed_enqueue, ended_by_user, zkmq_consume, zkmq_pipeline, one_by_one):
            dag = part.__name__
            demo.wait_until("the DAG", processes, lambda dag=dag: api.knows(dag))
            api.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})
            api.call("POST", f"/api/v2/dags/{dag}/dagRuns", {"dag_run_id": "r", "logical_date": None})
            part(api, zk, rows, tmp_path)
    logs = "".join(log.read_text(errors="replace") for log in tmp_path.rglob("*.log") if log.is_file())
    assert "Adopted 3 task(s) of queue 'killed'" in logs
    assert "Handled 11 task(s) of queue 'readings'" in logs
    for secret in (MARKER.decode(), PASSWORD):
        assert secret not in logs
        assert secret not in "".join(stored)
