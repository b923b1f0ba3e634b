"""Workers on a real server: what handlers return, how long they hold a task, what they are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    AsyncUnitOfWork,
    AsyncZkmq,
    ClaimLost,
    ConfigError,
    ConsumeTimes,
    Error,
    Message,
    Poll,
    Queue,
    Retry,
    RetryPolicy,
    Running,
    RunningAsync,
    Snooze,
    Success,
    UnitOfWork,
    Zkmq,
    monitor,
)
from tests.integration.clients import end_session
from tests.support import eventually


def handled(q: Queue, handler: Callable[..., Any], **options: Any) -> None:
    """Let a worker handle what is there."""
    q.worker(handler, **options).run(until_empty=True)


def test_a_handler_s_outcome_settles_its_task(q: Queue) -> None:
    """Success, Error, Retry and Snooze each do what they say; a plain value is a Success."""
    outcomes = {
        "plain": "r",
        "success": Success(b"r", dedupe=60),
        "error": Error("broken"),
        "retry": Retry("busy", backoff=60),
        "snooze": Snooze(60),
        "nonsense": 42,
    }
    for name in outcomes:
        q.enqueue(b"x", task_id=name)
    handled(q, lambda task: outcomes[task.id])
    tasks = {name: q.task(name) for name in outcomes}
    assert {name: str(task.status) for name, task in tasks.items()} == {
        "plain": "done-awaiting-gc",
        "success": "done-with-backoff",
        "error": "dead",
        "retry": "queued-with-backoff",
        "snooze": "queued-with-backoff",
        "nonsense": "queued-with-backoff",
    }
    assert tasks["plain"].result == tasks["success"].result == b"r"
    assert (tasks["retry"].attempt, tasks["snooze"].attempt) == (1, 0)
    assert "returned int" in (tasks["nonsense"].error or "")


def test_an_exception_that_the_policy_names_is_final(q: Queue) -> None:
    """A subclass of a final exception ends the task at its first attempt; another exception is tried again."""
    q.configure(policy=RetryPolicy(attempts=3, factor=0, final=(LookupError, "tests.integration.Unknown")))
    errors: dict[str, Exception] = {"final": KeyError("k"), "again": ValueError("v")}

    def handler(task: Running) -> None:
        raise errors[task.id]

    for name in errors:
        q.enqueue(b"x", task_id=name)
    handled(q, handler)
    assert {name: (q.task(name).attempt, q.task(name).error) for name in errors} == {
        "final": (1, "KeyError: 'k'"),
        "again": (3, "ValueError: v"),
    }
    with pytest.raises(ConfigError, match="exception classes"):
        RetryPolicy(final=(int,))


def test_a_running_handler_reports_progress_and_learns_of_a_cancellation(q: Queue) -> None:
    """Its progress is seen by whoever looks and whoever waits; a cancel reaches it by a watch and takes its task."""
    task_id = q.enqueue(b"x")
    told: list[tuple[str, float, str]] = []
    ended = threading.Event()

    def handler(task: Running) -> str:
        task.report(0.25, "a quarter")
        eventually(lambda: task.cancelled)
        ended.set()
        return "late"

    worker = q.worker(handler)
    waiter = threading.Thread(target=lambda: q.wait([task_id], on_progress=lambda *it: told.append(it)))
    waiter.start()
    worker.start()
    eventually(lambda: told == [(task_id, 0.25, "a quarter")])
    assert (q.task(task_id).progress, q.task(task_id).note) == (0.25, "a quarter")
    q.cancel(task_id)
    waiter.join(20)
    assert ended.wait(20)
    worker.stop()
    worker.join()
    task = q.task(task_id)
    assert (str(task.status), task.result, task.progress, task.history[-1].outcome) == (
        "cancelled", None, None, "cancelled",
    )  # fmt: skip
    assert worker.finished == 0


def test_a_lock_ends_a_claim_whose_session_lives(q: Queue) -> None:
    """A claim not extended within its lock is handed out again, attempt + 1; the late owner changes nothing."""
    q.configure(lock=1)
    q.enqueue(b"x", task_id="a")
    first = q.claim()
    assert first is not None
    second = q.claim(timeout=20)
    assert second is not None
    assert (second.task.id, second.task.attempt) == ("a", 2)
    assert "lease ended" in (second.task.history[0].error or "")
    for late in (lambda: first.complete(b"late"), lambda: first.extend(5), lambda: first.progress(0.5)):
        with pytest.raises(ClaimLost):
            late()
    second.complete(b"in time")
    assert q.task("a").result == b"in time"


def test_a_task_s_own_lock_goes_before_the_queue_s(q: Queue) -> None:
    """Of two claims in a queue with a lock of an hour, the one whose task asks for a second is lost after it."""
    q.configure(lock=3600)
    q.enqueue(b"x", task_id="short", lock=1)
    q.enqueue(b"x", task_id="long")
    claims = [q.claim(), q.claim()]
    again = q.claim(timeout=20)
    assert again is not None
    assert again.task.id == "short"
    assert [claim.task.id for claim in claims if claim is not None] == ["short", "long"]
    assert q.counts()["claimed"] == 2


def test_a_worker_extends_the_lock_of_what_it_handles(q: Queue) -> None:
    """A handler that takes longer than the lock keeps its task, whose claim is extended meanwhile."""
    q.configure(lock=1)
    q.enqueue(b"x", task_id="a")
    lock = threading.Event()
    worker = q.worker(lambda _task: lock.wait(20) and "done")
    worker.start()
    eventually(lambda: q.task("a").state == "claimed")
    assert q.claim(timeout=3) is None
    lock.set()
    eventually(lambda: q.task("a").state == "finished")
    worker.stop()
    worker.join()
    assert q.task("a").attempt == 1


def test_without_heartbeat_the_lock_bounds_the_handler(q: Queue) -> None:
    """`heartbeat=False`: a handler that overruns the lock loses its task, and what it returns is refused."""
    q.enqueue(b"x", task_id="a", lock=1)
    release = threading.Event()
    slow = q.worker(lambda _task: release.wait(20) and "late", heartbeat=False)
    slow.start()
    eventually(lambda: q.task("a").state == "claimed")
    claim = q.claim(timeout=20)
    assert claim is not None
    assert claim.task.attempt == 2
    claim.complete("in time")
    release.set()
    slow.stop()
    slow.join()
    assert (q.task("a").result, slow.finished) == (b"in time", 0)


def test_a_leased_worker_outlives_its_session(zk: Zkmq, zookeeper: str, root: str) -> None:
    """`lease=`: the session ends in the middle of a task, and the handler's result is taken all the same."""
    with Zkmq.connect(zookeeper, root=root, gc=False) as own:
        q = own.queue("census")
        q.enqueue(b"x", task_id="a")
        go = threading.Event()
        worker = q.worker(lambda _task: go.wait(20) and "done", lease=30)
        worker.start()
        eventually(lambda: zk.queue("census").task("a").state == "claimed")
        session = own.session_id
        end_session(own)
        eventually(lambda: own.session_id not in (0, session) and own._session.connected.is_set())
        go.set()
        eventually(lambda: zk.queue("census").task("a").state == "finished")
        worker.stop()
        worker.join()
    assert zk.queue("census").task("a").attempt == 1


