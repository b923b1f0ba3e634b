"""Many processes, killed and frozen at random: every task ends, none twice. ``ZKMQ_CHAOS_TASKS``: how many (800)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Claim, Message, Queue, RetryPolicy, String, Task, Zkmq
from airflow_provider_zkmq.engine.core.claim import candidates
from tests.integration.chaos_worker import POISON, Told, names_of
from tests.integration.clients import end_session, spent, together
from tests.integration.conftest import taken
from tests.support import eventually

TASKS = int(os.environ.get("ZKMQ_CHAOS_TASKS", "800"))
PRODUCERS = CONSUMERS = 4
DELIVERIES = 4
FAILING = 0.25
SEED = 7
SESSION_SECONDS = 3.0
DELIVERIES_PER_ATTACK = max(100, TASKS // 50)
PATIENCE = 60.0 + TASKS / 20
ROOT_FOLDER = Path(__file__).parents[2]


@dataclass
class Theatre:
    """The processes of one run, and what is done to them."""

    hosts: str
    root: str
    folder: Path
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    producers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    consumers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    frozen: subprocess.Popen[bytes] | None = None
    started: int = 0
    kills: int = 0
    freezes: int = 0

    def start(self, role: str, tasks: int = 0) -> subprocess.Popen[bytes]:
        """A process in a group of its own, its output and its log in files."""
        number, self.started = self.started, self.started + 1
        log = str(self.folder / f"{role}.{number}.log")
        timeout = SESSION_SECONDS if role == "consume" else 10.0
        told = Told(self.hosts, self.root, number, log, tasks, timeout, FAILING)
        with (self.folder / f"{role}.{number}.out").open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.integration.chaos_worker", role, told.argument()],
                stdout=out, stderr=out, cwd=ROOT_FOLDER, start_new_session=True,
            )  # fmt: skip

    def lines(self, role: str) -> list[list[str]]:
        """What all processes of a role have logged, in words."""
        texts = (path.read_text() for path in sorted(self.folder.glob(f"{role}.*.log")))
        return [line.split() for text in texts for line in text.splitlines()]

    def attack(self, q: Queue) -> bool:
        """kill -9 a random consumer that has begun to work, if any, or freeze it until its session ends."""
        ready = [it for it in self.consumers if it is not self.frozen and _lives(it, q)]
        if not ready:
            return False
        victim = self.rng.choice(ready)
        if self.frozen is None and (self.kills + self.freezes) % 3 == 1:
            victim.send_signal(signal.SIGSTOP)
            self.frozen = victim
            self.freezes += 1
        else:
            victim.kill()
            victim.wait(10)
            self.consumers.remove(victim)
            self.consumers.append(self.start("consume"))
            self.kills += 1
        return True

    def thaw(self, q: Queue) -> bool:
        """Let a frozen consumer go on once its session has ended; whether there is none any more."""
        if self.frozen is not None and not _lives(self.frozen, q):
            self.frozen.send_signal(signal.SIGCONT)
            self.frozen = None
        return self.frozen is None

    def end(self) -> None:
        """Kill what is left."""
        for process in (*self.producers, *self.consumers):
            if process.poll() is None:
                process.kill()
                process.wait(10)


def _children(q: Queue, *parts: str) -> list[str]:
    return list(q._session.client.get_children(q._context.paths.at(*parts)))


def _lives(process: subprocess.Popen[bytes], q: Queue) -> bool:
    return any(f"-{process.pid}-" in name for name in _children(q, "live"))


def _play(it: Theatre, q: Queue) -> None:
    """Run to the end, an attack whenever so many deliveries more were made: as many on any machine."""
    it.producers = [it.start("produce", tasks) for tasks in _shares()]
    it.consumers = [it.start("consume") for _ in range(CONSUMERS)]
    steps = range(50, TASKS - DELIVERIES_PER_ATTACK, DELIVERIES_PER_ATTACK)
    attacks = [at + it.rng.randrange(DELIVERIES_PER_ATTACK) for at in steps]

    def over() -> bool:
        if attacks and len(it.lines("consume")) >= attacks[0] and it.attack(q):
            attacks.pop(0)
        thawed = it.thaw(q)
        written = all(process.poll() is not None for process in it.producers)
        counts = q.counts()  # of no one moment: only what never changes again tells
        return written and thawed and counts["finished"] + counts["dead"] >= TASKS

    eventually(over, within=PATIENCE)
    for process in it.consumers:
        process.terminate()
    assert [process.wait(60) for process in it.producers] == [0] * PRODUCERS
    # One that was started anew in the last moment does not listen to the signal yet, and has claimed nothing.
    assert {process.wait(60) for process in it.consumers} <= {0, -signal.SIGTERM}


def _shares() -> list[int]:
    return [TASKS // PRODUCERS + (number < TASKS % PRODUCERS) for number in range(PRODUCERS)]


@pytest.mark.full
@pytest.mark.parametrize("order", ["default", "fifo"])
def test_chaos_loses_nothing_and_completes_nothing_twice(
    zookeeper: str, root: str, zk: Zkmq, tmp_path: Path, order: str
) -> None:
    """4 producers × 4 transactional consumers, killed and frozen at random, handlers failing at random.

    Every task that was enqueued ends finished or dead, after at most K deliveries, no two with the same number; what
    stands in ``out`` is exactly one task for each finished one, of the attempt that finished it.
    """
    print(f"seed {SEED}")  # noqa: T201
    q, out = zk.queue("in"), zk.queue("out")
    policy = RetryPolicy(attempts=DELIVERIES, factor=0.02, max_backoff=0.2)
    q.configure(filters={"kind": String()}, policy=policy, order=order, task_gc_interval=5)
    out.configure()
    it = Theatre(zookeeper, root, tmp_path)
    try:
        _play(it, q)
    finally:
        it.end()
    tasks = {task.id: task for task in q.tasks()}
    _every_task_is_accounted_for(it, tasks)
    _every_task_has_ended(q, tasks)
    _deliveries_are_bounded(it, tasks)
    _outputs_match(out, tasks)
    assert it.kills >= 2
    assert it.freezes >= 1


def _every_task_is_accounted_for(it: Theatre, tasks: dict[str, Task]) -> None:
    """What producers were told is durable is there, and nothing else is; each message once."""
    told: dict[str, str] = dict(it.lines("produce"))  # type: ignore[arg-type]
    assert {task.id: task.data.decode() for task in tasks.values()} == told
    shares = enumerate(_shares())
    assert sorted(told.values()) == sorted(name for number, share in shares for name in names_of(number, share))


def _every_task_has_ended(q: Queue, tasks: dict[str, Task]) -> None:
    """Each is finished or dead, listed there and nowhere else, and the counts agree; nobody holds anything."""
    listed = {state: [task.id for task in q.tasks(state=state)] for state in ("finished", "dead")}
    assert {state: sorted(ids) for state, ids in listed.items()} == {
        state: sorted(task.id for task in tasks.values() if task.state == state) for state in ("finished", "dead")
    }
    assert sum(map(len, listed.values())) == len(tasks) == TASKS
    assert [q.tasks(state=state) for state in ("inserted", "claimed", "cancelled")] == [[], [], []]
    ends = {state: len(ids) for state, ids in listed.items()}
    assert q.counts() == {"inserted": 0, "scheduled": 0, "claimed": 0, "cancelled": 0, **ends}
    assert {task.id for task in tasks.values() if task.data.decode().endswith(POISON)} <= set(listed["dead"])
    eventually(lambda: not _children(q, "live"))  # who was killed last: its session ends
    q.collect_garbage()  # buries it
    assert [_children(q, name) for name in ("consumers", "locks", "leases")] == [[], [], []]


def _deliveries_are_bounded(it: Theatre, tasks: dict[str, Task]) -> None:
    """The attempt is written before the task is handed out: a number is delivered once, and none above K."""
    delivered: dict[str, list[int]] = {task_id: [] for task_id in tasks}
    claims = []
    for task_id, attempt, token in it.lines("consume"):
        delivered[task_id].append(int(attempt))
        claims.append((task_id, token))  # claims of one transaction share its token
    assert len(set(claims)) == len(claims)
    for task_id, attempts in delivered.items():
        task = tasks[task_id]
        assert len(set(attempts)) == len(attempts), task
        assert set(attempts) <= set(range(1, task.attempt + 1)), task
        assert task.attempt <= DELIVERIES, task
        assert task.attempt == DELIVERIES or task.state == "finished", task


def _outputs_match(out: Queue, tasks: dict[str, Task]) -> None:
    """One output for each finished input, written by the attempt whose result was kept."""
    outputs = Counter(task.data.decode() for task in out.tasks(state="inserted"))
    finished = [task for task in tasks.values() if task.state == "finished"]
    assert outputs == Counter(f"{task.id} {task.attempt}" for task in finished)
    assert all((task.result or b"").decode() == str(task.attempt) for task in finished)
    assert len(out.tasks()) == out.counts()["inserted"] == len(finished)


def test_a_session_that_ends_during_a_claim_costs_no_walk(
    zk: Zkmq, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Not one task after the other is tried in vain; the same client, registered anew, claims all of them."""
    for order, module in (("default", candidates), ("fifo", candidates)):
        with subtests.test(order=order), monkeypatch.context() as patch:
            q, take_all, ended = zk.queue(order), module.take_all, list[int]()
            q.configure(filters={"kind": String()}, order=order)
            ids = q.enqueue_many([Message(b"x", filters={"kind": kind}) for kind in "ab" for _ in range(50)])
            before = taken(q)

            def late(*args: Any, take_all: Any = take_all, ended: list[int] = ended, **rest: Any) -> Any:
                if not ended:
                    ended.append(old := zk.session_id)
                    end_session(zk)
                    eventually(lambda: zk.session_id not in (0, old) and zk._session.connected.is_set())
                return take_all(*args, **rest)

            patch.setattr(module, "take_all", late)
            claims: list[Claim | None] = []
            cost = spent(zk, lambda q=q, claims=claims: claims.append(q.claim()))
            assert sum(cost.values()) < 60
            while (claim := q.claim()) is not None:
                claims.append(claim)
            seen = {claim.task.id for claim in claims if claim is not None}
            assert len(ended) == 1
            assert before.task.id in seen  # given back: its session has ended
            assert seen == set(ids)


def test_threads_that_begin_at_once_are_one_consumer(zookeeper: str, root: str, zk: Zkmq) -> None:
    """A client is one consumer however many of its threads claim first, and none of them loses its claim by it."""
    zk.queue("in").enqueue_many([Message(b"x") for _ in range(40)])
    for _ in range(5):
        with Zkmq.connect(zookeeper, root=root, gc=False) as client:
            q = client.queue("in")
            claims = together(*[lambda q=q: taken(q)] * 8)  # type: ignore[misc]
            assert len({claim.task.consumer for claim in claims}) == len(_children(q, "live")) == 1
            for claim in claims:
                claim.complete()
