"""Event-driven DAGs and deferred waits through deaths, pauses, stalls and outages, on a real Airflow."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil
import pytest

from airflow_provider_zkmq.embedded.server import free_ports
from airflow_provider_zkmq.engine import Message, Queue, RetryPolicy
from tests.e2e.conftest import LONG, TOP, Airflow, eventually, running

pytestmark = pytest.mark.full
TASKS = int(os.environ.get("ZKMQ_E2E_BURST", "200"))
PENDING = int(os.environ.get("ZKMQ_E2E_PENDING", "12"))
PAUSED_SECONDS = float(os.environ.get("ZKMQ_E2E_PAUSED", "45"))
at_length = pytest.mark.skipif(os.environ.get("ZKMQ_E2E_FULL") != "1", reason="minutes long: make acceptance")
STARTS = " starting"
STILL_SECONDS = 15.0
DEFERRED = int(os.environ.get("ZKMQ_E2E_DEFERRED", "1000"))
AWAY_SECONDS = float(os.environ.get("ZKMQ_E2E_AWAY", "45"))
DAGS = ("events_burst", "events_grouped", "events_claimed")
#: A scheduler that is killed is missed soon.
SOON = {
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An Airflow of its own, whose schedulers die."""
    with running(tmp_path_factory.mktemp("airflow"), *DAGS, **SOON) as started:
        yield started


def told_of(airflow: Airflow, what: str) -> int:
    """How often triggers tell of something: watches in the triggerers' logs, waits in those of their tasks."""
    return sum(text.count(what) for text in logs_of_triggers(airflow).values())


def logs_of_triggers(airflow: Airflow) -> dict[Path, str]:
    """The logs of triggerers, and of the triggers of tasks."""
    logs = [*(airflow.home / "logs").glob("triggerer*.log"), *airflow.home.rglob("airflow/logs/**/*.trigger.*.log")]
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


def through_a_burst(airflow: Airflow, dag: str, attempts: int) -> list[str]:
    """Let a DAG handle a burst through the deaths of triggerers and of the scheduler; who had an attempt too many.

    All but the poison one are finished by then, and that is dead.
    """
    q = airflow.zk.queue("burst")
    q.configure(policy=RetryPolicy(attempts=attempts, factor=0))
    airflow.unpause(dag)
    names = [f"task-{number}" for number in range(TASKS)]
    q.enqueue_many([Message(b"x", task_id=name) for name in [*names[:-10], "poison", *names[-10:]]])
    for part, dies in ((0.1, "triggerer"), (0.3, "scheduler"), (0.6, "triggerer")):
        eventually(lambda part=part: q.counts()["finished"] >= part * TASKS, within=LONG)
        (name,) = (name for name in airflow.processes._started if name.startswith(dies))
        airflow.kill(name)
        airflow.launch(f"{dies}-{dag}{part}")
    eventually(lambda: q.counts() | {"dead": 1} == q.counts() and not q.counts()["inserted"], within=2 * LONG)
    eventually(lambda: q.counts()["finished"] == TASKS, within=LONG)
    airflow.unpause(dag, paused=True)
    tasks = {task.id: task for task in q.tasks(limit=TASKS + 10)}
    poison = tasks.pop("poison")
    assert (poison.state, poison.attempt) == ("dead", attempts)
    assert f"poison on attempt {attempts}" in (poison.error or "")
    assert q.counts()["claimed"] == 0
    late = {name: task.attempt - (2 if name.endswith("0") else 1) for name, task in tasks.items()}
    assert min(late.values()) == 0
    return [name for name, attempts in late.items() for _ in range(attempts)]


def test_a_burst_through_deaths_of_triggerers_and_the_scheduler(airflow: Airflow) -> None:
    """Each task is completed though triggerers and the scheduler are killed; a poison one is dead, with its reason.

    Those that fail once are completed by attempt 2; the one that was in hand when the scheduler's processes were killed
    may have one attempt more.
    """
    late = through_a_burst(airflow, "events_burst", attempts=4)
    assert len(late) <= 1, airflow.said()


