"""Event-driven DAGs and deferred waits through deaths, pauses, stalls and outages, on a real Airflow."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import psutil
import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.embedded.ports import free_ports
from airflow_provider_zkmq.engine import Message, Queue, RetryPolicy, Zkmq
from tests.e2e.test_airflow import TOP, airflow, demo, said
from tests.support import eventually

__all__ = ["demo"]
pytestmark = pytest.mark.full
TASKS = int(os.environ.get("ZKMQ_E2E_BURST", "200"))
PAUSED_SECONDS = float(os.environ.get("ZKMQ_E2E_PAUSED", "45"))
at_length = pytest.mark.skipif(os.environ.get("ZKMQ_E2E_FULL") != "1", reason="minutes long: make acceptance")
STARTS = " starting"
STILL_SECONDS = 15.0
DEFERRED = int(os.environ.get("ZKMQ_E2E_DEFERRED", "1000"))
AWAY_SECONDS = float(os.environ.get("ZKMQ_E2E_AWAY", "45"))


@contextlib.contextmanager
def running(
    demo: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch, dag: str, **settings: str
) -> Iterator[tuple[Zkmq, EmbeddedServer, Any]]:
    """ZooKeeper, a client, and an Airflow that knows the DAGs of one file."""
    monkeypatch.setattr(demo, "DAGS", home / "dags")
    # Airflow's settings of the environment reach the processes of the demo only through its own environment.
    made = demo.airflow_environment
    monkeypatch.setattr(demo, "airflow_environment", lambda *given: made(*given) | settings)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    demo.DAGS.mkdir()
    shutil.copy(TOP / "tests" / "e2e" / "dags" / f"{dag}.py", demo.DAGS)
    with (
        EmbeddedServer(home / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False) as zk,
        airflow(demo, home, server.hosts) as started,
    ):
        yield zk, server, started


def unpause(demo: ModuleType, started: Any, dag: str, *, paused: bool = False) -> None:
    """Let a DAG run, once Airflow knows it."""
    api, processes, _ = started
    demo.wait_until("the DAG", processes, lambda: api.knows(dag))
    api.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})


def kill(started: Any, name: str, again: str) -> None:
    """Kill a process and all that it has started; start another one."""
    _, processes, environment = started
    process = processes._started.pop(name)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    processes.start(again, [sys.executable, "-m", "airflow", again.partition("-")[0]], environment)


def logged(home: Path, name: str) -> str:
    """What one of the processes has logged."""
    path = home / "logs" / f"{name}.log"
    return path.read_text(errors="replace") if path.exists() else ""


def told_of(home: Path, what: str) -> int:
    """How often triggers tell of something: watches in the triggerers' logs, waits in those of their tasks."""
    return sum(text.count(what) for text in logs_of_triggers(home).values())


def logs_of_triggers(home: Path) -> dict[Path, str]:
    """The logs of triggerers, and of the triggers of tasks."""
    logs = [*(home / "logs").glob("triggerer*.log"), *(home / "airflow" / "logs").rglob("*.trigger.*.log")]
    return {log: log.read_text(errors="replace") for log in logs}


class Sampled:
    """How many tasks were claimed at most, asked again and again while it is entered."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self._over = queue, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.most = self.samples = 0

    def _ask(self) -> None:
        while not self._over.wait(0.05):
            self.most = max(self.most, self._queue.counts()["claimed"])
            self.samples += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def through_a_burst(
    demo: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch, dag: str, attempts: int
) -> list[str]:
    """Let a DAG handle a burst through the deaths of triggerers and of the scheduler; who had an attempt too many.

    All but the poison one are finished by then, and that is dead.
    """
    settings = {
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    }
    with running(demo, home, monkeypatch, dag, **settings) as (zk, _, started):
        q = zk.queue("burst")
        q.configure(policy=RetryPolicy(attempts=attempts, factor=0))
        unpause(demo, started, dag)
        names = [f"task-{number}" for number in range(TASKS)]
        q.enqueue_many([Message(b"x", task_id=name) for name in [*names[:-10], "poison", *names[-10:]]])
        deaths = [("triggerer", "triggerer-2"), ("scheduler", "scheduler-2"), ("triggerer-2", "triggerer-3")]
        for part, (name, again) in zip((0.1, 0.3, 0.6), deaths, strict=True):
            eventually(lambda part=part: q.counts()["finished"] >= part * TASKS, within=900)
            kill(started, name, again)
        eventually(lambda: q.counts() | {"dead": 1} == q.counts() and not q.counts()["inserted"], within=1_200)
        eventually(lambda: q.counts()["finished"] == TASKS, within=300)
        tasks = {task.id: task for task in q.tasks(limit=TASKS + 10)}
        poison = tasks.pop("poison")
        assert (poison.state, poison.attempt) == ("dead", attempts)
        assert f"poison on attempt {attempts}" in (poison.error or "")
        assert q.counts()["claimed"] == 0
        late = {name: task.attempt - (2 if name.endswith("0") else 1) for name, task in tasks.items()}
        assert min(late.values()) == 0
        return [name for name, attempts in late.items() for _ in range(attempts)]


def test_a_burst_through_deaths_of_triggerers_and_the_scheduler(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task is completed though triggerers and the scheduler are killed; a poison one is dead, with its reason.

    Those that fail once are completed by attempt 2; the one that was in hand when the scheduler's processes were killed
    may have one attempt more.
    """
    late = through_a_burst(demo, tmp_path, monkeypatch, "events_burst", attempts=4)
    assert len(late) <= 1, said(tmp_path)


