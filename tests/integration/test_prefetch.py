"""Workers that take tasks ahead, on a real server: killed, stopped, and beside others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import Integer, Message, Queue, RetryPolicy, Zkmq
from tests.integration.clients import spent
from tests.integration.prefetch_worker import STUCK, Told
from tests.support import eventually

ROOT_FOLDER = Path(__file__).parents[2]
QUICK = 30
BEHIND = 60
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def queue(zk: Zkmq) -> Queue:
    made = zk.queue("in")
    made.configure(policy=RetryPolicy(attempts=3, factor=0), filters={"wanted": Integer()})
    return made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def start(zookeeper: str, root: str, log: Path) -> Iterator[Start]:
    """Starts a worker in a process of its own; whatever happens, it is killed in the end."""
    started: list[subprocess.Popen[bytes]] = []

    def process(threads: int, lease: float | None) -> subprocess.Popen[bytes]:
        told = Told(zookeeper, root, str(log), threads, lease)
        with log.with_suffix(".out").open("ab") as out:
            command = [sys.executable, "-m", "tests.integration.prefetch_worker", told.argument()]
            started.append(subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT_FOLDER, start_new_session=True))
        return started[-1]

    yield process
    for each in started:
        each.kill()
        each.wait(10)


def begun(log: Path) -> list[list[str]]:
    """What was begun: the task, the attempt, and whether its handler is stuck."""
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.full
@pytest.mark.parametrize(("threads", "lease"), [(1, None), (2, None), (1, 4.0)], ids=["one", "two", "leased"])
def test_only_what_had_begun_counts_after_a_kill(
    queue: Queue, log: Path, start: Start, threads: int, lease: float | None
) -> None:
    """A worker with many tasks taken ahead is killed: what its handlers had begun counts, the rest does not.

    None is lost. What was handled in its last moments may not be completed yet: it had begun, and is handled again.
    """
    stuck = [f"stuck{number}" for number in range(threads)]
    quick, behind = ([f"{name}{number:02}" for number in range(count)] for name, count in (("a", QUICK), ("z", BEHIND)))
    queue.enqueue_many([Message(b"x", task_id=each) for each in quick])
    queue.enqueue_many([Message(STUCK, task_id=each) for each in stuck])
    queue.enqueue_many([Message(b"x", task_id=each) for each in behind])
    process = start(threads, lease)
    eventually(lambda: sum(line[2] == "True" for line in begun(log)) == threads, within=60)
    held = [task.id for task in queue.tasks(state="claimed")]
    assert set(stuck) <= set(held)
    assert len(held) > threads, "nothing was taken ahead"
    process.kill()
    process.wait(10)
    done = {task.id for task in queue.tasks(state="finished")}
    eventually(lambda: (look(queue), queue.counts()["claimed"] == 0)[1], within=60)
    all_of_them = {each: queue.task(each) for each in (*quick, *stuck, *behind)}
    had_begun = {line[0] for line in begun(log)}
    for name, task in all_of_them.items():
        assert (task.attempt, len(task.history)) == (name in had_begun, name in had_begun - done), name
    assert had_begun >= done | set(stuck)
    handled: list[str] = []
    queue.worker(lambda task: handled.append(task.id)).run(until_empty=True)
    assert sorted(handled) == sorted(set(all_of_them) - done)
    again = had_begun - done
    assert {task.id: task.attempt for task in queue.tasks(state="finished")} == {
        name: 2 if name in again else 1 for name in all_of_them
    }


def look(queue: Queue) -> None:
    """Look after the queue as a claim does that finds nothing to its taste."""
    assert queue.claim(selector="wanted==1") is None


def test_a_stop_gives_back_what_was_taken_ahead(queue: Queue) -> None:
    """What never began is pending again with no attempt, at once; what had begun is finished."""
    queue.enqueue_many([Message(b"x", task_id=f"t{number:03}") for number in range(200)])
    handled: list[str] = []

    def handler(task: object) -> None:
        handled.append(task.id)  # type: ignore[attr-defined]
        if len(handled) == 60:
            worker.stop()

    worker = queue.worker(handler)
    worker.run()
    counts = queue.counts()
    assert (counts["claimed"], counts["finished"], counts["inserted"]) == (0, 60, 140)
    assert {task.attempt for task in queue.tasks(state="inserted")} == {0}
    assert (worker.finished, worker.failed) == (60, 0)


def test_taking_ahead_costs_about_one_request_a_task(zk: Zkmq, queue: Queue) -> None:
    """What settles a task begins the next, and claims go together: a worker of one thread sends less than two each."""
    queue.enqueue_many([Message(b"x") for _ in range(200)])
    worker = queue.worker(lambda _task: None)
    sent = spent(zk, lambda: worker.run(until_empty=True))
    assert worker.finished == 200
    assert sum(sent.values()) < 2 * 200
