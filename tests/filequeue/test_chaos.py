"""One file, several processes, killed at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import RetryPolicy
from airflow_provider_zkmq.filequeue import FileClient, FileQueue
from airflow_provider_zkmq.textqueue import TextQueue
from tests.filequeue.worker import HANG, QUEUE, text_of
from tests.support import eventually

LOCK = 2.0
ATTEMPTS = 12
EACH = 100
BOUNDS = (30, 80, 130, 170)


@dataclass
class Crew:
    """The processes, and which were killed."""

    url: str
    log: Path
    rng: random.Random = field(default_factory=lambda: random.Random(11))
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        one = subprocess.Popen([sys.executable, "-m", "tests.filequeue.worker", *map(str, words)])
        self.running.append(one)
        return one

    def claimers(self) -> list[subprocess.Popen[bytes]]:
        return [one for one in self.running if "claim" in one.args]

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        """End it at once, whatever it is doing, and start another."""
        one.send_signal(signal.SIGKILL)
        one.wait()
        self.killed.add(one.pid)
        self.running.remove(one)
        self.start("claim", self.url, self.log)

    def lines(self, what: str) -> list[tuple[str, int, int, float]]:
        """What was logged: id, attempt, process, time."""
        words = [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [(it[1], int(it[2]), int(it[3]), float(it[4])) for it in words if it[0] == what]


@pytest.fixture
def crew(folder: Path, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(f"textqueue://{folder}", tmp_path / "log")
    yield made
    for one in made.running:
        one.kill()
        one.wait()


def test_four_workers_killed_at_random_handle_every_task(files: FileClient, crew: Crew) -> None:
    """Four workers share a file that two appenders fill, and are killed at random, one of them while it has a task.

    Every task is finished and whole; none has two owners: a second begin follows an owner that was killed, or whose
    mutex had expired, with a higher attempt; no task is begun more often than its policy allows.
    """
    q = files.queue(QUEUE)
    q.configure(policy=RetryPolicy(attempts=ATTEMPTS, factor=0), lock=LOCK)
    q.enqueue("x", task_id=HANG)
    for _ in range(4):
        crew.start("claim", crew.url, crew.log)
    appenders = [crew.start("append", crew.url, name, EACH) for name in ("a", "b")]
    eventually(lambda: any(it[0] == HANG for it in crew.lines("begin")), within=60)
    holder = next(it[2] for it in crew.lines("begin") if it[0] == HANG)
    crew.kill(next(one for one in crew.claimers() if one.pid == holder))
    for bound in BOUNDS:
        eventually(lambda bound=bound: len(crew.lines("end")) >= bound, within=60)
        crew.kill(crew.rng.choice(crew.claimers()))
    assert [one.wait(60) for one in appenders] == [0, 0]
    eventually(lambda: q.counts()["finished"] == 2 * EACH + 1, within=60)

    _nothing_is_garbled(q)
    _no_task_has_two_owners(crew)
    assert len(crew.killed) == 1 + len(BOUNDS)
    assert next(it[1] for it in crew.lines("end") if it[0] == HANG) > 1


def _nothing_is_garbled(q: FileQueue) -> None:
    """Each task is there once, in its appender's order, with its text; the file holds nothing else."""
    found = {task.id: task.data.decode() for task in q.tasks()}
    for name in ("a", "b"):
        mine = [(task_id, text) for task_id, text in found.items() if task_id.startswith(f"{name}-")]
        assert mine == [(f"{name}-{at}", text_of(name, at)) for at in range(EACH)]
    with TextQueue.open(q.path) as file:
        assert sum(1 for _ in file.messages("all")) == 2 * EACH + 1
        assert file.reports == {}


def _no_task_has_two_owners(crew: Crew) -> None:
    begun: dict[str, tuple[int, int, float]] = {}
    for name, attempt, pid, when in crew.lines("begin"):
        if name in begun:
            before, owner, since = begun[name]
            assert before < attempt <= ATTEMPTS, name
            assert owner in crew.killed or when >= since + LOCK, f"{name} was begun by two that lived"
        begun[name] = (attempt, pid, when)
    assert len(begun) == 2 * EACH + 1
    assert os.getpid() not in {pid for _, pid, _ in begun.values()}
