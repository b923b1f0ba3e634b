"""Queues that are not there yet, and queues that are deleted while they are used, on a real server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Message, Poll, QueueError, QueueNotFound, Running, Zkmq
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.engine.working import worker_base
from tests.faulty import Faulty
from tests.integration.clients import clients, spent
from tests.support import eventually


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was warned of by workers; a logger of the test's own, as another test's command may have silenced it."""
    monkeypatch.setattr(worker_base, "log", logging.getLogger("absence"))
    return lambda: [
        each.getMessage()
        for each in caplog.records
        if each.levelno == logging.WARNING
        and each.name == "absence"
        and each.getMessage().startswith("worker on queue")
    ]


@contextmanager
def at_work(*workers: Any) -> Iterator[None]:
    """They are started, and ended afterwards."""
    for worker in workers:
        assert worker.start()
    yield
    for worker in workers:
        worker.stop()
        worker.join()


def test_a_worker_waits_for_its_queue_by_a_watch(
    zk: Zkmq, other: Zkmq, door: Faulty, root: str, warnings: Callable[[], list[str]]
) -> None:
    """Started before it: one warning that names what comes close, no request while it waits, and then it works.

    Its monitor hears of the queue once there is one; afterwards its last look has found nothing, while it waits.
    A watch that goes with its connection is set again; a worker that is stopped meanwhile ends, and creates nothing.
    """
    zk.queue("orders").configure()
    polls: list[Poll] = []
    with Zkmq.connect(door.hosts, root=root, session_timeout=10, gc=False) as cut_off:
        working = zk.queue("order").worker(lambda task: task.queue, threads=3, monitor=polls.append)
        drifting = cut_off.queue("order").worker(lambda task: task.queue, selector="all()")
        with at_work(working, drifting):
            stopped = zk.queue("never").worker(lambda _task: None, threads=2, monitor=polls.append)
            with at_work(stopped):
                eventually(lambda: len(warnings()) == 3)
            eventually(lambda: spent(zk, lambda: [other.queues() for _ in range(300)]) == {})
            assert other.queues() == ["orders"]
            eventually(lambda: cut_off.requests.get("Exists", 0) >= 2)
            door.down()
            task_id = other.queue("order").enqueue(b"x")
            assert other.queue("order").wait([task_id], timeout=30)[0].result == b"order"
            eventually(lambda: bool(polls) and polls[-1].last == "nothing")
            working.stop()
            working.join()
            door.up()
            task_id = other.queue("order").enqueue(b"x")
            assert other.queue("order").wait([task_id], timeout=30)[0].result == b"order"
    assert len(warnings()) == 3
    assert sum("'order' does not exist" in text and "did you mean 'orders'?" in text for text in warnings()) == 2


def test_a_queue_is_deleted_under_its_workers(
    zk: Zkmq, zookeeper: str, root: str, warnings: Callable[[], list[str]]
) -> None:
    """By force only. What they have in hand is lost, they go back to waiting, and work in the queue that comes next."""
    begun, go_on = threading.Event(), threading.Event()

    def handle(task: Running) -> bytes:
        begun.set()
        assert task.data == b"new" or go_on.wait(60)
        return b"r"

    with clients(zookeeper, root, 2) as (one, other):
        q = zk.queue("q")
        held, *_ = q.enqueue_many([Message(b"x")] * 300)
        worker, idle = one.queue("q").worker(handle), other.queue("q").worker(handle, selector="all()", threads=1)
        with at_work(worker):
            assert begun.wait(30)
            with pytest.raises(QueueError, match=r"live consumer"):
                zk.delete_queue("q", confirm=True)
            assert zk.delete_queue("q", confirm=True, force=True) == 300
            assert zk._session.client.exists(f"{root}/q") is None
            with pytest.raises(QueueNotFound):
                q.claim_handle(held, 1).complete()
            with at_work(idle):
                go_on.set()
                eventually(lambda: len(warnings()) == 2)
                task_id = q.enqueue(b"new")
                assert q.wait([task_id], timeout=30)[0].result == b"r"
        assert worker.finished + idle.finished == 1
        assert (q.counts()["finished"], internals(q).ids()) == (1, [task_id])
    assert len(warnings()) == 2


def test_waiting_calls_are_told_of_the_deletion(zk: Zkmq, zookeeper: str, root: str) -> None:
    """A claim, a wait for a task and a follower of a task, each within its own wait."""
    q = zk.queue("q")
    task_id = q.enqueue(b"x", delay=3600)
    calls: list[Callable[[Any], object]] = [
        lambda queue: queue.claim(timeout=120),
        lambda queue: queue.wait([task_id], timeout=120),
        lambda queue: queue.follow(task_id, lambda _task: None, 120),
    ]
    with clients(zookeeper, root, 3) as own, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(call, client.queue("q")) for call, client in zip(calls, own, strict=True)]
        eventually(lambda: len(q.consumers()) == 1)
        eventually(lambda: all(client._session.watches._fans for client in own))
        zk.delete_queue("q", confirm=True, force=True)
        for each in waiting:
            with pytest.raises(QueueNotFound):
                each.result(30)


def test_clean_up_leaves_a_deleted_queue_alone(zk: Zkmq, zookeeper: str, root: str) -> None:
    """In the background of whoever used it: until it is used again, nothing is asked of it."""
    with Zkmq.connect(zookeeper, root=root) as own:
        q = own.queue("q")
        q.configure(task_gc_interval=1)
        q.enqueue(b"x")
        assert own._maintenance is not None
        looked_after = own._maintenance._due
        assert "q" in looked_after
        zk.delete_queue("q", confirm=True)
        eventually(lambda: "q" not in looked_after)
        q.enqueue(b"x")
        assert "q" in looked_after
