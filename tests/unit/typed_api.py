"""What type checkers see of both fronts: checked by `test_api`, not run.

Under ``mypy --strict`` an ignored error that does not occur is an error, too: the refusals below are all made.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import pendulum

from airflow_provider_zkmq.engine import Duration, Retry, RetryPolicy, Snooze, Success, parse_duration
from airflow_provider_zkmq.engine.api.client import AsyncZkmq
from airflow_provider_zkmq.engine.api.queue import AsyncClaim, AsyncQueue, Claim, Queue
from airflow_provider_zkmq.engine.api.transactions import AsyncUnitOfWork, UnitOfWork
from airflow_provider_zkmq.engine.connect import AnyClaim, Zkmq
from airflow_provider_zkmq.engine.core.model.new_message import Message, NewTasks
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read.inspect import Task
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.engine.working.async_worker import AsyncWorker
from airflow_provider_zkmq.engine.working.worker import Worker
from airflow_provider_zkmq.engine.working.worker_base import Running, RunningAsync
from airflow_provider_zkmq.filequeue import FileClaim, FileClient, FileQueue
from airflow_provider_zkmq.filequeue.queue_internals import FileQueueInternals


def blocking(zk: Zkmq, queue: Queue, unit: UnitOfWork, running: Running) -> None:
    assert_type(Zkmq.connect(), Zkmq | FileClient)
    assert_type(zk.queue("q"), Queue)
    assert_type(zk.transaction(), UnitOfWork)
    assert_type(queue.pause, Callable[[], bool])
    assert_type(queue.pause(), bool)
    assert_type(queue.task("a"), Task)
    assert_type(queue.tasks(ids=["a"], status="queued", parts=["data"], limit=1), list[Task])
    assert_type(queue.enqueue(b"x", {"region": "eu"}, priority=3, task_id="a"), str)
    assert_type(queue.enqueue_many([Message(b"x")], batch="b"), list[str])
    assert_type(internals(queue).enqueue_new([Message(b"x", task_id="a")], batch="b"), NewTasks)
    assert_type(queue.claim({"region": "eu"}, "at_least", timeout=5), Claim | None)
    assert_type(queue.claim_many(5, {"region": "eu"}, "at_least", timeout=5), list[Claim])
    assert_type(queue.claim_task("a", lease=60, attempt=2), Claim | None)
    for each in queue.claims({"region": "eu"}, timeout=0, prefetch=8):
        assert_type(each, Claim)
        each.result = b"r"
    assert_type(queue.claim_handle("a", 1, lease=60), Claim)
    assert_type(queue.claim_handle("a", 1).fail("no", retry=False), State)
    assert_type(queue.worker(print), Worker)
    assert_type(internals(queue).zxid(), int)
    claim = queue.claim()
    assert claim is not None
    assert_type(claim.task, Task)
    assert_type(claim.transaction(), UnitOfWork)
    assert_type(unit.try_take("q", timeout=1), Task | None)
    assert_type(unit.commit(b"r"), list[str])
    assert_type(running.report(0.5, "half"), None)


async def awaited(zk: AsyncZkmq, queue: AsyncQueue, unit: AsyncUnitOfWork, running: RunningAsync) -> None:
    assert_type(AsyncZkmq.connect(), AsyncZkmq)
    assert_type(zk.queue("q"), AsyncQueue)
    assert_type(zk.transaction(), AsyncUnitOfWork)
    assert_type(queue.pause, Callable[[], Coroutine[Any, Any, bool]])
    assert_type(await queue.pause(), bool)
    assert_type(await queue.task("a"), Task)
    assert_type(await queue.enqueue(b"x", {"region": "eu"}, priority=3, task_id="a"), str)
    assert_type(await queue.claim({"region": "eu"}, "at_least", timeout=5), AsyncClaim | None)
    assert_type(await queue.claim_many(5, selector="region==eu"), list[AsyncClaim])
    async for each in queue.claims(selector="region==eu", timeout=0):
        assert_type(each, AsyncClaim)
    assert_type(await (await queue.claim_handle("a", 1)).fail("no", retry=False), State)
    assert_type(queue.worker(print), AsyncWorker)
    assert_type(await internals(queue).zxid(), int)
    claim = await queue.claim()
    assert claim is not None
    assert_type(claim.task, Task)
    assert_type(claim.transaction(), AsyncUnitOfWork)
    assert_type(await unit.try_take("q", timeout=1), Task | None)
    assert_type(await unit.commit(b"r"), list[str])
    assert_type(await running.report(0.5, "half"), None)


def files(queue: FileQueue, either: Queue | FileQueue) -> None:
    """The same worker, and one code for both where either may come."""
    assert_type(queue.worker(print), Worker)
    assert_type(queue.claim(), FileClaim | None)
    claim: AnyClaim | None = either.claim(timeout=1)
    if claim is not None:
        claim.complete(b"r")
    assert_type(either.worker(print).finished, int)
    assert_type(internals(queue), FileQueueInternals)
    assert_type(internals(either).closed, bool)


def times(queue: Queue, either: Queue | FileQueue, claim: Claim) -> None:
    """Seconds, timedelta and pendulum's durations; moments; and what is told of a task."""
    span, when = pendulum.duration(minutes=5), pendulum.now("UTC")
    for each in (5, 0.5, timedelta(minutes=5), span):
        claim.snooze(each)
        queue.configure(lock=each, policy=RetryPolicy(min_backoff=each, final=(ValueError, "my.Error")))
        _ = either.claim(timeout=each, lease=each)
        _ = Retry("busy", backoff=each), Success(dedupe=each), Snooze(each), Message("x", delay=each, lock=each)
    assert_type(either.enqueue("x", not_before=when, lock=span), str)
    assert_type(internals(queue).find("all()", since=datetime.now(UTC)), list[str])
    assert_type(either.worker(print, grace=span, throttle=0), Worker)
    assert_type(queue.task("a").due_at, pendulum.DateTime | None)
    assert_type(parse_duration("5m"), float)
    seconds: Duration = span
    queue.enqueue("x", delay=seconds)


def refused(queue: Queue, aqueue: AsyncQueue, claim: Claim) -> None:
    queue.pause(1)  # type: ignore[call-arg]
    queue.task(3)  # type: ignore[arg-type]
    queue.enqueue(b"x", prio=3)  # type: ignore[call-arg]
    queue.enqueue(b"x", on_conflict="update")  # type: ignore[arg-type]
    queue.claim(time_out=3)  # type: ignore[call-arg]
    queue.claim_handle("a", 1).fail(message="no")  # type: ignore[call-arg]
    claim.complete(3)  # type: ignore[arg-type]
    claim.snooze("5m")  # type: ignore[arg-type]
    queue.enqueue(b"x", delay="5m")  # type: ignore[arg-type]
    queue.enqueue(b"x", not_before="2026-11-22T10:31:05Z")  # type: ignore[arg-type]
    _ = Snooze("later")  # type: ignore[arg-type]
    _ = RetryPolicy(factor="1s")  # type: ignore[arg-type]
    _ = aqueue.claim(lease=3, at_once=True)  # type: ignore[call-arg]
    _ = aqueue.pause() + 1  # type: ignore[operator]
