"""What is read of a file has the names and the results of a queue on ZooKeeper."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from airflow_provider_zkmq.engine import (
    ConfigError,
    OrderedEnum,
    QueueConf,
    RetryPolicy,
    Task,
    TaskNotFound,
    WaitTimeout,
)
from airflow_provider_zkmq.filequeue import FileClient, FileQueue
from tests.filequeue.conftest import CLASSES


def test_a_configuration_is_told(q: FileQueue) -> None:
    """What was set, and what a file has by itself; the order is that of the lines."""
    q.configure(policy=RetryPolicy(attempts=2), lock=30)
    policy = RetryPolicy(attempts=2)
    assert q.conf() == QueueConf({"performance_class": CLASSES}, policy, None, None, 30, "fifo", False, None)
    assert isinstance(q.conf().filters["performance_class"], OrderedEnum)


def test_a_file_that_is_not_there_has_no_configuration(files: FileClient) -> None:
    """As on ZooKeeper, a queue that does not exist is a configuration error to whoever reads it."""
    for read in (files.queue("nowhere").conf, files.queue("nowhere").ids, lambda: files.queue("nowhere").read_many([])):
        with pytest.raises(ConfigError, match="does not exist"):
            read()


def test_ids_are_those_of_a_state_and_a_selector(q: FileQueue) -> None:
    """In the order of the lines."""
    for name, value in (("a", "low"), ("b", "high_performance"), ("c", "standard")):
        q.enqueue(b"x", filters={"performance_class": value}, task_id=name)
    claim = q.claim()
    assert claim is not None
    claim.complete()
    assert q.ids() == ["a", "b", "c"]
    assert q.ids("finished") == ["a"]
    assert q.ids(selector="performance_class<=standard") == ["a", "c"]
    assert q.ids("inserted", "performance_class<=standard") == ["c"]
    with pytest.raises(ConfigError, match="state 'lost' is unknown"):
        q.ids("lost")


def test_many_tasks_come_in_the_order_of_their_ids(q: FileQueue) -> None:
    """Each once; what is not there is left out, and so is what was not asked for."""
    names = [q.enqueue(f"{number}", metadata={"n": number}) for number in range(3)]
    claim = q.claim()
    assert claim is not None
    claim.complete(b"done")
    tasks = q.read_many([*reversed(names), "never", names[0]])
    assert tasks == [q.task(name) for name in reversed(names)]
    assert q.read_many(names[:1], parts=["result"]) == [replace(tasks[-1], data=b"", metadata={})]
    assert q.read_many(names[:1], parts=["data"]) == [replace(tasks[-1], metadata={}, result=None)]
    with pytest.raises(ConfigError, match="not the text"):
        q.read_many("never")
    with pytest.raises(ConfigError, match="data, metadata, progress, result"):
        q.read_many(names, parts=["payload"])  # type: ignore[list-item]


def test_a_task_is_followed_to_its_end(q: FileQueue) -> None:
    """A claim, its end by time and its settlement are told; the last one is returned."""
    q.enqueue(b"x", task_id="t", lock=3)
    told: list[Task] = []
    heard = threading.Condition()

    def tell(task: Task) -> None:
        with heard:
            told.append(task)
            heard.notify_all()

    def until(count: int) -> list[str]:
        with heard:
            assert heard.wait_for(lambda: len(told) >= count, 20)
            return [task.status for task in told]

    ended: list[Task] = []
    follower = threading.Thread(target=lambda: ended.append(q.follow("t", tell, timeout=30)))
    follower.start()
    assert until(1) == ["queued"]
    assert q.claim() is not None
    assert until(3) == ["queued", "locked", "queued"]
    claim = q.claim(timeout=20)
    assert claim is not None
    claim.extend(60)
    claim.complete(b"done")
    follower.join(20)
    assert ended == [q.task("t")] == told[-1:]
    assert told[-1].result == b"done"


def test_a_delayed_task_is_told_when_it_comes_due(q: FileQueue) -> None:
    """Nobody writes to the file then."""
    q.enqueue(b"x", task_id="t", delay=0.2)
    told: list[str] = []
    with pytest.raises(WaitTimeout, match="'t' of queue 'census'") as late:
        q.follow("t", lambda task: told.append(task.status), timeout=1)
    assert told == ["queued-with-backoff", "queued"]
    assert late.value.left == ("t",)


def test_following_ends_when_it_must(q: FileQueue) -> None:
    """A task that is not there, one whose line is deleted, a connection that is closed, a function that fails."""
    with pytest.raises(TaskNotFound):
        q.follow("never", print)
    with pytest.raises(ConfigError):
        q.follow("a/b", print)
    q.enqueue(b"x", task_id="t")
    threading.Timer(0.1, lambda: q.path.write_text("# empty\n")).start()
    begun = time.monotonic()
    with pytest.raises(TaskNotFound):
        q.follow("t", lambda _task: None, timeout=20)
    assert time.monotonic() - begun < 10
    q.enqueue(b"x", task_id="u")
    with pytest.raises(ZeroDivisionError):
        q.follow("u", lambda _task: 1 // 0)


def test_a_queue_says_where_it_is(q: FileQueue) -> None:
    """The folder is a file's root."""
    assert (q.name, q.root) == ("census", str(q.path.parent))
