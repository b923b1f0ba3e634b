"""Enqueueing once and consuming in a task, on a real scheduler, triggerer and LocalExecutor."""

from __future__ import annotations

import re
import sqlite3

import pytest
from cryptography.fernet import Fernet

from airflow_provider_zkmq.engine import Message, RetryPolicy
from tests.e2e.conftest import LONG, PASSWORD, Airflow, eventually

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("heavy")]
MARKER = b"marker-payload"
NAMES = ("one", "many", "batch")
DAGS = ("killed_enqueue", "ended_by_user", "zkmq_consume", "zkmq_pipeline", "one_by_one")
SETTINGS: dict[str, str] = {}


def tries(airflow: Airflow, dag: str) -> set[tuple[str, str, int]]:
    """The task instances of the run: task, state and try."""
    return {(each["task_id"], each["state"], each["try_number"]) for each in airflow.instances(dag)}


def killed_enqueue(airflow: Airflow) -> None:
    """Killed by SIGKILL after its write, tried again, cleared: each task is there once, and adopted."""
    q, dag = airflow.zk.queue("killed"), "killed_enqueue"
    eventually(lambda: tries(airflow, dag) == {(name, "deferred", 2) for name in NAMES}, within=LONG)
    assert q.counts()["inserted"] == 6
    assert "ZkmqTaskTrigger" in rows(airflow)
    q.worker(lambda _: None).run(until_empty=True)
    airflow.ended(dag)
    assert tries(airflow, dag) == {(name, "success", 2) for name in NAMES}, airflow.said()
    assert airflow.api.returned(dag, "r", "batch") == "killed_enqueue.r"
    before = {task.id: task.version for task in q.tasks()}
    clear = {"dry_run": False, "dag_run_id": "r", "only_failed": False, "reset_dag_runs": True}
    airflow.api.call("POST", f"/api/v2/dags/{dag}/clearTaskInstances", clear)
    eventually(lambda: tries(airflow, dag) == {(name, "success", 3) for name in NAMES}, within=LONG)
    assert {task.id: task.version for task in q.tasks()} == before


def ended_by_user(airflow: Airflow) -> None:
    """What a user ends that waits, on a worker or deferred, cancels its tasks, as it was asked to."""
    q = airflow.zk.queue("ended")
    states = {("deferred", "deferred", 1), ("running", "running", 1)}
    eventually(lambda: tries(airflow, "ended_by_user") == states and q.counts()["inserted"] == 6, within=LONG)
    # What a user ends before a triggerer has begun to wait for it is told to nobody.
    eventually(lambda: bool(airflow.logs("dag_id=ended_by_user/**/*.trigger.*.log")), within=LONG)
    for name in ("deferred", "running"):
        path = f"/api/v2/dags/ended_by_user/dagRuns/r/taskInstances/{name}"
        airflow.api.call("PATCH", path, {"new_state": "failed"})
    eventually(lambda: q.counts()["cancelled"] == 6, within=LONG)


def zkmq_consume(airflow: Airflow) -> None:
    """Deferred while there is nothing, a mapped task for each selector handles what has come."""
    q = airflow.zk.queue("parcels")
    eventually(lambda: airflow.in_state("zkmq_consume", "deferred") >= 1, within=LONG)
    assert "ZkmqReadyTrigger" in rows(airflow)
    for region in ("eu", "us"):
        q.enqueue_many([Message(MARKER, {"region": region}, task_id=f"{region}-{number}") for number in range(10)])
    assert airflow.ended("zkmq_consume") == "success", airflow.said()
    left = q.tasks(state="inserted")
    report = airflow.api.returned("zkmq_consume", "r", "report")
    assert report == {"finished": 20 - len(left), "failed": 0, "released": 0}
    assert {task.attempt for task in left} <= {0}
    assert {task.result for task in q.tasks(state="finished")} == {MARKER.upper()}


def zkmq_pipeline(airflow: Airflow) -> None:
    """What a stage puts is there when what it took is completed; a reading that is refused has put nothing."""
    q, checked = airflow.zk.queue("readings"), airflow.zk.queue("readings-checked")
    assert airflow.ended("zkmq_pipeline") == "success", airflow.said()
    assert checked.counts()["finished"] == 30
    assert (q.task("bad").state, q.task("bad").attempt) == ("inserted", 1)
    assert {task.result for task in checked.tasks(state="finished")} == {b"2", b"4", b"6"}


def one_by_one(airflow: Airflow) -> None:
    """Each claim is settled by its own instance; one that was killed takes the same claim over, as the same delivery.

    What failed is not tried again by Airflow, whose run is red: its claim is over.
    """
    q = airflow.zk.queue("single")
    airflow.ended("one_by_one")
    assert sorted(tries(airflow, "one_by_one")) == [
        ("claim", "success", 1), ("handle", "failed", 1), ("handle", "success", 1), ("handle", "success", 2),
    ], airflow.said()  # fmt: skip
    assert {task.id: (str(task.state), task.attempt) for task in q.tasks()} == {
        "fine": ("finished", 1),
        "killed": ("finished", 1),
        "raises": ("inserted", 1),
    }
    assert {task.result for task in q.tasks(state="finished")} == {MARKER.upper()}


def rows(airflow: Airflow) -> str:
    """Airflow's rows of triggers, as they were before Airflow encrypted some of them; without a secret."""
    key = re.search(r"^fernet_key = (\S+)", (airflow.home / "airflow" / "airflow.cfg").read_text(), re.MULTILINE)
    assert key is not None
    with sqlite3.connect(airflow.home / "airflow" / "airflow.db") as database:
        found = database.execute("select classpath, kwargs from trigger").fetchall()
    plain = [Fernet(key[1]).decrypt(given).decode() if given.startswith("gAAAA") else given for _, given in found]
    stored = " ".join([*(path for path, _ in found), *plain])
    assert not any(secret in stored for secret in (MARKER.decode(), PASSWORD))
    return stored


def test_enqueues_and_consumers_on_a_real_scheduler(airflow: Airflow) -> None:
    """Each part's docstring says what it proves; a payload and a password are in no log and in no trigger's row."""
    for name in ("killed", "ended"):
        airflow.zk.queue(name).configure()
    readings, single = airflow.zk.queue("readings"), airflow.zk.queue("single")
    readings.enqueue_many([Message("1 2 3", task_id=f"r-{number}") for number in range(10)])
    later = RetryPolicy(factor=3600, max_backoff=7200)
    readings.enqueue("4 five", task_id="bad", policy=later)
    single.configure(policy=later)
    single.enqueue_many([Message(MARKER, task_id=name) for name in ("fine", "killed", "raises")])
    parts = (killed_enqueue, ended_by_user, zkmq_consume, zkmq_pipeline, one_by_one)
    for part in parts:
        airflow.run(part.__name__)
    for part in parts:
        part(airflow)
    logs = airflow.logs("*.log")
    assert "Adopted 3 task(s) of queue 'killed'" in logs
    assert "Handled 11 task(s) of queue 'readings'" in logs
    assert MARKER.decode() not in logs
    assert PASSWORD not in logs
