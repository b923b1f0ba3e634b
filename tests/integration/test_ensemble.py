"""Three real servers: what clients hold while connections fail, and what a follower answers.

``ZKMQ_ENSEMBLE_TASKS`` sets the size (default 600; 20 000 for a long run).
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import Queue, Zkmq
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    DuplicateTask,
    OutcomeUnknown,
    TransportError,
    WaitTimeout,
    ZkmqError,
)
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.faulty import Chance, CutAfter, CutBefore, Faulty, Late, is_write
from tests.integration.conftest import taken
from tests.support import eventually

TASKS = int(os.environ.get("ZKMQ_ENSEMBLE_TASKS", "600"))
PAIRS = max(150, TASKS // 20)
CLIENTS, THREADS, PRODUCERS = 5, 2, 2
WORK_S = 0.1
FAULTS = (CutBefore(), CutAfter(), Late(0.05), CutAfter(), Late(0.3))
#: Of all writes, about three for each task: so many faults however few the tasks, and a bearable number of them.
SHARE = max(0.004, 24 / TASKS)
DROP_EVERY_S, DROP_S = 4.0, 1.0
STUCK_S = 15.0
LONGEST_S = 60.0 + TASKS / 20


@pytest.fixture(autouse=True)
def _no_word_of_each_cut(caplog: pytest.LogCaptureFixture) -> None:
    """What kazoo says of each connection would bury a report."""
    caplog.set_level(logging.ERROR, "airflow_provider_zkmq.kazoo")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("ensemble"), ensemble=3, force_sync=False) as made:
        yield made


def _leader(servers: EmbeddedServer) -> int:
    leader = servers.leader()
    assert leader is not None
    return leader


def _hosts(servers: EmbeddedServer, node: int) -> str:
    return f"127.0.0.1:{servers.ports[node]}"


@pytest.mark.full
def test_who_has_seen_more_than_a_restored_server_goes_on_with_a_new_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What came after the older state is lost with the session, as one line of the log says; calls need no restart."""
    data, serve = tmp_path / "data", partial(EmbeddedServer, tmp_path / "data", force_sync=False)
    with ExitStack() as ended:
        with serve() as server:
            zk = ended.enter_context(Zkmq.connect(server.hosts, session_timeout=30, request_timeout=120, gc=False))
            q = zk.queue("q")
            q.enqueue(b"x", task_id="kept")
        shutil.copytree(data, tmp_path / "older")
        with serve(server.ports[0]):
            for _ in range(20):  # as many transactions as the server is to begin with again
                q.enqueue(b"lost")
            claims, session = [taken(q, lease=60), taken(q)], zk.session_id
        shutil.rmtree(data)
        (tmp_path / "older").rename(data)
        with serve(server.ports[0]):
            assert internals(q).ids() == ["kept"]
            assert zk.session_id != session
            again = taken(q)
            for claim in claims:
                with pytest.raises(ClaimLost):
                    claim.complete()
            again.complete()
            ended.close()
    assert [record.levelname for record in caplog.records if "older state" in record.getMessage()] == ["ERROR"]


# --- connections that fail


@dataclass
class Run:
    """One run: its doors, what its clients were told, and when it is over."""

    doors: list[Faulty]
    root: str
    over: threading.Event = field(default_factory=threading.Event)
    acknowledged: set[str] = field(default_factory=set)
    completed: list[tuple[str, int]] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def hosts(self) -> str:
        """All servers, each through its door."""
        return ",".join(door.hosts for door in self.doors)

    def note(self, what: str) -> None:
        """Something that a call said."""
        with self._lock:
            self.said[what] += 1

    def connect(self) -> Zkmq:
        """A client with a session of its own, which outlives every outage of the run."""
        return Zkmq.connect(self.hosts, root=self.root, session_timeout=20, request_timeout=8, gc=False)

    @property
    def faults(self) -> Counter[str]:
        """What befell, by kind."""
        return sum((door.faults for door in self.doors), Counter())


