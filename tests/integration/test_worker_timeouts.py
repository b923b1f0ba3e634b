"""A handler that takes longer than the worker's `task_timeout`: its attempt has failed, and the others go on."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncZkmq, ConfigError, Message, Queue, RetryPolicy, State, Zkmq
from tests.integration.working import in_time
from tests.support import eventually

WAYS: dict[str, dict[str, Any]] = {
    "bound to the session": {},
    "with a lease": {"lease": 60},
    "in a transaction": {"transactional": True},
    "without prefetching": {"prefetch": 0},
    "without heartbeats": {"heartbeat": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_that_takes_too_long_has_failed_and_its_thread_is_missed_until_it_returns(q: Queue, way: str) -> None:
    """Meanwhile the other thread handles the rest, and what the handler returns at last is refused."""
    q.configure(policy=RetryPolicy(attempts=1))
    stuck, more = q.enqueue(b"stuck"), [q.enqueue(b"quick") for _ in range(20)]
    go, lost, outcomes = threading.Event(), [], {}

    def handle(task: Any, *transaction: Any) -> bytes:
        if task.id == stuck:
            eventually(lambda: task.lost)
            lost.append(task.id)
            go.wait(60)
            if transaction:
                transaction[0].put("census", b"never")
        return b"done"

    worker = q.worker(
        handle,
        threads=2,
        task_timeout=0.2,
        on_settled=lambda task, outcome: outcomes.update({task.id: outcome}),
        **WAYS[way],
    )
    worker.start()
    try:
        (dead,) = q.wait([stuck], timeout=60)
        assert (dead.state, dead.attempt, dead.error) == (
            State.DEAD, 1, "TimeoutError: the handler took longer than 200ms",
        )  # fmt: skip
        assert {task.result for task in q.wait(more, timeout=60)} == {b"done"}
        eventually(lambda: (worker.finished, worker.failed, worker.stuck, lost) == (20, 1, 1, [stuck]))
        go.set()
        eventually(lambda: worker.stuck == 0)
        assert q.wait([q.enqueue(b"next")], timeout=60)[0].state is State.FINISHED
    finally:
        go.set()
        worker.stop()
        worker.join()
    assert "TimeoutError" in repr(outcomes[stuck].error)
    assert (q.task(stuck).state, q.counts()["inserted"]) == (State.DEAD, 0)


def test_a_stop_waits_for_no_handler_that_was_timed_out(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """Its task is settled already; that no thread is free is logged before."""
    stuck, go = q.enqueue(b"stuck"), threading.Event()
    worker = q.worker(lambda _task: go.wait(60) and None, task_timeout=0.2, grace=3_600)
    with caplog.at_level(logging.ERROR, "airflow_provider_zkmq"):
        worker.start()
        eventually(lambda: worker.stuck == 1 and worker.failed == 1)
        worker.stop()
        in_time(worker.join)
    assert "none is free" in caplog.text
    assert (q.task(stuck).state, q.task(stuck).attempt) == (State.INSERTED, 1)
    go.set()


def test_a_worker_with_a_limit_ends_beside_a_handler_that_was_timed_out(q: Queue) -> None:
    """Its one task was handled: it failed."""
    q.enqueue(b"stuck")
    go = threading.Event()
    worker = q.worker(lambda _task: go.wait(60) and None, task_timeout=0.2, limit=1)
    in_time(worker.run)
    assert (worker.finished, worker.failed) == (0, 1)
    go.set()


async def test_a_coroutine_that_takes_too_long_is_cancelled(zk: Zkmq, zookeeper: str, root: str) -> None:
    """Its attempt has failed; one that swallows that goes on, fenced off, beside the others."""
    queue, cancelled, go = zk.queue("census"), [], asyncio.Event()
    queue.configure(policy=RetryPolicy(attempts=1))
    names = ("polite", "deaf", "quick")
    queue.enqueue_many([Message(b"", task_id=name) for name in names])

    async def handle(task: Any) -> None:
        try:
            await asyncio.sleep(0 if task.id == "quick" else 3_600)
        except asyncio.CancelledError:
            cancelled.append(task.id)
            if task.id == "polite":
                raise
            await go.wait()

    async with await AsyncZkmq.connect(zookeeper, root=root, gc=False) as client:
        worker = client.queue("census").worker(handle, threads=1, task_timeout=0.2)
        await worker.start()
        ended = {task.id: task for task in await asyncio.to_thread(queue.wait, names, timeout=60)}
        assert {name: task.state.value for name, task in ended.items()} == {
            "polite": "dead", "deaf": "dead", "quick": "finished",
        }  # fmt: skip
        assert ended["polite"].error == ended["deaf"].error == "TimeoutError: the handler took longer than 200ms"
        assert (sorted(cancelled), worker.stuck) == (["deaf", "polite"], 1)
        go.set()
        await asyncio.to_thread(eventually, lambda: worker.stuck == 0)
        worker.stop()
        await worker.join()
    assert (worker.finished, worker.failed) == (1, 2)


@pytest.mark.parametrize("given", [0, -1, "soon", 0.01])
def test_a_time_out_that_is_none_is_refused(q: Queue, given: Any) -> None:
    """In one sentence that names it."""
    with pytest.raises(ConfigError, match="task_timeout"):
        q.worker(lambda _task: None, task_timeout=given)