def test_a_transactional_worker_puts_what_it_takes_or_nothing(zk: Zkmq, q: Queue) -> None:
    """The handler's puts appear with its task's completion; an exception leaves none, and counts as a delivery."""
    q.configure(policy=ConsumeTimes(2))
    good, bad = q.enqueue(b"good"), q.enqueue(b"bad")

    def handler(task: Running, tx: UnitOfWork) -> bytes:
        tx.put("out", b"of " + task.data)
        if task.data == b"bad":
            raise ValueError("no")
        return b"result"

    handled(q, handler, transactional=True)
    assert [task.data for task in zk.queue("out").tasks()] == [b"of good"]
    assert (q.task(good).state, q.task(good).result) == ("finished", b"result")
    assert (q.task(bad).state, q.task(bad).attempt, q.task(bad).error) == ("dead", 2, "ValueError: no")


def test_a_transactional_handler_may_end_its_transaction_itself(zk: Zkmq, q: Queue) -> None:
    """What it committed stays; what it rolled back is handed out again, at most as often as the policy allows."""
    q.configure(policy=ConsumeTimes(3))
    q.enqueue(b"x", task_id="commits")
    q.enqueue(b"x", task_id="rolls-back")

    def handler(task: Running, tx: UnitOfWork) -> None:
        tx.put("out", task.id)
        if task.id == "commits":
            tx.commit()
        else:
            tx.rollback()

    handled(q, handler, transactional=True)
    assert [task.data for task in zk.queue("out").tasks()] == [b"commits"]
    assert (q.task("rolls-back").state, q.task("rolls-back").attempt) == ("dead", 3)


