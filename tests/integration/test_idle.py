"""Idle is free and a crowd is calm: what waits asks for nothing, and what comes for one does not touch the others.

Requests are counted, of those who wait; never time. With ``ZKMQ_SCALE=1`` the numbers are those of a large plant.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncZkmq, Message, Queue, String, Zkmq
from airflow_provider_zkmq.engine.core.reading.configuration import fresh_conf
from tests.integration.clients import clients, spent
from tests.support import eventually, fresh_root

LARGE = os.environ.get("ZKMQ_SCALE") == "1"
FOREIGN = 100_000 if LARGE else 1_000
WAITERS = 10_000 if LARGE else 300
CONSUMERS = 50
#: What a claim that waits sends for one task once it is woken, at the most: it lists, reads, asks for the time where it
#: has not heard it of late, and claims; then who is left lists what that has changed.
WOKEN = {"Children": 2, "GetMany": 1, "Multi": 2}


class Waiting:
    """Threads of one client that wait for a task each."""

    def __init__(self, queue: Queue, threads: int, **wanted: Any) -> None:
        self._queue, self._stopping = queue, False
        self.got: list[str] = []
        self._threads = [threading.Thread(target=self._wait, kwargs=wanted, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()
        self.settle(threads)

    def _wait(self, **wanted: Any) -> None:
        claim = self._queue.claim(timeout=300, stopping=lambda: self._stopping, **wanted)
        if claim is not None:
            self.got.append(claim.task.id)

    def settle(self, threads: int) -> None:
        """Return once so many threads sit on their seats, and nobody looks."""
        eventually(lambda: len(self._queue._context.signal._callbacks) == threads, within=60)

    def stop(self) -> None:
        """Those that still wait go home."""
        self._stopping = True
        self._queue._context.signal.fire()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def waiting(queue: Queue, threads: int = 1, **wanted: Any) -> Iterator[Waiting]:
    made = Waiting(queue, threads, **wanted)
    try:
        yield made
    finally:
        made.stop()


def drained(queue: Queue, **wanted: Any) -> None:
    """Nothing of what is wanted is left; lanes, segments and buckets are there."""
    while (claim := queue.claim(**wanted)) is not None:
        claim.complete()


@pytest.fixture(scope="module")
def foreign(zookeeper: str) -> Iterator[Queue]:
    """A queue with many tasks of one kind, and lanes for another; by a client that only enqueues and works."""
    with Zkmq.connect(zookeeper, root=fresh_root(), session_timeout=20, gc=False) as client:
        queue = client.queue("plant")
        queue.configure(filters={"kind": String()})
        queue.enqueue_many([Message(b"x", {"kind": "foreign"}) for _ in range(FOREIGN)])
        queue.enqueue(b"x", {"kind": "mine"})
        drained(queue, selector="kind==mine")
        yield queue


def total(requests: dict[str, int], before: dict[str, int]) -> Counter[str]:
    return Counter(requests) - Counter(before)


def test_an_idle_consumer_sends_nothing_whatever_others_do_with_foreign_tasks(zookeeper: str, foreign: Queue) -> None:
    """Others enqueue, claim and complete what does not concern it; then its own comes, and costs what one costs."""
    with clients(zookeeper, foreign.root, 1, session_timeout=20) as (client,):
        mine = client.queue("plant")
        mine.counts()
        with waiting(mine, selector="kind==mine") as crowd:
            before = client.requests
            for _ in range(20):
                foreign.enqueue(b"x", {"kind": "foreign"})
                claim = foreign.claim(selector="kind==foreign")
                assert claim is not None
                claim.complete()
            task_id = foreign.enqueue(b"x", {"kind": "mine"})
            eventually(lambda: crowd.got == [task_id])
            cost = total(client.requests, before)
        assert all(cost[kind] <= WOKEN[kind] for kind in cost), cost


def test_of_many_idle_threads_one_looks(zookeeper: str, root: str, zk: Zkmq) -> None:
    """Fifty threads of a client wait, then one: an enqueue costs the same requests, and one thread has it."""
    queue = zk.queue("threads")
    queue.configure(filters={"kind": String()})
    queue.enqueue(b"x", {"kind": "mine"})
    drained(queue)
    costs = []
    for threads in (1, CONSUMERS):
        with clients(zookeeper, root, 1, session_timeout=20) as (client,):
            with waiting(client.queue("threads"), threads) as crowd:
                before = client.requests
                task_id = queue.enqueue(b"x", {"kind": "mine"})
                eventually(lambda crowd=crowd, task_id=task_id: crowd.got == [task_id])
                crowd.settle(threads - 1)
                costs.append(total(client.requests, before))
        drained(queue)
    one, many = costs
    assert all(many[kind] <= WOKEN[kind] for kind in many), many
    assert sum(many.values()) <= sum(one.values()) + 2  # who is left lists what the claim has changed


def test_as_many_threads_wake_as_there_is_work(zookeeper: str, root: str, zk: Zkmq) -> None:
    """Fifty threads of a client wait and fifty tasks come at once: each has one, whoever was told of it."""
    queue = zk.queue("threads")
    queue.enqueue(b"x")
    drained(queue)
    with clients(zookeeper, root, 1, session_timeout=20) as (client,):
        with waiting(client.queue("threads"), CONSUMERS) as crowd:
            ids = queue.enqueue_many([Message(b"x") for _ in range(CONSUMERS)])
            eventually(lambda: sorted(crowd.got) == sorted(ids))


def _interval(queue: Queue) -> float | None:
    """What the client remembers, as long as it stands."""
    conf = fresh_conf(queue._context)
    return None if conf is None else conf.gc_interval


def test_many_threads_begin_as_one(zookeeper: str, root: str, zk: Zkmq) -> None:
    """What all of them need is read once when they begin, and once when it changes: the configuration, who lives."""
    queue = zk.queue("threads")
    queue.enqueue(b"x")
    drained(queue)
    begun, changed = [], []
    for threads in (1, CONSUMERS):
        with clients(zookeeper, root, 1, session_timeout=20) as (client,):
            there = client.queue("threads")
            with waiting(there, threads):
                begun.append(client.requests)
                queue.configure(task_gc_interval=100 + threads)
                eventually(lambda there=there, threads=threads: _interval(there) == 100 + threads)
                changed.append(total(client.requests, begun[-1]))
        drained(queue)  # who has gone is taken off the register, and nobody else comes or goes meanwhile
    assert begun[0] == begun[1]
    assert sum(changed[1].values()) <= sum(changed[0].values()) + 1


def test_a_stop_reaches_every_idle_thread(zookeeper: str, root: str, zk: Zkmq) -> None:
    """Nobody else's work is needed for that, and nothing is asked of the servers."""
    queue = zk.queue("threads")
    queue.enqueue(b"x")
    drained(queue)
    with clients(zookeeper, root, 1, session_timeout=20) as (client,):
        with waiting(client.queue("threads"), CONSUMERS):
            before = client.requests
        assert total(client.requests, before) == {}


