"""Enqueueing once and consuming in a task, on a real scheduler, triggerer and LocalExecutor."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import Message, Zkmq
from tests.e2e.test_airflow import TOP, airflow, demo, said
from tests.support import eventually

__all__ = ["demo"]

MARKER = b"marker-payload"


def run(api, demo: ModuleType, processes, dag: str) -> None:
    """Start a run named r of a DAG."""
    demo.wait_until("the DAG", processes, lambda: api.knows(dag))
    api.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})
    api.call("POST", f"/api/v2/dags/{dag}/dagRuns", {"dag_run_id": "r", "logical_date": None})


def tries(api, dag: str) -> set[tuple[str, str, int]]:
    """The task instances of the run: task, state and try."""
    told = api.call("GET", f"/api/v2/dags/{dag}/dagRuns/r/taskInstances?limit=100")["task_instances"]
    return {(each["task_id"], each["state"], each["try_number"]) for each in told}


def ended(api, dag: str) -> bool:
    """Whether the run has ended."""
    return api.run_state(dag, "r") in {"success", "failed"}


def test_a_killed_enqueue_is_adopted_and_examples_run(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its write, tried again, cleared: each task is there once. The examples of consuming do their work.

    Neither a payload nor a password is in any log, or in a row of a trigger.
    """
    monkeypatch.setattr(demo, "DAGS", tmp_path / "dags")
    demo.DAGS.mkdir()
    for path in ("tests/e2e/dags/killed_enqueue.py", "example_dags/zkmq_consume.py", "example_dags/zkmq_pipeline.py"):
        shutil.copy(TOP / path, demo.DAGS)
    with (
        EmbeddedServer(tmp_path / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False) as zk,
        airflow(demo, tmp_path, server.hosts) as (api, processes, _),
    ):
        killed = zk.queue("killed")
        killed.configure()
        run(api, demo, processes, "killed_enqueue")
        eventually(lambda: {(name, 2) for name in ("one", "many", "batch")} == deferred(api), within=900)
        assert killed.counts()["inserted"] == 6
        killed.worker(lambda _: None).run(until_empty=True)
        eventually(lambda: ended(api, "killed_enqueue"), within=600)
        assert tries(api, "killed_enqueue") == {(name, "success", 2) for name in ("one", "many", "batch")}, said(
            tmp_path
        )
        before = {task.id: task.version for task in killed.tasks()}
        clear = {"dry_run": False, "dag_run_id": "r", "only_failed": False, "reset_dag_runs": True}
        api.call("POST", "/api/v2/dags/killed_enqueue/clearTaskInstances", clear)
        eventually(lambda: tries(api, "killed_enqueue") == {(n, "success", 3) for n in ("one", "many", "batch")})
        assert {task.id: task.version for task in killed.tasks()} == before

        run(api, demo, processes, "zkmq_consume")
        eventually(lambda: [state for _, state, _ in tries(api, "zkmq_consume")].count("deferred") >= 1, within=600)
        parcels = zk.queue("parcels")
        for region in ("eu", "us"):
            parcels.enqueue_many([Message(MARKER, {"region": region}, task_id=f"{region}-{n}") for n in range(10)])
        eventually(lambda: ended(api, "zkmq_consume"), within=600)
        assert api.run_state("zkmq_consume", "r") == "success", said(tmp_path)
        report = api.returned("zkmq_consume", "r", "report")
        left = parcels.counts()["inserted"]
        assert report == {"finished": 20 - left, "failed": 0, "released": 0}
        assert {task.attempt for task in parcels.tasks(state="inserted")} <= {0}
        assert {task.result for task in parcels.tasks(state="finished")} == {MARKER.upper()}

        raw = zk.queue("readings")
        raw.enqueue_many([Message("1 2 3", task_id=f"r-{number}") for number in range(10)])
        raw.enqueue("4 five", task_id="bad")
        run(api, demo, processes, "zkmq_pipeline")
        eventually(lambda: ended(api, "zkmq_pipeline"), within=600)
        assert api.run_state("zkmq_pipeline", "r") == "success", said(tmp_path)
        checked = zk.queue("readings-checked")
        assert checked.counts()["finished"] == 30
        assert (raw.task("bad").state, raw.task("bad").attempt) == ("inserted", 1)
        assert sorted({task.result for task in checked.tasks(state="finished")}) == [b"2", b"4", b"6"]
    logs = "".join(log.read_text(errors="replace") for log in tmp_path.rglob("*.log") if log.is_file())
    assert "Handled 10 task(s) of queue 'readings'" in logs or "Handled 11 task(s) of queue 'readings'" in logs
    assert "Adopted 3 task(s) of queue 'killed'" in logs
    assert MARKER.decode() not in logs


def deferred(api) -> set[tuple[str, int]]:
    """Which operators wait, on which try."""
    return {(name, number) for name, state, number in tries(api, "killed_enqueue") if state == "deferred"}