def _consume(run: Run, zk: Zkmq, seed: int) -> None:
    """Claim, hold, complete."""
    rng, q = random.Random(seed), zk.queue("in")
    while not run.over.is_set():
        try:
            claim = q.claim(timeout=1.0)
        except TransportError as error:
            run.note(f"claim: {type(error).__name__}")
            run.over.wait(0.1)
            continue
        if claim is not None:
            run.over.wait(rng.random() * WORK_S)
            _complete(run, claim)


def _complete(run: Run, claim: Any) -> None:
    """Complete, again while it is not known whether it happened: the client is told in the end, and told the truth."""
    deadline = time.monotonic() + 30
    while True:
        try:
            claim.complete(str(claim.token))
        except TransportError as error:
            run.note(f"complete: {type(error).__name__}")
            if time.monotonic() > deadline:
                run.wrong.append(f"{claim.task.data.decode()}: not completed in 30 s: {error}")
                return
        except ClaimLost as error:
            run.wrong.append(f"{claim.task.data.decode()}: ClaimLost, though its session lives: {error}")
            return
        else:
            run.completed.append((claim.task.id, claim.token))
            return


def _produce(run: Run, zk: Zkmq, names: list[str]) -> None:
    """Enqueue one by one, every other one with an id of its own; each as often as it takes to know that it is there."""
    q = zk.queue("in")
    for at, name in enumerate(names):
        task_id = f"own.{name}" if at % 2 else None
        while not run.over.is_set():
            try:
                q.enqueue(name, task_id=task_id)
            except DuplicateTask:
                run.note("enqueue: was there")
            except OutcomeUnknown as error:
                run.note("enqueue: OutcomeUnknown")
                (task_id,) = error.task_ids
                continue
            except TransportError as error:  # nothing was written, it says
                run.note(f"enqueue: {type(error).__name__}")
                continue
            run.acknowledged.add(name)
            break


def _wait_for_the_end(run: Run, producers: list[Future[None]]) -> None:
    """Until all that was enqueued is completed; or nothing moves any more. Meanwhile doors are shut, one at a time."""
    rng = random.Random(11)
    begun = moved = dropped = time.monotonic()
    done = -1
    while (now := time.monotonic()) - begun < LONGEST_S:
        if len(run.completed) != done:
            done, moved = len(run.completed), now
        if all(producer.done() for producer in producers):
            finished = {task_id for task_id, _ in run.completed}
            if len(finished) >= len(run.acknowledged) or now - moved > STUCK_S:
                return
        if now - dropped > DROP_EVERY_S:
            door = rng.choice(run.doors)
            door.down(DROP_S)
            door.faults["Down"] += 1
            dropped = now
        time.sleep(0.05)  # looks again; the end bounds it


@pytest.mark.full
def test_every_claimed_task_is_in_somebody_s_hand(servers: EmbeddedServer, root: str) -> None:
    """Connections cut before, after and late: nothing lost, nothing double.

    Nothing is claimed that nobody holds, either: all sessions live on, so that it would never come to its end.
    """
    with ExitStack() as stack:
        observer = stack.enter_context(Zkmq.connect(_hosts(servers, _leader(servers)), root=root, gc=False)).queue("in")
        observer.configure()
        plans = [Chance(seed, SHARE, FAULTS, is_write) for seed in range(3)]
        doors = [stack.enter_context(Faulty(_hosts(servers, node), plan)) for node, plan in enumerate(plans)]
        run = Run(doors, root)
        consumers = [stack.enter_context(run.connect()) for _ in range(CLIENTS)]
        producers = [stack.enter_context(run.connect()) for _ in range(PRODUCERS)]
        names = [f"n{number}" for number in range(TASKS)]
        sessions = [client.session_id for client in consumers]
        with ThreadPoolExecutor(PRODUCERS + CLIENTS * THREADS) as pool:
            try:
                producing = [pool.submit(_produce, run, zk, names[at::PRODUCERS]) for at, zk in enumerate(producers)]
                jobs = enumerate(consumers * THREADS)
                consuming = [pool.submit(_consume, run, zk, number) for number, zk in jobs]
                _wait_for_the_end(run, producing)
            finally:
                run.over.set()
        for job in (*producing, *consuming):
            job.result()
        _judge(run, observer)
        assert [client.session_id for client in consumers] == sessions, "the sessions were to live on"


