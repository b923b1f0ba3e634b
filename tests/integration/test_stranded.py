"""No claim is left with nobody: whatever is lost or cancelled, on a real server behind a faulty door.

After each kind of trouble the same client claims once more; then every claimed task is in a caller's hand, and in the
end every task can be had. And nobody sleeps over a task that is there.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncQueue, AsyncZkmq, Message, Queue, RetryPolicy, Task, Zkmq
from airflow_provider_zkmq.engine.errors import ZkmqError
from tests.faulty import CutAfter, CutBefore, Fault, Faulty, Hold, Late, Once, Request, Tell, faultless
from tests.support import eventually

SPARE = 10
SHOWN = 5
PATIENCE_S = 20.0
SWALLOWED = "cancelled, and returned all the same"


@pytest.fixture(autouse=True)
def _no_word_of_each_cut(caplog: pytest.LogCaptureFixture) -> None:
    """What kazoo says of each connection would bury a report."""
    caplog.set_level(logging.ERROR, "airflow_provider_zkmq.kazoo")


@pytest.fixture
def client(door: Faulty, root: str) -> Iterator[Zkmq]:
    """Who meets the trouble; `zk` looks on, past the door."""
    with Zkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as made:
        yield made


@dataclass
class Hall:
    """A queue of so many tasks, as a client sees it that takes no part, and what the calls of the others got."""

    observer: Queue
    everything: set[str] = field(default_factory=set)
    got: set[str] = field(default_factory=set)
    said: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, zk: Zkmq, name: str, count: int, order: str = "default") -> Hall:
        """A new queue."""
        observer = zk.queue(name)
        observer.configure(policy=RetryPolicy(attempts=1_000, factor=0), order=order)
        return cls(observer, set(observer.enqueue_many([Message(f"t{number}") for number in range(count)])))

    def note(self, what: str, got: Any) -> None:
        """A call has returned a claim, the id of a task, or nothing."""
        self.said[what] += 1
        if got is not None:
            self.got.add(got if isinstance(got, str) else got.task.id)

    def stranded(self) -> list[str]:
        """One line for each claimed task of a living session that nobody holds."""
        live = set(self.observer._session.client.get_children(self.observer._context.paths.at("live")))
        return [
            f"{task.id} ({task.data.decode()}): claimed by {task.consumer}; the calls said {dict(self.said)}"
            for task in self.observer.tasks(state="claimed")
            if task.consumer in live and task.id not in self.got
        ]

    def nothing_is_stranded(self, claim: Callable[[float], Any]) -> None:
        """One more claim by the same client; then all that is claimed is in hand, and all the rest can be had.

        A call that was cancelled twice may still be giving something back.
        """
        one_more = claim(PATIENCE_S)
        assert one_more is not None, f"nothing can be claimed any more; the calls said {dict(self.said)}"
        self.got.add(one_more.task.id)
        if self.said["cancelled"]:
            deadline = time.monotonic() + 5
            while self.stranded() and time.monotonic() < deadline:
                time.sleep(0.02)  # looks again; the deadline bounds it
        assert self.stranded()[:SHOWN] == []
        while (more := claim(0)) is not None:
            self.got.add(more.task.id)
        self.got |= {task.id for task in self.observer.tasks(state="finished")}  # cancelled too late
        assert self.got == self.everything, f"the calls said {dict(self.said)}"

    async def nothing_is_stranded_by(self, queue: AsyncQueue) -> None:
        """The same of a client on this event loop."""
        loop = asyncio.get_running_loop()

        def claim(timeout: float) -> Any:
            return asyncio.run_coroutine_threadsafe(queue.claim(timeout=timeout), loop).result(2 * PATIENCE_S)

        await asyncio.to_thread(self.nothing_is_stranded, claim)


# --- lost packets


def _claims(request: Request) -> bool:
    return request.claims


@pytest.mark.full
def test_a_claim_that_loses_its_connection_has_its_task(
    zk: Zkmq, client: Zkmq, door: Faulty, subtests: pytest.Subtests
) -> None:
    """Each call gives its caller a task of his own, though the connection is lost at the claim's transaction."""
    faults: list[tuple[Fault, dict[str, Any]]] = [(fault, {}) for fault in (CutBefore(), CutAfter(), Late(0.1))]
    faults.append((CutAfter(), {"lease": 600}))
    for number, (order, (fault, options)) in enumerate(product(("default", "fifo"), faults)):
        with subtests.test(order=order, fault=fault, **options):
            trials = 20 if fault == CutAfter() else 8
            hall, q = Hall.of(zk, f"q{number}", 2 * trials + SPARE, order), client.queue(f"q{number}")
            for trial in range(trials):
                door.plan = plan = Once(_claims, fault)
                try:
                    claim = q.claim(timeout=PATIENCE_S, **options)
                except ZkmqError as error:
                    hall.said[type(error).__name__] += 1
                else:
                    hall.note("None" if claim is None else "a claim", claim)
                assert plan.met.is_set()
                assert len(hall.got) == trial + 1, "two calls got the same task"
            hall.nothing_is_stranded(lambda timeout, q=q: q.claim(timeout=timeout))
            assert set(hall.said) == {"a claim"}, hall.said


