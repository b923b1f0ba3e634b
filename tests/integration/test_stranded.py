"""No claim is left with nobody: whatever is lost, cancelled or interrupted, on a real server behind a faulty door.

After each kind of trouble the same client claims once more; then every claimed task is in a caller's hand, and in the
end every task can be had. And nobody sleeps over a task that is there.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AllOf, AsyncZkmq, Message, Queue, RetryPolicy, Task, UnitOfWork, Zkmq
from airflow_provider_zkmq.engine.errors import ZkmqError
from airflow_provider_zkmq.engine.zk.reply import Reply
from tests.faulty import CutAfter, CutBefore, Delay, Fault, Faulty, Late, Once, Request, Tell
from tests.integration.hands import claim_the_rest, claimed_by_the_living, stranded
from tests.support import eventually

TRIALS = 100
TRIALS_OF_TWO = 60
ENOUGH = 20  # so many late ones say all
SPARE = 20
SHOWN = 5
LATE_S = 2.0  # whoever sleeps over a task does so until something else happens; a busy machine takes tenths
PATIENCE_S = 20.0
ENGINE = "airflow_provider_zkmq"
SWALLOWED = "cancelled, and returned all the same"


@pytest.fixture(autouse=True)
def _no_word_of_each_cut(caplog: pytest.LogCaptureFixture) -> None:
    """What kazoo says of each connection would bury a report."""
    caplog.set_level(logging.ERROR, "airflow_provider_zkmq.kazoo")


@pytest.fixture
def door(zookeeper: str) -> Iterator[Faulty]:
    with Faulty(zookeeper.split(",", maxsplit=1)[0]) as made:
        yield made


@pytest.fixture
def q(door: Faulty, root: str) -> Iterator[Queue]:
    """The queue through the door, for the client that meets the trouble."""
    with Zkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as client:
        yield client.queue("in")


@pytest.fixture
def observer(zk: Zkmq) -> Queue:
    """The same queue by a client of its own, past the door."""
    queue = zk.queue("in")
    queue.configure(policy=RetryPolicy(attempts=1_000, factor=0))
    return queue


def _fill(observer: Queue, count: int = TRIALS + SPARE) -> set[str]:
    return set(observer.enqueue_many([Message(f"t{number}") for number in range(count)]))


def _some(lines: list[str]) -> str:
    return "\n".join(lines[:SHOWN])


def _nothing_is_stranded(
    q: Queue, observer: Queue, everything: set[str], in_hand: set[str], said: Counter[str]
) -> None:
    """One more claim by the same client; then all that is claimed is in hand, and all the rest can be had."""
    claim = q.claim(timeout=PATIENCE_S)
    assert claim is not None, f"nothing can be claimed any more; the calls said {dict(said)}"
    in_hand.add(claim.task.id)
    left = stranded(observer, in_hand)
    assert not left, f"{len(left)} stranded; the calls said {dict(said)}:\n" + _some(left)
    in_hand |= {claim.task.id for claim in claim_the_rest(q)}
    assert in_hand == everything, f"{len(everything - in_hand)} tasks cannot be had; the calls said {dict(said)}"


# --- lost packets


@pytest.mark.parametrize(
    ("fault", "trials", "options"),
    [
        pytest.param(CutAfter(), TRIALS, {}, id="reply-lost"),
        pytest.param(CutAfter(), 30, {"lease": 600}, id="reply-lost-leased"),
        pytest.param(CutBefore(), 30, {}, id="request-lost"),
        pytest.param(Late(0.1), 30, {}, id="request-late"),
    ],
)
@pytest.mark.parametrize("order", ["default", "fifo"])
def test_a_claim_that_loses_its_connection_has_its_task(
    q: Queue, observer: Queue, door: Faulty, order: str, fault: Fault, trials: int, options: dict[str, Any]
) -> None:
    """Each call gives its caller a task of his own, though the connection is lost at the claim's transaction."""
    observer.configure(order=order)
    everything = _fill(observer, 2 * trials + SPARE)
    got: list[str] = []
    said: Counter[str] = Counter()
    for _ in range(trials if order == "default" else min(trials, 30)):
        door.plan = plan = Once(lambda request: request.claims, fault)
        try:
            claim = q.claim(timeout=PATIENCE_S, **options)
        except ZkmqError as error:
            said[type(error).__name__] += 1
        else:
            said["None" if claim is None else "a claim"] += 1
            got += [] if claim is None else [claim.task.id]
        assert plan.met.is_set()
    assert len(set(got)) == len(got)
    _nothing_is_stranded(q, observer, everything, set(got), said)
    assert set(said) == {"a claim"}, said