def test_a_transactional_worker_survives_the_end_of_its_session(zk: Zkmq, zookeeper: str, root: str) -> None:
    """The session ends in mid-task: that delivery's puts are lost with it, and the next one's are the only ones."""
    deliveries: list[int] = []
    with Zkmq.connect(zookeeper, root=root, gc=False) as own:
        q = own.queue("census")
        q.enqueue(b"x", task_id="a")

        def handler(task: Running, tx: UnitOfWork) -> None:
            deliveries.append(task.attempt)
            tx.put("out", f"attempt {task.attempt}")
            if task.attempt == 1:
                session = own.session_id
                end_session(own)
                eventually(lambda: own.session_id not in (0, session) and own._session.connected.is_set())

        worker = q.worker(handler, transactional=True)
        worker.start()
        eventually(lambda: zk.queue("census").task("a").state == "finished")
        assert worker.stop() is True
        worker.join()
        assert own.queue("census").counts()["finished"] == 1  # closing a worker leaves the client open
    assert [task.data for task in zk.queue("out").tasks()] == [b"attempt 2"]
    assert deliveries == [1, 2]


def test_start_and_stop_say_whether_they_did_something(q: Queue) -> None:
    """Each is True once; a worker that was stopped cannot be started again."""
    worker = q.worker(lambda _task: None)
    assert [worker.start(), worker.start()] == [True, False]
    assert [worker.stop(), worker.stop()] == [True, False]
    worker.join()
    assert worker.start() is False


def test_a_worker_can_start_by_itself(q: Queue) -> None:
    """`auto_start`: at once, or after a delay; a stop before that keeps it from starting."""
    q.enqueue(b"x", task_id="now")
    now = q.worker(lambda _task: "now", auto_start=True)
    assert q.wait(["now"], timeout=20)[0].result == b"now"
    now.stop()
    now.join()
    q.enqueue(b"x", task_id="later")
    later = q.worker(lambda _task: "later", auto_start=0.2)
    assert q.wait(["later"], timeout=20)[0].result == b"later"
    later.stop()
    later.join()


def test_a_monitor_is_told_how_the_queue_stands(q: Queue) -> None:
    """It hears how many tasks are pending, which looks found nothing and what the last one found; 0 threads will do."""
    polls: list[Poll] = []
    for _ in range(3):
        q.enqueue(b"x")
    watching = q.worker(lambda _task: None, threads=0, monitor=polls.append)
    watching.start()
    eventually(lambda: bool(polls))
    assert (polls[0].queue, polls[0].size) == ("census", 3)
    watching.stop()
    watching.join()


