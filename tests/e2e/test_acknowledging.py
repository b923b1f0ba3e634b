"""DAG runs that acknowledge when they have succeeded, on a real scheduler, triggerer and LocalExecutor."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine import AnyQueue, Message, RetryPolicy
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.e2e.conftest import LONG, Airflow, eventually

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("heavy")]
LEASE = 90
EXAMPLES = ("ACKNOWLEDGE", "DISPATCH")
DAGS = ("acknowledging", "claimed_events", "zkmq_acknowledge", "zkmq_run_per_task")
SETTINGS = {f"ZKMQ_{example}_QUEUE": example.lower() for example in EXAMPLES} | {
    f"ZKMQ_{example}_{name}": value for example in EXAMPLES for name, value in (("REFIRE", "3"), ("LEASE", "600"))
}


class Run:
    """A run of the DAG ``acknowledging``."""

    def __init__(self, airflow: Airflow, name: str) -> None:
        self._airflow, self._api, self._name = airflow, airflow.api, name
        self._path = f"/api/v2/dags/acknowledging/dagRuns/{name}"

    def start(self) -> None:
        self._airflow.trigger("acknowledging", self._name)

    def ended(self) -> str:
        return self._airflow.ended("acknowledging", self._name)

    def task(self, name: str) -> dict[str, Any]:
        return dict(self._api.call("GET", f"{self._path}/taskInstances/orders.{name}"))

    def logged(self, name: str) -> str:
        """What the logs of a task's tries hold."""
        return self._airflow.logs(f"run_id={self._name}/task_id=orders.{name}/**/*.log*")

    def token(self) -> int:
        """The token of the claim that it has told of."""
        path = f"{self._path}/taskInstances/orders.claim/xcomEntries/return_value?deserialize=true"
        return int(self._api.call("GET", path)["value"][0]["token"])

    def mark(self, state: str) -> None:
        self._api.call("PATCH", self._path, {"state": state})

    def clear(self) -> None:
        self._api.call("POST", f"{self._path}/clear", {"dry_run": False})

    def open_pool(self) -> None:
        """Give the work a slot."""
        body = {"pool": "narrow", "slots": 1, "description": "", "include_deferred": False}
        self._api.call("PATCH", "/api/v2/pools/narrow", body)

    def said(self) -> str:
        return self._airflow.said()


def kept_and_marked_failed(run: Run, q: AnyQueue) -> None:
    """The work waits for a slot; then a user gives the run up."""
    run.start()
    eventually(lambda: run.task("keep")["state"] == "deferred", within=LONG)
    token, since = run.token(), internals(q).now()
    # Whoever looks whether there is work gives back what nobody extends.
    eventually(lambda: q.ready() or (internals(q).now() - since).total_seconds() > 1.2 * LEASE, within=LONG)
    claimed = q.task("first")
    assert (claimed.state, claimed.attempt) == ("claimed", 1), run.said()
    q.claim_handle("first", token).extend(LEASE)
    assert run.task("work")["state"] == "scheduled"
    run.mark("failed")
    assert (run.ended(), run.task("work")["state"]) == ("failed", "skipped"), run.said()
    assert run.task("keep")["state"] == "success"
    assert (q.task("first").state, q.task("first").attempt) == ("inserted", 0)


def settled_too_late(run: Run, q: AnyQueue) -> None:
    """Another has got the task before the work is done."""
    run.start()
    eventually(lambda: run.task("keep")["state"] == "deferred", within=LONG)
    q.claim_handle("first", run.token()).release()
    other = q.claim_task("first", lease=600)
    assert other is not None
    run.open_pool()
    state, settle = run.ended(), run.task("settle")
    assert (state, settle["state"], settle["try_number"]) == ("failed", "failed", 1), run.said()
    assert run.task("work")["state"] == "success"
    assert "ClaimLost" in run.logged("settle")
    other.complete("the other's")


