"""A queue's file that is not there, or deleted while it is used."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import ClaimLost, ConfigError, QueueError, QueueNotFound, RetryPolicy, Running, Zkmq
from tests.support import eventually


def test_a_mistyped_queue_creates_no_file(tmp_path: Path) -> None:
    """Every verb but `enqueue` and `configure` refuses it, with the names that come close."""
    with Zkmq.connect(f"textqueue://{tmp_path}") as zk:
        zk.queue("orders").enqueue(b"x")
        q = zk.queue("oders")
        calls = [q.claim, q.counts, q.tasks, q.conf, q.check_wanted, lambda: q.task("a"), lambda: q.wait(["a"])]
        calls += [lambda: q.complete("a", 1), lambda: q.extend("a", 1, 5), lambda: q.delete(confirm=True)]
        for call in calls:
            with pytest.raises(QueueNotFound, match="did you mean 'orders'") as caught:
                call()
            assert caught.value.similar == ("orders",)
        assert not q.exists()
        assert zk.queues() == ["orders"]


def test_a_file_is_deleted_with_what_belongs_to_it(tmp_path: Path) -> None:
    """When it was asked once more, and by force while tasks are claimed; whoever has one in hand has lost it."""
    with Zkmq.connect(f"textqueue://{tmp_path}") as zk:
        q, other = zk.queue("q"), zk.queue("other")
        q.configure(policy=RetryPolicy(attempts=2))
        for queue in (q, other):
            queue.enqueue(b"a")
        q.enqueue(b"b")
        claim = q.claim()
        assert claim is not None
        claim.complete(b"r" * 100_000)
        claim = q.claim()
        assert claim is not None
        with pytest.raises(QueueError, match=r"1 claimed task\(s\)"):
            q.delete(confirm=True)
        with pytest.raises(ConfigError, match="confirm=True"):
            q.delete(force=True)
        assert zk.delete_queue("q", confirm=True, force=True) == 2
        assert [path.name for path in tmp_path.iterdir()] == ["other.tq"]
        with pytest.raises(ClaimLost):
            claim.complete()
        q.enqueue(b"new", task_id="c")
        assert q.ids() == ["c"]


def test_a_worker_waits_for_its_file(tmp_path: Path) -> None:
    """Before it is there, and again once it was deleted."""
    with Zkmq.connect(f"textqueue://{tmp_path}") as zk:
        q, done = zk.queue("q"), threading.Semaphore(0)

        def handle(task: Running) -> str:
            done.release()
            return task.queue

        worker = q.worker(handle)
        assert worker.start()
        for name in ("first", "second"):
            q.enqueue(b"x", task_id=name)
            assert done.acquire(timeout=30)
            eventually(lambda name=name: q.task(name).result == b"q")  # type: ignore[misc]
            q.delete(confirm=True)
        worker.stop()
        worker.join()
        assert worker.finished == 2
        with pytest.raises(QueueNotFound):
            q.worker(handle).run(until_empty=True)
