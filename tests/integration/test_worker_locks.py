"""How long a worker holds a task: locks, heartbeats that wait for nothing, and the grace of a stop; on both fronts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_zkmq.engine import ConsumeOnce, Queue, RetryPolicy, UnitOfWork, Zkmq, ZkmqError
from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.zk_operations import Wait
from airflow_provider_zkmq.engine.errors import Unavailable
from airflow_provider_zkmq.engine.zk.session import ThreadSignal
from tests.integration.conftest import started, taken
from tests.integration.working import handled, in_time, work
from tests.support import eventually

GRACE = 0.2


def test_without_heartbeat_the_lock_bounds_the_handler(q: Queue) -> None:
    """`heartbeat=False`: a handler that overruns the lock loses its task, and what it returns is refused."""
    q.enqueue(b"x", task_id="a", lock=1)
    release = threading.Event()
    slow = q.worker(lambda _task: release.wait(20) and "late", heartbeat=False)
    slow.start()
    eventually(lambda: q.task("a").state == "claimed")
    claim = taken(q, timeout=20)
    assert claim.task.attempt == 2
    claim.complete("in time")
    release.set()
    slow.stop()
    slow.join()
    assert (q.task("a").result, slow.finished) == (b"in time", 0)


# --- heartbeats wait for nothing


def keeps_its_lock(
    q: Queue, client: Any, first: threading.Event | None = None, *, stops: bool = False, **options: Any
) -> None:
    """A handler is at work for longer than its lock: nobody else gets its task, which it completes."""
    q.configure(lock=3)
    begun, go = threading.Event(), threading.Event()
    it = work(client, lambda *_: begun.set() or (go.wait(30) and "done"), **options)
    it.start()
    assert first is None or first.wait(20)
    q.enqueue(b"x", task_id="a")
    assert begun.wait(20)
    assert it.stop() if stops else True
    joined = started(it.join)
    assert q.claim(timeout=5) is None
    assert (joined.done(), q.task("a").status) == (False, "locked")
    go.set()
    eventually(lambda: q.task("a").state == "finished")
    it.stop()
    joined.result(30)
    assert (q.task("a").result, q.task("a").attempt, it.finished) == (b"done", 1, 1)


def test_a_worker_extends_the_lock_of_what_it_handles(q: Queue, front: Any) -> None:
    """A handler that takes longer than the lock keeps its task, whose claim is extended meanwhile."""
    keeps_its_lock(q, front, transactional=True)


@pytest.mark.parametrize("options", [{}, pytest.param({"lease": 3}, marks=pytest.mark.full)], ids=["lock", "lease"])
def test_heartbeats_go_on_during_the_grace(q: Queue, front: Any, options: dict[str, Any]) -> None:
    """The lock or lease of what it handles is extended until the handler returns; `join` returns then, not before."""
    keeps_its_lock(q, front, stops=True, **options)


def _blocked(*_: object) -> Any:
    yield Wait(ThreadSignal(), 0, 120)


def _failing(*_: object) -> Any:
    yield Wait(ThreadSignal(), 0, 0.01)
    raise Unavailable("no look at the queue succeeds")


@pytest.mark.full
@pytest.mark.parametrize("tend", [_blocked, _failing])
def test_a_keeper_in_trouble_delays_no_heartbeat(
    q: Queue, front: Any, monkeypatch: pytest.MonkeyPatch, tend: Callable[..., Any]
) -> None:
    """Looking after the queue takes for ever, or fails: the lock of what is in hand is extended all the same."""
    monkeypatch.setattr(due_work, "maintain", tend)
    keeps_its_lock(q, front)


def test_a_slow_monitor_delays_no_heartbeat(zk: Zkmq, q: Queue) -> None:
    """A monitor that does not come back holds up neither the lock of what is in hand nor the end of the worker."""
    called, go = threading.Event(), threading.Event()
    try:
        keeps_its_lock(q, zk, called, monitor=lambda _poll: called.set() or go.wait(120))
    finally:
        go.set()


# --- the end of a worker


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    ("policy", "status", "again"), [(ConsumeOnce(), "dead", []), (RetryPolicy(factor=0), "queued", [2])]
)
def test_a_handler_that_outlasts_the_grace_has_been_delivered(
    q: Queue, front: Any, *, transactional: bool, policy: Any, status: str, again: list[int]
) -> None:
    """It counts, and what it returns late is refused: a dead letter under `ConsumeOnce`, else there for others."""
    q.configure(policy=policy)
    q.enqueue(b"x", task_id="a")
    deliveries: list[int] = []
    go = threading.Event()

    def handler(task: Any, *_: object) -> str:
        deliveries.append(task.attempt)
        go.wait(60)
        return "late" if task.attempt == 1 else "again"

    it = work(front, handler, grace=GRACE, transactional=transactional)
    it.start()
    eventually(lambda: deliveries == [1])
    assert [it.stop(), it.stop()] == [True, False]
    in_time(it.join)
    task = q.task("a")
    assert (str(task.status), task.attempt, [one.outcome for one in task.history]) == (status, 1, ["failed"])
    assert "stopped" in (task.error or "")
    go.set()
    handled(front, handler)
    assert (deliveries, it.finished, it.failed) == ([1, *again], 0, 1)
    assert q.task("a").result == (b"again" if again else None)


def test_a_stop_frees_what_a_waiting_transaction_holds(zk: Zkmq, q: Queue, front: Any) -> None:
    """Its handler holds a second task and waits for a third: `join` ends all the same, and all of it is free."""
    for name in ("census", "other", "empty"):
        zk.queue(name).configure(policy=RetryPolicy(factor=0))
    q.enqueue(b"x", task_id="a")
    zk.queue("other").enqueue(b"x", task_id="b")
    begun, raised = threading.Event(), list[Exception]()

    def handler(_task: object, tx: UnitOfWork) -> None:
        tx.try_take("other")
        begun.set()
        try:
            tx.try_take("empty", timeout=300)
            tx.put("out", b"x")
        except ZkmqError as error:
            raised.append(error)

    it = work(front, handler, grace=GRACE, transactional=True)
    it.start()
    assert begun.wait(20)
    it.stop()
    in_time(it.join)
    for queue, name in (("census", "a"), ("other", "b")):
        claim = taken(zk.queue(queue), timeout=20)
        assert (claim.task.id, claim.task.attempt) == (name, 2)
        claim.complete()
    zk.queue("empty").enqueue(b"x")  # where it still waits, it ends
    eventually(lambda: len(raised) == 1)
    assert "has ended" in str(raised[0])
