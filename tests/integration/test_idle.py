"""What waits asks for nothing, and what comes for one leaves the others calm (``ZKMQ_SCALE=1``: in a large plant)."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncZkmq, Message, Queue, String, Zkmq
from airflow_provider_zkmq.engine.core.read.configuration import fresh_conf
from tests.integration.clients import clients, spent
from tests.integration.conftest import started, taken, waits
from tests.support import eventually, fresh_root

LARGE = os.environ.get("ZKMQ_SCALE") == "1"
FOREIGN = 100_000 if LARGE else 1_000
WAITERS = 10_000 if LARGE else 300
CONSUMERS = 50
#: What a claim that waits sends for one task once it is woken, at the most: it lists, reads, asks for the time where it
#: has not heard it of late, and claims; then who is left lists what that has changed.
WOKEN = {"Children": 2, "GetMany": 1, "Multi": 2}
#: What a crowd of consumers sends for one task: each lists what has changed, and few read the task. It is about 55
#: here, more on a machine that is busy; if everybody read it, it would be more than two for each.
FOR_ONE = 2 * CONSUMERS
#: And for a task each: 150 to 250 here, more where many meet at a task. If everybody looked at each it would be 2 500.
FOR_THE_OTHERS = 1_000


class Waiting:
    """Threads that wait for a task each: one for each queue, which may be the same or that of another client."""

    def __init__(self, *queues: Queue, **wanted: Any) -> None:
        self._queues, self._stopping, self.got = queues, False, list[str]()
        self._calls = [started(partial(self._wait, each, **wanted)) for each in queues]
        self.settle()

    def _wait(self, queue: Queue, **wanted: Any) -> None:
        claim = queue.claim(timeout=300, stopping=lambda: self._stopping, **wanted)
        if claim is not None:
            self.got.append(claim.task.id)

    def settle(self) -> None:
        """Return once all that still wait sit on their seats, have heard of what has happened, and nobody looks."""
        for queue in set(self._queues):
            queue._session.client.exists("/")  # what was told by then has arrived before the answer
        eventually(lambda: sum(map(waits, set(self._queues))) == len(self._queues) - len(self.got), within=60)

    def close(self) -> None:
        """Those that still wait go home."""
        self._stopping = True
        for queue in self._queues:
            queue._context.signal.fire()
        for call in self._calls:
            call.result(60)


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
    """Nor one of another kind, nor one that asks again and again; then its own task comes, at the cost of one."""
    with clients(zookeeper, foreign.root, 2, session_timeout=20) as (client, stranger):
        mine, theirs = client.queue("plant"), stranger.queue("plant")
        mine.counts()
        with (
            closing(Waiting(mine, selector="kind==mine")) as crowd,
            closing(Waiting(theirs, selector="kind==other")) as strangers,
        ):
            count = len(foreign._session.client.get_children(foreign._context.paths.at("live")))
            seen = lambda queue: queue._context.known_consumers
            known = lambda queue: len(seen(queue).live) == count and not seen(queue).watch.fired
            eventually(lambda: known(mine) and known(theirs), within=60)
            crowd.settle()
            strangers.settle()
            before, others_before = client.requests, stranger.requests
            for _ in range(20):
                foreign.enqueue(b"x", {"kind": "foreign"})
                taken(foreign, selector="kind==foreign").complete()
            task_id = foreign.enqueue(b"x", {"kind": "mine"})
            eventually(lambda: crowd.got == [task_id])
            cost = total(client.requests, before)
            assert total(stranger.requests, others_before) == {}
        assert all(cost[kind] <= WOKEN[kind] for kind in cost), cost
        drained(mine, selector="kind==mine")
        assert spent(client, lambda: [mine.claim(selector="kind==mine") for _ in range(100)]) == {}


@pytest.fixture
def threads(zk: Zkmq) -> Queue:
    """A queue in which nothing is pending; its lane is there."""
    queue = zk.queue("threads")
    queue.configure(filters={"kind": String()})
    queue.enqueue(b"x", {"kind": "mine"})
    drained(queue)
    return queue


def test_of_many_idle_threads_one_looks(zookeeper: str, threads: Queue) -> None:
    """Fifty threads of a client wait, or one: an enqueue costs the same requests, and one thread has it.

    What all need is read once when they begin and when it changes: the configuration, who lives. As many tasks as
    there are threads reach each of them. A stop reaches those who still wait, and asks nothing of the servers.
    """
    begun, changed, costs = [], [], []
    for number in (1, CONSUMERS):
        with clients(zookeeper, threads.root, 1, session_timeout=20) as (client,):
            there = client.queue("threads")
            with closing(Waiting(*[there] * number)) as crowd:
                begun.append(client.requests)
                threads.configure(task_gc_interval=100 + number)
                eventually(lambda q=there, n=number: getattr(fresh_conf(q._context), "gc_interval", 0) == 100 + n)
                changed.append(total(client.requests, begun[-1]))
                crowd.settle()
                before = client.requests
                ids = [threads.enqueue(b"x", {"kind": "mine"})]
                eventually(lambda crowd=crowd, ids=ids: crowd.got == ids)
                crowd.settle()
                costs.append(total(client.requests, before))
                ids += threads.enqueue_many([Message(b"x") for _ in range(number - 2)])
                eventually(lambda crowd=crowd, ids=ids: sorted(crowd.got) == sorted(ids))
                crowd.settle()
                before = client.requests
            assert total(client.requests, before) == {}
        drained(threads)  # who has gone is taken off the register, and nobody else comes or goes meanwhile
    one, many = costs
    assert all(many[kind] <= WOKEN[kind] for kind in many), many
    assert many.total() <= one.total() + 2  # who is left lists what the claim has changed
    assert begun[0] == begun[1]
    assert changed[1].total() <= changed[0].total() + 1


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_an_enqueue_wakes_few_of_many_who_wait(zookeeper: str, threads: Queue, order: str) -> None:
    """Fifty clients wait: one task, then forty-nine at once; the requests of all are bounded, and everybody has one."""
    threads.configure(order=order)
    live = threads._context.paths.at("live")
    with clients(zookeeper, threads.root, CONSUMERS, session_timeout=20) as many:
        with closing(Waiting(*[client.queue("threads") for client in many])) as crowd:
            eventually(lambda: len(threads._session.client.get_children(live)) == CONSUMERS + 1, within=60)
            crowd.settle()
            costs: list[Counter[str]] = []
            for count in (1, CONSUMERS - 1):
                before = [client.requests for client in many]
                had = len(crowd.got)
                threads.enqueue_many([Message(b"x", {"kind": "mine"}) for _ in range(count)])
                eventually(lambda had=had, count=count: len(crowd.got) == had + count, within=60)
                crowd.settle()
                spent_by_each = [total(client.requests, old) for client, old in zip(many, before, strict=True)]
                costs.append(sum(spent_by_each, Counter()))
        assert len(set(crowd.got)) == CONSUMERS
    assert costs[0].total() <= FOR_ONE, costs
    assert costs[1].total() <= FOR_THE_OTHERS, costs


async def _parked(condition: Callable[[], bool]) -> None:
    """Return when others have come so far, which they do on this loop."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)