def test_idle_consumers_of_one_kind_do_not_hear_of_another(zookeeper: str, foreign: Queue) -> None:
    """Many consumers wait, each a client; one of them gets what it waits for, and the others send nothing."""
    drained(foreign, selector="kind==mine")
    many = CONSUMERS if LARGE else 12
    with clients(zookeeper, foreign.root, many, session_timeout=20) as everybody:
        queues = [client.queue("plant") for client in everybody]
        live = foreign._context.paths.at("live")
        crowd = [Waiting(queues[0], 1, selector="kind==mine")]
        crowd += [Waiting(queue, 1, selector="kind==other") for queue in queues[1:]]
        try:
            count = len(foreign._session.client.get_children(live))
            current = lambda queue: len(queue._context.census.live) == count and not queue._context.census.watch.fired
            eventually(lambda: all(map(current, queues)), within=60)
            for each in crowd:
                each.settle(1)
            before = [client.requests for client in everybody]
            task_id = foreign.enqueue(b"x", {"kind": "mine"})
            eventually(lambda: crowd[0].got == [task_id])
            costs = [total(client.requests, old) for client, old in zip(everybody, before, strict=True)]
        finally:
            for each in crowd:
                each.stop()
    assert costs[1:] == [{}] * (many - 1)
    assert sum(costs[0].values()) <= sum(WOKEN.values())


@pytest.fixture
def crowded(zk: Zkmq) -> Queue:
    """A queue whose tasks are in one consumer's hand."""
    return zk.queue("waited")


