"""Queues that are not there yet, and queues that are deleted while they are used, on a real server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    ClaimLost,
    Message,
    Poll,
    QueueError,
    QueueNotFound,
    Running,
    Zkmq,
)
from airflow_provider_zkmq.engine.working import absence
from tests.integration.clients import clients, spent
from tests.proxy import Proxy
from tests.support import eventually


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was warned of by workers; a logger of the test's own, as another test's command may have silenced it."""
    monkeypatch.setattr(absence, "log", logging.getLogger("absence"))
    return lambda: [
        each.getMessage() for each in caplog.records if each.levelno == logging.WARNING and each.name == "absence"
    ]


def asked_while(client: Zkmq, other: Zkmq) -> dict[str, int]:
    """What a client asks for by itself while another one asks a few hundred times."""
    return spent(client, lambda: [other.queues() for _ in range(300)])


def test_a_worker_waits_for_its_queue_by_a_watch(
    zk: Zkmq, zookeeper: str, root: str, warnings: Callable[[], list[str]]
) -> None:
    """Started before it: one warning that names what comes close, no request while it waits, and then it works.

    Its monitor hears of the queue once there is one; afterwards its last look has found nothing, while it waits.
    """
    zk.queue("orders").configure()
    polls: list[Poll] = []
    worker = zk.queue("order").worker(lambda task: task.queue, threads=3, monitor=polls.append)
    assert worker.start()
    with clients(zookeeper, root, 1) as (other,):
        eventually(lambda: asked_while(zk, other) == {})
        assert other.queues() == ["orders"]
        task_id = other.queue("order").enqueue(b"x")
    assert zk.queue("order").wait([task_id], timeout=30)[0].result == b"order"
    eventually(lambda: bool(polls) and polls[-1].last == "nothing")
    worker.stop()
    worker.join()
    assert len(warnings()) == 1
    assert "did you mean 'orders'?" in warnings()[0]


async def test_an_asynchronous_worker_waits_for_its_queue(
    zk: Zkmq, zookeeper: str, root: str, warnings: Callable[[], list[str]]
) -> None:
    """The same on an event loop, begun with `start` and ended with `join`; one that is stopped before ends."""
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:

        async def handle(task: Running) -> str:
            return task.queue

        worker, stopped = (own.queue("later").worker(handle, threads=2) for _ in range(2))
        assert await worker.start()
        assert await stopped.start()
        stopped.stop()
        await stopped.join()
        task_id = await asyncio.to_thread(zk.queue("later").enqueue, b"x")
        (task,) = await own.queue("later").wait([task_id], timeout=30)
        assert task.result == b"later"
        worker.stop()
        await worker.join()
        with pytest.raises(QueueNotFound):
            await own.queue("nowhere").worker(handle).run(until_empty=True)
    assert sum("'later' does not exist" in text for text in warnings()) == 2
    assert zk.queues() == ["later"]


def test_a_waiting_worker_survives_the_loss_of_its_connection(zk: Zkmq, zookeeper: str, root: str) -> None:
    """Its watch goes with the connection, and is set again: the queue that came meanwhile is found."""
    proxy = Proxy(zookeeper)
    with Zkmq.connect(proxy.hosts, root=root, session_timeout=10, gc=False) as own:
        worker = own.queue("later").worker(lambda _task: "done")
        worker.start()
        eventually(lambda: own.requests.get("Exists", 0) >= 2)
        proxy.down()
        task_id = zk.queue("later").enqueue(b"x")
        proxy.up()
        assert zk.queue("later").wait([task_id], timeout=30)[0].result == b"done"
        worker.stop()
        worker.join()
    proxy.close()


def test_a_queue_is_deleted_under_its_workers(
    zk: Zkmq, zookeeper: str, root: str, warnings: Callable[[], list[str]]
) -> None:
    """By force only. What they have in hand is lost, they go back to waiting, and work in the queue that comes next.

    The tree is gone whole; a claim that waits and a settlement by token are told that there is no queue.
    """
    begun, go_on = threading.Event(), threading.Event()

    def handle(task: Running) -> bytes:
        begun.set()
        assert task.data == b"new" or go_on.wait(60)
        return b"r"

    with clients(zookeeper, root, 2) as (one, other):
        q = zk.queue("q")
        held, *_ = q.enqueue_many([Message(b"%d" % number) for number in range(300)])
        worker, idle = one.queue("q").worker(handle), other.queue("q").worker(handle, selector="all()", threads=1)
        worker.start()
        assert begun.wait(30)
        with pytest.raises(QueueError, match=r"live consumer"):
            zk.delete_queue("q", confirm=True)
        assert q.counts()["inserted"] + q.counts()["claimed"] == 300
        assert zk.delete_queue("q", confirm=True, force=True) == 300
        assert not q.exists()
        assert zk._session.client.exists(f"{root}/q") is None
        with pytest.raises(QueueNotFound):
            q.complete(held, 1)
        idle.start()
        go_on.set()
        eventually(lambda: len(warnings()) == 2)
        task_id = q.enqueue(b"new")
        assert q.wait([task_id], timeout=30)[0].result == b"r"
        for each in (worker, idle):
            each.stop()
            each.join()
        assert worker.finished + idle.finished == 1
        assert (q.counts()["finished"], q.ids()) == (1, [task_id])
    assert len(warnings()) == 2


