"""The engine's calls on a real server."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pendulum
import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import (
    Claim,
    ClaimLost,
    ConfigError,
    DuplicateTask,
    IllegalTransition,
    Message,
    Queue,
    RetryPolicy,
    TaskNotFound,
    TaskTooLarge,
    WaitTimeout,
    Zkmq,
)
from tests.integration.clients import spent
from tests.integration.conftest import taken
from tests.support import eventually

STANDARD = {"performance_class": "standard"}


def test_an_enqueue_is_one_transaction(zk: Zkmq, q: Queue) -> None:
    """Every znode of the tree has the same czxid; warm, it is one request, and a claim with its completion three."""
    q.enqueue(b"warm up", filters=STANDARD)
    ids: list[str] = []
    assert spent(zk, lambda: ids.append(q.enqueue(b"x", filters=STANDARD))) == {"Multi": 1}
    tree = q.tree(ids[0])
    names = {node.path.rpartition("/")[2] for node in tree}
    assert names == {ids[0], "data", "state", "filters", "performance_class"}
    assert len({node.czxid for node in tree}) == 1
    q.enqueue(b"y", filters=STANDARD)
    taken(q).complete()
    assert spent(zk, lambda: taken(q).complete()) == {"GetMany": 1, "Multi": 2}


def test_priority_then_enqueue_order(q: Queue) -> None:
    """Higher priorities come first, then enqueue order; a release counts no attempt and keeps the place."""
    q.enqueue_many([Message(b"a"), Message(b"b"), Message(b"c", priority=5)])
    first, second = taken(q), taken(q)
    first.complete()
    second.release()
    order = [first.task.data]
    while (claim := q.claim()) is not None:
        assert claim.task.attempt == 1
        order.append(claim.task.data)
        claim.complete()
    assert order == [b"c", b"a", b"b"]


def test_a_moment_is_kept(front: Any, q: Queue) -> None:
    """A delayed task, or one with a moment, is claimed once the server's clock has come to it, and not before.

    So is one that a transaction puts: it is scheduled by the commit.
    """
    queue = front.queue(q.name)
    now = queue.task(queue.enqueue(b"now")).enqueued_at
    taken(queue).complete()
    moment = now.add(seconds=1)
    queue.enqueue(b"later", task_id="moment", not_before=moment)
    delayed = queue.enqueue(b"later", delay=pendulum.duration(milliseconds=700))
    with front.transaction() as tx:
        tx.put(q.name, b"later", task_id="put", not_before=moment)
        tx.put(q.name, b"later", task_id="put-with-a-delay", delay=pendulum.duration(minutes=1))
        tx.put(q.name, b"later", task_id="past", not_before=moment.subtract(hours=2))
        tx.commit()
    later = ("moment", delayed, "put", "put-with-a-delay")
    assert {queue.task(name).status for name in later} == {"queued-with-backoff"}
    assert moment <= queue.task("put").due_at <= moment.add(microseconds=1000)
    assert taken(queue).task.id == "past"
    assert queue.claim() is None
    for _ in range(3):
        task = taken(queue, timeout=pendulum.duration(seconds=20)).task
        assert task.claimed_at >= (task.enqueued_at.add(microseconds=700_000) if task.id == delayed else moment)


def test_tokens_settle_from_elsewhere_and_stale_ones_are_refused(zookeeper: str, root: str, q: Queue) -> None:
    """A leased claim outlives its client; its token completes the task from another; once only, and in time."""
    task_id = q.enqueue(b"x")
    with Zkmq.connect(zookeeper, root=root, gc=False) as client:
        claim = taken(client.queue("census"), lease=60)
    q.extend(task_id=task_id, token=claim.token, lease=30)
    with pytest.raises(ClaimLost, match="not the current one"):
        q.complete(task_id, claim.token + 1)
    q.complete(task_id=task_id, token=claim.token, result="ok")
    with pytest.raises(ClaimLost):
        q.fail(task_id, claim.token, error="late")
    assert q.task(task_id=task_id).result == b"ok"
    assert list(inspect.signature(Queue.fail).parameters) == ["self", "task_id", "token", "error", "retry", "backoff"]
    assert list(inspect.signature(Claim.fail).parameters) == ["self", "error", "retry", "backoff"]
    q.enqueue(b"x")
    late = taken(q, lease=0.4)
    again = taken(q, timeout=15)
    assert again.task.attempt == 2
    with pytest.raises(ClaimLost):
        late.complete()
    again.complete()


def test_bad_input_is_one_clear_error_and_nothing_is_written(q: Queue) -> None:
    """What the library refuses it refuses before it writes."""
    for bad in ("", "a/b", "..", "a..b", "nul\0", "x" * 129, "\ud800", "."):
        with pytest.raises(ConfigError, match="task id"):
            q.enqueue(b"x", task_id=bad)
        with pytest.raises(ConfigError, match="filter name"):
            q.enqueue(b"x", filters={bad: "standard"})
    with pytest.raises(ConfigError, match="'gold' is not declared"):
        q.enqueue(b"x", filters={"performance_class": "gold"})
    with pytest.raises(ConfigError, match="not declared on this queue"):
        q.enqueue(b"x", filters={"colour": "red"})
    with pytest.raises(TaskTooLarge, match="ZooKeeper takes"):
        q.enqueue(b"x" * 1_048_576)
    with pytest.raises(ConfigError, match="data must be bytes or text"):
        q.enqueue(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="stands twice"):
        q.enqueue_many([Message(b"", task_id="t"), Message(b"", task_id="t")])
    with pytest.raises(TaskNotFound):
        q.task("nowhere")
    assert q.counts() == {"inserted": 0, "scheduled": 0, "claimed": 0, "finished": 0, "dead": 0, "cancelled": 0}
    assert q.tasks() == []
    q.enqueue(b"x" * 1_030_000, task_id="order-7")
    with pytest.raises(DuplicateTask, match="order-7") as caught:
        q.enqueue_many([Message(b"2", task_id="order-7"), Message(b"3", task_id="order-8")])
    error = caught.value
    assert (error.status, error.duplicates, error.enqueued) == ("queued", ("order-7",), ("order-8",))


def test_what_exceeds_a_request_is_refused_wherever_it_comes_from(q: Queue) -> None:
    """A result beside a run in escrow too large for one request is one error at once; a smaller one is taken."""
    q.enqueue(b"1", task_id="a")
    claim = taken(q)
    with pytest.raises(TaskTooLarge, match="requeue takes"):
        q.enqueue(b"x" * 1_000_000, task_id="a", requeue=True)
    q.enqueue(b"x" * 900_000, task_id="a", requeue=True)
    with pytest.raises(TaskTooLarge, match="not sent"):
        claim.complete(b"y" * 300_000)
    claim.complete(b"y" * 100_000)
    assert len(taken(q).task.data) == 900_000


def test_a_paused_queue_hands_out_nothing(q: Queue) -> None:
    """Until it is resumed; each tells whether it has changed anything."""
    q.enqueue(b"x")
    assert (q.pause(), q.pause(), q.claim()) == (True, False, None)
    assert (q.resume(), q.resume()) == (True, False)
    taken(q).complete()


def test_an_operator_s_change_is_refused_when_the_task_changed(q: Queue) -> None:
    """redrive, replace and drop with a version: done while the task is what was read, refused and harmless after."""
    q.configure(policy=RetryPolicy(attempts=1))
    for name in ("a", "b"):
        q.enqueue(b"old", task_id=name)
        taken(q).fail("no")
    version = q.task("a").version
    q.redrive("a", version, b"new")
    assert (q.task("a").status, q.task("a").data) == ("queued", b"new")
    for late in (lambda: q.redrive("a", version), lambda: q.drop("a", version), lambda: q.replace("a", b"x", version)):
        with pytest.raises(IllegalTransition, match="has changed since"):
            late()
    q.replace("a", b"newer", q.task("a").version)
    assert taken(q).task.data == b"newer"
    for late in (lambda: q.drop("a"), lambda: q.replace("a", b"x"), lambda: q.redrive("a")):
        with pytest.raises(IllegalTransition, match="claimed"):
            late()
    q.drop("b", q.task("b").version)
    with pytest.raises(TaskNotFound):
        q.drop("b")
    assert q.counts()["dead"] == 0


def test_waiting_returns_tasks_however_they_end(front: Any, q: Queue) -> None:
    """wait returns finished and dead tasks in order, times out with the names of those left."""
    queue = front.queue(q.name)
    one, two = q.enqueue(b"1"), q.enqueue(b"2")
    first, second = taken(queue), taken(queue)
    first.complete("r")
    with pytest.raises(WaitTimeout, match=two):
        queue.wait([one, two], "completion", timeout=0.2)
    assert [task.state for task in queue.wait([one, two], "claim", timeout=5)] == ["finished", "claimed"]
    second.fail("no", retry=False)
    assert [task.state for task in queue.wait([two, one], timeout=5)] == ["dead", "finished"]


def test_garbage_is_collected_by_age_only(q: Queue) -> None:
    """What ended long enough ago is deleted whole; pending, claimed and dead tasks and fresh ends stay."""
    ids = q.enqueue_many([Message(b"x", filters=STANDARD) for _ in range(50)])
    for _ in ids[:-3]:
        taken(q).complete(b"r")
    taken(q)
    taken(q).fail("x", retry=False)
    assert q.collect_garbage().collected == 0
    assert q.collect_garbage(lifetime=0).collected == 47
    assert q.counts() == {"inserted": 1, "scheduled": 0, "claimed": 1, "finished": 0, "dead": 1, "cancelled": 0}
    assert len(q.tasks()) == 3


def test_a_transaction_moves_between_queues_or_does_nothing(front: Any, zk: Zkmq, q: Queue) -> None:
    """commit finishes what was taken and writes what was put, at once; leaving without commit gives back."""
    q.enqueue(b"in")
    with front.transaction() as tx:
        assert tx.try_take("census") is not None
        tx.put("out", b"never written")
    assert q.counts()["inserted"] == 1
    with front.transaction() as tx:
        task = tx.try_take("census")
        tx.put("out", b"Hello, " + task.data)
        (put,) = tx.commit()
    assert zk.queue("out").task(put).data == b"Hello, in"
    assert q.task(task.id).state == "finished"


def test_a_client_sees_its_own_writes(q: Queue) -> None:
    """What a client enqueued it can claim in its very next call, though it remembers an empty queue."""
    for _ in range(200):
        assert q.claim() is None
        q.enqueue(b"x")
        taken(q).complete()


def test_emptied_index_buckets_vanish_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lists tasks by time are containers: the server clears them away, and a client that knew them goes on."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dznode.container.checkIntervalMs=200")
    with EmbeddedServer(tmp_path / "zk", force_sync=False) as server, Zkmq.connect(server.hosts, gc=False) as zk:
        q, client = zk.queue("q"), zk._session.client
        for _ in range(2):
            task_id = q.enqueue(b"x", delay=600)
            assert len(client.get_children("/zkmq/q/scheduled")) == 1
            q.cancel(task_id)
            eventually(lambda: client.get_children("/zkmq/q/scheduled") == [])
        assert q.counts()["cancelled"] == 2