@at_length
def test_a_burst_of_runs_that_acknowledge(demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with groups, whose claims are kept through the deaths: nobody has an attempt too many."""
    assert through_a_burst(demo, tmp_path, monkeypatch, "events_grouped", attempts=3) == [], said(tmp_path)


def test_a_pause_costs_no_attempt(demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty pending while the DAG is paused for longer than leases last: then each is completed by its first attempt.

    Of those that the trigger claims there are never more than may be in flight.
    """
    with running(demo, tmp_path, monkeypatch, "events_claimed") as (zk, _, started):
        woken, claimed = zk.queue("woken"), zk.queue("claimed")
        for name, queue in (("events_woken", woken), ("events_claimed", claimed)):
            queue.configure(policy=RetryPolicy(attempts=1))
            queue.enqueue("first", task_id="first")
            unpause(demo, started, name)
        with Sampled(claimed) as sampled:
            eventually(lambda: [q.counts()["finished"] for q in (woken, claimed)] == [1, 1], within=300)
            for name in ("events_woken", "events_claimed"):
                unpause(demo, started, name, paused=True)
            for queue in (woken, claimed):
                queue.enqueue_many([Message(b"x", task_id=f"task-{number}") for number in range(50)])
            time.sleep(PAUSED_SECONDS)  # the pause itself, not a wait for anything
            for name in ("events_woken", "events_claimed"):
                unpause(demo, started, name)
            eventually(lambda: [q.counts()["finished"] for q in (woken, claimed)] == [51, 51], within=600)
        for queue in (woken, claimed):
            assert {(task.state, task.attempt) for task in queue.tasks(limit=60)} == {("finished", 1)}, said(tmp_path)
        assert 1 <= sampled.most <= 8
        assert sampled.samples > 100
        (event, *_) = started[0].call("GET", "/api/v2/assets/events?limit=100")["asset_events"]
        assert set(event["extra"]["payload"]) <= {"queue", "selector", "counts", "claims"}


@at_length
def test_a_triggerer_that_stands_still_takes_nothing_back(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped past its heartbeat while another one is up, then resumed: no claim is released, no task cancelled.

    Its waits and its watch move to the other one; what it is told when it goes on ends nothing but what it runs.
    """
    settings = {"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8"}
    with running(demo, tmp_path, monkeypatch, "deferred_kinds", **settings) as (zk, _, started):
        api, processes, environment = started
        held, kinds = zk.queue("held"), zk.queue("kinds")
        kinds.enqueue("x", task_id="awaited")
        held.enqueue_many([Message(b"x", task_id=f"held-{number}") for number in range(9)])
        for name in ("deferred_kinds", "events_held"):
            unpause(demo, started, name)
        api.call("POST", "/api/v2/dags/deferred_kinds/dagRuns", {"dag_run_id": "r", "logical_date": None})
        eventually(lambda: set(api.task_states("deferred_kinds", "r").values()) == {"deferred"}, within=300)
        eventually(lambda: held.counts()["claimed"] == 4, within=300)
        eventually(lambda: told_of(tmp_path, STARTS) == 3, within=120)

        def state() -> dict[str, tuple[object, ...]]:
            return {
                task.id: (task.state, task.attempt, task.claimed_ms)
                for task in (*held.tasks(limit=20), *kinds.tasks(limit=20))
            }

        before = state()
        (port,) = free_ports("127.0.0.1", 1)
        second = environment | {"AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(port)}
        first = processes._started["triggerer"]
        processes.start("triggerer-2", [sys.executable, "-m", "airflow", "triggerer"], second)
        eventually(lambda: "Starting the triggerer" in logged(tmp_path, "triggerer-2"), within=120)
        _signal_all(first.pid, signal.SIGSTOP)
        try:
            eventually(lambda: told_of(tmp_path, STARTS) == 6, within=300)
        finally:
            _signal_all(first.pid, signal.SIGCONT)
        size = len(logged(tmp_path, "triggerer"))
        eventually(lambda: len(logged(tmp_path, "triggerer")) > size, within=120)
        resumed = time.monotonic()
        while time.monotonic() - resumed < STILL_SECONDS:  # it cleans up by then; nothing tells when it has
            assert state() == before, said(tmp_path)
            time.sleep(0.5)
        kinds.worker(lambda task: task.id).run(until_empty=True)
        eventually(lambda: api.run_state("deferred_kinds", "r") in {"success", "failed"}, within=300)
        assert api.run_state("deferred_kinds", "r") == "success", said(tmp_path)
        assert (kinds.counts()["finished"], kinds.counts()["cancelled"]) == (3, 0)


def _signal_all(leader: int, number: signal.Signals) -> None:
    """Send a signal to a process and to all that it has started, also those in sessions of their own."""
    process = psutil.Process(leader)
    for each in (process, *process.children(recursive=True)):
        each.send_signal(number)


@at_length
def test_zookeeper_away_fails_nothing(demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down for a while under deferred waits and watches: none fails, none is started again, and little is logged."""
    with running(demo, tmp_path, monkeypatch, "deferred_kinds") as (zk, server, started):
        api, processes, _ = started
        held, kinds = zk.queue("held"), zk.queue("kinds")
        kinds.enqueue("x", task_id="awaited")
        held.configure()
        for name in ("deferred_kinds", "events_held"):
            unpause(demo, started, name)
        api.call("POST", "/api/v2/dags/deferred_kinds/dagRuns", {"dag_run_id": "r", "logical_date": None})
        eventually(lambda: set(api.task_states("deferred_kinds", "r").values()) == {"deferred"}, within=300)
        eventually(lambda: told_of(tmp_path, STARTS) == 3, within=300)
        before = logs_of_triggers(tmp_path)
        server.kill(0)
        time.sleep(AWAY_SECONDS)  # the outage itself, not a wait for anything
        away = [text.removeprefix(before[log]) for log, text in logs_of_triggers(tmp_path).items()]
        assert set(api.task_states("deferred_kinds", "r").values()) == {"deferred"}, said(tmp_path)
        lines = [[line for line in text.splitlines() if "currently running" not in line] for text in away]
        # In the triggerer's own log are its watch's lines and kazoo's; a wait has a log of its own.
        assert sum(map(len, lines)) <= 4 * (1 + AWAY_SECONDS / 60), lines
        assert "Traceback" not in "".join(away)
        server.restart(0)
        kinds.worker(lambda task: task.id).run(until_empty=True)
        held.enqueue("x")
        eventually(lambda: held.counts()["claimed"] == 1, within=300)
        eventually(lambda: api.run_state("deferred_kinds", "r") in {"success", "failed"}, within=300)
        assert api.run_state("deferred_kinds", "r") == "success", said(tmp_path)
        assert told_of(tmp_path, STARTS) == 3, "nothing was started again"
        assert processes._started["triggerer"].poll() is None


@at_length
@pytest.mark.parametrize("sleep", [None, "20"], ids=["sensors", "sleeping"])
def test_a_thousand_sensors_in_a_triggerer(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleep: str | None
) -> None:
    """All are told of their tasks, and the connection is looked up a few times, however many they are.

    They are put to Airflow as deferred task instances of a paused DAG: to run them first would take an hour. Airflow
    writes a line for each that begins to a process that is slow to read, and so reports its own loop as blocked:
    what it reports is printed, beside that of as many triggers which do nothing but sleep.
    """
    lookups = tmp_path / "lookups"
    settings = {
        "AIRFLOW__SECRETS__BACKEND": "tests.e2e.lookups.Lookups",
        "AIRFLOW__WORKERS__SECRETS_BACKEND": "tests.e2e.lookups.Lookups",
        "AIRFLOW__CORE__MAX_MAP_LENGTH": str(DEFERRED),
        "AIRFLOW__TRIGGERER__CAPACITY": str(DEFERRED),
        "ZKMQ_E2E_LOOKUPS": str(lookups),
        "ZKMQ_E2E_SENSORS": str(DEFERRED),
    }
    with running(demo, tmp_path, monkeypatch, "many_sensors", **settings) as (zk, _, started):
        api, processes, environment = started
        q = zk.queue("many")
        for at in range(0, DEFERRED, 500):
            q.enqueue_many([Message(b"x", task_id=f"task-{number}") for number in range(at, min(at + 500, DEFERRED))])
        demo.wait_until("the DAG", processes, lambda: api.knows("many_sensors"))
        api.call("POST", "/api/v2/dags/many_sensors/dagRuns", {"dag_run_id": "r", "logical_date": None})
        command = [sys.executable, "-m", "tests.e2e.lookups", "many_sensors", *([sleep] if sleep else [])]
        before = lookups.read_text() if lookups.exists() else ""
        told = subprocess.run(
            command, env=environment, cwd=TOP, capture_output=True, text=True, timeout=600, check=False
        )
        assert told.stdout.split()[-1:] == [str(DEFERRED)], told.stderr[-2000:]
        eventually(lambda: told_of(tmp_path, STARTS) == DEFERRED, within=900)
        if not sleep:
            q.worker(lambda _: None, threads=2).run(until_empty=True)
        eventually(lambda: told_of(tmp_path, "Trigger fired event") == DEFERRED, within=900)
        blocked = re.findall(r"thread was blocked for ([0-9.]+) seconds", logged(tmp_path, "triggerer"))
        print(f"{'sleeping' if sleep else 'sensors'}: the loop was reported as blocked for {blocked} s")  # noqa: T201
        looks = lookups.read_text()[len(before) :].split() if lookups.exists() else []
        assert (0 if sleep else 1) <= looks.count("zkmq_default") <= 5
