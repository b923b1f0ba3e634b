"""One file, several processes, killed at random."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import RetryPolicy
from airflow_provider_zkmq.filequeue import FileClient
from airflow_provider_zkmq.textqueue import TextQueue
from tests.filequeue.worker import EACH, HANG, LOCK, QUEUE, text_of
from tests.support import eventually

ATTEMPTS = 12
BOUNDS = (30, 80, 130, 170)


@dataclass
class Crew:
    """The processes, and which were killed."""

    kind: str
    folder: Path
    log: Path
    rng: random.Random = field(default_factory=lambda: random.Random(11))
    claimers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)

    def start(self, what: str, last: object) -> subprocess.Popen[bytes]:
        words = (self.kind, what, self.folder, last)
        return subprocess.Popen([sys.executable, "-m", "tests.filequeue.worker", *map(str, words)])

    def claim(self) -> None:
        self.claimers.append(self.start("claim", self.log))

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        """End it at once, whatever it is doing, and start another."""
        one.kill()
        one.wait()
        self.killed.add(one.pid)
        self.claimers.remove(one)
        self.claim()

    def lines(self, what: str) -> list[tuple[str, int, int, float, float]]:
        """What was logged: id, attempt, process, time, end of the lock."""
        words = [line.split() for line in self.log.read_text().splitlines()]
        return [(it[1], int(it[2]), int(it[3]), float(it[4]), float(it[5])) for it in words if it[0] == what]


@pytest.fixture(params=["file", "queue"])
def crew(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(request.param, folder, tmp_path / "log")
    made.log.touch()
    yield made
    for one in made.claimers:
        one.kill()
        one.wait()


@pytest.mark.full
def test_four_claimers_killed_at_random_handle_what_two_appenders_add(files: FileClient, crew: Crew) -> None:
    """Four processes share a file that two others fill, and are killed at random, one of them while it has a message.

    Every message is processed and whole; none has two owners: a second begin follows an owner that was killed, or
    whose mutex had expired; a task's has a higher attempt, and no more than its policy allows.
    """
    q = files.queue(QUEUE)
    q.configure(policy=RetryPolicy(attempts=ATTEMPTS, factor=0), lock=LOCK)
    with TextQueue.open(q.path) as file:
        if crew.kind == "file":
            file.append("x", [f"id={HANG}"], mutex=True)
        else:
            q.enqueue("x", task_id=HANG)
        for _ in range(4):
            crew.claim()
        appenders = [crew.start("append", name) for name in ("a", "b")]
        eventually(lambda: any(it[0] == HANG for it in crew.lines("begin")), within=60)
        holder = next(it[2] for it in crew.lines("begin") if it[0] == HANG)
        crew.kill(next(one for one in crew.claimers if one.pid == holder))
        for bound in BOUNDS:
            eventually(lambda bound=bound: len(crew.lines("end")) >= bound, within=60)
            crew.kill(crew.rng.choice(crew.claimers))
        assert [one.wait(60) for one in appenders] == [0, 0]
        eventually(lambda: sum(1 for _ in file.messages(["processed"])) == 2 * EACH + 1, within=60)
        _nothing_is_garbled(file)
    _no_message_has_two_owners(crew)
    assert len(crew.killed) == 1 + len(BOUNDS)


def _nothing_is_garbled(file: TextQueue) -> None:
    """Each message is there once, in its appender's order, with its text; the file holds nothing else."""
    found = [(it.variables[0], it.text) for it in file.messages("all")]
    for name in ("a", "b"):
        mine = [it for it in found if it[0].startswith(f"id={name}-")]
        assert mine == [(f"id={name}-{at}", text_of(name, at)) for at in range(EACH)]
    assert (len(found), file.reports) == (2 * EACH + 1, {})


def _no_message_has_two_owners(crew: Crew) -> None:
    begun: dict[str, tuple[int, int, float]] = {}
    for name, attempt, pid, when, until in crew.lines("begin"):
        if name in begun:
            before, owner, locked = begun[name]
            assert crew.kind == "file" or before < attempt <= ATTEMPTS, name
            assert owner in crew.killed or when > locked - 0.001, f"{name} was begun by two that lived"
        begun[name] = (attempt, pid, until)  # the file says it to the millisecond
    assert len(begun) == 2 * EACH + 1
    assert begun[HANG][1] != next(it[2] for it in crew.lines("begin") if it[0] == HANG)
    ended = [it[0] for it in crew.lines("end")]
    assert crew.kind == "queue" or len(ended) == len(set(ended))