def test_waiting_calls_are_told_of_the_deletion(zk: Zkmq, zookeeper: str, root: str) -> None:
    """A claim, a wait for a task, a search and a follower of a task, each within its own wait."""
    q = zk.queue("q")
    task_id = q.enqueue(b"x", delay=3600)
    errors: dict[str, BaseException] = {}
    ready = threading.Barrier(5)
    calls: dict[str, Callable[[Zkmq], object]] = {
        "claim": lambda own: own.queue("q").claim(timeout=120),
        "wait": lambda own: own.queue("q").wait([task_id], timeout=120),
        "find": lambda own: own.queue("q").find("all()", 5, 120),
        "follow": lambda own: own.queue("q").follow(task_id, lambda _task: None, 120),
    }

    def call(name: str) -> None:
        with Zkmq.connect(zookeeper, root=root, gc=False) as own:
            ready.wait(30)
            try:
                calls[name](own)
            except QueueNotFound as error:
                errors[name] = error

    threads = [threading.Thread(target=call, args=(name,), daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    ready.wait(30)
    eventually(lambda: len(q.consumers()) == 1)
    zk.delete_queue("q", confirm=True, force=True)
    for thread in threads:
        thread.join(30)
    assert errors.keys() == calls.keys()


def test_a_claim_whose_queue_was_deleted_is_lost(zk: Zkmq) -> None:
    """Its holder is told so however it is settled; a transaction that took something rolls back without harm."""
    q = zk.queue("q")
    q.enqueue_many([Message(b"x")] * 3)
    claims = [q.claim() for _ in range(2)]
    tx = zk.transaction()
    assert tx.try_take("q") is not None
    zk.delete_queue("q", confirm=True, force=True)
    for claim, settle in zip(claims, ("complete", "release"), strict=True):
        assert claim is not None
        with pytest.raises(ClaimLost):
            getattr(claim, settle)()
    tx.rollback()
    assert zk.queues() == []


def test_a_transaction_whose_queue_was_deleted_has_lost_what_it_took(zk: Zkmq) -> None:
    """Its commit says so, by the queue's name; nothing was put, and it can be rolled back."""
    zk.queue("q").enqueue(b"x")
    tx = zk.transaction()
    assert tx.try_take("q") is not None
    tx.put("out", b"y")
    zk.delete_queue("q", confirm=True, force=True)
    with pytest.raises(ClaimLost, match="queue 'q' does not exist"):
        tx.commit()
    tx.rollback()
    assert not zk.queue("q").exists()


async def test_so_has_an_asynchronous_one(zookeeper: str, root: str) -> None:
    """`AsyncUnitOfWork` likewise."""
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as zk:
        await zk.queue("q").enqueue(b"x")
        tx = zk.transaction()
        assert await tx.try_take("q") is not None
        await zk.delete_queue("q", confirm=True, force=True)
        with pytest.raises(ClaimLost, match="queue 'q' does not exist"):
            await tx.commit()


async def test_the_asynchronous_front_deletes_queues_too(zk: Zkmq, zookeeper: str, root: str) -> None:
    """And asks whether one is there, waiting for it where it is told to."""
    zk.queue("q").enqueue(b"x")
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:
        with pytest.raises(ValueError, match="confirm=True"):
            await own.delete_queue("q")
        assert await own.queue("q").exists()
        assert await own.delete_queue("q", confirm=True) == 1
        assert not await own.queue("q").exists()
        coming = asyncio.create_task(own.queue("q").exists(60))
        await asyncio.to_thread(zk.queue("q").configure)
        assert await coming


def test_clean_up_leaves_a_deleted_queue_alone(zk: Zkmq, zookeeper: str, root: str) -> None:
    """In the background of whoever used it: until it is used again, nothing is asked of it."""
    with Zkmq.connect(zookeeper, root=root) as own:
        q = own.queue("q")
        q.configure(task_gc_interval=1)
        q.enqueue(b"x")
        assert own._upkeep is not None
        looked_after = own._upkeep._due
        assert "q" in looked_after
        zk.delete_queue("q", confirm=True)
        eventually(lambda: "q" not in looked_after)
        q.enqueue(b"x")
        assert "q" in looked_after


def test_a_worker_that_waits_for_its_queue_can_be_stopped(zk: Zkmq) -> None:
    """At once, with its monitor; the queue is not created."""
    worker = zk.queue("q").worker(lambda _task: None, threads=2, monitor=lambda _poll: None)
    worker.start()
    eventually(lambda: zk.requests.get("Exists", 0) >= 6)
    assert worker.stop()
    worker.join()
    assert zk.queues() == []
