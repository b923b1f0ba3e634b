"""Tasks prefetched, on a real server: what had begun counts when a process is killed or cut off, the rest does not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Integer, Message, Queue, RetryPolicy, Zkmq
from airflow_provider_zkmq.engine.core.read.claim_status import mark_path
from tests.faulty import CutAfter, CutBefore, Faulty, Late, Once, Request
from tests.integration.chaos_worker import STUCK, Told
from tests.integration.clients import spent
from tests.integration.conftest import taken
from tests.integration.fronts import connected
from tests.support import eventually

ROOT_FOLDER = Path(__file__).parents[2]
#: A consumer that takes three tasks ahead, begins the second one, and is gone before anything else of it runs.
KILLED = """
import os, signal, sys
from airflow_provider_zkmq.engine import Zkmq
hosts, root, lease = sys.argv[1:]
with Zkmq.connect(hosts, root=root, session_timeout=1.5) as zk:
    claims = zk.queue("in").claim_many(3, prefetch=True, lease=float(lease) or None, timeout=10)
    claims[1].begin()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def filled(zk: Zkmq, *names: str, queue: str = "in") -> Queue:
    """A queue of these tasks, or of three."""
    made = zk.queue(queue)
    made.configure(policy=RetryPolicy(attempts=3, factor=0), filters={"wanted": Integer()})
    data = {name: STUCK if name.startswith("stuck") else b"x" for name in names or ("t0", "t1", "t2")}
    made.enqueue_many([Message(data[name], task_id=name) for name in data])
    return made


def rescued(queue: Queue) -> None:
    """Look after the queue, as a claim does that finds nothing to its taste, until nothing is claimed any more."""
    eventually(lambda: (queue.claim(selector="wanted==1"), queue.counts()["claimed"] == 0)[1], within=60)


def attempts(queue: Queue) -> list[int]:
    return [queue.task(f"t{number}").attempt for number in range(3)]


# --- killed


@pytest.mark.full
@pytest.mark.parametrize(("threads", "lease"), [(1, None), (2, None), (1, 4.0)], ids=["one", "two", "leased"])
def test_only_what_had_begun_counts_after_a_kill(
    zk: Zkmq, zookeeper: str, root: str, tmp_path: Path, threads: int, lease: float | None
) -> None:
    """None is lost; what was handled in the last moments may not be completed yet; it is handled again."""
    stuck = {f"stuck{number}" for number in range(threads)}
    quick, behind = ([f"{name}{number:02}" for number in range(count)] for name, count in (("a", 30), ("z", 60)))
    everything = [*quick, *sorted(stuck), *behind]
    queue, log = filled(zk, *everything), tmp_path / "log"
    told = Told(zookeeper, root, 0, str(log), session_timeout=3.0, threads=threads, lease=lease)
    command = [sys.executable, "-m", "tests.integration.chaos_worker", "ahead", told.argument()]
    with (tmp_path / "out").open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT_FOLDER, start_new_session=True)

    def begun() -> dict[str, bool]:
        """What was begun, and whether its handler is stuck."""
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return {name: stays == "True" for name, stays in lines}

    try:
        eventually(lambda: sum(begun().values()) == threads, within=60)
        held = {task.id for task in queue.tasks(state="claimed")}
        assert held > stuck, "nothing was prefetched"
    finally:
        process.kill()
        process.wait(10)
    done = {task.id for task in queue.tasks(state="finished")}
    rescued(queue)
    had_begun = set(begun())
    for task in queue.tasks(ids=everything):
        assert task.attempt == len(task.history) == (task.id in had_begun), task.id
    assert had_begun >= done | stuck
    handled: list[str] = []
    queue.worker(lambda task: handled.append(task.id)).run(until_empty=True)
    assert sorted(handled) == sorted(set(everything) - done)
    again = {task.id: task.attempt for task in queue.tasks(state="finished")}
    assert again == {name: 2 if name in had_begun - done else 1 for name in everything}