async def _parked(condition: Callable[[], bool]) -> None:
    """Return when others have come so far, which they do on this loop."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)


async def test_a_task_that_ends_wakes_its_own_waiter_only(zookeeper: str, root: str, crowded: Queue) -> None:
    """Many wait in one process, each for a task of its own; one ends: two reads in all, and one waiter goes on."""
    ids = await asyncio.to_thread(crowded.enqueue_many, [Message(b"x") for _ in range(WAITERS)])
    async with AsyncZkmq.connect(zookeeper, root=root, session_timeout=20, gc=False) as client:
        there = client.queue("waited")
        waits = [asyncio.create_task(there.wait([task_id], timeout=600)) for task_id in ids]
        readings = there._context.listings.readings
        state = there._context.paths.task
        await _parked(lambda: all((it := readings.get(state(each, "state"))) and it.fresh for each in ids))
        before = client.requests
        claim = await asyncio.to_thread(crowded.claim)
        assert claim is not None
        await asyncio.to_thread(claim.complete)
        ended = waits.pop(ids.index(claim.task.id))
        (task,) = await ended
        cost = total(client.requests, before)
        assert (task.id, task.state) == (claim.task.id, "finished")
        assert cost["Get"] <= 2  # claimed, finished
        assert cost["GetMany"] == 1
        assert set(cost) <= {"Get", "GetMany", "RemoveWatches"}
        assert not any(wait.done() for wait in waits)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def test_many_waiters_for_batches_are_a_watch_for_each_batch(zookeeper: str, root: str, crowded: Queue) -> None:
    """Two batches with many waiters each: the end of one costs its own waiters a look, and the others nothing."""
    for name in ("one", "two"):
        await asyncio.to_thread(crowded.enqueue_many, [Message(b"x", priority=9 if name == "one" else 0)], batch=name)
    half = WAITERS // 2
    async with AsyncZkmq.connect(zookeeper, root=root, session_timeout=20, gc=False) as client:
        there = client.queue("waited")
        waits = {
            name: [asyncio.create_task(there.wait_batch(name, timeout=600)) for _ in range(half)]
            for name in ("one", "two")
        }
        readings, batch = there._context.listings.readings, there._context.paths.batch
        seated = lambda name: (it := readings.get(batch(name, "open"))) and len(it.subscribers) == half and it.fresh
        await _parked(lambda: all(map(seated, ("one", "two"))))
        signals = [each for name in ("one", "two") for each in readings[batch(name, "open")].subscribers]
        await _parked(lambda: all(len(signal._callbacks) for signal in signals))
        before = client.requests
        claim = await asyncio.to_thread(crowded.claim)
        assert claim is not None
        await asyncio.to_thread(claim.complete)
        assert all(each.done for each in await asyncio.gather(*waits["one"]))
        cost = total(client.requests, before)
        assert sum(cost.values()) <= 3 * half + 2
        assert not any(wait.done() for wait in waits["two"])
        for wait in waits["two"]:
            wait.cancel()
        await asyncio.gather(*waits["two"], return_exceptions=True)


async def test_an_enqueue_wakes_one_of_many_coroutines(zookeeper: str, root: str, zk: Zkmq) -> None:
    """Many coroutines of one client wait for a task: the requests for one enqueue are those of a single one."""
    queue = zk.queue("threads")
    await asyncio.to_thread(queue.enqueue, b"x")
    await asyncio.to_thread(drained, queue)
    async with AsyncZkmq.connect(zookeeper, root=root, session_timeout=20, gc=False) as client:
        there = client.queue("threads")
        waits = [asyncio.create_task(there.claim(timeout=600)) for _ in range(WAITERS)]
        signal = there._context.signal
        await _parked(lambda: len(signal._callbacks) == WAITERS)
        before = client.requests
        task_id = await asyncio.to_thread(queue.enqueue, b"x")
        done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert [one.result().task.id for one in done] == [task_id]
        await _parked(lambda: len(signal._callbacks) == WAITERS - 1)
        cost = total(client.requests, before)
        assert all(cost[kind] <= WOKEN[kind] for kind in cost), cost
        for wait in rest:
            wait.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        assert len(signal._callbacks) == 0


def test_a_look_at_nothing_costs_nothing(zookeeper: str, foreign: Queue) -> None:
    """A warm consumer that asks without waiting, again and again, with many foreign tasks pending."""
    with clients(zookeeper, foreign.root, 1, session_timeout=20) as (client,):
        queue = client.queue("plant")
        drained(queue, selector="kind==mine")
        assert spent(client, lambda: [queue.claim(selector="kind==mine") for _ in range(100)]) == {}
