"""DAG runs that acknowledge when they have succeeded, on a real scheduler, triggerer and LocalExecutor."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import AnyQueue, Message, RetryPolicy, Zkmq
from tests.e2e.test_airflow import TOP, airflow, demo, said
from tests.support import eventually

__all__ = ["demo"]

pytestmark = pytest.mark.full
LEASE = 6


def use(demo: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *dags: str) -> None:
    """Let Airflow know these DAG files and no others."""
    monkeypatch.setattr(demo, "DAGS", folder)
    folder.mkdir()
    for path in dags:
        shutil.copy(TOP / path, folder)


def logged(home: Path, task_id: str) -> str:
    """What the logs of an Airflow task's tries hold."""
    return "".join(log.read_text(errors="replace") for log in home.rglob(f"*task_id={task_id}/**/*.log*"))


class Run:
    """A run of a DAG, by Airflow's API."""

    def __init__(self, api: Any, dag: str, name: str) -> None:
        self._api, self._dag, self._name = api, dag, name
        self._path = f"/api/v2/dags/{dag}/dagRuns/{name}"

    def start(self) -> None:
        """Trigger it."""
        self._api.call("POST", f"/api/v2/dags/{self._dag}/dagRuns", {"dag_run_id": self._name, "logical_date": None})

    @property
    def state(self) -> str:
        """The run's state."""
        return str(self._api.run_state(self._dag, self._name))

    def task(self, name: str) -> dict[str, Any]:
        """What is known of a task instance."""
        return dict(self._api.call("GET", f"{self._path}/taskInstances/{name}"))

    def token(self) -> int:
        """The token of the claim that it has told of."""
        xcom = self._api.call(
            "GET", f"{self._path}/taskInstances/orders.claim/xcomEntries/return_value?deserialize=true"
        )
        return int(xcom["value"][0]["token"])

    def mark(self, state: str) -> None:
        """Mark it, as a user does."""
        self._api.call("PATCH", self._path, {"state": state})

    def clear(self) -> None:
        """Clear all its tasks."""
        self._api.call("POST", f"{self._path}/clear", {"dry_run": False})

    def open_pool(self) -> None:
        """Give the work a slot."""
        body = {"pool": "narrow", "slots": 1, "description": "", "include_deferred": False}
        self._api.call("PATCH", "/api/v2/pools/narrow", body)

    def ended(self) -> bool:
        """Whether it has."""
        return self.state in {"success", "failed"}


def kept_and_marked_failed(run: Run, q: AnyQueue, home: Path) -> None:
    """The work waits for a slot; then a user gives the run up."""
    run.start()
    eventually(lambda: run.task("orders.keep")["state"] == "deferred", within=300)
    token, since = run.token(), q.now()
    # Whoever looks whether there is work gives back what nobody extends.
    eventually(lambda: q.ready() or (q.now() - since).total_seconds() > 3 * LEASE, within=300)
    claimed = q.task("first")
    assert (claimed.state, claimed.attempt) == ("claimed", 1), said(home)
    q.extend("first", token, LEASE)
    assert run.task("orders.work")["state"] == "scheduled"
    run.mark("failed")
    eventually(run.ended, within=300)
    assert (run.state, run.task("orders.work")["state"]) == ("failed", "skipped"), said(home)
    assert run.task("orders.keep")["state"] == "success"
    assert (q.task("first").state, q.task("first").attempt) == ("inserted", 0)


def settled_too_late(run: Run, q: AnyQueue, home: Path) -> None:
    """Another has got the task before the work is done."""
    run.start()
    eventually(lambda: run.task("orders.keep")["state"] == "deferred", within=300)
    q.release("first", run.token())
    other = q.claim_task("first", lease=600)
    assert other is not None
    run.open_pool()
    eventually(run.ended, within=300)
    settle = run.task("orders.settle")
    assert (run.state, settle["state"], settle["try_number"]) == ("failed", "failed", 1), said(home)
    assert run.task("orders.work")["state"] == "success"
    assert "ClaimLost" in logged(home, "orders.settle")
    other.complete("the other's")


def cleared_when_settled(run: Run, q: AnyQueue, home: Path) -> None:
    """It goes well, and a user clears it all the same."""
    q.enqueue(b"marker-payload", task_id="second")
    run.start()
    eventually(run.ended, within=300)
    assert run.state == "success", said(home)
    done = q.task("second")
    assert (done.state, done.attempt, done.result) == ("finished", 1, b"second")
    q.enqueue(b"marker-payload", task_id="third")
    run.clear()
    eventually(lambda: run.task("orders.claim")["state"] == "skipped", within=300)
    eventually(run.ended, within=300)
    assert {run.task(f"orders.{name}")["state"] for name in ("keep", "work", "settle")} == {"skipped"}
    assert q.task("second").version == done.version
    assert (q.task("third").state, q.task("third").attempt) == ("inserted", 0)


