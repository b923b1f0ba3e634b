"""What is read of a queue on a real server, by either front; and why nobody takes a task."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    AnyOf,
    ConfigError,
    Message,
    Queue,
    QueueConf,
    RetryPolicy,
    String,
    Task,
    TaskNotFound,
    Zkmq,
)
from tests.integration.clients import end_session, spent
from tests.integration.conftest import CLASSES, started, taken
from tests.support import eventually


@pytest.fixture
def reads(q: Queue, front: Any) -> Any:
    """The queue `q`, to be read by one of the fronts from a client that has read nothing yet."""
    return front.queue(q.name)


def test_the_configuration_is_told(zk: Zkmq, root: str, q: Queue, reads: Any) -> None:
    """What `configure` set, and what it left as it is by default; it stays under a watch and is read once."""
    policy = RetryPolicy(attempts=2)
    q.configure(policy=policy, lock=30, task_gc_lifetime=60)
    q.pause()
    assert reads.conf() == QueueConf({"performance_class": CLASSES}, policy, 60, 300, 30, "default", True, None)
    q.conf()
    assert spent(zk, q.conf) == {}
    reads.resume()
    eventually(lambda: not q.conf().paused)
    assert (reads.name, reads.root, zk.queues()) == ("census", root, [q.name])


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


def test_ids_and_tasks_are_listed_and_read(q: Queue, reads: Any) -> None:
    """Ids of states and selectors; many tasks in the order of their ids, with or without their payloads; columns."""
    low = [q.enqueue(b"x", filters={"performance_class": "low"}) for _ in range(3)]
    q.cancel(low[0])
    assert (sorted(reads.ids()), reads.ids("cancelled"), reads.ids(state="dead")) == (sorted(low), low[:1], [])
    assert sorted(reads.ids("inserted", "performance_class<=standard, performance_class>=low")) == sorted(low[1:])
    q.clear()
    ids = q.enqueue_many(
        [Message(b"" if n % 2 else b"x" * 9_000, task_id=f"t{n}", metadata={"n": n}) for n in range(400)]
    )
    taken(q, lease=60).complete(b"")
    tasks = reads.read_many([*ids, "never"])
    assert [(task.id, task.metadata) for task in tasks] == [(name, {"n": n}) for n, name in enumerate(ids)]
    assert reads.read_many(ids[1:], parts=["metadata"]) == [replace(task, data=b"") for task in tasks[1:]]
    scanned = reads.scan([*ids, "never"], ["id", "state", "data", "result", "enqueued_ms", "metadata"], in_flight=2)
    assert scanned.vanished == ("never",)
    for name, values in scanned.columns.items():
        assert values == [getattr(task, name) for task in tasks]


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


def test_what_archives_and_streams_need(q: Queue, reads: Any) -> None:
    """What ended, what left and what was trimmed, up to a number of now; a pointer that only its reader may move."""
    nothing, now = reads.archive(), q.zxid()
    assert (nothing.version, reads.zxid() >= now) == (None, True)
    reads.publish_archive(replace(nothing, watermark=now, directory="/archive", run="r"))
    assert reads.archive() == replace(nothing, watermark=now, directory="/archive", run="r", version=0)
    with pytest.raises(ConfigError, match="changed by another archive run"):
        reads.publish_archive(nothing)
    reads.configure(archive=True, follow=True)
    conf, began = reads.conf(), reads.latest_end()
    assert (conf.archive, conf.archived, conf.follow, reads.trimmed().upto) == (True, now, True, 0)
    for data in (b"one", b"two"):
        q.enqueue(data, task_id="a", metadata={"n": 1})
        taken(q).complete(b"result of " + data)
    _, second = ended = reads.ended_between(began, reads.latest_end())
    assert [(each.id, each.place is None) for each in ended] == [("a", False), ("a", True)]
    assert [task.result for task in reads.read_ended(ended)] == [b"result of one", b"result of two"]
    assert reads.read_ended([second], parts=[])[0].data == b""
    task_id = q.enqueue(b"x")
    taken(q).fail("no", retry=False)
    dead, before = q.task(task_id), q.zxid()
    reads.drop(task_id)
    (departed,) = reads.departed_between(before, q.zxid())
    assert (departed.id, reads.read_departed([departed])) == (task_id, [dead])
    q.publish_archive(replace(q.archive(), watermark=q.zxid()))
    eventually(lambda: bool(q.collect_garbage(lifetime=0).collected) or not q.ids())
    assert reads.read_departed([departed]) == []
    assert (reads.trimmed().upto >= second.version, reads.ended_between(0)) == (True, [])


def test_reads_cost_few_requests(zk: Zkmq, q: Queue) -> None:
    """Chunks of many tasks; two listings and two small reads for a consumer."""
    ids = [q.enqueue(b"x") for _ in range(40)]
    taken(q)
    q.conf()
    assert spent(zk, lambda: q.read_many(ids)) == {"GetMany": 2}
    assert spent(zk, lambda: q.read_many(ids, parts=["metadata"])) == {"GetMany": 1, "Exists": len(ids)}
    assert spent(zk, q.consumers) == {"Children": 2 + 1, "GetMany": 1}
    assert spent(zk, lambda: q.ids("dead")) == {"Children": 1}


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
