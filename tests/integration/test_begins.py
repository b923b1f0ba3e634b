"""Beginning without waiting for the reply, on a real server: killed at once, and cut right after."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Claim, ClaimLost, Integer, Message, Queue, RetryPolicy, Zkmq
from airflow_provider_zkmq.engine.core.writing.pieces import mark_path
from tests.faulty import Chance, CutAfter, CutBefore, Faulty, Late, Once, Request
from tests.integration.fronts import connected
from tests.support import eventually

ROOT_FOLDER = Path(__file__).parents[2]
#: A consumer that takes three tasks ahead, begins the second one, and is gone before anything else of it runs.
KILLED = """
import os, signal, sys
from airflow_provider_zkmq.engine import Zkmq
hosts, root, lease = sys.argv[1:]
with Zkmq.connect(hosts, root=root, session_timeout=1.5) as zk:
    claims = zk.queue("in").claim_many(3, ahead=True, lease=float(lease) or None, timeout=10)
    claims[1].begin()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def filled(zk: Zkmq, name: str) -> Queue:
    """A queue of three tasks."""
    made = zk.queue(name)
    made.configure(policy=RetryPolicy(attempts=3, factor=0), filters={"wanted": Integer()})
    made.enqueue_many([Message(b"x", task_id=f"t{number}") for number in range(3)])
    return made


@pytest.fixture
def queue(zk: Zkmq) -> Queue:
    return filled(zk, "in")


def attempts_after_rescue(queue: Queue) -> list[int]:
    """Look after the queue, as a claim does that finds nothing to its taste, until nothing is claimed any more."""
    eventually(lambda: (queue.claim(selector="wanted==1"), queue.counts()["claimed"] == 0)[1], within=60)
    return [queue.task(f"t{number}").attempt for number in range(3)]


@pytest.mark.full
@pytest.mark.parametrize("lease", [0.0, 4.0], ids=["bound", "leased"])
def test_a_kill_right_after_the_beginning_counts_it(queue: Queue, zookeeper: str, root: str, lease: float) -> None:
    """What a task does that kills its process in its first statement: it counts each time, or would come for ever."""
    for times in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, zookeeper, root, str(lease)], cwd=ROOT_FOLDER, timeout=60, check=False
        )
        assert done.returncode == -signal.SIGKILL
        assert sum(attempts_after_rescue(queue)) == 2 * times, "the first begins with its claim, the third never"
    handled: list[str] = []
    queue.worker(lambda task: handled.append(task.id)).run(until_empty=True)
    assert sorted(handled) == ["t0", "t1", "t2"]


def begins(request: Request) -> bool:
    """Whether a request says that a handler begins, and nothing else: no other transaction sets a note of a claim."""
    kinds = [kind for kind, _ in request.operations]
    return bool(kinds) and set(kinds) == {"check", "setData"}


def is_marked(queue: Queue, claim: Any) -> bool:
    """Whether it stands that the handler of a claim has begun."""
    claimed = claim._claimed
    data, _ = queue._session.client.get(mark_path(queue._context, claimed.task_id, claimed.state))
    return b'"ahead"' not in data


def marked_again(queue: Queue, mine: Any, claims: list[Any]) -> None:
    """The mark comes to stand while the handler runs, and nothing is owed any more; what waits has not begun."""
    begun, waiting = claims[1], claims[2]
    eventually(lambda: is_marked(queue, begun), within=20)
    eventually(lambda: not mine._context.debts.unmarked, within=20)
    assert not is_marked(queue, waiting)


def test_a_connection_cut_right_after_the_beginning(
    zk: Zkmq, door: Faulty, root: str, subtests: pytest.Subtests
) -> None:
    """Nobody waits for it, and the mark is written again as the handler goes on; it completes, once: either front."""
    faults = [CutBefore(), CutAfter(), Late(0.2), CutBefore(away=1.0)]
    cases = [("blocking", fault, None) for fault in faults] + [("blocking", CutBefore(), 60.0)]
    for number, (front, fault, lease) in enumerate([*cases, ("asynchronous", CutBefore(), None)]):
        with subtests.test(front=front, fault=fault, lease=lease):
            queue = filled(zk, f"q{number}")
            with connected(front, door.hosts, root=root, session_timeout=10, gc=False) as client:
                mine = client.queue(queue.name)
                claims = mine.claim_many(3, ahead=True, lease=lease, timeout=10)
                door.plan = plan = Once(begins, fault)
                claims[1].begin()
                assert not claims[1].ahead
                assert plan.met.wait(20)
                marked_again(queue, mine, claims)
                for each in claims[:2]:
                    each.complete()
                claims[2].release()
            assert [queue.task(f"t{at}").attempt for at in range(3)] == [1, 1, 0]
            taken = queue.claim(timeout=10)
            assert taken is not None
            assert taken.task.id == "t2"
            taken.complete()
            assert queue.counts()["finished"] == 3


def test_claims_are_begun_by_token_from_another_process(zk: Zkmq, front: Any) -> None:
    """By both fronts; what is given back is uncounted, and its token begins nothing any more."""
    for lease in (None, 60.0):
        queue = filled(zk, f"q{lease}")
        claims = queue.claim_many(3, ahead="all", lease=lease)
        assert [claim.ahead for claim in claims] == [True] * 3
        other = front.queue(queue.name)
        other.begin(claims[0].task.id, claims[0].token)
        queue.begin(claims[1].task.id, claims[1].token)
        assert [is_marked(queue, claim) for claim in claims] == [True, True, False]
        for claim in claims:
            other.release(claim.task.id, claim.token)
            with pytest.raises(ClaimLost):
                other.begin(claim.task.id, claim.token)
        assert [queue.task(claim.task.id).attempt for claim in claims] == [0, 0, 0]


def test_threads_whose_connection_is_cut_at_their_beginnings(queue: Queue, door: Faulty, root: str) -> None:
    """Again and again: each task is completed by its first attempt, and nothing is owed in the end."""
    queue.enqueue_many([Message(b"x", task_id=f"t{number:03}") for number in range(117)])
    print(f"seed {(seed := 11)}")  # noqa: T201
    door.plan = Chance(seed, 0.2, (CutBefore(), CutAfter()), begins)

    def handle(claim: Claim) -> None:
        claim.begin()
        claim.complete()

    with Zkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as client, ThreadPoolExecutor(4) as threads:
        mine = client.queue("in")
        while claims := mine.claim_many(40, ahead=True, timeout=0):
            list(threads.map(handle, claims))
        eventually(lambda: not mine._context.debts.unmarked, within=20)
    assert door.cuts
    tasks = list(queue.tasks())
    assert (len(tasks), {(str(task.state), task.attempt) for task in tasks}) == (120, {("finished", 1)})


def test_beginning_costs_a_request(zookeeper: str, root: str, zk: Zkmq) -> None:
    """One transaction, posted or not; where nothing can be posted, by kazoo's own connection, it is waited for."""
    for fast in (True, False):
        queue = filled(zk, f"fast-{fast}")
        with Zkmq.connect(zookeeper, root=root, gc=False, fast_connection=fast) as client:
            claims = client.queue(queue.name).claim_many(3, ahead=True, timeout=10)
            before = client.requests["Multi"]
            for claim in claims:
                claim.begin()
            assert client.requests["Multi"] - before == 2
            for claim in claims:
                claim.complete()
        assert queue.counts()["finished"] == 3