def test_a_lost_reply_to_the_only_task_is_no_empty_queue(q: Queue, observer: Queue, door: Faulty) -> None:
    """The claim that got the only task returns it, at once: there is nothing else that could wake it."""
    q.claim()
    for _ in range(10):
        task_id = observer.enqueue(b"x")
        door.plan = Once(lambda request: request.claims, CutAfter())
        claim = q.claim(timeout=3)
        assert claim is not None, f"None for task {task_id}, which is {observer.task(task_id).status}"
        assert claim.task.id == task_id
        claim.complete()


# --- cancelled calls


Cancelled = Callable[["asyncio.Task[Any]", Faulty, random.Random], Awaitable[None]]


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

    door.plan = Once(lambda request: request.claims, Tell(lambda: loop.call_soon_threadsafe(together)))
    await asyncio.wait({task, waiter := asyncio.ensure_future(come.wait())}, timeout=PATIENCE_S)
    await asyncio.wait({waiter}, timeout=PATIENCE_S)


WAYS: dict[str, Cancelled] = {"at random": _at_random, "twice": _twice, "at the reply": _at_the_reply}


async def _had(zk: AsyncZkmq, said: Counter[str]) -> str:
    claim = await zk.queue("in").claim(timeout=PATIENCE_S)
    assert claim is not None, f"nothing can be claimed any more; the calls {said}"
    return claim.task.id


async def _lost(observer: Queue, got: set[str]) -> list[str]:
    """The claimed tasks that nobody has; a call that was cancelled twice may still be giving one back."""
    deadline = time.monotonic() + 1.0
    while True:
        lost = sorted(set(await asyncio.to_thread(claimed_by_the_living, observer)) - got)
        if not lost or time.monotonic() > deadline:
            return lost
        await asyncio.sleep(0.05)


async def _claim(zk: AsyncZkmq) -> str | None:
    claim = await zk.queue("in").claim(timeout=5)
    return None if claim is None else claim.task.id


async def _take(zk: AsyncZkmq) -> str | None:
    """Take a task in a transaction that is never ended by its caller."""
    task = await zk.transaction().try_take("in")
    return None if task is None else task.id


async def _take_and_leave(zk: AsyncZkmq) -> str | None:
    """Take a task in a transaction that is rolled back as the cancellation passes through it."""
    async with zk.transaction() as tx:
        task = await tx.try_take("in", timeout=5)
        await asyncio.sleep(0.002)
        await tx.commit()
    return None if task is None else task.id


@pytest.mark.parametrize("call", [_claim, _take, _take_and_leave])
@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_call_leaves_nothing_behind(
    observer: Queue, door: Faulty, root: str, way: str, call: Callable[[AsyncZkmq], Awaitable[str | None]]
) -> None:
    """A cancelled claim or taking ends, soon, cancelled; what it may have got goes back before the next claim."""
    rng = random.Random(sum(map(ord, way)))
    everything = await asyncio.to_thread(_fill, observer, 2 * TRIALS)
    got: set[str] = set()
    said: Counter[str] = Counter()
    async with AsyncZkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as zk:
        got.add(await _had(zk, said))
        for _ in range(TRIALS):
            door.plan = lambda _request: None
            task = asyncio.ensure_future(call(zk))
            await WAYS[way](task, door, rng)
            cancelled = task.cancelling() > 0
            done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
            assert done, f"a cancelled call did not end within {PATIENCE_S:g} s; the others {said}"
            if task.cancelled():
                said["cancelled"] += 1
                continue
            said[SWALLOWED if cancelled else "came first"] += 1
            if (task_id := task.result()) is not None:
                got.add(task_id)
        got.add(await _had(zk, said))
        lost = await _lost(observer, got)
        assert not lost, f"{len(lost)} of {TRIALS} stranded; the calls {said}: {lost[:SHOWN]}"
        while (more := await zk.queue("in").claim()) is not None:
            got.add(more.task.id)
        got |= {task.id for task in await asyncio.to_thread(observer.tasks, state="finished")}  # cancelled too late
        assert got == everything, f"{len(everything - got)} tasks cannot be had; the calls {said}"
    assert not said[SWALLOWED], f"{said[SWALLOWED]} cancellations were swallowed: {said}"
    assert said["cancelled"] > TRIALS // 10, f"hardly a call was met: {said}"


