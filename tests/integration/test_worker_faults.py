"""Workers whose handlers, connections and neighbours misbehave: no task stays behind, and the worker goes on."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    ConsumeOnce,
    Error,
    Message,
    Queue,
    Retry,
    RetryPolicy,
    Snooze,
    Success,
    UnitOfWork,
    Zkmq,
    ZkmqError,
)
from airflow_provider_zkmq.engine.api import background_maintenance
from airflow_provider_zkmq.engine.core.tasks import settle_by_outcome
from airflow_provider_zkmq.engine.coroutine_runners import run_blocking
from airflow_provider_zkmq.engine.errors import OutcomeUnknown, Unavailable
from airflow_provider_zkmq.engine.working import worker_base
from tests.faulty import CutAfter, Faulty, Once, is_multi
from tests.integration.conftest import taken
from tests.integration.fronts import Awaited
from tests.integration.working import claimed, in_time, work
from tests.support import eventually


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raising(error: BaseException) -> Callable[[object], object]:
    def handler(_task: object) -> object:
        raise error

    return handler


def leave(_task: object) -> None:
    sys.exit(3)


#: name: (what the handler does, the status that its task then has, what its error says)
REFUSED: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "a snooze into the past": (lambda _: Snooze(-1), "queued-with-backoff", "delay -1"),
    "a snooze of no time": (lambda _: Snooze("later"), "queued-with-backoff", "'later'"),
    "a backoff of no time": (lambda _: Retry("busy", backoff="soon"), "queued-with-backoff", "'soon'"),
    "a window of no time": (lambda _: Success(dedupe="x"), "dead", "'x'"),
    "a result of no kind": (lambda _: Success(42), "dead", "not int"),  # type: ignore[arg-type]
    "a result too large": (lambda _: b"x" * 1_100_000, "dead", "ZooKeeper takes"),
    "an error that cannot be shown": (raising(Mute()), "queued-with-backoff", "Mute"),
    "an Error that cannot be shown": (lambda _: Error(Mute()), "dead", "Mute"),
    "an exit": (leave, "queued-with-backoff", "SystemExit: 3"),
    "the end of a generator": (raising(GeneratorExit()), "queued-with-backoff", "GeneratorExit"),
}
INTERRUPT = {"an interrupt": (raising(KeyboardInterrupt()), "queued-with-backoff", "KeyboardInterrupt")}
#: A coroutine's handler that raises it unasked has merely failed.
CANCELLED = {"a cancellation": (raising(asyncio.CancelledError()), "queued-with-backoff", "CancelledError")}


# --- what a handler may do


@pytest.mark.parametrize("transactional", [False, True])
def test_what_the_engine_refuses_is_a_failed_delivery(
    q: Queue, front: Any, subtests: pytest.Subtests, *, transactional: bool
) -> None:
    """The task is settled with the reason, the worker ends as if nothing was, and has handled the task after it."""
    refused = REFUSED | (CANCELLED if isinstance(front, Awaited) else INTERRUPT)
    if transactional:
        refused.pop("a window of no time")  # a transaction has none
    q.configure(policy=RetryPolicy(min_backoff=60))
    names = {f"bad{number}": name for number, name in enumerate(refused)}
    q.enqueue_many([Message(b"x", task_id=each) for bad in names for each in (bad, f"after-{bad}")])

    def handler(task: Any, *_: object) -> object:
        return refused[names[task.id]][0](task) if task.id in names else "done"

    async def handle(task: Any, *_: object) -> object:
        return handler(task)

    it = front.queue("census").worker(handle if isinstance(front, Awaited) else handler, transactional=transactional)
    in_time(lambda: it.run(until_empty=True))
    for bad, name in names.items():
        with subtests.test(name):
            _, status, reason = refused[name]
            task = q.task(bad)
            assert (str(task.status), task.attempt, q.task(f"after-{bad}").result) == (status, 1, b"done")
            assert reason in (task.error or "")
    assert (it.finished, it.failed, claimed(q)) == (len(names), len(names), 0)


# --- cancelling


async def test_a_worker_ends_whose_handler_ignores_its_cancellation(zookeeper: str, root: str, q: Queue) -> None:
    """The handler goes on, fenced off; its task is settled and `run` ends."""
    q.configure(policy=ConsumeOnce())
    q.enqueue(b"x", task_id="a")
    begun, go, cancelled = asyncio.Event(), asyncio.Event(), []

    async def handler(_task: object) -> str:
        begun.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                cancelled.append(1)
        return "late"

    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:
        running = asyncio.create_task(own.queue("census").worker(handler).run())
        await asyncio.wait_for(begun.wait(), 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 20)
        assert (str(q.task("a").state), q.task("a").attempt, bool(cancelled)) == ("dead", 1, True)
        go.set()
    assert q.task("a").result is None


async def test_a_worker_whose_server_is_away_can_be_cancelled(door: Faulty, root: str, q: Queue) -> None:
    """`run` ends within seconds; once the server is back what was in hand is settled in the background."""
    q.configure(policy=ConsumeOnce())
    q.enqueue(b"x", task_id="a")
    begun = asyncio.Event()

    async def handler(_task: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with AsyncZkmq.connect(door.hosts, root=root, session_timeout=30, gc=False) as own:
        running = asyncio.create_task(own.queue("census").worker(handler).run())
        await asyncio.wait_for(begun.wait(), 20)
        door.down()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 15)
        assert claimed(q) == 1
        door.up()
        await asyncio.to_thread(eventually, lambda: q.task("a").state == "dead")


# --- connections that are lost


def _while_shut(door: Faulty, zk: Zkmq, seconds: float, work: Callable[[], object]) -> None:
    """Do something while there is no connection, which comes back by itself."""
    door.down()
    eventually(lambda: not zk._session.connected.is_set())
    timer = threading.Timer(seconds, door.up)
    timer.start()
    work()
    timer.join()


def test_a_drop_during_a_transactional_handler_costs_no_delivery(door: Faulty, root: str, q: Queue) -> None:
    """A second without a server, during the handler or around all of it: the task is completed at its first try."""
    q.enqueue_many([Message(b"x", task_id=name) for name in ("during", "before")])
    deliveries: list[tuple[str, int]] = []
    with Zkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as own:

        def handler(task: Any, tx: UnitOfWork) -> str:
            deliveries.append((task.id, task.attempt))
            if task.id == "during":
                tx.put("out", b"before")
                _while_shut(door, own, 1, lambda: tx.put("out", b"meanwhile"))
            return "done"

        it = own.queue("census").worker(handler, transactional=True, limit=1)
        in_time(lambda: it.run(until_empty=True))
        it = own.queue("census").worker(handler, transactional=True)
        claim = taken(own.queue("census"))
        _while_shut(door, own, 1, lambda: run_blocking(it._handle(it._add(claim))))
        assert (deliveries, it.finished, it.failed) == ([("during", 1), ("before", 1)], 1, 0)
        assert [(task.result, task.attempt) for task in q.tasks(ids=["during", "before"])] == [(b"done", 1)] * 2
        assert claimed(q) == 0
        assert sorted(task.data for task in own.queue("out").tasks()) == [b"before", b"meanwhile"]


@pytest.mark.parametrize("write", [0, 1, 2])
def test_an_unknown_outcome_while_a_failed_transaction_is_settled(
    door: Faulty, zk: Zkmq, root: str, q: Queue, write: int
) -> None:
    """The rollback, or the failing after it, is cut off for longer than a request may take: it goes on where it was."""
    policy = RetryPolicy(min_backoff=60)
    q.configure(policy=policy)
    zk.queue("other").configure(policy=policy)
    q.enqueue(b"x", task_id="own")
    zk.queue("other").enqueue(b"x", task_id="taken")
    with Zkmq.connect(door.hosts, root=root, session_timeout=30, request_timeout=1, gc=False) as own:

        def handler(task: Any, tx: UnitOfWork) -> None:
            if task.id == "next":
                return
            assert tx.try_take("other") is not None
            door.plan = Once(is_multi, CutAfter(3), write)
            raise ValueError("no")

        it = own.queue("census").worker(handler, transactional=True)
        it.start()
        eventually(lambda: door.faults == {"CutAfter": 1} and claimed(q) == claimed(zk.queue("other")) == 0)
        q.enqueue(b"x", task_id="next")
        eventually(lambda: q.task("next").attempt == 1)
        it.stop()
        in_time(it.join, 60)
    own_task, taken = q.task("own"), zk.queue("other").task("taken")
    assert (str(own_task.state), own_task.attempt, own_task.error) == ("inserted", 1, "ValueError: no")
    assert (taken.attempt, taken.error) == (1, "rolled back")


def test_a_commit_asked_again_tells_what_became_of_the_first(door: Faulty, zk: Zkmq, root: str) -> None:
    """Its reply is lost and the server away: `OutcomeUnknown`; asked again it returns the ids, written once."""
    zk.queue("in").enqueue(b"x", task_id="a")
    with Zkmq.connect(door.hosts, root=root, session_timeout=30, request_timeout=1, gc=False) as own:
        tx = own.transaction()
        assert tx.try_take("in") is not None
        put = tx.put("out", b"y")
        zk.queue("out").configure()
        door.plan = Once(is_multi, CutAfter(math.inf))
        with pytest.raises((OutcomeUnknown, Unavailable)):
            tx.commit("r")
        with pytest.raises(ZkmqError, match="not known"):
            tx.put("out", b"z")
        door.up()
        eventually(own._session.connected.is_set)
        assert tx.commit("r") == [put]
        assert (zk.queue("in").task("a").result, [task.id for task in zk.queue("out").tasks()]) == (b"r", [put])
        zk.queue("in").enqueue(b"x")
        with own.transaction() as other:
            assert other.try_take("in") is not None
            other.commit()
    assert claimed(zk.queue("in")) == 0


# --- clean-up in the background


def test_one_queue_s_trouble_ends_no_clean_up(
    zk: Zkmq, zookeeper: str, root: str, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up that raises what nobody expected is logged, and the other queues are cleaned up for ever."""
    collect = background_maintenance.collect_if_due
    failed: list[str] = []

    def stumble(context: Any) -> Any:
        if context.queue == "bad":
            failed.append(context.queue)
            raise RuntimeError("dictionary changed size during iteration")
        return collect(context)

    monkeypatch.setattr(background_maintenance, "collect_if_due", stumble)
    for name in ("bad", "census"):
        zk.queue(name).configure(task_gc_lifetime=0, task_gc_interval=1)
    with Zkmq.connect(zookeeper, root=root) as other:
        other.queue("bad").enqueue(b"x")
        eventually(lambda: len(failed) >= 2)
        task_id = other.queue("census").enqueue(b"x")
        taken(other.queue("census")).complete()
        eventually(lambda: task_id not in [task.id for task in q.tasks()])
        assert len(failed) >= 2


