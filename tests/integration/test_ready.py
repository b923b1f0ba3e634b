"""Whether there is work, and claims that are taken over, on real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_zkmq.engine import ClaimLost, Queue, String, Zkmq, ZkmqError
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.integration.conftest import started, taken, waits
from tests.support import eventually


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    queue: Queue = zk.queue("q")
    queue.configure(filters={"k": String()})
    return queue


@contextmanager
def waiting(queue: Queue, call: Callable[[], object]) -> Iterator[list[object]]:
    """Inside the block the call waits in a thread of its own; afterwards: what it has returned or raised."""
    told, future = list[object](), started(call)
    eventually(lambda: waits(queue) == 1)
    yield told
    told.append(future.exception(60) or future.result())


def test_who_waits_for_work_sends_nothing_while_there_is_none(q: Queue, other: Zkmq) -> None:
    """And is told at once when there is some; no consumer was there meanwhile but the one that claims."""
    queue = other.queue("q")
    with waiting(queue, lambda: queue.ready(timeout=None)) as told:
        before = dict(other.requests)
        assert q.conf().order == "default"
        assert dict(other.requests) == before
        assert q.consumers() == []
        q.enqueue("x", task_id="a")
    assert told == [True]
    assert q.counts()["inserted"] == 1


def test_a_wait_for_work_is_ended_by_a_wake_or_with_its_connection(q: Queue, other: Zkmq) -> None:
    """By a wake it is told that there is none; by the end of the connection with the library's own error."""
    queue, stop = other.queue("q"), threading.Event()
    with waiting(queue, lambda: queue.ready(timeout=None, stopping=stop.is_set)) as told:
        stop.set()
        internals(queue).wake()
    assert told == [False]
    with waiting(queue, lambda: queue.ready(timeout=None)) as told:
        other.close()
    assert isinstance(told[0], ZkmqError)


def test_a_claim_is_taken_over_on_both_fronts(q: Queue, front: Any, zookeeper: str, root: str) -> None:
    """Where its maker is gone, too: it is extended, carried on and completed, as one delivery."""
    q.enqueue("x", task_id="a")
    with Zkmq.connect(zookeeper, root=root, gc=False) as maker:
        made = taken(maker.queue("q"), lease=60)
    taken_over = q.claim_handle("a", made.token)
    taken_over.progress(0.5, "half")
    queue = front.queue("q")
    mine = queue.claim_handle("a", made.token)
    assert (mine.task.data, mine.task.attempt, mine.token) == (b"x", 1, made.token)
    mine.extend(60)
    mine.complete("done")
    for late in (lambda: queue.claim_handle("a", made.token), taken_over.complete):
        with pytest.raises(ClaimLost):
            late()
    task = q.task("a")
    assert (task.state, task.result, task.attempt) == ("finished", b"done", 1)