@at_length
def test_a_burst_of_runs_that_acknowledge(tmp_path: Path) -> None:
    """The same with groups, whose claims are kept through the deaths: nobody has an attempt too many."""
    with running(tmp_path, *DAGS, **SOON) as airflow:
        assert through_a_burst(airflow, "events_grouped", attempts=3) == [], airflow.said()


def test_a_pause_costs_no_attempt(airflow: Airflow) -> None:
    """What is pending while the DAG is paused for longer than leases last is completed by its first attempt then.

    Of those that the trigger claims there are never more than may be in flight.
    """
    woken, claimed = airflow.zk.queue("woken"), airflow.zk.queue("claimed")
    dags = ("events_woken", "events_claimed")
    for name, queue in zip(dags, (woken, claimed), strict=True):
        queue.configure(policy=RetryPolicy(attempts=1))
        queue.enqueue("first", task_id="first")
        airflow.unpause(name)
    with Sampled(claimed) as sampled:
        eventually(lambda: [q.counts()["finished"] for q in (woken, claimed)] == [1, 1], within=LONG)
        for name in dags:
            airflow.unpause(name, paused=True)
        for queue in (woken, claimed):
            queue.enqueue_many([Message(b"x", task_id=f"task-{number}") for number in range(PENDING)])
        time.sleep(PAUSED_SECONDS)  # the pause itself, not a wait for anything
        for name in dags:
            airflow.unpause(name)
        eventually(lambda: [q.counts()["finished"] for q in (woken, claimed)] == [PENDING + 1] * 2, within=LONG)
    for name in dags:
        airflow.unpause(name, paused=True)
    for queue in (woken, claimed):
        assert {(task.state, task.attempt) for task in queue.tasks(limit=60)} == {("finished", 1)}, airflow.said()
    assert 1 <= sampled.most <= 8
    assert sampled.samples > 100
    told = airflow.api.call("GET", "/api/v2/assets/events?limit=100")["asset_events"]
    assert all(set(event["extra"]["payload"]) <= {"queue", "selector", "counts", "claims"} for event in told)


@pytest.fixture
def kinds(tmp_path: Path) -> Iterator[Airflow]:
    """An Airflow in whose triggerer a sensor, an enqueue that waits and a watch that claims are about to begin."""
    with running(tmp_path, "deferred_kinds", AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD="8") as airflow:
        airflow.zk.queue("kinds").enqueue("x", task_id="awaited")
        airflow.zk.queue("held").configure()
        airflow.unpause("events_held")
        airflow.run("deferred_kinds")
        yield airflow


def all_begun(airflow: Airflow) -> bool:
    """Whether its three triggers have."""
    states = set(airflow.api.task_states("deferred_kinds", "r").values())
    return states == {"deferred"} and told_of(airflow, STARTS) == 3


@at_length
def test_a_triggerer_that_stands_still_takes_nothing_back(kinds: Airflow) -> None:
    """Stopped past its heartbeat while another one is up, then resumed: no claim is released, no task cancelled.

    Its waits and its watch move to the other one; what it is told when it goes on ends nothing but what it runs.
    """
    held, waited = kinds.zk.queue("held"), kinds.zk.queue("kinds")
    held.enqueue_many([Message(b"x", task_id=f"held-{number}") for number in range(9)])
    eventually(lambda: held.counts()["claimed"] == 4, within=LONG)
    eventually(lambda: all_begun(kinds), within=LONG)

    def state() -> dict[str, tuple[object, ...]]:
        tasks = (*held.tasks(limit=20), *waited.tasks(limit=20))
        return {task.id: (task.state, task.attempt, task.claimed_ms) for task in tasks}

    before, first = state(), kinds.processes._started["triggerer"]
    (port,) = free_ports("127.0.0.1", 1)
    kinds.launch("triggerer-2", AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT=str(port))
    eventually(lambda: "Starting the triggerer" in kinds.logged("triggerer-2"), within=120)
    _signal_all(first.pid, signal.SIGSTOP)
    try:
        eventually(lambda: told_of(kinds, STARTS) == 6, within=300)
    finally:
        _signal_all(first.pid, signal.SIGCONT)
    size = len(kinds.logged("triggerer"))
    eventually(lambda: len(kinds.logged("triggerer")) > size, within=120)
    resumed = time.monotonic()
    while time.monotonic() - resumed < STILL_SECONDS:  # it cleans up by then; nothing tells when it has
        assert state() == before, kinds.said()
        time.sleep(0.5)
    waited.worker(lambda task: task.id).run(until_empty=True)
    assert kinds.ended("deferred_kinds") == "success", kinds.said()
    assert (waited.counts()["finished"], waited.counts()["cancelled"]) == (3, 0)


