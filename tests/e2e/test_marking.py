"""Users who mark and clear runs that hold claims, and Airflow that ends them: no task is lost, or in two hands."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine import AnyQueue, Message, RetryPolicy
from tests.e2e.conftest import LONG, Airflow, eventually

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("heavy")]
DAGS = ("marking",)
SETTINGS: dict[str, str] = {}
STATES = ("success", "failed")


class Run:
    """A run of two steps, and the queue of its name with the one task that it takes."""

    def __init__(self, airflow: Airflow, name: str, dag: str = "marking") -> None:
        self.airflow, self.name, self.dag = airflow, name, dag
        self.q: AnyQueue = airflow.zk.queue(name)
        self.q.configure(policy=RetryPolicy(attempts=3, factor=0.0))
        self.q.enqueue(b"payload", task_id="only")
        airflow.trigger(dag, name)

    def states(self) -> dict[str, str | None]:
        """The states of its task instances."""
        found = self.airflow.instances(self.dag, self.name)
        return {one["task_id"].removeprefix("orders."): one["state"] for one in found}

    def until(self, **states: str) -> None:
        """Wait until instances are in these states."""
        eventually(lambda: states.items() <= self.states().items(), within=LONG)

    def begun(self) -> list[str]:
        """Which steps have begun to work, each time."""
        path = self.airflow.home / "gates" / "begun"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix(f"{self.name} ") for line in lines if line.startswith(f"{self.name} ")]

    def work(self, step: str) -> None:
        """Wait until a step is at work."""
        eventually(lambda: step in self.begun(), within=LONG)

    def open(self, step: str, *, fails: bool = False) -> None:
        """Let a step end."""
        (self.airflow.home / "gates" / f"{self.name} {step}").write_text("fails" if fails else "")

    def mark(self, state: str) -> None:
        """Mark it, as a user does."""
        self.airflow.api.call("PATCH", f"/api/v2/dags/{self.dag}/dagRuns/{self.name}", {"state": state})

    def is_pending(self, attempt: int = 0) -> bool:
        """Whether its task waits for another run, after so many attempts."""
        task = self.q.task("only")
        return (str(task.state), task.attempt) == ("inserted", attempt)

    def is_done(self) -> bool:
        """Whether its task is completed with what the last step has returned."""
        task = self.q.task("only")
        return (str(task.state), task.attempt, task.result) == ("finished", 1, b"done")


@pytest.fixture(scope="module", autouse=True)
def gated(airflow: Airflow) -> None:
    """A folder for what lets steps end, and the pool of all tasks but ``keep``."""
    (airflow.home / "gates").mkdir()
    airflow.api.call("POST", "/api/v2/pools", {"name": "gated", "slots": 8})
    for dag in ("marking", "timed_out"):
        airflow.unpause(dag)


def pool(airflow: Airflow, slots: int) -> None:
    """Change the slots of that pool."""
    given: dict[str, Any] = {"pool": "gated", "slots": slots, "description": "", "include_deferred": False}
    airflow.api.call("PATCH", "/api/v2/pools/gated", given)


def test_a_run_that_is_marked_never_completes_work_that_was_not_done(airflow: Airflow) -> None:
    """Marked while ``claim`` is queued, one of two is running, the last is: pending again; after its end: completed."""
    pool(airflow, 0)
    queued = {state: Run(airflow, f"queued-{state}") for state in STATES}
    for state, run in queued.items():
        run.until(claim="scheduled")
        run.mark(state)
    pool(airflow, 8)
    early = {state: Run(airflow, f"first-{state}") for state in STATES}
    late = {state: Run(airflow, f"last-{state}") for state in STATES}
    for run in late.values():
        run.open("first")
    for state in STATES:
        early[state].work("first")
        early[state].mark(state)
        late[state].work("last")
        late[state].mark(state)
    ended = {state: Run(airflow, f"ended-{state}") for state in STATES}
    for state, run in ended.items():
        run.open("first")
        run.open("last")
        assert airflow.ended("marking", run.name) == "success", airflow.said()
        run.mark(state)
    for run in (*early.values(), *late.values()):
        assert airflow.ended("marking", run.name) == "failed", airflow.said()
    for run in (*queued.values(), early["success"], late["success"]):
        eventually(run.is_pending, within=LONG)
    for run in (early["failed"], late["failed"]):  # what was at work has failed
        eventually(lambda run=run: run.is_pending(attempt=1), within=LONG)
    assert all(run.is_done() for run in ended.values())
    assert [run.begun() for run in ended.values()] == [["first", "last"]] * 2


def test_cleared_work_runs_only_while_its_run_holds_the_claim(airflow: Airflow) -> None:
    """Of a failed run the failed tasks alone are cleared, while another has its task: the work is not begun again."""
    run = Run(airflow, "cleared")
    run.open("first", fails=True)
    assert airflow.ended("marking", "cleared") == "failed", airflow.said()
    again = run.q.task("only")
    assert (again.state, again.attempt, "was told to fail" in (again.error or "")) == ("inserted", 1, True)
    other = run.q.claim(lease=LONG)
    assert other is not None
    run.open("first")
    body = {"dry_run": False, "dag_run_id": "cleared", "only_failed": True, "reset_dag_runs": True}
    airflow.api.call("POST", "/api/v2/dags/marking/clearTaskInstances", body)
    run.until(first="skipped")
    airflow.ended("marking", "cleared")
    assert run.begun() == ["first"]
    other.complete(b"the other's")
    assert (run.q.task("only").attempt, run.q.task("only").result) == (2, b"the other's")


def test_a_run_that_takes_too_long_gives_its_task_back(airflow: Airflow) -> None:
    """After ``dagrun_timeout``, which skips ``settle``: pending long before its lease is over, no attempt counted."""
    run = Run(airflow, "overdue", "timed_out")
    run.work("first")
    assert (str(run.q.task("only").state), run.q.task("only").attempt) == ("claimed", 1)
    assert airflow.ended("timed_out", "overdue") == "failed", airflow.said()
    eventually(run.is_pending, within=250)
    assert run.begun() == ["first"]


def test_a_sensor_ends_at_the_first_dead_of_a_hundred(airflow: Airflow) -> None:
    """The other ninety-nine are pending; its log names the one that is dead."""
    q = airflow.zk.queue("hundred")
    q.enqueue_many([Message(b"", task_id=f"task-{number}") for number in range(100)])
    airflow.run("hundred")
    eventually(lambda: airflow.in_state("hundred", "deferred") == 1, within=LONG)
    claim = q.claim_task("task-57", lease=LONG)
    assert claim is not None
    claim.fail("no such thing", retry=False)
    assert airflow.ended("hundred") == "failed", airflow.said()
    assert q.counts()["inserted"] == 99
    assert "task-57" in airflow.logs("dag_id=hundred/**/*.log*")
