"""Workers of both fronts on a real server: what handlers return, what they are told, when a worker ends."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    ConfigError,
    ConsumeTimes,
    Error,
    Message,
    Queue,
    Retry,
    RetryPolicy,
    Running,
    Snooze,
    Success,
    UnitOfWork,
    Zkmq,
)
from tests.integration.clients import end_session
from tests.integration.working import handled, in_time, work
from tests.support import eventually


def test_a_handler_s_outcome_settles_its_task(q: Queue, front: Any) -> None:
    """Success, Error, Retry and Snooze each do what they say; a plain value is a Success. Handlers run side by side."""
    outcomes: dict[str, tuple[object, str, int]] = {
        "plain": ("r", "done-awaiting-gc", 1),
        "success": (Success(b"r", dedupe=60), "done-with-backoff", 1),
        "error": (Error("broken"), "dead", 1),
        "retry": (Retry("busy", backoff=60), "queued-with-backoff", 1),
        "snooze": (Snooze(60), "queued-with-backoff", 0),
        "nonsense": (42, "queued-with-backoff", 1),
    }
    met = threading.Barrier(2)

    def handler(task: Any) -> object:
        if task.id in {"plain", "success"}:
            met.wait(20)
        return outcomes[task.id][0]

    q.enqueue_many([Message(b"x", task_id=name) for name in outcomes])
    worker = handled(front, handler, threads=2, prefetch=0)
    tasks = {name: q.task(name) for name in outcomes}
    assert {name: (str(task.status), task.attempt) for name, task in tasks.items()} == {
        name: (status, attempt) for name, (_, status, attempt) in outcomes.items()
    }
    assert tasks["plain"].result == tasks["success"].result == b"r"
    assert "returned int" in (tasks["nonsense"].error or "")
    assert (worker.finished, worker.failed) == (2, 4)


def test_an_exception_that_the_policy_names_is_final(q: Queue, zk: Zkmq) -> None:
    """A subclass of a final exception ends the task at its first attempt; another exception is tried again."""
    q.configure(policy=RetryPolicy(attempts=3, factor=0, final=(LookupError, "tests.integration.Unknown")))
    errors: dict[str, Exception] = {"final": KeyError("k"), "again": ValueError("v")}

    def handler(task: Running) -> None:
        raise errors[task.id]

    q.enqueue_many([Message(b"x", task_id=name) for name in errors])
    handled(zk, handler)
    assert {name: (q.task(name).attempt, q.task(name).error) for name in errors} == {
        "final": (1, "KeyError: 'k'"),
        "again": (3, "ValueError: v"),
    }
    with pytest.raises(ConfigError, match="exception classes"):
        RetryPolicy(final=(int,))


def test_a_task_that_is_taken_away_is_told_while_its_handler_is_at_work(
    q: Queue, front: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In a line of the log, whoever else is idle; what the handler returns then is told no more."""
    words, calls = (
        "it was taken from this worker (cancelled, released by force, deleted, or its lease ended)",
        iter("12"),
    )
    task = q.enqueue(b"x")

    def handler(_running: Any) -> None:
        if next(calls) == "1":
            q.revoke(task)
            eventually(lambda: words in caplog.text)

    with caplog.at_level(logging.INFO, "airflow_provider_zkmq"):
        worker = work(front, handler, threads=2, prefetch=0, limit=2)
        in_time(worker.run)
    assert q.task(task).attempt == 1
    assert [each.outcome for each in q.task(task).history] == ["revoked", "finished"]
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == [
        f"queue 'census', task '{task}': {words}"
    ]


def test_a_running_handler_reports_progress_and_learns_of_a_cancellation(q: Queue, front: Any) -> None:
    """Its progress is seen by whoever looks and whoever waits; a cancel reaches it by a watch and takes its task."""
    task_id = q.enqueue(b"x")
    told: list[tuple[str, float, str]] = []
    ended = threading.Event()

    def handler(task: Running) -> str:
        task.report(0.25, "a quarter")
        eventually(lambda: task.cancelled)
        ended.set()
        return "late"

    worker = work(front, handler)
    waiter = threading.Thread(target=lambda: q.wait([task_id], on_progress=lambda *it: told.append(it)), daemon=True)
    waiter.start()
    worker.start()
    eventually(lambda: told == [(task_id, 0.25, "a quarter")])
    assert (q.task(task_id).progress, q.task(task_id).note) == (0.25, "a quarter")
    q.cancel(task_id)
    waiter.join(20)
    assert ended.wait(20)
    worker.stop()
    worker.join()
    task = q.task(task_id)
    seen = (str(task.status), task.result, task.progress, task.history[-1].outcome)
    assert seen == ("cancelled", None, None, "cancelled")
    assert worker.finished == 0


