"""What is read of a file: its configuration, its tasks, one that is followed; where it is not there, or locked."""

from __future__ import annotations

import contextlib
import fcntl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import (
    ClaimLost,
    ConfigError,
    Message,
    OrderedEnum,
    QueueConf,
    QueueError,
    QueueNotFound,
    RetryPolicy,
    Task,
    TaskNotFound,
    Unavailable,
    WaitTimeout,
    Zkmq,
)
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.filequeue import FileClient, FileQueue, directory
from tests.filequeue.conftest import CLASSES, taken
from tests.support import eventually


def test_a_queue_and_its_tasks_are_read(q: FileQueue) -> None:
    """Where it is, how it is configured; ids in the order of the lines, tasks in that of the ids."""
    policy = RetryPolicy(attempts=2)
    q.configure(policy=policy, lock=30)
    assert (q.name, q.root) == ("census", str(q.path.parent))
    assert q.conf() == QueueConf({"performance_class": CLASSES}, policy, None, None, 30, "fifo", False, None)
    assert isinstance(q.conf().filters["performance_class"], OrderedEnum)
    for name, value in (("a", "low"), ("b", "high_performance"), ("c", "standard")):
        q.enqueue(name, filters={"performance_class": value}, task_id=name, metadata={"n": name})
    taken(q).complete(b"done")
    assert (internals(q).ids(), internals(q).ids("finished")) == (["a", "b", "c"], ["a"])
    tasks = q.tasks(ids=["c", "b", "a", "never", "c"])
    assert tasks == [q.task(name) for name in "cba"]
    assert q.tasks(ids=["a"], parts=["result"]) == [replace(tasks[-1], data=b"", metadata={})]
    assert q.tasks(ids=["a"], parts=["data"]) == [replace(tasks[-1], metadata={}, result=None)]
    for refused, why in (
        (lambda: internals(q).ids("lost"), "state 'lost' is unknown"),
        (lambda: q.tasks(ids="never"), "not the text"),
        (lambda: q.tasks(ids=["a"], parts=["payload"]), "data, metadata, progress, result"),  # type: ignore[list-item]
    ):
        with pytest.raises(ConfigError, match=why):
            refused()


# --- a task that is followed


def test_a_task_is_followed_to_its_end(q: FileQueue) -> None:
    """The end of a delay, a claim, its end by time and its settlement are told; the last one is returned."""
    q.enqueue(b"x", task_id="t", delay=2)
    seen: list[str] = []
    with pytest.raises(WaitTimeout, match="'t' of queue 'census'") as late:
        q.follow("t", lambda task: seen.append(task.status), timeout=5)
    assert (seen, late.value.left) == (["queued-with-backoff", "queued"], ("t",))
    told: list[Task] = []
    ended: list[Task] = []
    follower = threading.Thread(target=lambda: ended.append(q.follow("t", told.append, timeout=60)))
    follower.start()
    eventually(lambda: [task.status for task in told] == ["queued"])
    assert q.claim(lease=3) is not None
    eventually(lambda: [task.status for task in told] == ["queued", "locked", "queued"])
    claim = taken(q, timeout=20, lease=60)
    claim.complete(b"done")
    follower.join(20)
    assert ended == [q.task("t")] == told[-1:]
    assert told[-1].result == b"done"


def test_following_ends_when_it_must(q: FileQueue) -> None:
    """A task that is not there, one whose line is deleted, a connection that is closed, a function that fails."""
    with pytest.raises(TaskNotFound):
        q.follow("never", print)
    with pytest.raises(ConfigError):
        q.follow("a/b", print)
    q.enqueue(b"x", task_id="t")
    with pytest.raises(TaskNotFound):
        q.follow("t", lambda _task: q.path.write_text("# empty\n"), timeout=None)
    q.enqueue(b"x", task_id="u")
    with pytest.raises(ZeroDivisionError):
        q.follow("u", lambda _task: 1 // 0)


# --- a file that is not there, or deleted while it is used


def test_a_mistyped_queue_creates_no_file(files: FileClient) -> None:
    """Every verb but `enqueue` and `configure` refuses it, with the names that come close."""
    files.queue("orders").enqueue(b"x")
    q = files.queue("oders")
    calls: list[Callable[[], object]] = [
        q.claim,
        q.counts,
        q.tasks,
        q.conf,
        internals(q).check_wanted,
        internals(q).ids,
    ]
    calls += [lambda: q.task("a"), lambda: q.wait(["a"]), lambda: q.tasks(ids=[]), lambda: q.ready(timeout=5)]
    calls += [lambda: q.claim_handle("a", 1), lambda: q.delete(confirm=True)]
    for call in (*calls, lambda: q.claim_task("a"), lambda: q.worker(print).run(until_empty=True)):
        with pytest.raises(QueueNotFound, match="did you mean 'orders'") as caught:
            call()
        assert isinstance(caught.value, ConfigError)
        assert caught.value.similar == ("orders",)
    assert not q.exists()
    assert files.queues() == ["orders"]


def test_a_file_is_deleted_with_what_belongs_to_it(files: FileClient, folder: Path) -> None:
    """When it was asked once more, and by force while tasks are claimed; whoever has one in hand has lost it."""
    q, other = files.queue("q"), files.queue("other")
    q.configure(policy=RetryPolicy(attempts=2))
    other.enqueue(b"a")
    q.enqueue_many([Message(b"a"), Message(b"b")])
    taken(q).complete(b"r" * 100_000)
    claim = taken(q)
    with pytest.raises(QueueError, match=r"1 claimed task\(s\)"):
        q.delete(confirm=True)
    with pytest.raises(ConfigError, match="confirm=True"):
        q.delete(force=True)
    assert files.delete_queue("q", confirm=True, force=True) == 2
    assert [path.name for path in folder.iterdir()] == ["other.tq"]
    with pytest.raises(ClaimLost):
        claim.complete()
    q.enqueue(b"new", task_id="c")
    assert internals(q).ids() == ["c"]


# --- a file whose lock another process holds, and may hold for ever: every call ends


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Inside the block somebody holds the file's lock."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_each_call_ends_though_the_file_is_locked(q: FileQueue, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its own time or a limit, which the error names; nothing is written; closing ends too."""
    monkeypatch.setattr(directory, "LOCK_SECONDS", 60)
    q.enqueue_many([Message("x", task_id=name) for name in "abc"])
    before = q.path.read_bytes()
    for call in (lambda: q.claim(timeout=0.1), lambda: q.wait(["a"], timeout=0.1), lambda: q.follow("a", print, 0.1)):
        with locked(q.path), pytest.raises(Unavailable, match=r"census.* is locked by another process.*timeout"):
            call()
    monkeypatch.setattr(directory, "LOCK_SECONDS", 0.5)
    for call in (lambda: q.enqueue("x"), q.claim, q.counts):
        with locked(q.path), pytest.raises(Unavailable, match=r"lock wait \(0.5 s\)"):
            call()
    assert q.path.read_bytes() == before
    taken(q, timeout=1).release()
    client = Zkmq.connect(f"textqueue://{folder}")
    for _ in "abc":
        taken(client.queue("census"))
    with locked(q.path):
        client.close()
    assert q.counts()["claimed"] == 3
