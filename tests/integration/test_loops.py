"""Loops over claims on a real server, blocking and on an event loop: what they cost, and what they leave."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter

import pytest

from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    ClaimLost,
    Message,
    Queue,
    RetryPolicy,
    Running,
    SessionLost,
    Status,
    Zkmq,
)
from tests.support import eventually


def fill(q: Queue, count: int) -> list[str]:
    q.configure(policy=RetryPolicy(attempts=5, factor=0))
    return q.enqueue_many([Message(b"x", task_id=f"t{number:04d}") for number in range(count)])


def requests_of(zk: Zkmq) -> int:
    return sum(count for kind, count in zk.requests.items() if kind != "Pipeline")


@pytest.mark.parametrize("prefetch", [1, 8])
def test_a_loop_costs_about_one_request_a_task(zk: Zkmq, q: Queue, prefetch: int) -> None:
    """One transaction for each, and one read for sixteen; the rest is what a client asks now and then."""
    ids = fill(q, 200)
    claims = q.claims(timeout=0, prefetch=prefetch)
    done = [next(claims).task.id for _ in range(8)]
    before, multis = requests_of(zk), zk.requests["Multi"]
    done += [next(claims).task.id for _ in range(160)]
    assert zk.requests["Multi"] - multis <= 162  # besides, the server's clock is asked for now and then
    assert requests_of(zk) - before <= 1.5 * 160
    done += [claim.task.id for claim in claims]
    assert done == ids
    assert q.counts()["finished"] == 200
    assert {task.attempt for task in q.tasks(state="finished")} == {1}


def test_results_and_own_settlements(q: Queue) -> None:
    """The body sets a result, or settles for itself."""
    ids = fill(q, 4)
    seen = []
    for claim in q.claims(timeout=0):
        seen.append(claim.task.id)
        if claim.task.id == ids[1] and claim.task.attempt == 1:
            claim.fail("e", backoff=0)
        elif claim.task.id == ids[2]:
            with claim.transaction() as unit:
                unit.commit(b"in a transaction")
        else:
            claim.result = "left"
    assert sorted(seen) == sorted([*ids, ids[1]])
    assert [q.task(name).result for name in ids] == [b"left", b"left", b"in a transaction", b"left"]


@pytest.mark.parametrize("how", ["break", "exception", "close"])
def test_a_loop_that_is_left(q: Queue, how: str) -> None:
    """What was in hand fails as a delivery, what was taken ahead is given back uncounted."""
    ids = fill(q, 6)
    if how == "break":
        for claim in q.claims(timeout=0, prefetch=4):
            if claim.task.id == ids[1]:
                break
    elif how == "exception":
        with pytest.raises(ZeroDivisionError):
            any(1 / (claim.task.id != ids[1]) > 1 for claim in q.claims(timeout=0, prefetch=4))
    else:
        claims = q.claims(timeout=0, prefetch=4)
        assert [next(claims).task.id for _ in range(2)] == ids[:2]
        claims.close()
        assert q.counts()["claimed"] == 0
        assert list(claims) == []
    gc.collect()
    eventually(lambda: q.counts()["claimed"] == 0)
    assert q.counts()["finished"] == 1
    assert [q.task(name).attempt for name in ids] == [1, 1, 0, 0, 0, 0]
    assert "its loop was left" in str(q.task(ids[1]).error)
    assert sorted(claim.task.id for claim in q.claims(timeout=0)) == ids[1:]


def test_a_lost_claim_is_told_by_the_next_step(zookeeper: str, root: str, q: Queue) -> None:
    """The loop can be continued, with what it has claimed beside."""
    ids = fill(q, 3)
    claims = q.claims(timeout=0)
    next(claims)
    with Zkmq.connect(zookeeper, root=root, gc=False) as other:
        other.queue(q.name).cancel(ids[0])
    with pytest.raises(ClaimLost):
        next(claims)
    assert [claim.task.id for claim in claims] == ids[1:]
    assert q.counts()["finished"] == 2


def test_loops_of_several_clients_take_each_task_once(zookeeper: str, root: str, q: Queue) -> None:
    """In both orders, one by one and in groups."""
    for order, prefetch in (("default", 1), ("default", 8), ("fifo", 1), ("fifo", 4)):
        q.configure(order=order)
        ids = q.enqueue_many([Message(b"x") for _ in range(120)])
        taken: list[str] = []

        def drain(taken: list[str] = taken, prefetch: int = prefetch) -> None:
            with Zkmq.connect(zookeeper, root=root, gc=False) as zk:
                taken.extend(claim.task.id for claim in zk.queue(q.name).claims(timeout=0.3, prefetch=prefetch))

        threads = [threading.Thread(target=drain) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Counter(taken) == Counter(ids)
        assert {q.task(name).attempt for name in ids[::10]} == {1}


def test_a_loop_waits_for_what_comes(zk: Zkmq, q: Queue) -> None:
    """With a bound it ends when nothing came for so long; without one when it is stopped."""
    q.configure()
    seen: list[str] = []
    began, stop = threading.Event(), threading.Event()

    def consume() -> None:
        for claim in q.claims(stopping=stop.is_set):
            seen.append(claim.task.id)
            began.set()

    thread = threading.Thread(target=consume)
    thread.start()
    q.enqueue(b"x", task_id="a")
    assert began.wait(30)
    eventually(lambda: q.task("a").state.value == "finished")
    stop.set()
    q.wake()
    thread.join(30)
    assert not thread.is_alive()
    assert seen == ["a"]
    assert list(q.claims(timeout=0.1)) == []


async def awaited(zookeeper: str, root: str, name: str, prefetch: int) -> list[str]:
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as zk:
        ids = []
        async for claim in zk.queue(name).claims(timeout=0, prefetch=prefetch):
            claim.result = b"awaited"
            ids.append(claim.task.id)
        return ids


@pytest.mark.parametrize("prefetch", [1, 8])
def test_the_awaited_loop(zookeeper: str, root: str, q: Queue, prefetch: int) -> None:
    """The same on an event loop."""
    ids = fill(q, 30)
    assert asyncio.run(awaited(zookeeper, root, q.name, prefetch)) == ids
    assert q.task(ids[-1]).result == b"awaited"


def test_an_awaited_loop_that_is_left(zookeeper: str, root: str, q: Queue) -> None:
    """By its end, and by a cancellation while it waits: nothing is lost, and what was handled is completed."""
    ids = fill(q, 5)

    async def leave() -> None:
        async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as zk:
            queue = zk.queue(q.name)
            async with queue.claims(timeout=0, prefetch=3) as claims:
                assert [(await anext(claims)).task.id for _ in range(2)] == ids[:2]
            assert (await queue.counts())["claimed"] == 0
            handled: list[str] = []

            async def consume() -> None:
                async for claim in queue.claims():
                    handled.append(claim.task.id)

            job = asyncio.ensure_future(consume())
            await queue.wait(ids, timeout=30)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            assert sorted(handled) == ids[1:]
            await queue.enqueue(b"x", task_id="later")
            assert (await queue.counts())["inserted"] == 1

    asyncio.run(leave())
    assert [q.task(name).attempt for name in ids] == [1, 2, 1, 1, 1]
    assert [claim.task.id for claim in q.claims(timeout=0)] == ["later"]


def handled_once(q: Queue, names: list[str]) -> None:
    """Each of these is finished, with its one delivery."""
    assert [(q.task(name).status, q.task(name).attempt) for name in names] == [(Status.DONE_AWAITING_GC, 1)] * len(
        names
    )


def test_closing_settles_what_a_loop_has_handled(q: Queue, zookeeper: str, root: str) -> None:
    """Its connection is closed in the moment in which it is left: what had been put down is not handled again."""
    ids = fill(q, 8)
    with Zkmq.connect(zookeeper, root=root, gc=False) as other:
        for claim in other.queue(q.name).claims(timeout=0, prefetch=8):
            if claim.task.id == ids[5]:
                break
    handled_once(q, ids[:5])


@pytest.mark.parametrize("times", range(3))
def test_closing_settles_what_a_worker_has_handled(q: Queue, zookeeper: str, root: str, times: int) -> None:
    """It is stopped, joined and its connection closed while its handlers are fast."""
    ids = fill(q, 600 + times)
    done: list[str] = []
    with Zkmq.connect(zookeeper, root=root, gc=False) as other:
        worker = other.queue(q.name).worker(lambda task: done.append(task.id), threads=2)
        worker.start()
        eventually(lambda: len(done) > 50)
        worker.stop()
        worker.join()
    assert len(done) == len(set(done)) < len(ids)
    handled_once(q, done)
    assert q.counts()["finished"] == len(done)


@pytest.mark.parametrize("times", range(3))
async def test_closing_settles_what_an_async_worker_has_handled(zookeeper: str, root: str, times: int) -> None:
    """The same on an event loop."""
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as watcher:
        q = watcher.queue("q")
        await q.enqueue_many([Message(b"x", task_id=f"t{number}") for number in range(600 + times)])
        done: list[str] = []
        enough = asyncio.Event()

        async def handle(task: Running) -> None:
            done.append(task.id)
            if len(done) > 50:
                enough.set()

        async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as other:
            worker = other.queue("q").worker(handle, threads=2)
            await worker.start()
            await enough.wait()
            worker.stop()
            await worker.join()
        tasks = await q.tasks(state="finished")
        assert sorted(task.id for task in tasks) == sorted(done)
        assert {task.attempt for task in tasks} == {1}


def test_what_is_put_down_when_the_connection_is_closed_under_its_worker_is_told(zookeeper: str, root: str) -> None:
    """Nothing stays in its hand, and joining it ends."""
    with Zkmq.connect(zookeeper, root=root, gc=False) as zk:
        zk.queue("q").enqueue_many([Message(b"x") for _ in range(300)])
        done: list[str] = []
        worker = zk.queue("q").worker(lambda task: done.append(task.id), threads=2)
        worker.start()
        eventually(lambda: len(done) > 50)
        zk.close()
    with pytest.raises(SessionLost):
        worker.join()
    eventually(lambda: not worker._deliveries)
