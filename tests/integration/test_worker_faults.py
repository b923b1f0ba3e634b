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
    ConfigError,
    ConsumeOnce,
    Error,
    Integer,
    Queue,
    Retry,
    RetryPolicy,
    Snooze,
    Success,
    UnitOfWork,
    Worker,
    Zkmq,
    ZkmqError,
)
from airflow_provider_zkmq.engine.core.protocol.ops import Wait
from airflow_provider_zkmq.engine.core.tasks import outcome
from airflow_provider_zkmq.engine.core.upkeep import keeper
from airflow_provider_zkmq.engine.errors import OutcomeUnknown, Unavailable
from airflow_provider_zkmq.engine.fronts import upkeep
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal
from tests.faulty import CutAfter, Faulty, Once, is_multi
from tests.support import eventually

GRACE = 0.2


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def leave(_task: object) -> None:
    sys.exit(3)


def interrupt(_task: object) -> None:
    raise KeyboardInterrupt


def stop_generating(_task: object) -> None:
    raise GeneratorExit


def mute(_task: object) -> None:
    raise Mute


#: name: (what the handler does, the status that its task then has, what its error says)
REFUSED: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "a snooze into the past": (lambda _: Snooze(-1), "queued-with-backoff", "delay -1"),
    "a snooze of no time": (lambda _: Snooze("later"), "queued-with-backoff", "'later'"),
    "a backoff of no time": (lambda _: Retry("busy", backoff="soon"), "queued-with-backoff", "'soon'"),
    "a window of no time": (lambda _: Success(dedupe="x"), "dead", "'x'"),
    "a result of no kind": (lambda _: Success(42), "dead", "not int"),  # type: ignore[arg-type]
    "a result too large": (lambda _: b"x" * 1_100_000, "dead", "ZooKeeper takes"),
    "an error that cannot be shown": (mute, "queued-with-backoff", "Mute"),
    "an Error that cannot be shown": (lambda _: Error(Mute()), "dead", "Mute"),
    "an exit": (leave, "queued-with-backoff", "SystemExit: 3"),
    "the end of a generator": (stop_generating, "queued-with-backoff", "GeneratorExit"),
}
TRANSACTIONAL = [False, True]


def only_for_all(name: str, *, transactional: bool) -> None:
    if transactional and name == "a window of no time":
        pytest.skip("a transaction has no window")


def claimed(q: Queue) -> int:
    return q.counts()["claimed"]


