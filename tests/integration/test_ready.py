"""Whether there is work, and a task claimed by its id, on real servers, on both fronts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from airflow_provider_zkmq.engine import (
    AsyncQueue,
    AsyncZkmq,
    ClaimLost,
    Message,
    Queue,
    QueueNotFound,
    String,
    Zkmq,
    ZkmqError,
)
from tests.support import eventually


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    queue: Queue = zk.queue("q")
    queue.configure(filters={"k": String()})
    return queue


@pytest.fixture
def looker(zookeeper: str, root: str) -> Iterator[Zkmq]:
    with Zkmq.connect(zookeeper, root=root, gc=False) as client:
        yield client


def waits(queue: Queue | AsyncQueue) -> int:
    """How many calls of a client wait for the queue to change."""
    return len(queue._context.signal._callbacks)


def test_who_waits_for_work_sends_nothing_while_there_is_none(q: Queue, looker: Zkmq) -> None:
    """And is told at once when there is some; no consumer was there meanwhile but the one that claims."""
    queue, told = looker.queue("q"), list[bool]()
    thread = threading.Thread(target=lambda: told.append(queue.ready(timeout=None)))
    thread.start()
    eventually(lambda: waits(queue) == 1)
    before = dict(looker.requests)
    assert q.conf().order == "default"
    assert dict(looker.requests) == before
    assert q.consumers() == []
    q.enqueue("x", task_id="a")
    thread.join(30)
    assert told == [True]
    assert q.counts()["inserted"] == 1


def test_one_who_looks_keeps_no_task_from_one_who_claims(q: Queue, looker: Zkmq) -> None:
    """Threads of one client, of both kinds: each event reaches both."""
    queue, got, told = looker.queue("q"), list[str](), list[bool]()

    def claims() -> None:
        claim = queue.claim(timeout=60)
        got.append("nothing" if claim is None else claim.task.id)

    threads = [threading.Thread(target=lambda: told.append(queue.ready(timeout=60))) for _ in range(5)]
    for thread in threads:
        thread.start()
    eventually(lambda: waits(queue) == 5)
    threads.append(threading.Thread(target=claims))
    threads[-1].start()
    eventually(lambda: waits(queue) == 6)
    q.enqueue_many([Message("x", task_id=name) for name in "ab"])
    for thread in threads:
        thread.join(60)
    assert got in (["a"], ["b"])
    assert told == [True] * 5


def test_a_wait_for_work_is_ended_by_a_wake(q: Queue, looker: Zkmq) -> None:
    queue, stop, told = looker.queue("q"), threading.Event(), list[bool]()
    thread = threading.Thread(target=lambda: told.append(queue.ready(timeout=None, stopping=stop.is_set)))
    thread.start()
    eventually(lambda: waits(queue) == 1)
    stop.set()
    queue.wake()
    thread.join(30)
    assert told == [False]


def test_closing_the_connection_ends_a_wait_for_work(q: Queue, zookeeper: str, root: str) -> None:
    """With the library's own error, as it ends any call."""
    zk, told = Zkmq.connect(zookeeper, root=root, gc=False), list[object]()
    queue = zk.queue(q.name)

    def look() -> None:
        try:
            told.append(queue.ready(timeout=None))
        except ZkmqError as error:
            told.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    eventually(lambda: waits(queue) == 1)
    zk.close()
    thread.join(60)
    assert isinstance(told[0], ZkmqError)


def test_a_queue_that_is_not_there_is_told_of(zk: Zkmq) -> None:
    with pytest.raises(QueueNotFound):
        zk.queue("none").ready(timeout=5)
    with pytest.raises(QueueNotFound):
        zk.queue("none").claim_task("a")


async def test_both_on_an_event_loop(q: Queue, zookeeper: str, root: str) -> None:
    """A wait is cancelled like any other; what is ready is claimed by its id."""
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as zk:
        queue = zk.queue("q")
        waiting = asyncio.ensure_future(queue.ready(selector="k==y", timeout=None))
        cut_off = asyncio.ensure_future(queue.ready(timeout=None))
        await asyncio.to_thread(eventually, lambda: waits(queue) == 2)
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off
        q.enqueue("x", {"k": "z"}, task_id="a")
        q.enqueue("x", {"k": "y"}, task_id="b")
        assert await waiting is True
        claim = await queue.claim_task("b", lease=30, attempt=1)
        assert claim is not None
        assert (claim.task.id, claim.span) == ("b", 30)
        assert await queue.claim_task("b") is None
        await claim.complete()
    assert q.counts()["finished"] == 1


async def test_a_cancelled_claim_by_id_leaves_nothing_behind(q: Queue, zookeeper: str, root: str) -> None:
    """Wherever the cancellation comes, the task is there for the next one, or was handed over."""
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as zk:
        queue = zk.queue("q")
        for turns in range(30):
            q.enqueue("x", task_id=f"t{turns}")
            call = asyncio.ensure_future(queue.claim_task(f"t{turns}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            try:
                claim = await call
            except asyncio.CancelledError:
                claim = await queue.claim_task(f"t{turns}", attempt=1)
            assert claim is not None
            assert claim.task.attempt == 1
            await claim.complete()
    assert q.counts()["finished"] == 30


async def test_a_claim_is_taken_over_on_both_fronts(q: Queue, zookeeper: str, root: str) -> None:
    """Where its maker is gone, too: it is extended, carried on and completed, as one delivery."""
    q.enqueue("x", task_id="a")
    with Zkmq.connect(zookeeper, root=root, gc=False) as maker:
        made = maker.queue("q").claim(lease=60)
        assert made is not None
    taken = q.take_over("a", made.token)
    assert taken is not None
    taken.progress(0.5, "half")
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as client:
        queue = client.queue("q")
        mine = await queue.take_over("a", made.token)
        assert mine is not None
        assert (mine.task.data, mine.task.attempt, mine.token) == (b"x", 1, made.token)
        await mine.extend(60)
        await mine.complete("done")
        assert await queue.take_over("a", made.token) is None
    with pytest.raises(ClaimLost):
        taken.complete()
    task = q.task("a")
    assert (task.state, task.result, task.attempt) == ("finished", b"done", 1)