def cleared_when_settled(run: Run, q: AnyQueue) -> None:
    """It goes well, and a user clears it all the same."""
    q.enqueue(b"marker-payload", task_id="second")
    run.start()
    assert run.ended() == "success", run.said()
    done = q.task("second")
    assert (done.state, done.attempt, done.result) == ("finished", 1, b"second")
    q.enqueue(b"marker-payload", task_id="third")
    run.clear()
    eventually(lambda: run.task("claim")["state"] == "skipped", within=LONG)
    run.ended()
    assert {run.task(name)["state"] for name in ("keep", "work", "settle")} == {"skipped"}
    assert q.task("second").version == done.version
    assert (q.task("third").state, q.task("third").attempt) == ("inserted", 0)


def test_a_run_holds_its_task_until_it_is_settled(airflow: Airflow) -> None:
    """A pool without slots: no second delivery when the lease is over. Marked failed then: the task is inserted again.

    Settled too late: the run is red, its log has ClaimLost, and the task stays the other's. Settled, and cleared: it is
    not completed again, and no other task is claimed.
    """
    q = airflow.zk.queue("held")
    q.enqueue(b"marker-payload", task_id="first")
    airflow.api.call("POST", "/api/v2/pools", {"name": "narrow", "slots": 0})
    airflow.unpause("acknowledging")
    kept_and_marked_failed(Run(airflow, "marked"), q)
    settled_too_late(Run(airflow, "late"), q)
    cleared_when_settled(Run(airflow, "settled"), q)
    logs = airflow.logs()
    assert "Took task 'second'" in logs
    assert "marker-payload" not in logs


def test_a_burst_is_acknowledged_by_the_examples(airflow: Airflow) -> None:
    """What fails once is completed on attempt 2, poison is dead with its reason, all else is done on attempt 1.

    The runs of failed work are red, the others green. The other example starts one run for each task. Runs take over
    what a watch has claimed for them.
    """
    orders, tasks, claimed = (airflow.zk.queue(name) for name in ("acknowledge", "dispatch", "claimed"))
    claimed.enqueue_many([Message(b"three", task_id=f"claimed-{number}") for number in range(3)])
    orders.configure(policy=RetryPolicy(attempts=3, factor=0.1, max_backoff=0.5))
    orders.enqueue_many([Message(text.encode(), task_id=text) for text in ("poison", "again", "good")])
    tasks.enqueue_many([Message(b"one", task_id=f"task@{number}") for number in range(3)])
    for dag in ("claimed_events", "zkmq_acknowledge", "zkmq_dispatch", "zkmq_handle"):
        airflow.unpause(dag)
    eventually(lambda: claimed.counts()["finished"] == tasks.counts()["finished"] == 3, within=LONG)
    eventually(lambda: orders.counts() | {"finished": 2, "dead": 1} == orders.counts(), within=LONG)
    assert {task.attempt for task in [*tasks.tasks(), *claimed.tasks()]} == {1}, airflow.said()
    assert {task.result for task in tasks.tasks()} == {b"ONE"}
    done = {task.id: task for task in orders.tasks()}
    assert {name: (str(task.state), task.attempt, task.result) for name, task in done.items()} == {
        "again": ("finished", 2, b"AGAIN"),
        "good": ("finished", 1, b"GOOD"),
        "poison": ("dead", 3, None),
    }, airflow.said()
    assert "ValueError: no price for 'poison'" in (done["poison"].error or "")

    def runs(dag: str) -> dict[str, str]:
        told = airflow.api.call("GET", f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in told}

    eventually(lambda: set(runs("zkmq_acknowledge").values()) <= {"success", "failed"}, within=LONG)
    assert list(runs("zkmq_acknowledge").values()).count("failed") == 3, airflow.said()
    eventually(lambda: set(runs("zkmq_handle").values()) == {"success"}, within=LONG)
    names = sorted(name.rpartition("__")[0] for name in runs("zkmq_handle"))
    assert names == [f"zkmq__task~40{number}" for number in range(3)]