def in_time(call: Callable[[], Any], within: float = 30) -> Any:
    """The result of a call that must end."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(within)


# --- what a handler may do


@pytest.mark.parametrize("transactional", TRANSACTIONAL)
@pytest.mark.parametrize("name", [*REFUSED, "an interrupt"])
def test_what_the_engine_refuses_is_a_failed_delivery(q: Queue, name: str, *, transactional: bool) -> None:
    """The task is settled with the reason, the worker ends as if nothing was, and has handled the next task."""
    only_for_all(name, transactional=transactional)
    handler, status, reason = {
        **REFUSED,
        "an interrupt": (interrupt, "queued-with-backoff", "KeyboardInterrupt"),
    }[name]
    q.configure(policy=RetryPolicy(min_backoff=60))
    q.enqueue(b"x", task_id="bad")
    q.enqueue(b"x", task_id="good")
    it = q.worker(lambda task, *_: handler(task) if task.id == "bad" else "done", transactional=transactional)
    in_time(lambda: it.run(until_empty=True))
    bad = q.task("bad")
    assert (str(bad.status), bad.attempt, q.task("good").result) == (status, 1, b"done")
    assert reason in (bad.error or "")
    assert (it.finished, it.failed, claimed(q)) == (1, 1, 0)


@pytest.mark.parametrize("transactional", TRANSACTIONAL)
@pytest.mark.parametrize("name", [*REFUSED, "a cancellation of its own"])
async def test_what_the_engine_refuses_is_a_failed_delivery_of_a_coroutine(
    zookeeper: str, root: str, q: Queue, name: str, *, transactional: bool
) -> None:
    """The same of the asynchronous worker; a handler that raises `CancelledError` unasked has merely failed."""
    only_for_all(name, transactional=transactional)

    async def give_in(_task: object) -> None:
        raise asyncio.CancelledError

    handler, status, reason = {
        **REFUSED,
        "a cancellation of its own": (give_in, "queued-with-backoff", "CancelledError"),
    }[name]
    q.configure(policy=RetryPolicy(min_backoff=60))
    q.enqueue(b"x", task_id="bad")
    q.enqueue(b"x", task_id="good")

    async def handle(task: Any, *_: object) -> object:
        if task.id == "good":
            return "done"
        done = handler(task)
        return await done if asyncio.iscoroutine(done) else done

    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:
        it = own.queue("census").worker(handle, transactional=transactional)
        await asyncio.wait_for(it.run(until_empty=True), 30)
        bad = q.task("bad")
        assert (str(bad.status), bad.attempt, q.task("good").result) == (status, 1, b"done")
        assert reason in (bad.error or "")
        assert (it.finished, it.failed, claimed(q)) == (1, 1, 0)


@pytest.mark.parametrize("transactional", TRANSACTIONAL)
@pytest.mark.parametrize("part", ["state", "claim"])
def test_a_record_damaged_in_hand_is_a_dead_letter(
    zk: Zkmq, root: str, q: Queue, part: str, *, transactional: bool
) -> None:
    """Its consumer still knows the task: it is settled with the reason, and the worker goes on."""
    q.enqueue(b"x", task_id="bad")
    q.enqueue(b"x", task_id="good")

    def handler(task: Any, *_: object) -> str:
        if task.id == "bad":
            zk._session.client.set(f"{root}/census/tasks/bad/{part}", b"\xff no record")
        return "done"

    it = q.worker(handler, transactional=transactional)
    in_time(lambda: it.run(until_empty=True))
    bad = q.task("bad")
    # The claim's znode is deleted unread; what it held is nobody's trouble.
    expected = ("dead", 1) if part == "state" else ("finished", 1)
    assert (str(bad.state), bad.attempt, q.task("good").result, claimed(q)) == (*expected, b"done", 0)
    if part == "state":
        assert "does not hold" in (bad.error or "")
        q.redrive("bad")
        claim = q.claim()
        assert claim is not None
        assert claim.task.id == "bad"
        claim.complete("anew")


def test_a_damaged_record_of_another_task_keeps_no_transaction(zk: Zkmq, root: str, q: Queue) -> None:
    """A handler fails whose transaction took another task, damaged meanwhile: both are settled, none is claimed."""
    q.configure(policy=RetryPolicy(min_backoff=60))
    q.enqueue(b"x", task_id="own")
    zk.queue("other").enqueue(b"x", task_id="taken")
    zk.queue("other").enqueue(b"x", task_id="too")

    def handler(_task: object, tx: UnitOfWork) -> None:
        assert tx.try_take("other") is not None
        assert tx.try_take("other") is not None
        zk._session.client.set(f"{root}/other/tasks/taken/state", b"no record")
        raise ValueError("no")

    in_time(lambda: q.worker(handler, transactional=True).run(until_empty=True))
    assert (claimed(q), claimed(zk.queue("other"))) == (0, 0)
    assert q.task("own").error == "ValueError: no"
    assert [str(zk.queue("other").task(name).state) for name in ("taken", "too")] == ["dead", "inserted"]


# --- what a worker meets itself


def test_an_unexpected_exception_ends_no_worker(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that raises what nobody expected is logged, and the worker's thread goes on."""
    met = []
    claim = q.claim

    def stumble(**options: Any) -> Any:
        if not met:
            met.append(1)
            raise RuntimeError("dictionary changed size during iteration")
        return claim(**options)

    monkeypatch.setattr(q, "claim", stumble)
    q.enqueue(b"x", task_id="a")
    in_time(lambda: q.worker(lambda _task: "done").run(until_empty=True))
    assert (q.task("a").result, met) == (b"done", [1])