async def _cancelled(calls: Iterable[asyncio.Task[Any]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def _completed(queue: Queue) -> Any:
    """The claim of a task that another client has completed."""
    claim = await asyncio.to_thread(taken, queue)
    await asyncio.to_thread(claim.complete)
    return claim


async def test_a_task_that_ends_wakes_its_own_waiter_only(zookeeper: str, root: str, q: Queue) -> None:
    """Many wait in one process, each for a task of its own; one ends: two reads in all, and one waiter goes on."""
    ids = await asyncio.to_thread(q.enqueue_many, [Message(b"x") for _ in range(WAITERS)])
    async with AsyncZkmq.connect(zookeeper, root=root, session_timeout=20, gc=False) as client:
        there = client.queue(q.name)
        calls = [asyncio.create_task(there.wait([task_id], timeout=600)) for task_id in ids]
        readings = there._context.listings.readings
        state = there._context.paths.task
        await _parked(lambda: all((it := readings.get(state(each, "state"))) and it.fresh for each in ids))
        before = client.requests
        claim = await _completed(q)
        ended = calls.pop(ids.index(claim.task.id))
        (task,) = await ended
        cost = total(client.requests, before)
        assert (task.id, task.state) == (claim.task.id, "finished")
        assert cost["Get"] <= 2  # claimed, finished
        assert cost["GetMany"] == 1
        assert set(cost) <= {"Get", "GetMany", "RemoveWatches"}
        assert not any(wait.done() for wait in calls)
        await _cancelled(calls)


async def test_many_waiters_for_batches_are_a_watch_for_each_batch(zookeeper: str, root: str, q: Queue) -> None:
    """Two batches with many waiters each: the end of one costs its own waiters a look, and the others nothing."""
    for name, priority in (("one", 9), ("two", 0)):
        await asyncio.to_thread(q.enqueue_many, [Message(b"x", priority=priority)], batch=name)
    half = WAITERS // 2
    async with AsyncZkmq.connect(zookeeper, root=root, session_timeout=20, gc=False) as client:
        there = client.queue(q.name)
        calls = {
            name: [asyncio.create_task(there.wait_batch(name, timeout=600)) for _ in range(half)]
            for name in ("one", "two")
        }
        readings, batch = there._context.listings.readings, there._context.paths.batch
        seated = lambda name: (it := readings.get(batch(name, "open"))) and len(it.subscribers) == half and it.fresh
        await _parked(lambda: all(map(seated, ("one", "two"))))
        signals = [each for name in ("one", "two") for each in readings[batch(name, "open")].subscribers]
        await _parked(lambda: all(len(signal._callbacks) for signal in signals))
        before = client.requests
        await _completed(q)
        assert all(each.done for each in await asyncio.gather(*calls["one"]))
        cost = total(client.requests, before)
        assert sum(cost.values()) <= 3 * half + 2
        assert not any(wait.done() for wait in calls["two"])
        await _cancelled(calls["two"])