def _signal_all(leader: int, number: signal.Signals) -> None:
    """Send a signal to a process and to all that it has started, also those in sessions of their own."""
    process = psutil.Process(leader)
    for each in (process, *process.children(recursive=True)):
        each.send_signal(number)


@at_length
def test_zookeeper_away_fails_nothing(kinds: Airflow) -> None:
    """Down for a while under deferred waits and watches: none fails, none is started again, and little is logged."""
    eventually(lambda: all_begun(kinds), within=LONG)
    before = logs_of_triggers(kinds)
    kinds.server.kill(0)
    time.sleep(AWAY_SECONDS)  # the outage itself, not a wait for anything
    away = [text.removeprefix(before[log]) for log, text in logs_of_triggers(kinds).items()]
    assert set(kinds.api.task_states("deferred_kinds", "r").values()) == {"deferred"}, kinds.said()
    lines = [[line for line in text.splitlines() if "currently running" not in line] for text in away]
    # In the triggerer's own log are its watch's lines and kazoo's; a wait has a log of its own.
    assert sum(map(len, lines)) <= 4 * (1 + AWAY_SECONDS / 60), lines
    assert "Traceback" not in "".join(away)
    kinds.server.restart(0)
    kinds.zk.queue("kinds").worker(lambda task: task.id).run(until_empty=True)
    kinds.zk.queue("held").enqueue("x")
    eventually(lambda: kinds.zk.queue("held").counts()["claimed"] == 1, within=300)
    assert kinds.ended("deferred_kinds") == "success", kinds.said()
    assert told_of(kinds, STARTS) == 3, "nothing was started again"
    assert kinds.processes._started["triggerer"].poll() is None


@at_length
@pytest.mark.parametrize("sleep", [None, "20"], ids=["sensors", "sleeping"])
def test_a_thousand_sensors_in_a_triggerer(tmp_path: Path, sleep: str | None) -> None:
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
    with running(tmp_path / "home", "many_sensors", **settings) as airflow:
        q = airflow.zk.queue("many")
        for at in range(0, DEFERRED, 500):
            q.enqueue_many([Message(b"x", task_id=f"task-{number}") for number in range(at, min(at + 500, DEFERRED))])
        airflow.unpause("many_sensors", paused=True)
        airflow.trigger("many_sensors")
        command = [sys.executable, "-m", "tests.e2e.lookups", "many_sensors", *([sleep] if sleep else [])]
        before = lookups.read_text() if lookups.exists() else ""
        told = subprocess.run(
            command, env=airflow.environment, cwd=TOP, capture_output=True, text=True, timeout=600, check=False
        )
        assert told.stdout.split()[-1:] == [str(DEFERRED)], told.stderr[-2000:]
        eventually(lambda: told_of(airflow, STARTS) == DEFERRED, within=LONG)
        if not sleep:
            q.worker(lambda _: None, threads=2).run(until_empty=True)
        eventually(lambda: told_of(airflow, "Trigger fired event") == DEFERRED, within=LONG)
        blocked = re.findall(r"thread was blocked for ([0-9.]+) seconds", airflow.logged("triggerer"))
        print(f"{'sleeping' if sleep else 'sensors'}: the loop was reported as blocked for {blocked} s")  # noqa: T201
        looks = lookups.read_text()[len(before) :].split() if lookups.exists() else []
        assert (0 if sleep else 1) <= looks.count("zkmq_default") <= 5