@pytest.mark.full
def test_a_selector_that_is_refused_later_ends_the_worker(zk: Zkmq, q: Queue) -> None:
    """Its declaration gone, a running worker's selector is refused: `join` raises that, whatever threads there are."""
    q.configure(filters={"size": Integer()})
    it = q.worker(lambda _task: None, threads=3, selector="size>=1")
    it.start()
    eventually(lambda: q.counts() is not None and zk.queue("census")._context.registration.consumer is not None)
    q.configure(filters={"other": Integer()})
    q.enqueue(b"x")
    with pytest.raises(ConfigError, match="size"):
        in_time(it.join, 60)  # a thread finds out when it asks again, every 30 s at the latest
    assert claimed(q) == 0


# --- the end of a worker


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"lease": 1}])
def test_heartbeats_go_on_during_the_grace(q: Queue, options: dict[str, Any]) -> None:
    """A worker is told to stop: the lock or lease of what it still handles is extended until the handler returns."""
    q.configure(lock=1)
    q.enqueue(b"x", task_id="a")
    begun, go = threading.Event(), threading.Event()
    it = q.worker(lambda _task: begun.set() or (go.wait(30) and "done"), **options)
    it.start()
    assert begun.wait(20)
    assert it.stop()
    joined = threading.Thread(target=it.join)
    joined.start()
    assert q.claim(timeout=4) is None
    go.set()
    joined.join(30)
    assert not joined.is_alive()
    assert (q.task("a").result, q.task("a").attempt, it.finished) == (b"done", 1, 1)


async def test_heartbeats_go_on_during_an_asynchronous_grace(zookeeper: str, root: str, q: Queue) -> None:
    """The same of the asynchronous worker."""
    q.configure(lock=1)
    q.enqueue(b"x", task_id="a")
    begun, go = asyncio.Event(), asyncio.Event()
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:

        async def handler(_task: object) -> str:
            begun.set()
            await go.wait()
            return "done"

        it = own.queue("census").worker(handler)
        running = asyncio.create_task(it.run())
        await asyncio.wait_for(begun.wait(), 20)
        it.stop()
        assert await asyncio.to_thread(q.claim, timeout=4) is None
        go.set()
        await asyncio.wait_for(running, 30)
    assert (q.task("a").result, q.task("a").attempt) == (b"done", 1)


@pytest.mark.parametrize("transactional", TRANSACTIONAL)
def test_a_handler_that_outlasts_the_grace_has_been_delivered(q: Queue, *, transactional: bool) -> None:
    """Under `ConsumeOnce` its task is a dead letter and is never handed out again; what it returns late is refused."""
    q.configure(policy=ConsumeOnce())
    q.enqueue(b"x", task_id="a")
    deliveries: list[int] = []
    go = threading.Event()

    def handler(task: Any, *_: object) -> str:
        deliveries.append(task.attempt)
        go.wait(60)
        return "late"

    it = q.worker(handler, grace=GRACE, transactional=transactional)
    it.start()
    eventually(lambda: deliveries == [1])
    it.stop()
    in_time(it.join, 20)
    task = q.task("a")
    assert (str(task.state), task.attempt, [one.outcome for one in task.history]) == ("dead", 1, ["failed"])
    assert "stopped" in (task.error or "")
    go.set()
    q.worker(handler).run(until_empty=True)
    assert (deliveries, q.task("a").result, it.finished, it.failed) == ([1], None, 0, 1)