def test_a_run_holds_its_task_until_it_is_settled(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool without slots: no second delivery within three leases. Marked failed then: the task is inserted again.

    Settled too late: the run is red, its log has ClaimLost, and the task stays the other's. Settled, and cleared: it is
    not completed again, and no other task is claimed.
    """
    use(demo, monkeypatch, tmp_path / "dags", "tests/e2e/dags/acknowledging.py")
    with (
        EmbeddedServer(tmp_path / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False) as zk,
        airflow(demo, tmp_path, server.hosts) as (api, processes, _),
    ):
        q = zk.queue("held")
        q.enqueue(b"marker-payload", task_id="first")
        api.call("POST", "/api/v2/pools", {"name": "narrow", "slots": 0})
        demo.wait_until("the DAG", processes, lambda: api.knows("acknowledging"))
        api.call("PATCH", "/api/v2/dags/acknowledging", {"is_paused": False})

        kept_and_marked_failed(Run(api, "acknowledging", "marked"), q, tmp_path)
        settled_too_late(Run(api, "acknowledging", "late"), q, tmp_path)
        cleared_when_settled(Run(api, "acknowledging", "settled"), q, tmp_path)
    logs = "".join(log.read_text(errors="replace") for log in tmp_path.rglob("*.log*") if log.is_file())
    assert "Took task 'second'" in logs
    assert "marker-payload" not in logs


def test_a_burst_is_acknowledged_by_the_examples(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails once is completed on attempt 2, poison is dead with its reason, all else is done on attempt 1.

    The runs of failed work are red, the others green. The other example starts one run for each task. Runs take over
    what a watch has claimed for them.
    """
    use(
        demo,
        monkeypatch,
        tmp_path / "dags",
        "example_dags/zkmq_acknowledge.py",
        "example_dags/zkmq_run_per_task.py",
        "tests/e2e/dags/claimed_events.py",
    )
    for example in ("ACKNOWLEDGE", "DISPATCH"):
        monkeypatch.setenv(f"ZKMQ_{example}_QUEUE", example.lower())
        monkeypatch.setenv(f"ZKMQ_{example}_REFIRE", "3")
        monkeypatch.setenv(f"ZKMQ_{example}_LEASE", "60")
    with (
        EmbeddedServer(tmp_path / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False) as zk,
        airflow(demo, tmp_path, server.hosts) as (api, processes, _),
    ):
        orders, tasks, claimed = zk.queue("acknowledge"), zk.queue("dispatch"), zk.queue("claimed")
        claimed.enqueue_many([Message(b"three", task_id=f"claimed-{number}") for number in range(3)])
        orders.configure(policy=RetryPolicy(attempts=3, factor=0.1, max_backoff=0.5))
        orders.enqueue_many(
            [Message(text, task_id=name) for name, text in [("poison", b"poison"), ("again", b"again")]]
            + [Message(b"good", task_id=f"good-{number}") for number in range(4)]
        )
        tasks.enqueue_many([Message(b"one", task_id=f"task@{number}") for number in range(3)])
        for dag in ("claimed_events", "zkmq_acknowledge", "zkmq_dispatch", "zkmq_handle"):
            demo.wait_until("the DAG", processes, _known(api, dag))
            api.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})
        eventually(lambda: claimed.counts()["finished"] == tasks.counts()["finished"] == 3, within=600)
        eventually(lambda: orders.counts()["finished"] == 5 and orders.counts()["dead"] == 1, within=600)
        assert {task.attempt for task in [*tasks.tasks(), *claimed.tasks()]} == {1}, said(tmp_path)
        assert {task.result for task in tasks.tasks()} == {b"ONE"}
        done = {task.id: task for task in orders.tasks()}
        assert (done["again"].attempt, done["again"].result) == (2, b"AGAIN"), said(tmp_path)
        assert {(done[f"good-{number}"].attempt, done[f"good-{number}"].result) for number in range(4)} == {
            (1, b"GOOD")
        }
        assert (done["poison"].attempt, done["poison"].state) == (3, "dead")
        assert "ValueError: no price for 'poison'" in (done["poison"].error or "")

        def runs(dag: str) -> dict[str, str]:
            told = api.call("GET", f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
            return {run["dag_run_id"]: run["state"] for run in told}

        eventually(lambda: set(runs("zkmq_acknowledge").values()) <= {"success", "failed"}, within=300)
        assert list(runs("zkmq_acknowledge").values()).count("failed") == 3, said(tmp_path)
        eventually(lambda: set(runs("zkmq_handle").values()) == {"success"}, within=300)
        assert sorted(name.rpartition("__")[0] for name in runs("zkmq_handle")) == [
            f"zkmq__task~40{number}" for number in range(3)
        ]


def _known(api: Any, dag: str) -> Callable[[], bool]:
    return lambda: bool(api.knows(dag))