def _ends_a_claim(request: Request) -> bool:
    """Whether it is a transaction that settles a claim: a commit, or what rolls one back."""
    return any(kind == "delete" and path.endswith("/claim") for kind, path in request.operations)


def _cancel_at_the_door(door: Faulty, task: asyncio.Task[Any], fault: Fault) -> threading.Event:
    """Cancel at the request that settles, which meets `fault`."""
    loop, met = asyncio.get_running_loop(), threading.Event()

    def plan(request: Request) -> Fault | None:
        if met.is_set() or not _ends_a_claim(request):
            return None
        met.set()
        loop.call_soon_threadsafe(task.cancel)
        return fault

    door.plan = plan
    return met


@pytest.mark.parametrize("fault", [CutBefore(), CutAfter(), Late(0.1), Delay(0.1)], ids=lambda it: type(it).__name__)
async def test_a_cancelled_commit_is_whole_and_ends_cancelled(
    observer: Queue, door: Faulty, root: str, fault: Fault
) -> None:
    """The cancellation is what its caller gets, also where the rollback finds that the commit has happened."""
    task_id = await asyncio.to_thread(observer.enqueue, b"x")
    async with AsyncZkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as zk:

        async def work() -> None:
            async with zk.transaction() as tx:
                assert await tx.try_take("in") is not None
                await tx.put("out", b"y")
                await tx.commit()

        task = asyncio.ensure_future(work())
        met = _cancel_at_the_door(door, task, fault)
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert met.is_set()
        assert task.cancelled(), task
        found = await zk.queue("in").task(task_id)
        written = (await zk.queue("out").counts())["inserted"]
        assert (found.state, written) in {("finished", 1), ("inserted", 0)}
        assert (await _had(zk, Counter()) == task_id) if found.state == "inserted" else True


@pytest.mark.parametrize("fault", [CutBefore(), CutAfter(), Late(0.1), Delay(0.1)], ids=lambda it: type(it).__name__)
async def test_a_cancelled_rollback_goes_on(observer: Queue, door: Faulty, root: str, fault: Fault) -> None:
    """Leaving a transaction is cancelled while it rolls back: it ends cancelled, and nothing is left claimed."""
    task_id = await asyncio.to_thread(observer.enqueue, b"x")
    async with AsyncZkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as zk:

        async def work() -> None:
            async with zk.transaction() as tx:
                assert await tx.try_take("in") is not None

        task = asyncio.ensure_future(work())
        met = _cancel_at_the_door(door, task, fault)
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert met.is_set()
        assert task.cancelled(), task
        assert await _had(zk, Counter()) == task_id


async def test_a_cancelled_worker_leaves_nothing_behind(observer: Queue, door: Faulty, root: str) -> None:
    """Cancelled at any moment, also when a claim has just come back: it ends; what it did not finish can be had."""
    rng = random.Random(9)
    everything = await asyncio.to_thread(_fill, observer, 6 * TRIALS)

    async def handler(_task: Task) -> None:
        await asyncio.sleep(rng.random() * 0.003)

    async with AsyncZkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as zk:
        for _ in range(TRIALS):
            run = asyncio.ensure_future(zk.queue("in").worker(handler, threads=2).run())
            await asyncio.sleep(rng.random() * 0.01)
            run.cancel()
            done, _ = await asyncio.wait({run}, timeout=PATIENCE_S)
            assert done, f"a cancelled worker did not end within {PATIENCE_S:g} s"
            assert run.cancelled(), run
        got = {await _had(zk, Counter())}
        lost = await _lost(observer, got)
        assert not lost, f"{len(lost)} stranded after {TRIALS} workers: {lost[:SHOWN]}"
        while (more := await zk.queue("in").claim()) is not None:
            got.add(more.task.id)
        got |= {task.id for task in await asyncio.to_thread(observer.tasks, state="finished")}
        assert got == everything, f"{len(everything - got)} tasks cannot be had"


# --- interrupted calls


def _in_the_engine(frame: FrameType | None) -> bool:
    while frame is not None:
        if ENGINE in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@contextmanager
