"""What is read of a queue on a real server, by either front; and why nobody takes a task."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AnyOf, Queue, String, Task, TaskNotFound, Zkmq
from tests.integration.clients import end_session
from tests.integration.conftest import CLASSES, started, taken
from tests.support import eventually


@pytest.fixture
def reads(q: Queue, front: Any) -> Any:
    """The queue `q`, to be read by one of the fronts from a client that has read nothing yet."""
    return front.queue(q.name)


def test_consumers_are_told_until_they_are_buried(other: Zkmq, q: Queue, reads: Any) -> None:
    """A session that ends leaves a dead consumer with its tasks, until somebody looks after the queue."""
    ids = sorted(q.enqueue(b"x") for _ in range(2))
    assert q.claim(selector="performance_class==low") is None
    claims = [taken(q), taken(other.queue(q.name))]
    by_id = {consumer.id: consumer for consumer in reads.consumers()}
    mine, theirs = (by_id[q.task(claim.task.id).consumer] for claim in claims)
    assert sorted([*mine.in_hand, *theirs.in_hand]) == ids
    assert mine.alive
    assert mine.accepts == ("performance_class==low", "all()")
    assert (mine.pid, mine.host) == (theirs.pid, theirs.host)
    end_session(other)
    eventually(lambda: any(not consumer.alive for consumer in reads.consumers()))
    eventually(lambda: q.claim() is not None)
    eventually(lambda: [consumer.id for consumer in reads.consumers()] == [mine.id])


def test_a_task_is_followed_to_its_end(q: Queue, reads: Any) -> None:
    """Every state is told, and what its handler reports; the last one is returned."""
    task_id = q.enqueue(b"x")
    told: list[Task] = []
    heard = threading.Condition()

    def tell(task: Task) -> None:
        with heard:
            told.append(task)
            heard.notify_all()

    def until(status: str, progress: float | None) -> None:
        with heard:
            assert heard.wait_for(lambda: told and (told[-1].status, told[-1].progress) == (status, progress), 20)

    follower = started(lambda: reads.follow(task_id, tell, timeout=60))
    until("queued", None)
    claim = taken(q)
    until("locked", None)
    claim.progress(0.5, "half")
    until("locked", 0.5)
    claim.complete(b"done")
    assert follower.result(20) == told[-1] == q.task(task_id)
    assert len({task.version for task in told}) == len(told) - 1, "progress is not the record's"


# --- why nobody takes a task


def reasons(q: Any, task_id: str) -> str:
    return "; ".join(q.explain(task_id).reasons)


def test_a_refusing_filter_is_named_for_each_live_consumer(q: Queue, zookeeper: str, root: str) -> None:
    """Each live consumer says by which of its conditions it refuses; who accepts it says so; who has left is gone."""
    q.configure(filters={"performance_class": CLASSES, "region": String()})
    q.enqueue(b"x", {"performance_class": "high_performance"}, task_id="a")
    assert reasons(q, "a") == "no live consumer is registered"
    with Zkmq.connect(zookeeper, root=root, gc=False) as client:
        weak = client.queue("census")
        assert weak.claim({"performance_class": "low"}, "at_least") is None
        assert weak.claim(selector=AnyOf(2, "region==eu", "performance_class==low")) is None
        told = q.explain("a")
        assert told.reasons == ("no live consumer accepts it",)
        (verdict,) = told.consumers
        assert verdict.accepts == ("all(performance_class<=low)", "any(2, region==eu, performance_class==low)")
        assert verdict.refuses == (
            "performance_class<=low: the task's is 'high_performance'; only 0 of 2 match where 2 must: "
            "region==eu: the task has no 'region'; performance_class==low: the task's is 'high_performance'"
        )
        q.enqueue(b"x", {"region": "eu"}, task_id="b")
        taken(weak, selector="region==eu", timeout=20)
        assert "it is with consumer" in reasons(q, "b")
        q.enqueue(b"x", {"region": "eu"}, task_id="c")
        told = q.explain("c")
        assert (told.consumers[0].refuses, told.consumers[0].in_hand) == (None, 1)
        assert told.reasons == ("it waits for its turn",)
        assert "accepts it" in str(told)
    assert reasons(q, "a") == "no live consumer is registered"


def test_paused_backoff_and_dedupe_are_reasons(q: Queue, reads: Any) -> None:
    """A pause, a delay, a backoff with its error and an open dedupe window are each told; so is how a task ended."""
    q.enqueue(b"x", task_id="delayed", delay=60)
    q.enqueue(b"x", task_id="failed")
    taken(q).fail("broken pump", backoff=60)
    q.enqueue(b"x", task_id="done")
    taken(q).complete(dedupe=60)
    q.pause()
    assert "paused" in reasons(reads, "delayed")
    assert "(its delay)" in reasons(reads, "delayed")
    assert "backoff after: broken pump" in reasons(reads, "failed")
    assert "dedupe window" in reasons(reads, "done")
    q.cancel("delayed")
    assert "cancelled" in reasons(reads, "delayed")
    with pytest.raises(TaskNotFound):
        reads.explain("missing")