def _judge(run: Run, observer: Queue) -> None:
    tasks = observer.tasks()
    there = Counter(task.data.decode() for task in tasks)
    finished = {task.id: task for task in tasks if task.state == "finished"}
    completions = Counter(task_id for task_id, _ in run.completed)
    wrong: dict[str, list[str]] = {
        "answered wrongly": run.wrong,
        "acknowledged, not finished": sorted(run.acknowledged - {task.data.decode() for task in finished.values()}),
        "enqueued twice": sorted(name for name, times in there.items() if times > 1),
        "of nobody": sorted(set(there) - run.acknowledged),
        "completed twice": sorted(task_id for task_id, times in completions.items() if times > 1),
        "with another's result": [
            each for each, token in run.completed if each not in finished or finished[each].result != b"%d" % token
        ],
        "finished, and nobody was told": sorted(finished.keys() - set(completions)),
        "left": [f"{task.data.decode()} is {task.status}" for task in tasks if task.state != "finished"],
    }
    told = f"{TASKS} tasks, {dict(run.faults)}, {sum(door.cuts for door in run.doors)} cuts; {dict(run.said)}"
    print(f"\n{told}")  # noqa: T201  the figures of the run
    assert not any(wrong.values()), "\n".join([told, *(f"{what}: {few[:10]}" for what, few in wrong.items() if few)])
    assert run.faults.total() >= min(60, TASKS // 30), told


# --- a follower that lags


@pytest.mark.full
def test_a_follower_denies_nothing_that_was_acknowledged(servers: EmbeddedServer, root: str) -> None:
    """Written on the leader, asked for on a follower at once: no task, claim or queue is said not to exist."""
    wrong: Counter[str] = Counter()
    with ExitStack() as stack:
        nodes = sorted(range(3), key=lambda node: node != _leader(servers))
        leader, *followers = [
            stack.enter_context(Zkmq.connect(_hosts(servers, node), root=root, session_timeout=20, gc=False))
            for node in nodes
        ]
        q = leader.queue("in")
        q.configure()
        for follower in followers:
            eventually(lambda follower=follower: bool(follower.queues()))  # the first queue's root
        for pair in range(PAIRS):
            there = followers[pair % 2].queue("in")
            _one_task(wrong, q, there, waits_first=pair % 4 < 2)
            if pair % 10 == 0:
                leader.queue(f"q{pair}").configure()
                _try(wrong, "counts of a new queue", followers[pair % 20 // 10].queue(f"q{pair}").counts)
    print(f"\n{PAIRS} pairs: {wrong.total()} wrong {dict(wrong)}")  # noqa: T201  the figures of the run
    assert not wrong, f"{wrong.total()} wrong answers in {PAIRS} pairs: {dict(wrong)}"


def _one_task(wrong: Counter[str], q: Queue, there: Queue, *, waits_first: bool) -> None:
    task_id = q.enqueue(b"x")

    def waited() -> None:
        with pytest.raises(WaitTimeout):
            there.wait([task_id], timeout=0)

    asks: dict[str, Callable[[], Any]] = {"task": lambda: there.task(task_id), "wait": waited}
    for what in sorted(asks, reverse=waits_first):
        _try(wrong, what, asks[what])
    claim = taken(q)
    assert claim.task.id == task_id
    _try(wrong, "wait for the claim", lambda: there.wait([task_id], "claim", timeout=10))
    claim.release()
    again = taken(q, lease=60)
    if not _try(wrong, "complete by token", lambda: there.claim_handle(task_id, again.token).complete()):
        again.complete()  # out of the way


def _try(wrong: Counter[str], what: str, call: Callable[[], Any]) -> bool:
    try:
        call()
    except ZkmqError as error:
        wrong[f"{what}: {type(error).__name__}"] += 1
        return False
    return True