@pytest.mark.full
@pytest.mark.parametrize("lease", [0.0, 4.0], ids=["bound", "leased"])
def test_a_kill_right_after_the_beginning_counts_it(zk: Zkmq, zookeeper: str, root: str, lease: float) -> None:
    """What a task does that kills its process in its first statement: it counts each time, or would come for ever."""
    queue = filled(zk)
    for times in (1, 2):
        command = [sys.executable, "-c", KILLED, zookeeper, root, str(lease)]
        done = subprocess.run(command, cwd=ROOT_FOLDER, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        rescued(queue)
        assert sum(attempts(queue)) == 2 * times, "the first begins with its claim, the third never"
    handled: list[str] = []
    queue.worker(lambda task: handled.append(task.id)).run(until_empty=True)
    assert sorted(handled) == ["t0", "t1", "t2"]


# --- stopped, and what it costs


def test_a_stop_gives_back_what_was_taken_ahead(zk: Zkmq) -> None:
    """At once and uncounted; what had begun is finished. A worker of one thread sends less than two requests a task."""
    queue, handled = filled(zk, *(f"t{number:03}" for number in range(300))), list[str]()

    def handler(task: object) -> None:
        handled.append(task.id)  # type: ignore[attr-defined]
        if len(handled) == 60:
            worker.stop()

    worker = queue.worker(handler)
    worker.run()
    counts = queue.counts()
    assert (counts["claimed"], counts["finished"], counts["inserted"]) == (0, 60, 240)
    assert {task.attempt for task in queue.tasks(state="inserted")} == {0}
    assert (worker.finished, worker.failed) == (60, 0)
    another = queue.worker(lambda _task: None)
    sent = spent(zk, lambda: another.run(until_empty=True))
    assert another.finished == 240
    assert sum(sent.values()) < 2 * 240


def test_beginning_costs_a_request(zookeeper: str, root: str, zk: Zkmq) -> None:
    """One transaction, which is posted."""
    queue = filled(zk)
    with Zkmq.connect(zookeeper, root=root, gc=False) as client:
        claims = client.queue(queue.name).claim_many(3, prefetch=True, timeout=10)
        before = client.requests["Multi"]
        for claim in claims:
            claim.begin()
        assert client.requests["Multi"] - before == 2
        for claim in claims:
            claim.complete()
    assert queue.counts()["finished"] == 3


# --- cut off


def begins(request: Request) -> bool:
    """Whether a request says that a handler begins, and nothing else: no other transaction sets a note of a claim."""
    kinds = [kind for kind, _ in request.operations]
    return bool(kinds) and set(kinds) == {"check", "setData"}


def is_marked(queue: Queue, claim: Any) -> bool:
    """Whether it stands that the handler of a claim has begun."""
    claimed = claim._claimed
    data, _ = queue._session.client.get(mark_path(queue._context, claimed.task_id, claimed.state))
    return b'"ahead"' not in data


def test_a_connection_cut_right_after_the_beginning(
    zk: Zkmq, door: Faulty, root: str, subtests: pytest.Subtests
) -> None:
    """Nobody waits for the mark, which is written again; it completes, once. What waits has not begun: either front."""
    faults = [CutBefore(), CutAfter(), Late(0.2), CutBefore(away=1.0)]
    cases = [("blocking", fault, None) for fault in faults] + [("blocking", CutBefore(), 60.0)]
    for number, (front, fault, lease) in enumerate([*cases, ("asynchronous", CutBefore(), None)]):
        with subtests.test(front=front, fault=fault, lease=lease):
            queue = filled(zk, queue=f"q{number}")
            with connected(front, door.hosts, root=root, session_timeout=10, gc=False) as client:
                mine = client.queue(queue.name)
                claims = mine.claim_many(3, prefetch=True, lease=lease, timeout=10)
                door.plan = plan = Once(begins, fault)
                claims[1].begin()
                assert not claims[1].prefetched
                assert plan.met.wait(20)
                eventually(lambda queue=queue, claim=claims[1]: is_marked(queue, claim))
                eventually(lambda mine=mine: not mine._context.pending.unmarked_starts)
                assert not is_marked(queue, claims[2])
                for each in claims[:2]:
                    each.complete()
                claims[2].release()
            assert attempts(queue) == [1, 1, 0]
            claim = taken(queue, timeout=10)
            assert claim.task.id == "t2"
            claim.complete()
            assert queue.counts()["finished"] == 3