def test_queues_are_added_while_others_are_cleaned_up(zookeeper: str, root: str) -> None:
    """Eight threads use two hundred queues for the first time while clean-up goes round: it goes on for all."""
    with Zkmq.connect(zookeeper, root=root) as own:

        def use(number: int) -> None:
            own._used(own._context(f"q{number}"))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(use, [number % 200 for number in range(1600)]))
        table = own._maintenance
        assert table is not None
        assert len(table._due) == 200
        assert table._thread is not None
        assert table._thread.is_alive()


# --- what cannot be settled


@pytest.mark.parametrize("stops", [False, True])
def test_what_cannot_be_settled_is_tried_again(
    q: Queue, front: Any, monkeypatch: pytest.MonkeyPatch, *, stops: bool
) -> None:
    """Later, or as the worker is stopped; meanwhile it handles other tasks, and what it has is not handled twice."""
    failed: list[str] = []
    settle = settle_by_outcome.settle_outcome

    def stumble(context: Any, claim: Any, *rest: Any) -> Any:
        if claim.task_id == "bad" and not failed:
            failed.append("bad")
            raise RuntimeError("not now")
        return settle(context, claim, *rest)

    monkeypatch.setattr(settle_by_outcome, "settle_outcome", stumble)
    monkeypatch.setattr(worker_base, "LEFT_SECONDS", 0.1)
    q.enqueue_many([Message(b"x", task_id=name) for name in ("bad", "good")])
    it = work(front, lambda _task: "done")
    it.start()
    eventually(lambda: q.task("good").state == "finished")
    if not stops:
        eventually(lambda: q.task("bad").state == "finished")
    it.stop()
    in_time(it.join)
    if isinstance(front, Awaited):  # its loop goes on
        eventually(lambda: it.finished == 2)
    assert (failed, q.task("bad").result, q.task("bad").attempt, it.finished) == (["bad"], b"done", 1, 2)