def _interrupts_inside_only(come: threading.Event) -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt in the main thread while that is inside of the engine, and nowhere else."""

    def handle(_number: int, frame: FrameType | None) -> None:
        come.set()
        if _in_the_engine(frame):
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupter(delay: float, over: threading.Event) -> threading.Thread:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        over.wait(delay)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_a_claim_interrupted_by_a_signal_leaves_nothing_behind(q: Queue, observer: Queue) -> None:
    """Ctrl-C at a random moment of a blocking claim: the caller has no claim, so the client gives it back."""
    rng = random.Random(5)
    everything = _fill(observer, 6 * TRIALS)
    got = {claim.task.id for claim in [q.claim()] if claim is not None}
    said: Counter[str] = Counter()
    for _ in range(5 * TRIALS):
        come, over = threading.Event(), threading.Event()
        with _interrupts_inside_only(come):
            thread = _interrupter(rng.random() * 0.004, over)
            try:
                claim = q.claim(timeout=5)
            except KeyboardInterrupt:
                said["interrupted"] += 1
            else:
                said["came first"] += 1
                got |= set() if claim is None else {claim.task.id}
            over.set()
            thread.join()
            eventually(come.is_set)
        if said["interrupted"] >= TRIALS:
            break
    assert said["interrupted"] >= TRIALS, said
    _nothing_is_stranded(q, observer, everything, got, said)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("options", [{}, {"lease": 600}], ids=["bound", "leased"])
def test_a_claim_interrupted_at_any_reply_leaves_nothing_behind(
    q: Queue, observer: Queue, monkeypatch: pytest.MonkeyPatch, when: str, options: dict[str, Any]
) -> None:
    """Interrupted at each of its waits for a reply, once the request is sent, or just when the reply was read."""
    everything = _fill(observer)
    claim = q.claim()
    got = {claim.task.id} if claim is not None else set()
    said: Counter[str] = Counter()
    wait = Reply.get
    me = threading.get_ident()
    left = [0]

    def interrupted(self: Reply, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != me or not _in_the_engine(sys._getframe()):
            return wait(self, *args, **kwargs)
        left[0] -= 1
        if left[0] == 0 and when == "before":
            raise KeyboardInterrupt
        value = wait(self, *args, **kwargs)
        if left[0] == 0:
            raise KeyboardInterrupt
        return value

    monkeypatch.setattr(Reply, "get", interrupted)
    for trial in range(TRIALS):
        left[0] = 1 + trial % 4
        try:
            claim = q.claim(timeout=5, **options)
        except KeyboardInterrupt:
            said["interrupted"] += 1
        else:
            said["came first"] += 1
            got |= set() if claim is None else {claim.task.id}
    monkeypatch.undo()
    assert said["interrupted"] >= TRIALS // 3, said
    _nothing_is_stranded(q, observer, everything, got, said)


# --- the server away, a handler at work


@pytest.mark.parametrize("request_timeout", [30, 0.5], ids=["patient", "impatient"])
@pytest.mark.parametrize("cut", ["drop", "silence"])
def test_a_transactional_handler_outlives_two_seconds_without_a_server(
    observer: Queue, zk: Zkmq, door: Faulty, root: str, request_timeout: float, cut: str
) -> None:
    """The session lives on: each task is delivered as often as its handler ran, finished once, and written once."""
    out = zk.queue("out")
    out.configure()
    deliveries: Counter[str] = Counter()
    refused: Counter[str] = Counter()

    def handler(task: Task, tx: UnitOfWork) -> str:
        name = task.data.decode()
        deliveries[name] += 1
        away = deliveries[name] == 1 and name != "after"
        if away and not name.startswith("before"):
            getattr(door, cut)(2.0)
        try:
            tx.put("out", name)
        except ZkmqError:
            refused[name] += 1  # an impatient client may not learn the queue's rules in time: the handler fails then
            raise
        if away and name.startswith("before"):
            getattr(door, cut)(2.0)
        if away and name.endswith("fails"):
            msg = "as told"
            raise RuntimeError(msg)
        return "done"

    names = ["returns", "fails", "before, returns", "before, fails", "after"]
    ids = {observer.enqueue(name, priority=-at): name for at, name in enumerate(names)}
    options = {"session_timeout": 20, "request_timeout": request_timeout, "gc": False}
    with Zkmq.connect(door.hosts, root=root, **options) as client:
        session = client.session_id
        worker = client.queue("in").worker(handler, transactional=True)
        worker.start()
        try:
            states = _ended(observer, list(ids), 40.0)
        finally:
            worker.stop()
            worker.join()
        assert client.session_id == session, "the session was to live on"
    told = {ids[task.id]: f"{task.status}, attempt {task.attempt}, {task.error}" for task in states}
    assert [task.state for task in states] == ["finished"] * len(ids), told
    assert Counter(task.data.decode() for task in out.tasks()) == Counter(names), "each output once"
    assert {ids[task.id]: task.attempt for task in states} == dict(deliveries), "each delivery counted once"
    assert dict(deliveries) == {name: 2 if name.endswith("fails") or refused[name] else 1 for name in names}


def _ended(observer: Queue, ids: list[str], within: float) -> list[Task]:
    """The tasks once all have ended, or as they are when the time is over."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        tasks = [observer.task(task_id) for task_id in ids]
        if all(task.state == "finished" for task in tasks):
            break
        time.sleep(0.05)  # looks again; the deadline bounds it
    return tasks


