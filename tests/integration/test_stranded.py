"""No claim is left with nobody: calls are cancelled behind a faulty door; then all that is claimed is in some hand."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncQueue, AsyncZkmq, Message, Queue, RetryPolicy, Zkmq
from tests.faulty import CutAfter, CutBefore, Fault, Faulty, Hold, Late, Once, Request, Tell, faultless
from tests.support import eventually

PATIENCE_S = 20.0
TRIALS = 16


class Hall:
    """A queue of so many tasks, as a client sees it that takes no part, and what the calls of the others got."""

    def __init__(self, zk: Zkmq, name: str, count: int) -> None:
        self.observer: Queue = zk.queue(name)
        self.observer.configure(policy=RetryPolicy(attempts=1_000, factor=0))
        self.everything = set(self.observer.enqueue_many([Message(b"x") for _ in range(count)]))
        self.got, self.said = set[str](), Counter[str]()

    def note(self, what: str, got: Any) -> None:
        """A call has returned a claim, the id of a task, or nothing."""
        self.said[what] += 1
        if got is not None:
            self.got.add(got if isinstance(got, str) else got.task.id)

    def stranded(self) -> list[str]:
        """The claimed tasks of a living session that nobody holds."""
        live = set(self.observer._session.client.get_children(self.observer._context.paths.at("live")))
        claimed = self.observer.tasks(state="claimed")
        return [task.id for task in claimed if task.consumer in live and task.id not in self.got]

    async def nothing_is_stranded_by(self, queue: AsyncQueue) -> None:
        """One more claim by the same client; then all that is claimed is in hand, and all the rest can be had.

        A call that was cancelled twice may still be giving something back.
        """
        one_more = await queue.claim(timeout=PATIENCE_S)
        assert one_more is not None, f"nothing can be claimed any more; the calls said {self.said}"
        self.got.add(one_more.task.id)
        await asyncio.to_thread(eventually, lambda: not self.stranded())
        while (more := await queue.claim()) is not None:
            self.got.add(more.task.id)
        finished = await asyncio.to_thread(self.observer.tasks, state="finished")
        self.got |= {task.id for task in finished}  # cancelled too late
        assert self.got == self.everything, f"the calls said {self.said}"


def claims(request: Request) -> bool:
    return request.claims


# --- when a call is cancelled


async def _at_random(task: asyncio.Task[Any], door: Faulty, rng: random.Random) -> None:
    await asyncio.sleep(rng.random() * 0.006)
    task.cancel()


async def _twice(task: asyncio.Task[Any], door: Faulty, rng: random.Random) -> None:
    await _at_random(task, door, rng)
    await asyncio.sleep(rng.choice((0.0, rng.random() * 0.004)))
    task.cancel()


async def _at_the_reply(task: asyncio.Task[Any], door: Faulty, rng: random.Random) -> None:
    """The reply and the cancellation meet in one turn of the event loop, now in this order, now in the other."""
    loop = asyncio.get_running_loop()
    come = asyncio.Event()
    kept = threading.Event()

    def together() -> None:
        order = rng.randrange(3)
        if order == 0:
            task.cancel()
        kept.wait(0.004)  # the loop stands still until the reply has been read by the connection's thread
        if order == 1:
            task.cancel()
        elif order == 2:
            loop.call_soon_threadsafe(task.cancel)
        come.set()

    door.plan = Once(claims, Tell(lambda: loop.call_soon_threadsafe(together)))
    await asyncio.wait({task, waiter := asyncio.ensure_future(come.wait())}, timeout=PATIENCE_S)
    await asyncio.wait({waiter}, timeout=PATIENCE_S)


# --- what is cancelled


async def _claim(zk: AsyncZkmq, name: str) -> Any:
    return await zk.queue(name).claim(timeout=5)


async def _take(zk: AsyncZkmq, name: str) -> Any:
    """Take a task in a transaction that is never ended by its caller."""
    tx = zk.transaction()
    return None if (task := await tx.try_take(name)) is None else task.id


async def _take_and_leave(zk: AsyncZkmq, name: str) -> Any:
    """Take a task in a transaction that is rolled back as the cancellation passes through it."""
    async with zk.transaction() as tx:
        await tx.try_take(name, timeout=5)
        await asyncio.sleep(0.002)
        await tx.commit()


async def test_a_cancelled_call_leaves_nothing_behind(
    zk: Zkmq, door: Faulty, root: str, subtests: pytest.Subtests
) -> None:
    """A cancelled claim or taking ends, cancelled; what it may have got goes back before the next claim."""
    rng, cancelled = random.Random(seed := 17), 0
    async with AsyncZkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as own:
        for call, way in product((_claim, _take, _take_and_leave), (_at_random, _twice, _at_the_reply)):
            with subtests.test(seed=seed, call=call.__name__, way=way.__name__):
                name = f"q{call.__name__}{way.__name__}"
                hall = await asyncio.to_thread(Hall, zk, name, 2 * TRIALS)
                hall.note("came first", await own.queue(name).claim(timeout=PATIENCE_S))
                for _ in range(TRIALS):
                    door.plan = faultless
                    task = asyncio.ensure_future(call(own, name))
                    await way(task, door, rng)
                    met = task.cancelling() > 0
                    done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
                    assert done, f"a cancelled call did not end; the others {hall.said}"
                    if task.cancelled():
                        hall.said["cancelled"] += 1
                    else:
                        hall.note("cancelled, and returned all the same" if met else "came first", task.result())
                cancelled += hall.said["cancelled"]
                await hall.nothing_is_stranded_by(own.queue(name))
                assert set(hall.said) <= {"came first", "cancelled"}
    assert cancelled > TRIALS, "hardly a call was met"


def _settles(request: Request) -> bool:
    """Whether it is a transaction that settles a claim: a commit, or what rolls one back."""
    return any(kind == "delete" and path.endswith("/claim") for kind, path in request.operations)


async def test_a_transaction_cancelled_at_its_end_is_whole_and_ends_cancelled(
    zk: Zkmq, door: Faulty, root: str, subtests: pytest.Subtests
) -> None:
    """The cancellation is what its caller gets, also where the commit has happened; a rollback goes on."""
    loop = asyncio.get_running_loop()
    async with AsyncZkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as own:

        async def work(number: str, *, commits: bool) -> None:
            async with own.transaction() as tx:
                assert await tx.try_take(f"in{number}") is not None
                if commits:
                    await tx.put(f"out{number}", b"y")
                    await tx.commit()

        faults = (CutBefore(), CutAfter(), Late(0.1), Hold(0.1))
        for commits, (number, fault) in product((True, False), enumerate(faults)):
            with subtests.test(commits=commits, fault=fault):
                name = f"{number}{commits}"
                task_id = await asyncio.to_thread(zk.queue(f"in{name}").enqueue, b"x")
                await asyncio.to_thread(zk.queue(f"out{name}").configure)
                settled = Once(_settles, fault)

                def plan(request: Request, settled: Once = settled) -> Fault | None:
                    if (met := settled(request)) is not None:
                        loop.call_soon_threadsafe(task.cancel)  # noqa: B023  the task of this round
                    return met

                door.plan = plan
                task = asyncio.ensure_future(work(name, commits=commits))
                await asyncio.wait({task}, timeout=PATIENCE_S)
                assert settled.met.is_set()
                assert task.cancelled(), task
                while (found := await own.queue(f"in{name}").task(task_id)).state == "claimed":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # a rollback that was cut off is made soon after
                written = (await own.queue(f"out{name}").counts())["inserted"]
                assert (found.state, written) in ({("finished", 1)} if commits else set()) | {("inserted", 0)}
                claim = await own.queue(f"in{name}").claim(timeout=PATIENCE_S if found.state == "inserted" else 0)
                assert (claim and claim.task.id) == (task_id if found.state == "inserted" else None)