# --- cancelled calls


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

    door.plan = Once(_claims, Tell(lambda: loop.call_soon_threadsafe(together)))
    await asyncio.wait({task, waiter := asyncio.ensure_future(come.wait())}, timeout=PATIENCE_S)
    await asyncio.wait({waiter}, timeout=PATIENCE_S)


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
    seed, trials, cancelled = 17, 30, 0
    rng = random.Random(seed)
    async with AsyncZkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as own:
        for call, way in product((_claim, _take, _take_and_leave), (_at_random, _twice, _at_the_reply)):
            with subtests.test(seed=seed, call=call.__name__, way=way.__name__):
                name = f"q{call.__name__}{way.__name__}"
                hall = await asyncio.to_thread(Hall.of, zk, name, 2 * trials)
                hall.note("came first", await own.queue(name).claim(timeout=PATIENCE_S))
                for _ in range(trials):
                    door.plan = faultless
                    task = asyncio.ensure_future(call(own, name))
                    await way(task, door, rng)
                    met = task.cancelling() > 0
                    done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
                    assert done, f"a cancelled call did not end; the others {hall.said}"
                    if task.cancelled():
                        hall.said["cancelled"] += 1
                    else:
                        hall.note(SWALLOWED if met else "came first", task.result())
                cancelled += hall.said["cancelled"]
                await hall.nothing_is_stranded_by(own.queue(name))
                assert not hall.said[SWALLOWED], hall.said
    assert cancelled > trials, "hardly a call was met"


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
                found = await own.queue(f"in{name}").task(task_id)
                written = (await own.queue(f"out{name}").counts())["inserted"]
                assert (found.state, written) in ({("finished", 1)} if commits else set()) | {("inserted", 0)}
                claim = await own.queue(f"in{name}").claim(timeout=PATIENCE_S if found.state == "inserted" else 0)
                assert (claim and claim.task.id) == (task_id if found.state == "inserted" else None)


# --- nobody sleeps over work


@pytest.mark.full
def test_an_idle_worker_begins_each_of_two_tasks_at_once(zk: Zkmq, other: Zkmq, subtests: pytest.Subtests) -> None:
    """Idle threads, two enqueues by another client 0 to 10 ms apart: each is begun, and nothing but itself wakes them.

    `slow`: a handler is at work until the other task was begun, too: who is busy cannot make good for who sleeps.
    """
    rng = random.Random(seed := 3)
    cases = product(("default", "fifo"), [(2, True), (8, True), (8, False)])
    for number, (order, (threads, slow)) in enumerate(cases):
        with subtests.test(seed=seed, order=order, threads=threads, slow=slow):
            observer, gate = Hall.of(zk, f"q{number}", 0, order).observer, threading.Event()
            begun: set[str] = set()

            def handler(task: Task, begun: set[str] = begun, gate: threading.Event = gate, slow: bool = slow) -> None:
                begun.add(task.id)
                if slow:
                    gate.wait(3 * PATIENCE_S)

            worker = other.queue(f"q{number}").worker(handler, threads=threads)
            worker.start()
            try:
                for trial in range(12):
                    gate.clear()
                    two = {observer.enqueue(b"x")}
                    time.sleep(rng.random() * 0.01)  # what the test is about
                    two.add(observer.enqueue(b"x"))
                    eventually(lambda two=two, begun=begun: two <= begun)
                    gate.set()
                    eventually(lambda worker=worker, trial=trial: worker.finished == 2 * (trial + 1))
                    time.sleep(rng.choice((0.0, 0.0, 0.0, 0.3)))  # idle for less or more than a listing is reused
            finally:
                gate.set()
                worker.stop()
                worker.join()