def test_the_ready_made_monitor_warns_once_a_period() -> None:
    """Above its size it warns, and then not before the period has passed; Carmine's 1000 and 6 hours by default."""
    warnings: list[str] = []
    time = [0.0]
    look = monitor(max_size=10, period=60, warn=warnings.append, clock=lambda: time[0])
    for now, size in ((0, 10), (1, 11), (30, 12), (60.9, 13), (61, 14)):
        time[0] = now
        look(Poll("q", size, 0, "handled"))
    assert [text.split()[3] for text in warnings] == ["11", "14"]
    with pytest.raises(ConfigError):
        monitor(max_size=-1)
    always: list[str] = []
    default = monitor(warn=always.append)
    default(Poll("q", 1000, 0, "nothing"))
    assert always == []
    default(Poll("q", 1001, 0, "nothing"))
    assert len(always) == 1


def test_throttle_keeps_a_pause_between_two_tasks(q: Queue) -> None:
    """A throttled thread that was stopped in its pause has handled one of two tasks."""
    for _ in range(2):
        q.enqueue(b"x")
    worker = q.worker(lambda _task: None, throttle=3600)
    worker.start()
    eventually(lambda: worker.finished == 1)
    worker.stop()
    worker.join()
    assert (worker.finished, q.counts()["inserted"]) == (1, 1)


async def test_the_asynchronous_worker_does_the_same(zk: Zkmq, zookeeper: str, root: str, q: Queue) -> None:
    """Coroutines settle by what they return or raise, side by side; they report progress; `until_empty` ends."""
    q.configure(policy=ConsumeTimes(2))
    for name in ("good", "bad", "snooze"):
        q.enqueue(b"x", task_id=name)
    met = asyncio.Event()
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:

        async def handler(task: RunningAsync) -> object:
            await task.report(0.5, "half")
            if task.id == "bad":
                met.set()
                raise ValueError("no")
            await asyncio.wait_for(met.wait(), 20)
            return Snooze(60) if task.id == "snooze" else "done"

        worker = own.queue("census").worker(handler, threads=3)
        await worker.run(until_empty=True)
    assert {name: str(q.task(name).status) for name in ("good", "bad", "snooze")} == {
        "good": "done-awaiting-gc",
        "bad": "dead",
        "snooze": "queued-with-backoff",
    }
    assert (worker.finished, worker.failed) == (1, 3)


async def test_an_asynchronous_worker_stops_and_gives_back(zookeeper: str, root: str, q: Queue) -> None:
    """After the grace a handler that goes on is cancelled, and its task is there for others, its delivery counted."""
    q.configure(policy=RetryPolicy(factor=0))
    q.enqueue(b"x", task_id="a")
    begun = asyncio.Event()
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:

        async def handler(_task: RunningAsync) -> None:
            begun.set()
            await asyncio.Event().wait()

        worker = own.queue("census").worker(handler, grace=0.1)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), 20)
        assert [worker.stop(), worker.stop()] == [True, False]
        await asyncio.wait_for(running, 20)
    assert (q.task("a").status, q.task("a").attempt) == ("queued", 1)


async def test_an_asynchronous_transactional_worker(zk: Zkmq, zookeeper: str, root: str, q: Queue) -> None:
    """Its handler's puts come with its task's completion, or not at all; a lock is extended while it works."""
    q.configure(policy=ConsumeTimes(1), lock=1)
    q.enqueue(b"good")
    q.enqueue(b"bad")
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:

        async def handler(task: RunningAsync, tx: AsyncUnitOfWork) -> None:
            await tx.put("out", task.data)
            await asyncio.sleep(2)  # longer than the lock: the work
            if task.data == b"bad":
                raise ValueError("no")

        await own.queue("census").worker(handler, threads=2, transactional=True).run(until_empty=True)
        with pytest.raises(ConfigError, match="coroutine"):
            own.queue("census").worker(lambda _task: None)
    assert [task.data for task in zk.queue("out").tasks()] == [b"good"]
    assert (q.counts()["finished"], q.counts()["dead"]) == (1, 1)