async def test_a_cancelled_handler_has_been_delivered(zookeeper: str, root: str, q: Queue) -> None:
    """The same of the asynchronous worker, which cancels the handler."""
    q.configure(policy=ConsumeOnce())
    q.enqueue(b"x", task_id="a")
    begun = asyncio.Event()
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:

        async def handler(_task: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        it = own.queue("census").worker(handler, grace=GRACE)
        running = asyncio.create_task(it.run())
        await asyncio.wait_for(begun.wait(), 20)
        it.stop()
        await asyncio.wait_for(running, 20)
        task = q.task("a")
        assert (str(task.state), task.attempt, it.failed) == ("dead", 1, 1)
        assert "stopped" in (task.error or "")
        assert await own.queue("census").claim() is None


def test_a_task_whose_handler_has_not_begun_is_released(q: Queue) -> None:
    """It was claimed when the worker was told to stop: nothing was delivered, so nothing is counted."""
    q.configure(policy=ConsumeOnce())
    q.enqueue(b"x", task_id="a")
    called: list[object] = []
    it = q.worker(called.append)
    claim = q.claim()
    assert claim is not None
    it.stop()
    it._handle(it._add(claim))
    assert (str(q.task("a").status), q.task("a").attempt, called, it.failed) == ("queued", 0, [], 0)
    again = q.claim()
    assert again is not None
    again.complete()


def test_a_stop_frees_what_a_waiting_transaction_holds(zk: Zkmq, q: Queue) -> None:
    """Its handler holds a second task and waits for a third: `join` ends all the same, and all of it is free."""
    q.configure(policy=RetryPolicy(factor=0))
    zk.queue("other").configure(policy=RetryPolicy(factor=0))
    q.enqueue(b"x", task_id="a")
    zk.queue("other").enqueue(b"x", task_id="b")
    taken, raised = threading.Event(), []

    zk.queue("empty").configure()

    def handler(_task: object, tx: UnitOfWork) -> None:
        tx.try_take("other")
        taken.set()
        tx.try_take("empty", timeout=300)
        try:
            tx.put("out", b"x")
        except ZkmqError as error:
            raised.append(error)

    it = q.worker(handler, grace=GRACE, transactional=True)
    it.start()
    assert taken.wait(20)
    it.stop()
    in_time(it.join, 20)
    for queue, name in (("census", "a"), ("other", "b")):
        claim = zk.queue(queue).claim(timeout=20)
        assert claim is not None
        assert (claim.task.id, claim.task.attempt) == (name, 2)
        claim.complete()
    eventually(lambda: len(raised) == 1)
    assert "has ended" in str(raised[0])


# --- cancelling


async def test_a_claim_that_came_as_the_worker_was_cancelled_is_given_back(
    zookeeper: str, root: str, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has begun on it: it is there for others at once, no attempt counted."""
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:
        queue = own.queue("census")
        claim = queue.claim

        async def claim_and_cancel(**options: Any) -> Any:
            got = await claim(**options)
            running.cancel()
            return got

        monkeypatch.setattr(queue, "claim", claim_and_cancel)
        for _ in range(3):
            task_id = q.enqueue(b"x")
            running = asyncio.create_task(queue.worker(_never).run())
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running, 20)
            assert (str(q.task(task_id).status), q.task(task_id).attempt) == ("queued", 0)
            mine = q.claim()
            assert mine is not None
            mine.complete()


async def _never(_task: object, *_: object) -> None:
    await asyncio.Event().wait()


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


async def test_a_cancelled_worker_ends_at_whatever_moment(zookeeper: str, root: str, q: Queue) -> None:
    """Cancelled after so many turns of the loop, between enqueues: it ends each time, and leaves nothing claimed."""
    q.configure(policy=RetryPolicy(attempts=None, factor=0), lock=30)
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:
        queue = own.queue("census")
        await queue.enqueue(b"x")

        async def handler(_task: object) -> None:
            await queue.enqueue(b"x")

        for turns in range(60):
            it = queue.worker(handler, threads=2)
            running = asyncio.create_task(it.run())
            for _ in range(turns * 3):
                await asyncio.sleep(0.0005)
            it._heart.quicken()
            it.stop() if turns % 3 == 0 else None
            running.cancel()
            await asyncio.wait({running}, timeout=20)
            assert running.done()
        await asyncio.to_thread(eventually, lambda: claimed(q) == 0)
        counts = q.counts()
        assert counts["inserted"] >= 1


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
    """Two seconds without a server, the session lives: the handler puts, and its task is completed at its first try."""
    q.enqueue(b"x", task_id="a")
    deliveries: list[int] = []
    with Zkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as own:

        def handler(task: Any, tx: UnitOfWork) -> str:
            deliveries.append(task.attempt)
            tx.put("out", b"before")
            _while_shut(door, own, 2, lambda: tx.put("out", b"meanwhile"))
            return "done"

        it = own.queue("census").worker(handler, transactional=True)
        in_time(lambda: it.run(until_empty=True), 60)
        assert (deliveries, it.finished, it.failed) == ([1], 1, 0)
        assert (q.task("a").result, q.task("a").attempt, claimed(q)) == (b"done", 1, 0)
        assert sorted(task.data for task in own.queue("out").tasks()) == [b"before", b"meanwhile"]


def test_a_task_taken_just_before_a_drop_is_handled_once(door: Faulty, root: str, q: Queue) -> None:
    """The connection is away when the transaction begins and when it is committed: no claim is dropped."""
    q.enqueue(b"x", task_id="a")
    deliveries: list[int] = []
    with Zkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as own:
        queue = own.queue("census")
        it = queue.worker(lambda task, _tx: deliveries.append(task.attempt), transactional=True)
        claim = queue.claim()
        assert claim is not None
        _while_shut(door, own, 2, lambda: it._handle(it._add(claim)))
        assert (deliveries, q.task("a").state, q.task("a").attempt, it.finished) == ([1], "finished", 1, 1)


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


def test_a_rollback_does_not_deny_a_commit_that_happened(door: Faulty, zk: Zkmq, root: str) -> None:
    """Its reply was lost and it is rolled back: that is refused with the truth, and nothing is claimed."""
    zk.queue("in").enqueue(b"x", task_id="a")
    with Zkmq.connect(door.hosts, root=root, session_timeout=30, request_timeout=1, gc=False) as own:
        tx = own.transaction()
        assert tx.try_take("in") is not None
        door.plan = Once(is_multi, CutAfter(math.inf))
        with pytest.raises((OutcomeUnknown, Unavailable)):
            tx.commit("r")
        door.up()
        eventually(own._session.connected.is_set)
        with pytest.raises(ZkmqError, match="had happened"):
            tx.rollback()
        assert (zk.queue("in").task("a").result, claimed(zk.queue("in"))) == (b"r", 0)


# --- heartbeats wait for nothing


def _blocked(*_: object) -> Any:
    yield Wait(ThreadSignal(), 0, 120)


def _failing(*_: object) -> Any:
    yield Wait(ThreadSignal(), 0, 0.01)
    raise Unavailable("no look at the queue succeeds")


@pytest.mark.full
@pytest.mark.parametrize("tend", [_blocked, _failing])
def test_a_keeper_in_trouble_delays_no_heartbeat(q: Queue, monkeypatch: pytest.MonkeyPatch, tend: Any) -> None:
    """Looking after the queue takes for ever, or fails: the lock of what is in hand is extended all the same."""
    monkeypatch.setattr(keeper, "tend", tend)
    _keeps_its_lock(q)


def test_a_slow_monitor_delays_no_heartbeat(q: Queue) -> None:
    """A monitor that does not come back holds up neither the lock of what is in hand nor the end of the worker."""
    called, go = threading.Event(), threading.Event()
    try:
        _keeps_its_lock(q, called, monitor=lambda _poll: called.set() or go.wait(120))
    finally:
        go.set()


def _keeps_its_lock(q: Queue, first: threading.Event | None = None, **options: Any) -> None:
    q.configure(lock=1)
    begun, go = threading.Event(), threading.Event()
    it: Worker = q.worker(lambda _task: begun.set() or (go.wait(30) and "done"), **options)
    it.start()
    assert first is None or first.wait(20)
    q.enqueue(b"x", task_id="a")
    assert begun.wait(20)
    assert q.claim(timeout=4) is None
    go.set()
    eventually(lambda: q.task("a").state == "finished")
    it.stop()
    in_time(it.join, 20)
    assert q.task("a").attempt == 1


@pytest.mark.full
@pytest.mark.parametrize("tend", [_blocked, _failing])
async def test_an_asynchronous_keeper_in_trouble_delays_no_heartbeat(
    zookeeper: str, root: str, q: Queue, monkeypatch: pytest.MonkeyPatch, tend: Any
) -> None:
    """The same of the asynchronous worker."""
    monkeypatch.setattr(keeper, "tend", tend)
    q.configure(lock=1)
    q.enqueue(b"x", task_id="a")
    go = asyncio.Event()
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:

        async def handler(_task: object) -> str:
            await go.wait()
            return "done"

        it = own.queue("census").worker(handler)
        running = asyncio.create_task(it.run())
        await asyncio.to_thread(eventually, lambda: q.task("a").state == "claimed")
        assert await asyncio.to_thread(q.claim, timeout=4) is None
        go.set()
        await asyncio.to_thread(eventually, lambda: q.task("a").state == "finished")
        it.stop()
        await asyncio.wait_for(running, 20)
    assert q.task("a").attempt == 1


# --- clean-up in the background


def test_one_queue_s_trouble_ends_no_clean_up(
    zk: Zkmq, zookeeper: str, root: str, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up that raises what nobody expected is logged, and the other queues are cleaned up for ever."""
    collect = upkeep.collect_if_due
    failed: list[str] = []

    def stumble(context: Any) -> Any:
        if context.queue == "bad":
            failed.append(context.queue)
            raise RuntimeError("dictionary changed size during iteration")
        return collect(context)

    monkeypatch.setattr(upkeep, "collect_if_due", stumble)
    for name in ("bad", "census"):
        zk.queue(name).configure(task_gc_lifetime=0, task_gc_interval=0)
    with Zkmq.connect(zookeeper, root=root) as other:
        other.queue("bad").enqueue(b"x")
        eventually(lambda: len(failed) >= 2)
        task_id = other.queue("census").enqueue(b"x")
        claim = other.queue("census").claim()
        assert claim is not None
        claim.complete()
        eventually(lambda: task_id not in [task.id for task in q.tasks()])
        assert len(failed) >= 2


def test_queues_are_added_while_others_are_cleaned_up(zookeeper: str, root: str) -> None:
    """Eight threads use two hundred queues for the first time while clean-up goes round: it goes on for all."""
    with Zkmq.connect(zookeeper, root=root) as own:

        def use(number: int) -> None:
            own._used(own._context(f"q{number}"))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(use, [number % 200 for number in range(1600)]))
        table = own._upkeep
        assert table is not None
        assert len(table._due) == 200
        assert table._thread is not None
        assert table._thread.is_alive()


# --- what cannot be settled


def _stumbling(settle: Any, failed: list[str]) -> Any:
    def stumble(context: Any, claimed: Any, *rest: Any) -> Any:
        if claimed.task_id == "bad" and not failed:
            failed.append("bad")
            raise RuntimeError("not now")
        return settle(context, claimed, *rest)

    return stumble


@pytest.mark.parametrize("stops", [False, True])
def test_what_cannot_be_settled_is_tried_again(q: Queue, monkeypatch: pytest.MonkeyPatch, *, stops: bool) -> None:
    """Later, or as the worker is stopped; meanwhile its thread handles other tasks, and it is not handled twice."""
    failed: list[str] = []
    monkeypatch.setattr(outcome, "settle_outcome", _stumbling(outcome.settle_outcome, failed))
    q.enqueue(b"x", task_id="bad")
    q.enqueue(b"x", task_id="good")
    it = q.worker(lambda _task: "done")
    it.start()
    eventually(lambda: q.task("good").state == "finished")
    if not stops:
        eventually(lambda: q.task("bad").state == "finished")
    it.stop()
    in_time(it.join, 20)
    assert (failed, q.task("bad").result, q.task("bad").attempt, it.finished) == (["bad"], b"done", 1, 2)


async def test_what_a_coroutine_s_worker_cannot_settle_is_tried_again(
    zookeeper: str, root: str, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of the asynchronous worker."""
    failed: list[str] = []
    monkeypatch.setattr(outcome, "settle_outcome", _stumbling(outcome.settle_outcome, failed))
    q.enqueue(b"x", task_id="bad")
    q.enqueue(b"x", task_id="good")

    async def handler(_task: object) -> str:
        return "done"

    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:
        it = own.queue("census").worker(handler)
        for _ in range(2):  # a worker that has emptied its queue may run again
            await asyncio.wait_for(it.run(until_empty=True), 20)
        await asyncio.to_thread(eventually, lambda: q.task("bad").state == "finished")
        assert (failed, q.task("bad").attempt, q.task("good").result, it.finished) == (["bad"], 1, b"done", 2)