# --- in transactions


def test_a_transactional_worker_puts_what_it_takes_or_nothing(zk: Zkmq, q: Queue, front: Any) -> None:
    """With its task's completion; an exception leaves none and counts. A handler may commit or roll back itself."""
    q.configure(policy=ConsumeTimes(2))
    q.enqueue_many([Message(b"x", task_id=name) for name in ("good", "bad", "commits", "rolls-back")])

    def handler(task: Running, tx: UnitOfWork) -> bytes:
        tx.put("out", f"of {task.id}")
        if task.id == "bad":
            raise ValueError("no")
        if task.id != "good":
            (tx.commit if task.id == "commits" else tx.rollback)()
        return b"result"

    handled(front, handler, transactional=True, threads=2)
    assert sorted(task.data for task in zk.queue("out").tasks()) == [b"of commits", b"of good"]
    assert (q.task("good").state, q.task("good").result, q.task("commits").state) == ("finished", b"result", "finished")
    assert (q.task("bad").state, q.task("bad").attempt, q.task("bad").error) == ("dead", 2, "ValueError: no")
    assert (q.task("rolls-back").state, q.task("rolls-back").attempt) == ("dead", 2)


def test_a_transactional_worker_survives_the_end_of_its_session(zk: Zkmq, other: Zkmq) -> None:
    """The session ends in mid-task: that delivery's puts are lost with it, and the next one's are the only ones."""
    deliveries: list[int] = []
    q = other.queue("census")
    q.enqueue(b"x", task_id="a")

    def handler(task: Running, tx: UnitOfWork) -> None:
        deliveries.append(task.attempt)
        tx.put("out", f"attempt {task.attempt}")
        if task.attempt == 1:
            new_session(other)

    worker = q.worker(handler, transactional=True)
    worker.start()
    eventually(lambda: zk.queue("census").task("a").state == "finished")
    assert worker.stop() is True
    worker.join()
    assert q.counts()["finished"] == 1  # closing a worker leaves the client open
    assert [task.data for task in zk.queue("out").tasks()] == [b"attempt 2"]
    assert deliveries == [1, 2]


def test_a_leased_worker_outlives_its_session(zk: Zkmq, other: Zkmq) -> None:
    """`lease=`: the session ends in the middle of a task, and the handler's result is taken all the same."""
    zk.queue("census").enqueue(b"x", task_id="a")
    handled(other, lambda _task: new_session(other), lease=30)
    task = zk.queue("census").task("a")
    assert (task.state, task.attempt) == ("finished", 1)


def new_session(client: Zkmq) -> None:
    """A client's session ends, and it has another."""
    session = client.session_id
    end_session(client)
    eventually(lambda: client.session_id not in (0, session) and client._session.connected.is_set())


# --- when it ends


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 32), (4, 32), (3, 0)])
def test_a_limit_ends_the_worker(q: Queue, front: Any, threads: int, prefetch: int) -> None:
    """It handles so many tasks and no more, also where several are prefetched; the others stay untouched."""
    q.enqueue_many([Message(b"x") for _ in range(60)])
    heard: list[Any] = []
    options = {"threads": threads, "prefetch": prefetch, "on_settled": lambda _, outcome: heard.append(outcome)}
    worker = handled(front, lambda _: None, limit=40, **options)
    assert (worker.finished, q.counts()["finished"], q.counts()["inserted"]) == (40, 40, 20)
    assert heard == [Success()] * 40
    assert {task.attempt for task in q.tasks(state="inserted")} == {0}
    handled(front, lambda _: None, limit=40)
    assert q.counts()["finished"] == 60


def test_what_outlasts_a_forgiving_stop_counts_no_attempt(q: Queue, front: Any) -> None:
    """Its handler dies with the process: the task is given back at once, as if it had not been delivered."""
    q.enqueue(b"x", task_id="t")
    begun, done = threading.Event(), threading.Event()
    worker = work(front, lambda _: begun.set() or (done.wait(60) and "too late"), grace=0)
    worker.start()
    assert begun.wait(60)
    assert worker.stop(forgive=True)
    worker.join()
    eventually(lambda: q.task("t").state == "inserted")
    done.set()
    assert (q.task("t").attempt, q.task("t").error) == (0, None)
    handled(front, lambda _: "again")
    assert (q.task("t").attempt, q.task("t").result) == (1, b"again")