async def test_an_asynchronous_handler_that_is_cancelled_leaves_no_lock(zookeeper: str, root: str, q: Queue) -> None:
    """What its transaction had taken besides is given back, too, when the grace of a stop is over."""
    q.enqueue(b"x", task_id="a")
    q.enqueue(b"x", task_id="b")
    begun = asyncio.Event()
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:

        async def handler(_task: RunningAsync, tx: AsyncUnitOfWork) -> None:
            assert await tx.try_take("census") is not None
            begun.set()
            await asyncio.Event().wait()

        worker = own.queue("census").worker(handler, grace=0.1, transactional=True)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), 20)
        worker.stop()
        await asyncio.wait_for(running, 20)
        assert q.counts()["claimed"] == 0
    assert q.counts()["inserted"] == 2


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 32), (4, 32), (3, 0)])
def test_a_limit_ends_the_worker(q: Queue, threads: int, prefetch: int) -> None:
    """It handles so many tasks and no more, also where several are claimed ahead; the others stay untouched."""
    q.enqueue_many([Message(b"x") for _ in range(100)])
    heard: list[Any] = []
    options = {"threads": threads, "prefetch": prefetch, "on_settled": lambda _, outcome: heard.append(outcome)}
    worker = q.worker(lambda _: None, limit=60, **options)
    worker.run(until_empty=True)
    assert (worker.finished, q.counts()["finished"], q.counts()["inserted"]) == (60, 60, 40)
    assert heard == [Success()] * 60
    assert {task.attempt for task in q.tasks(state="inserted")} == {0}
    q.worker(lambda _: None, limit=60).run(until_empty=True)
    assert q.counts()["finished"] == 100


async def test_a_limit_ends_a_worker_on_an_event_loop(zookeeper: str, q: Queue) -> None:
    """As it ends one with threads."""
    q.enqueue_many([Message(b"x") for _ in range(100)])

    async def handle(_: object) -> None:
        return None

    async with await AsyncZkmq.connect(zookeeper, q.root, gc=False) as zk:
        worker = zk.queue(q.name).worker(handle, threads=3, limit=60)
        await worker.run(until_empty=True)
    assert (worker.finished, q.counts()["finished"], q.counts()["inserted"]) == (60, 60, 40)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
def test_a_limit_is_a_number_of_tasks(q: Queue, limit: Any) -> None:
    """Anything else is refused when the worker is made."""
    with pytest.raises(ConfigError, match="limit"):
        q.worker(lambda _: None, limit=limit)


def test_what_outlasts_a_forgiving_stop_counts_no_attempt(q: Queue) -> None:
    """Its handler dies with the process: the task is given back at once, as if it had not been delivered."""
    q.enqueue(b"x", task_id="t")
    begun, done = threading.Event(), threading.Event()

    def handle(_: Running) -> str:
        begun.set()
        done.wait(60)
        return "too late"

    worker = q.worker(handle, grace=0)
    worker.start()
    assert begun.wait(60)
    assert worker.stop(forgive=True)
    worker.join()
    eventually(lambda: q.task("t").state == "inserted")
    done.set()
    assert (q.task("t").attempt, q.task("t").error) == (0, None)
    handled(q, lambda _: "again")
    assert (q.task("t").attempt, q.task("t").result) == (1, b"again")


async def test_what_outlasts_a_forgiving_stop_on_an_event_loop_counts_no_attempt(zookeeper: str, q: Queue) -> None:
    """The same of an asynchronous worker."""
    await asyncio.to_thread(q.enqueue, b"x", task_id="t")
    begun = asyncio.Event()

    async def handle(_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with AsyncZkmq.connect(zookeeper, root=q.root, gc=False) as own:
        worker = own.queue(q.name).worker(handle, grace=0)
        await worker.start()
        async with asyncio.timeout(60):
            await begun.wait()
        assert worker.stop(forgive=True)
        await worker.join()
    await asyncio.to_thread(eventually, lambda: q.task("t").state == "inserted")
    assert ((await asyncio.to_thread(q.task, "t")).attempt, q.task("t").error) == (0, None)
