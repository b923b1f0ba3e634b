"""Loops, groups and workers on a real server: what they take and settle, what they cost, and what they leave."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncZkmq, ConfigError, Message, Queue, RetryPolicy, SessionLost, Zkmq
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.faulty import Faulty
from tests.integration.clients import together
from tests.integration.conftest import started
from tests.integration.fronts import KINDS, connected
from tests.integration.working import work
from tests.support import eventually


def fill(q: Queue, count: int) -> list[str]:
    q.configure(policy=RetryPolicy(attempts=5, factor=0))
    return q.enqueue_many([Message(b"x", task_id=f"t{number:04d}") for number in range(count)])


def handled_once(q: Queue, names: list[str]) -> None:
    """Each of these is finished, with its one delivery, and nothing else is."""
    found = [(task.id, task.attempt) for task in q.tasks(state="finished")]
    assert sorted(found) == [(name, 1) for name in sorted(names)]


# --- groups


def test_several_consumers_take_each_task_once(zookeeper: str, root: str, q: Queue) -> None:
    """In both orders, whoever loses a race: with groups, and with loops one by one and in groups.

    How many a group may be is checked first.
    """
    for wrong in (0, 65, -1, True, 1.0, "3", None):
        with pytest.raises(ConfigError, match="a whole number from 1 to 64"):
            q.claim_many(wrong)  # type: ignore[arg-type]
    for order in ("default", "fifo"):
        q.configure(order=order)
        ids = q.enqueue_many([Message(b"x") for _ in range(200)])

        def drain(prefetch: int | None) -> list[str]:
            with Zkmq.connect(zookeeper, root=root, gc=False) as zk:
                queue, names = zk.queue(q.name), list[str]()
                if prefetch is not None:
                    return [claim.task.id for claim in queue.claims(timeout=0, prefetch=prefetch)]
                while claims := queue.claim_many(16):
                    for claim in claims:
                        claim.complete()
                        names.append(claim.task.id)
                return names

        drained = together(*(lambda each=each: drain(each) for each in (None, None, 1, 8)))  # type: ignore[misc]
        assert Counter(name for names in drained for name in names) == Counter(ids), order
        assert {task.attempt for task in q.tasks(state="finished")} == {1}


async def test_coroutines_of_one_client_share_transactions(door: Faulty, root: str, q: Queue) -> None:
    """Enqueues, claims and settlements of 64 coroutines; some are cancelled, and nothing is lost or doubled.

    Those that come before the first is answered are written together, 32 at the most.
    """
    async with AsyncZkmq.connect(door.hosts, root=root, gc=False) as zk:
        queue, names = zk.queue(q.name), Counter[str]()
        await queue.enqueue(b"first")
        before = zk.requests["Multi"]
        door.hold("replies")
        enqueues = [asyncio.ensure_future(queue.enqueue(b"x")) for _ in range(64)]
        await asyncio.sleep(0)
        door.flow()
        ids = await asyncio.gather(*enqueues)
        assert zk.requests["Multi"] - before == 3
        cut = [asyncio.ensure_future(queue.claim_many(4)) for _ in range(6)]
        for number, each in enumerate(cut):
            await asyncio.sleep(0)
            if number % 2:
                each.cancel()

        async def complete(claim: Any) -> None:
            await claim.complete()
            names[claim.task.id] += 1

        async def drain() -> None:
            while (claim := await queue.claim()) is not None:
                await complete(claim)

        for claims in await asyncio.gather(*cut, return_exceptions=True):
            for claim in claims if isinstance(claims, list) else ():
                await complete(claim)
        await asyncio.gather(*[drain() for _ in range(64)])
        while len(names) <= len(ids):  # what a cancelled call has given back
            await complete(await queue.claim(timeout=60))
        assert set(names.values()) == {1}
        assert set(ids) <= set(names)
        assert {task.attempt for task in await queue.tasks()} == {1}


# --- loops


def test_a_loop_costs_about_one_request_a_task(zk: Zkmq, q: Queue) -> None:
    """One transaction for each, and one read for sixteen; the rest is what a client asks now and then."""
    for prefetch in (1, 8):
        ids = fill(q, 120)
        claims = q.claims(timeout=0, prefetch=prefetch)
        done = [next(claims).task.id for _ in range(8)]
        before = Counter(zk.requests)
        done += [next(claims).task.id for _ in range(100)]
        cost = Counter(zk.requests) - before
        assert cost["Multi"] <= 115  # the clock is asked for now and then, and no slow body waited for
        assert cost.total() - cost["Pipeline"] <= 1.5 * 100
        done += [claim.task.id for claim in claims]
        assert done == ids
        handled_once(q, ids)
        q.clear()


def test_results_and_own_settlements(q: Queue, front: Any) -> None:
    """The body sets a result, or settles for itself; one by one and in groups, what is left is completed in order."""
    queue = front.queue(q.name)
    ids, seen = fill(q, 4), []
    for claim in queue.claims(timeout=0):
        seen.append(claim.task.id)
        if claim.task.id == ids[1] and claim.task.attempt == 1:
            claim.fail("e", backoff=0)
        elif claim.task.id == ids[2]:
            with claim.transaction() as unit:
                unit.commit(b"in a transaction")
        else:
            claim.result = "left"
    assert sorted(seen) == sorted([*ids, ids[1]])
    assert [task.result for task in q.tasks(ids=ids)] == [b"left", b"left", b"in a transaction", b"left"]
    q.clear()
    ids, seen = fill(q, 30), []
    for claim in queue.claims(timeout=0, prefetch=8):
        claim.result = b"set"
        seen.append(claim.task.id)
    assert (seen, {task.result for task in q.tasks()}) == (ids, {b"set"})


def test_a_loop_that_is_left(q: Queue, subtests: pytest.Subtests) -> None:
    """What was in hand fails as a delivery, what was prefetched is given back uncounted."""
    for how in ("break", "exception", "close"):
        with subtests.test(how):
            ids = fill(q, 6)
            claims = q.claims(timeout=0, prefetch=4)
            if how == "break":
                for claim in claims:
                    if claim.task.id == ids[1]:
                        break
                del claims, claim
            elif how == "exception":
                del claims
                with pytest.raises(ZeroDivisionError):
                    any(1 / (claim.task.id != ids[1]) > 1 for claim in q.claims(timeout=0, prefetch=4))
            else:
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
        q.clear()


async def test_an_awaited_loop_that_is_left(zookeeper: str, root: str, q: Queue) -> None:
    """By its end, and by a cancellation while it waits: nothing is lost, and what was handled is completed."""
    ids = fill(q, 5)
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
    assert [q.task(name).attempt for name in ids] == [1, 2, 1, 1, 1]
    assert [claim.task.id for claim in q.claims(timeout=0)] == ["later"]


def test_a_loop_waits_for_what_comes(q: Queue) -> None:
    """With a bound it ends when nothing came for so long; without one when it is stopped."""
    stop = threading.Event()
    loop = started(lambda: [claim.task.id for claim in q.claims(stopping=stop.is_set)])
    q.enqueue(b"x", task_id="a")
    eventually(lambda: q.task("a").state.value == "finished")
    stop.set()
    internals(q).wake()
    assert loop.result(30) == ["a"]
    assert list(q.claims(timeout=0.1)) == []


# --- the end of a connection


def test_closing_settles_what_a_loop_has_handled(q: Queue, zookeeper: str, root: str) -> None:
    """Its connection is closed in the moment in which it is left: what had been put down is not handled again."""
    ids = fill(q, 8)
    with Zkmq.connect(zookeeper, root=root, gc=False) as client:
        for claim in client.queue(q.name).claims(timeout=0, prefetch=8):
            if claim.task.id == ids[5]:
                break
    handled_once(q, ids[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_closing_settles_what_a_worker_has_handled(q: Queue, zookeeper: str, root: str, kind: str) -> None:
    """It is stopped, joined and its connection closed while its handlers are fast; three times, with what is left."""
    ids, done = fill(q, 900), list[str]()
    for _ in range(3):
        before = len(done)
        with connected(kind, zookeeper, root=root, gc=False) as client:
            worker = work(client, lambda task: done.append(task.id), q.name, threads=2)
            worker.start()
            eventually(lambda before=before: len(done) > before + 40)
            worker.stop()
            worker.join()
        assert len(done) == len(set(done)) < len(ids)
        handled_once(q, done)


def test_what_is_put_down_when_the_connection_is_closed_under_its_worker_is_told(q: Queue, other: Zkmq) -> None:
    """Nothing stays in its hand, and joining it ends."""
    fill(q, 300)
    done: list[str] = []
    worker = other.queue(q.name).worker(lambda task: done.append(task.id), threads=2)
    worker.start()
    eventually(lambda: len(done) > 50)
    other.close()
    with pytest.raises(SessionLost):
        worker.join()
    eventually(lambda: not worker._deliveries)
