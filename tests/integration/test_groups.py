"""Groups on a real server: several tasks claimed together, and calls of one client that go together."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from airflow_provider_zkmq.engine import AsyncZkmq, ConfigError, Message, Queue, Zkmq


def fill(q: Queue, count: int) -> list[str]:
    return q.enqueue_many([Message(b"x", task_id=f"t{number:04d}") for number in range(count)])


def test_several_tasks_are_claimed_and_settled(zk: Zkmq, q: Queue) -> None:
    """In the queue's order, with few requests; each claim is a claim like any other."""
    ids = fill(q, 40)
    first = q.claim()
    assert first is not None
    before = zk.requests["Multi"]
    claims = q.claim_many(32)
    assert zk.requests["Multi"] == before + 1
    assert [each.task.id for each in (first, *claims)] == ids[:33]
    assert len({each.token for each in claims}) == 1
    claims[0].fail("e", backoff=0)
    claims[1].release()
    for claim in (first, *claims[2:]):
        claim.complete(b"r")
    assert q.counts()["finished"] == 31
    assert [each.task.id for each in q.claim_many(64, timeout=5)] == [ids[1], ids[2], *ids[33:]]
    assert q.claim_many(3) == []
    assert q.claim_many(3, timeout=0.1) == []


@pytest.mark.parametrize("n", [0, 65, -1, True, 1.0, "3", None])
def test_how_many_is_checked(q: Queue, n: object) -> None:
    """Before anything is asked of the queue."""
    with pytest.raises(ConfigError, match="a whole number from 1 to 64"):
        q.claim_many(n)  # type: ignore[arg-type]


def test_several_consumers_take_each_task_once(zookeeper: str, root: str, q: Queue) -> None:
    """In both orders, whoever loses a race."""
    for order in ("default", "fifo"):
        q.configure(order=order)
        ids = fill(q, 200) if order == "default" else q.enqueue_many([Message(b"x") for _ in range(200)])
        taken: list[str] = []

        def drain(taken: list[str] = taken) -> None:
            with Zkmq.connect(zookeeper, root=root, gc=False) as zk:
                queue = zk.queue(q.name)
                while claims := queue.claim_many(16, timeout=0.2):
                    for claim in claims:
                        claim.complete()
                        taken.append(claim.task.id)

        threads = [threading.Thread(target=drain) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Counter(taken) == Counter(ids)


def test_threads_of_one_client_share_transactions(zk: Zkmq, q: Queue) -> None:
    """Each task is handled once, with fewer transactions than calls."""
    ids, taken = fill(q, 160), list[str]()
    warm = q.claim()
    assert warm is not None
    warm.complete()
    before = zk.requests["Multi"]

    def drain() -> None:
        while (claim := q.claim()) is not None:
            claim.complete(claim.task.id)
            taken.append(claim.task.id)

    threads = [threading.Thread(target=drain) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(taken) == Counter(ids[1:])
    assert all(q.task(each).result == each.encode() for each in ids[1:])
    assert zk.requests["Multi"] - before < 2 * 159


def test_coroutines_of_one_client_share_transactions(zookeeper: str, root: str, q: Queue) -> None:
    """Enqueues, claims and settlements of 64 coroutines; some are cancelled, and nothing is lost or doubled."""

    async def main() -> None:
        async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as zk:
            queue, taken = zk.queue(q.name), Counter[str]()
            await queue.enqueue(b"first")
            before = zk.requests["Multi"]
            ids = await asyncio.gather(*[queue.enqueue(b"x") for _ in range(64)])
            assert zk.requests["Multi"] - before < 32
            cut = [asyncio.ensure_future(queue.claim_many(4)) for _ in range(6)]
            for number, each in enumerate(cut):
                await asyncio.sleep(0)
                if number % 2:
                    each.cancel()
            for claims in await asyncio.gather(*cut, return_exceptions=True):
                for claim in claims if isinstance(claims, list) else ():
                    await claim.complete()
                    taken[claim.task.id] += 1

            async def drain() -> None:
                while (claim := await queue.claim(timeout=0.3)) is not None:
                    await claim.complete()
                    taken[claim.task.id] += 1

            await asyncio.gather(*[drain() for _ in range(64)])
            assert set(taken.values()) == {1}
            assert set(ids) <= set(taken)
            tasks = await queue.tasks()
            assert all(task.attempt == 1 for task in tasks)

    asyncio.run(main())
