"""Batches on a real server: many tasks waited for at the cost of one watch, and followed by one more."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    ConfigError,
    ConsumeTimes,
    DuplicateTask,
    IllegalTransition,
    Message,
    Queue,
    Task,
    TaskNotFound,
    WaitTimeout,
    Zkmq,
)
from airflow_provider_zkmq.engine.core.tasks.batches import Batch
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.integration.clients import clients, end_session, spent, together
from tests.integration.conftest import started, taken
from tests.support import eventually

MEMBERS = int(os.environ.get("ZKMQ_BATCH_TASKS", "3000"))
#: What waiting costs in all: a look at the batch, one read under the watch, a second look; afterwards a last one.
WAITING = {"GetMany": 2, "Children": 2, "Get": 1, "Exists": 1}


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    queue = zk.queue("census")
    queue.configure(policy=ConsumeTimes(2))
    return queue


def _messages(count: int) -> list[Message]:
    return [Message(str(at)) for at in range(count)]


def _work(queue: Queue, handler: Callable[[Task], object] = lambda _task: None, threads: int = 2) -> None:
    queue.worker(handler, threads=threads).run(until_empty=True)


def _waiting(client: Zkmq, name: str) -> Future[tuple[Batch, dict[str, int]]]:
    """A wait for a batch under way in a thread, which has looked and only watches: what it gets, and what it costs."""
    queue, got = client.queue("census"), list[Batch]()
    cost = lambda: spent(client, lambda: got.append(queue.wait_batch(name, timeout=300)))
    waiting = started(lambda: (cost(), *got)[::-1])
    eventually(lambda: client.requests.get("Exists", 0) >= 1)
    return waiting


def _follower(queue: Queue, ids: list[str]) -> Task:
    """The one task of the queue that is no member; it was enqueued after the last member had ended."""
    tasks = {task.id: task for task in queue.tasks()}
    (follower,) = set(tasks) - set(ids)
    (born,) = {znode.czxid for znode in internals(queue).tree(follower) if znode.path.endswith("/data")}
    assert max(tasks[task_id].version for task_id in ids) < born
    return tasks[follower]


@pytest.mark.full
def test_a_big_batch_costs_its_waiter_one_watch(zookeeper: str, root: str, q: Queue, other: Zkmq) -> None:
    """Thousands of members, failing, retried, dead, cancelled, one whose session ends: six requests, one wake-up.

    Who follows is enqueued once, after the last member has ended; the failed ones are the dead and the cancelled.
    """
    with clients(zookeeper, root, 2) as (dying, busy):
        ids = q.enqueue_many(_messages(MEMBERS), batch="big", then=Message("all done"))
        waiting = _waiting(other, "big")
        orphan = taken(dying.queue("census"))
        rng, handled = random.Random(11), Counter[str]()

        def handle(task: Task) -> str:
            handled[task.id] += 1
            if task.data.endswith(b"77") or (rng.random() < 0.02 and task.batch):
                msg = "broken"
                raise RuntimeError(msg)
            return task.data.decode()

        def cancel() -> None:
            for task_id in ids[13::400]:
                with suppress(IllegalTransition):
                    q.cancel(task_id)
            end_session(dying)

        together(partial(_work, busy.queue("census"), handle, 4), partial(_work, q, handle, 4), cancel)
        eventually(lambda: q.batch("big").done or _work(q, handle) is not None, within=300)
        batch, cost = waiting.result(300)
    _work(q, handle)  # who follows
    ends = {state: [task.id for task in q.tasks(state=state)] for state in ("finished", "dead", "cancelled")}
    assert cost == WAITING
    assert (batch.total, batch.open, batch.done) == (MEMBERS, 0, True)
    assert batch.failed == tuple(sorted(ends["dead"] + ends["cancelled"]))
    assert len(ends["dead"]) >= MEMBERS // 100
    assert ends["cancelled"]
    follower = _follower(q, ids)
    assert (follower.data, follower.state, handled[follower.id]) == (b"all done", "finished", 1)
    assert sum(map(len, ends.values())) == MEMBERS + 1
    assert q.task(orphan.task.id).history[0].outcome == "rescued"


def test_a_small_batch_costs_the_same(q: Queue, front: Any) -> None:
    """Waiting for three members costs what waiting for thousands does, on both fronts; a wait times out.

    A batch counts the run it was enqueued with: its failure is told, and the run in escrow is no member.
    """
    queue = front.queue("census")
    ids = queue.enqueue_many(_messages(3), batch="small", then=Message("after"))
    with pytest.raises(WaitTimeout, match=r"3 task\(s\) open"):
        queue.wait_batch("small", timeout=0.1)
    with pytest.raises(TaskNotFound):
        queue.wait_batch("unknown")
    with clients(front.config.hosts, front.config.root, 1) as (client,):
        waiting = _waiting(client, "small")
        for task_id in ids:
            claim = taken(queue, timeout=10)
            assert claim.task.id == task_id
            if task_id == ids[0]:
                queue.enqueue(b"another run", task_id=task_id, on_conflict="requeue")
            claim.fail("no", retry=False) if task_id == ids[0] else claim.complete()
        ended = Batch("small", 3, 0, (ids[0],), done=True)
        assert waiting.result(60) == (ended, WAITING)
        assert queue.wait_batch("small", timeout=10) == ended
    assert (q.task(ids[0]).data, q.task(ids[0]).batch) == (b"another run", None)
    assert _follower(q, ids).data == b"after"


def _snapshot(queue: Queue) -> dict[str, tuple[object, ...]]:
    return {task.id: (task.state, task.attempt, task.version, task.enqueued_ms) for task in queue.tasks()}


def test_a_batch_takes_only_what_it_can_keep(q: Queue) -> None:
    """One clear error for each mistake; the same call adds what is missing until the batch is written."""
    q.enqueue(b"in use", task_id="taken")
    messages = [Message(b"1"), Message(b"2", task_id="taken")]
    follows_by_update = Message(b"2", task_id="x", on_conflict="replace")
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ConfigError, "has no tasks", lambda: q.enqueue_many([], batch="empty")),
        (ConfigError, "then= needs batch=", lambda: q.enqueue_many(_messages(1), then=Message("after"))),
        (ConfigError, "take no on_conflict", lambda: q.enqueue_many(_messages(1), batch="b", then=follows_by_update)),
        (TaskNotFound, "empty", lambda: q.wait_batch("empty")),
        (TaskNotFound, "empty", lambda: q.batch("empty")),
        (DuplicateTask, "taken", lambda: q.enqueue_many(messages, batch="b")),
        (WaitTimeout, "never written to its end", lambda: q.wait_batch("b", timeout=0)),
        (DuplicateTask, "b", lambda: q.enqueue_many([Message(b"other data")], batch="b")),
    ]
    for kind, said, call in refused:
        with pytest.raises(kind, match=said):
            call()
    q.cancel("taken")
    assert q.enqueue_many(messages, batch="b") == ["b.000000", "taken"]
    with pytest.raises(WaitTimeout) as caught:
        q.wait_batch("b", timeout=0)
    assert caught.value.left == ("b.000000", "taken")
    before = _snapshot(q)
    with pytest.raises(DuplicateTask, match="'b'"):
        q.enqueue_many(_messages(3), batch="b")
    assert (_snapshot(q), q.batch("b")) == (before, Batch("b", 2, 2, (), done=False))