# --- nobody is late


@pytest.mark.parametrize("order", ["default", "fifo"])
@pytest.mark.parametrize(("threads", "slow"), [(2, True), (8, True), (8, False)], ids=["two", "eight", "eight-quick"])
def test_an_idle_worker_begins_each_of_two_tasks_at_once(
    zookeeper: str, root: str, observer: Queue, order: str, threads: int, slow: bool
) -> None:
    """Idle threads, two enqueues by another client 0 to 10 ms apart, sixty times: each is begun, and nothing helps it.

    `slow`: a handler is at work until the other task was begun, too: who is busy cannot make good for who sleeps.
    """
    observer.configure(order=order)
    trials = TRIALS_OF_TWO if order == "default" else TRIALS_OF_TWO // 3
    rng = random.Random(3)
    begun: dict[str, float] = {}
    late: list[str] = []
    worst = 0.0

    gate = threading.Event()

    def handler(task: Task) -> None:
        begun[task.id] = time.monotonic()
        if slow:
            gate.wait(PATIENCE_S)

    with Zkmq.connect(zookeeper, root=root, session_timeout=20, gc=False) as client:
        worker = client.queue("in").worker(handler, threads=threads)
        worker.start()
        try:
            for trial in range(trials):
                gate.clear()
                apart = rng.random() * 0.01
                told: dict[str, float] = {}
                for pause in (apart, 0.0):
                    told[observer.enqueue(b"x")] = time.monotonic()
                    time.sleep(pause)  # what the test is about
                _until(lambda told=told: all(task_id in begun for task_id in told), 2 * LATE_S)
                gate.set()
                waits = [begun.get(task_id, time.monotonic()) - when for task_id, when in told.items()]
                worst = max(worst, *waits)
                late += [
                    f"trial {trial}, {apart * 1000:.1f} ms apart, task {number}: "
                    + (f"{wait:.3f} s" if task_id in begun else f"not begun after {wait:.1f} s")
                    for number, (task_id, wait) in enumerate(zip(told, waits, strict=True), 1)
                    if wait > LATE_S
                ]
                if len(late) >= ENOUGH:
                    break
                _until(lambda: worker.finished == 2 * (trial + 1), 3.0)  # noqa: B023  called at once
                time.sleep(rng.choice((0.0, 0.4)))  # idle for less or more than a listing is reused
        finally:
            worker.stop()
            worker.join()
    said = f"{order}, {threads} threads: {len(late)} of {2 * (trial + 1)} began late, the worst after {worst:.3f} s"
    print(f"\n{said}")  # noqa: T201
    assert not late, f"{said}:\n" + _some(late)


def test_whoever_waits_for_a_task_to_appear_is_told_at_once(zookeeper: str, root: str, observer: Queue) -> None:
    """`find`, asked for one task more than there is, ten times: it returns soon after the enqueue."""
    waits = []
    with Zkmq.connect(zookeeper, root=root, session_timeout=20, gc=False) as client, ThreadPoolExecutor(1) as pool:
        there = client.queue("in")
        for count in range(1, 11):
            found = pool.submit(there.find, AllOf(), at_least=count, timeout=10)
            listings = client.requests.get("Children", 0)
            _until(lambda listings=listings: client.requests.get("Children", 0) > listings, 0.3)  # it has looked
            time.sleep(0.1)  # and waits: what the test is about
            task_id = observer.enqueue(b"x")
            told = time.monotonic()
            assert task_id in found.result(20)
            waits.append(time.monotonic() - told)
    assert max(waits) <= LATE_S, f"late by {[f'{wait:.3f}' for wait in waits]} s"


def _until(condition: Callable[[], bool], within: float) -> None:
    """Return when `condition` holds, or when the time is over."""
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)  # looks again; the deadline bounds it
