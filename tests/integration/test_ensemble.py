"""Three real servers: what clients hold while connections fail, what a follower answers, and what grows with time.

``ZKMQ_ENSEMBLE_TASKS`` sets the size (default 600; 20 000 for a long run).
"""

from __future__ import annotations

import gc
import logging
import os
import random
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer, fourletter
from airflow_provider_zkmq.engine import Message, Queue, Task, Zkmq
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    DuplicateTask,
    OutcomeUnknown,
    TransportError,
    WaitTimeout,
    ZkmqError,
)
from tests.faulty import Chance, CutAfter, CutBefore, Faulty, Late
from tests.integration.books import Auditor, Books
from tests.support import eventually

TASKS = int(os.environ.get("ZKMQ_ENSEMBLE_TASKS", "600"))
PAIRS = max(150, TASKS // 20)
WAITS = TASKS
PAUSES = max(30, TASKS // 20)
CLIENTS, THREADS, PRODUCERS = 5, 2, 2
WORK_S = 0.1
FAULTS = (CutBefore(), CutAfter(), Late(0.05), CutAfter(), Late(0.3))
#: Of all writes, about three for each task: so many faults however few the tasks, and a bearable number of them.
SHARE = max(0.004, 24 / TASKS)
DROP_EVERY_S, DROP_S = 4.0, 1.0
STUCK_S = 15.0
LONGEST_S = 60.0 + TASKS / 20


@pytest.fixture(autouse=True)
def _no_word_of_each_cut(caplog: pytest.LogCaptureFixture) -> None:
    """What kazoo says of each connection would bury a report."""
    caplog.set_level(logging.ERROR, "airflow_provider_zkmq.kazoo")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("ensemble"), ensemble=3, force_sync=False) as made:
        yield made


def _leader(servers: EmbeddedServer) -> int:
    leader = servers.leader()
    assert leader is not None
    return leader


def _hosts(servers: EmbeddedServer, node: int) -> str:
    return f"127.0.0.1:{servers.ports[node]}"


def _followers(servers: EmbeddedServer) -> list[int]:
    return [node for node in range(3) if node != _leader(servers)]


# --- connections that fail


@dataclass
class Run:
    """One run: its books, its doors, and when it is over."""

    books: Books
    doors: list[Faulty]
    root: str
    over: threading.Event
    acknowledged: set[str]
    perhaps: set[str]

    @property
    def hosts(self) -> str:
        """All servers, each through its door."""
        return ",".join(door.hosts for door in self.doors)

    def connect(self) -> Zkmq:
        """A client with a session of its own, which outlives every outage of the run."""
        return Zkmq.connect(self.hosts, root=self.root, session_timeout=20, request_timeout=8, gc=False)

    @property
    def faults(self) -> Counter[str]:
        """What befell, by kind."""
        return sum((door.faults for door in self.doors), Counter())


def _consume(run: Run, zk: Zkmq, name: str, seed: int) -> None:
    """Claim, hold, complete; what is in hand is written down as it comes and goes."""
    rng, q, books = random.Random(seed), zk.queue("in"), run.books
    while not run.over.is_set():
        try:
            with books.asking(name):
                claim = q.claim(timeout=1.0)
                if claim is not None:
                    books.take(name, claim.task.id, claim.token)
        except TransportError as error:
            books.note(f"claim: {type(error).__name__}")
            run.over.wait(0.1)
            continue
        if claim is not None:
            run.over.wait(rng.random() * WORK_S)
            _complete(run, claim)
            books.give(claim.task.id, claim.token)


def _complete(run: Run, claim: Any) -> None:
    """Complete, again while it is not known whether it happened: the client is told in the end, and told the truth."""
    deadline = time.monotonic() + 30
    while True:
        try:
            claim.complete(str(claim.token))
        except TransportError as error:
            run.books.note(f"complete: {type(error).__name__}")
            if time.monotonic() > deadline:
                run.books.wrong.append(f"{claim.task.data.decode()}: not completed in 30 s: {error}")
                return
        except ClaimLost as error:
            run.books.wrong.append(f"{claim.task.data.decode()}: ClaimLost, though its session lives: {error}")
            return
        else:
            run.books.complete(claim.task.id, claim.token)
            return


def _produce(run: Run, zk: Zkmq, names: list[str]) -> None:
    """Enqueue one by one, every other one with an id of its own; each as often as it takes to know that it is there."""
    q = zk.queue("in")
    for at, name in enumerate(names):
        while not run.over.is_set():
            try:
                q.enqueue(name, task_id=f"own.{name}" if at % 2 else None)
            except DuplicateTask:
                run.books.note("enqueue: was there")
            except OutcomeUnknown:
                run.books.note("enqueue: OutcomeUnknown")
                if not at % 2:  # without an id of its own it cannot be asked for: it is there once, or not at all
                    run.perhaps.add(name)
                    break
                continue
            except TransportError as error:  # nothing was written, it says
                run.books.note(f"enqueue: {type(error).__name__}")
                continue
            run.acknowledged.add(name)
            break


@contextmanager
def _threads(*jobs: Callable[[], None]) -> Iterator[list[threading.Thread]]:
    failed: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  raised below
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for thread in threads:
            thread.join(60)
    if failed:
        raise failed[0]


def _wait_for_the_end(run: Run, producers: list[threading.Thread]) -> None:
    """Until all that was enqueued is completed; or nothing moves any more. Meanwhile doors are shut, one at a time."""
    rng = random.Random(11)
    begun = moved = dropped = time.monotonic()
    done = -1
    while (now := time.monotonic()) - begun < LONGEST_S:
        if len(run.books.completed) != done:
            done, moved = len(run.books.completed), now
        if not any(thread.is_alive() for thread in producers):
            finished = {task_id for task_id, _ in run.books.completed}
            if len(finished) >= len(run.acknowledged | run.perhaps) or now - moved > STUCK_S:
                return
        if now - dropped > DROP_EVERY_S:
            door = rng.choice(run.doors)
            door.drop(DROP_S)
            door.faults["Drop"] += 1
            dropped = now
        time.sleep(0.05)  # looks again; the end bounds it


def test_every_claimed_task_is_in_somebody_s_hand(servers: EmbeddedServer, root: str) -> None:
    """Connections cut before, after and late: nothing lost, nothing double, no claimed task that nobody holds."""
    with ExitStack() as stack:
        observer = stack.enter_context(Zkmq.connect(_hosts(servers, _leader(servers)), root=root, gc=False)).queue("in")
        observer.configure()
        plans = [Chance(seed, SHARE, FAULTS, lambda request: request.write) for seed in range(3)]
        doors = [
            stack.enter_context(Faulty(_hosts(servers, node), plan)) for node, plan in zip(range(3), plans, strict=True)
        ]
        run = Run(Books(), doors, root, threading.Event(), set(), set())
        consumers = [stack.enter_context(run.connect()) for _ in range(CLIENTS)]
        producers = [stack.enter_context(run.connect()) for _ in range(PRODUCERS)]
        names = [f"n{number}" for number in range(TASKS)]
        for number, client in enumerate(consumers):
            client._context("in").describe["name"] = f"c{number}"
        sessions = [client.session_id for client in consumers]
        auditor = Auditor(run.books, observer)
        begun = time.monotonic()
        produce = [
            lambda zk=zk, at=at: _produce(run, zk, names[at::PRODUCERS])  # type: ignore[misc]
            for at, zk in enumerate(producers)
        ]
        consume = [
            lambda zk=zk, number=number, n=n: _consume(run, zk, f"c{number}", 10 * number + n)  # type: ignore[misc]
            for number, zk in enumerate(consumers)
            for n in range(THREADS)
        ]
        with _threads(*produce, *consume) as threads:
            try:
                _wait_for_the_end(run, threads[:PRODUCERS])
                auditor.audit()
            finally:
                run.over.set()
        auditor.stop()
        _judge(run, auditor, observer, time.monotonic() - begun)
        assert [client.session_id for client in consumers] == sessions, "the sessions were to live on"


def _judge(run: Run, auditor: Auditor, observer: Queue, seconds: float) -> None:
    tasks = observer.tasks()
    there = Counter(task.data.decode() for task in tasks)
    finished = {task.data.decode() for task in tasks if task.state == "finished"}
    lost = sorted(run.acknowledged - finished)
    twice = sorted(name for name, times in there.items() if times > 1)
    completions = Counter(task_id for task_id, _ in run.books.completed)
    double = sorted(task_id for task_id, times in completions.items() if times > 1)
    results = {task.id: task.result for task in tasks}
    foreign = [task_id for task_id, token in run.books.completed if results[task_id] != str(token).encode()]
    unknown = {task.id for task in tasks if task.state == "finished"} - set(completions)
    left = [f"{task.data.decode()} is {task.status}" for task in tasks if task.state != "finished"]
    cuts = sum(door.cuts for door in run.doors)
    said = ", ".join(f"{what} {times}" for what, times in sorted(run.books.said.items()))
    line = (
        f"{TASKS} tasks in {seconds:.0f} s: {run.faults.total()} faults ({dict(run.faults)}), {cuts} connections cut, "
        f"{auditor.audits} audits, at most {auditor.most} claimed; "
        f"{len(lost)} not finished, {len(twice)} enqueued twice, "
        f"{len(double)} completed twice, {len(auditor.orphans)} orphans, {len(run.books.wrong)} wrong answers; {said}"
    )
    print(f"\n{line}")  # noqa: T201  the figures of the run
    assert not auditor.orphans, "\n".join([line, *list(auditor.orphans.values())[:10]])
    assert not run.books.wrong, "\n".join([line, *run.books.wrong[:10]])
    wrong = [*lost, *twice, *double, *foreign]
    assert not wrong, "\n".join([line, f"{lost=}, {twice=}, {double=}, {foreign=}", *left[:10]])
    assert not unknown, f"{line}\nfinished, and nobody was told: {sorted(unknown)[:10]}"
    assert not left, "\n".join([line, *left[:10]])
    assert set(there) <= run.acknowledged | run.perhaps
    assert run.faults.total() >= min(60, TASKS // 30), line


# --- a follower that lags


def test_a_follower_denies_nothing_that_was_acknowledged(servers: EmbeddedServer, root: str) -> None:
    """Written on the leader, asked for on a follower at once: no task, claim or queue is said not to exist."""
    wrong: Counter[str] = Counter()
    with ExitStack() as stack:
        nodes = [_leader(servers), *_followers(servers)]
        leader, *followers = [
            stack.enter_context(Zkmq.connect(_hosts(servers, node), root=root, session_timeout=20, gc=False))
            for node in nodes
        ]
        q = leader.queue("in")
        q.configure()
        for follower in followers:
            eventually(lambda follower=follower: bool(follower.queues()))  # the first queue's root
        for pair in range(PAIRS):
            there = followers[pair % 2].queue("in")
            _one_task(wrong, q, there, waits_first=pair % 4 < 2)
            if pair % 10 == 0:
                leader.queue(f"q{pair}").configure()
                _try(wrong, "counts of a new queue", followers[pair % 20 // 10].queue(f"q{pair}").counts)
    print(f"\n{PAIRS} pairs: {wrong.total()} wrong {dict(wrong)}")  # noqa: T201  the figures of the run
    assert not wrong, f"{wrong.total()} wrong answers in {PAIRS} pairs: {dict(wrong)}"


def _one_task(wrong: Counter[str], q: Queue, there: Queue, *, waits_first: bool) -> None:
    task_id = q.enqueue(b"x")
    for ask in (_waited, _asked) if waits_first else (_asked, _waited):
        ask(wrong, there, task_id)
    claim = q.claim()
    assert claim is not None
    assert claim.task.id == task_id
    _try(wrong, "wait for the claim", lambda: there.wait([task_id], "claim", timeout=10))
    claim.release()
    again = q.claim()
    assert again is not None
    if not _try(wrong, "complete by token", lambda: there.complete(task_id, again.token)):
        again.complete()  # out of the way


def _asked(wrong: Counter[str], there: Queue, task_id: str) -> None:
    _try(wrong, "task", lambda: there.task(task_id))


def _waited(wrong: Counter[str], there: Queue, task_id: str) -> None:
    def wait() -> None:
        with pytest.raises(WaitTimeout):
            there.wait([task_id], timeout=0)

    _try(wrong, "wait", wait)


def _try(wrong: Counter[str], what: str, call: Callable[[], Any]) -> bool:
    try:
        call()
    except ZkmqError as error:
        wrong[f"{what}: {type(error).__name__}"] += 1
        return False
    return True


# --- what grows


@dataclass(frozen=True)
class Size:
    """What a client keeps, and the server for it."""

    callbacks: int
    watches: int
    objects: int
    bytes: int


def _size(client: Zkmq, port: int) -> Size:
    gc.collect()
    kazoo = client._session.client
    callbacks = sum(len(found) for table in (kazoo._data_watchers, kazoo._child_watchers) for found in table.values())
    watches = int(fourletter.mntr("127.0.0.1", port)["zk_watch_count"])
    return Size(callbacks, watches, len(gc.get_objects()), tracemalloc.get_traced_memory()[0])


@dataclass
class Habit:
    """Something that a client does again and again, with another one's help."""

    zk: Zkmq
    other: Zkmq
    numbers: Iterator[int]

    @property
    def q(self) -> Queue:
        """The queue of the client that is measured."""
        return self.zk.queue("in")

    @property
    def there(self) -> Queue:
        """The same of the other's."""
        return self.other.queue("in")


def _wait_in_vain(it: Habit) -> None:
    with pytest.raises(WaitTimeout):
        it.q.wait([f"pending.{next(it.numbers) % 40}"], timeout=0.001)


def _wait_for_what_is_done(it: Habit) -> None:
    name = f"done.{next(it.numbers)}"
    it.there.enqueue(b"x", task_id=name, priority=9)
    claim = it.there.claim()
    assert claim is not None
    claim.complete()
    assert it.q.wait([name], timeout=20)[0].state == "finished"


def _clean_up(it: Habit) -> None:
    it.q.collect_garbage()


def _pause_and_resume(it: Habit) -> None:
    it.there.pause()
    it.there.resume()
    it.there.wait([it.there.enqueue(b"x", {}, priority=9)], timeout=20)


HABITS: dict[str, tuple[Callable[[Habit], None], int]] = {
    "timed-out waits": (_wait_in_vain, WAITS),
    "finished waits": (_wait_for_what_is_done, max(60, WAITS // 20)),
    "clean-ups": (_clean_up, max(60, WAITS // 20)),
    "pauses and resumes": (_pause_and_resume, PAUSES),
}


@pytest.mark.parametrize("habit", HABITS)
def test_a_client_does_not_grow(servers: EmbeddedServer, root: str, habit: str) -> None:
    """After a while of the same, kazoo's callbacks, the server's watches and the memory are constant."""
    node, other = _followers(servers)[0], _leader(servers)
    with ExitStack() as stack:
        zk = stack.enter_context(Zkmq.connect(_hosts(servers, node), root=root, session_timeout=20, gc=False))
        helper = stack.enter_context(Zkmq.connect(_hosts(servers, other), root=root, session_timeout=20, gc=False))
        act, times = HABITS[habit]
        it = Habit(zk, helper, count())
        helper.queue("in").configure(task_gc_lifetime=86_400)
        eventually(lambda: zk.queues() == ["in"])
        if act is _pause_and_resume:
            stack.enter_context(_idle_worker(it.q))
        else:
            names = [f"pending.{number}" for number in range(40)]
            helper.queue("in").enqueue_many([Message(b"x", task_id=name) for name in names])
        eventually(lambda: _is_there(it, "pending.39") or act is _pause_and_resume)
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(20 + times // 5):
            act(it)
        before = _size(zk, servers.ports[node])
        for _ in range(times):
            act(it)
        _settled(zk, servers.ports[node], before)
        after = _size(zk, servers.ports[node])
    said = (
        f"{times} {habit}: callbacks {before.callbacks} to {after.callbacks}, "
        f"watches {before.watches} to {after.watches}, "
        f"objects {before.objects} to {after.objects}, bytes {before.bytes:,} to {after.bytes:,} "
        f"({(after.bytes - before.bytes) / times:.0f} each)"
    )
    print(f"\n{said}")  # noqa: T201  the figures of the run
    assert after.callbacks <= before.callbacks + 16, said
    assert after.watches <= before.watches + 16, said
    assert after.objects <= before.objects + 500 + times // 20, said
    assert after.bytes <= before.bytes + 200_000 + 40 * times, said


def _settled(zk: Zkmq, port: int, before: Size) -> None:
    """Give what is taken back in the background a moment to arrive; a growth that stays, stays."""
    deadline = time.monotonic() + 2.0
    while _size(zk, port).watches > before.watches + 16 and time.monotonic() < deadline:
        time.sleep(0.1)  # looks again; the deadline bounds it


def _is_there(it: Habit, task_id: str) -> bool:
    try:
        return it.q.task(task_id) is not None
    except ZkmqError:
        return False


@contextmanager
def _idle_worker(q: Queue) -> Iterator[None]:
    """Eight threads that wait for work."""

    def handler(_task: Task) -> None:
        return None

    worker = q.worker(handler, threads=8)
    worker.start()
    try:
        yield
    finally:
        worker.stop()
        worker.join()
