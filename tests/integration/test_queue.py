"""The engine's calls on a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import (
    ConfigError,
    DuplicateTask,
    IllegalTransition,
    Message,
    Queue,
    RetryPolicy,
    TaskNotFound,
    TaskTooLarge,
    Zkmq,
    ZkmqError,
)
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.integration.conftest import taken
from tests.support import eventually

STANDARD = {"performance_class": "standard"}


def test_an_enqueue_is_one_transaction(q: Queue) -> None:
    """Every znode of the tree has the same czxid. What a client has enqueued, its next claim finds."""
    tree = internals(q).tree(q.enqueue(b"x", filters=STANDARD))
    names = {node.path.rpartition("/")[2] for node in tree}
    assert names == {internals(q).ids()[0], "data", "state", "filters", "performance_class"}
    assert len({node.czxid for node in tree}) == 1
    taken(q).complete()
    for _ in range(20):
        assert q.claim() is None
        q.enqueue(b"x")
        taken(q).complete()


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


def test_bad_input_is_one_clear_error_and_nothing_is_written(q: Queue) -> None:
    """What the library refuses it refuses before it writes; what is too large for one request, too."""
    for bad in ("", "a/b", "..", "a..b", "nul\0", "x" * 129, "\ud800", "."):
        with pytest.raises(ConfigError, match="task id"):
            q.enqueue(b"x", task_id=bad)
        with pytest.raises(ConfigError, match="filter name"):
            q.enqueue(b"x", filters={bad: "standard"})
    refused: list[tuple[type[ZkmqError], str, Callable[[], object]]] = [
        (ConfigError, "'gold' is not declared", lambda: q.enqueue(b"x", filters={"performance_class": "gold"})),
        (ConfigError, "not declared on this queue", lambda: q.enqueue(b"x", filters={"colour": "red"})),
        (ConfigError, "data must be bytes or text", lambda: q.enqueue(5)),  # type: ignore[arg-type]
        (ConfigError, "stands twice", lambda: q.enqueue_many([Message(b"", task_id="t")] * 2)),
        (TaskTooLarge, "ZooKeeper takes", lambda: q.enqueue(b"x" * 1_048_576)),
        (TaskNotFound, "nowhere", lambda: q.task("nowhere")),
    ]
    for kind, said, call in refused:
        with pytest.raises(kind, match=said):
            call()
    assert (q.tasks(), sum(q.counts().values())) == ([], 0)
    q.enqueue(b"x" * 1_030_000, task_id="order-7")
    with pytest.raises(DuplicateTask, match="order-7"):
        q.enqueue(b"2", task_id="order-7")
    claim = taken(q)
    with pytest.raises(TaskTooLarge, match="requeue takes"):
        q.enqueue(b"x" * 1_000_000, task_id="order-7", on_conflict="requeue")
    q.enqueue(b"x" * 900_000, task_id="order-7", on_conflict="requeue")
    with pytest.raises(TaskTooLarge, match="not sent"):
        claim.complete(b"y" * 300_000)
    claim.complete(b"y" * 100_000)
    assert len(taken(q).task.data) == 900_000


def test_an_operator_s_change_is_refused_when_the_task_changed(q: Queue) -> None:
    """redrive, replace and drop with a version: done while the task is what was read, refused and harmless after."""
    q.configure(policy=RetryPolicy(attempts=1))
    for name in ("a", "b"):
        q.enqueue(b"old", task_id=name)
        taken(q).fail("no")
    version = q.task("a").version
    q.redrive("a", version, b"new")
    assert (q.task("a").status, q.task("a").data) == ("queued", b"new")
    for late in (
        lambda: q.redrive("a", version),
        lambda: q.drop("a", version),
        lambda: internals(q).replace("a", b"x", version),
    ):
        with pytest.raises(IllegalTransition, match="has changed since"):
            late()
    internals(q).replace("a", b"newer", q.task("a").version)
    assert taken(q).task.data == b"newer"
    for late in (lambda: q.drop("a"), lambda: internals(q).replace("a", b"x"), lambda: q.redrive("a")):
        with pytest.raises(IllegalTransition, match="claimed"):
            late()
    q.drop("b", q.task("b").version)
    with pytest.raises(TaskNotFound):
        q.drop("b")
    assert q.counts()["dead"] == 0


def test_garbage_is_collected_by_age_only(q: Queue) -> None:
    """What ended long enough ago is deleted whole; pending, claimed and dead tasks and fresh ends stay."""
    q.enqueue_many([Message(b"x", filters=STANDARD) for _ in range(50)])
    for _ in range(47):
        taken(q).complete(b"r")
    taken(q)
    taken(q).fail("x", retry=False)
    assert (q.collect_garbage().collected, q.collect_garbage(lifetime=0).collected) == (0, 47)
    assert {state: n for state, n in q.counts().items() if n} == {"inserted": 1, "claimed": 1, "dead": 1}
    assert len(q.tasks()) == 3


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
