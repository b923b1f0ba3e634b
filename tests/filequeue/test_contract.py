"""The same calls over a file and over ZooKeeper: only the connection differs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    BadMessage,
    ClaimLost,
    ConfigError,
    ConsumeTimes,
    DuplicateTask,
    Error,
    Message,
    Queue,
    QueueNotFound,
    Retry,
    RetryPolicy,
    Snooze,
    Success,
    TaskNotFound,
    TaskTooLarge,
    WaitTimeout,
    Zkmq,
)
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.filequeue import FileQueue
from tests.filequeue.conftest import CLASSES, taken
from tests.support import eventually, fresh_root


@pytest.fixture(params=["file", "zookeeper"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The arguments of `Zkmq.connect`: all that changes."""
    if request.param == "file":
        return {"hosts": f"textqueue://{tmp_path}/queues"}
    return {"hosts": request.getfixturevalue("zookeeper"), "root": fresh_root()}


@pytest.fixture
def zk(where: dict[str, Any]) -> Iterator[Zkmq]:
    with Zkmq.connect(**where, gc=False) as client:
        yield client


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    queue = zk.queue("census")
    queue.configure(filters={"performance_class": CLASSES}, policy=ConsumeTimes(2))
    return queue


def test_the_life_of_tasks(zk: Zkmq, q: Queue) -> None:
    """Enqueue with filters, claim by node and at_least, complete, fail to retry and death, release: as one story."""
    ids = [q.enqueue(f"of {name}", {"performance_class": name}, task_id=name) for name in CLASSES.values]
    assert ids == list(CLASSES.values)
    assert q.counts() == {"inserted": 4, "scheduled": 0, "claimed": 0, "finished": 0, "dead": 0, "cancelled": 0}

    assert taken(q, node={"performance_class": "performance"}).task.id == "performance"
    claim = taken(q, node={"performance_class": "low"}, filter_method="at_least")
    assert (claim.task.id, claim.task.data, claim.task.attempt) == ("low", b"of low", 1)
    assert q.claim({"performance_class": "low"}, "at_least") is None
    claim.complete("the result")
    done = q.task("low")
    assert (str(done.status), done.result, done.error) == ("done-awaiting-gc", b"the result", None)
    with pytest.raises(ClaimLost):
        claim.complete("twice")

    for attempt, state in ((1, "inserted"), (2, "dead")):
        claim = taken(q, selector="performance_class==standard")
        assert (claim.task.attempt, claim.fail(ValueError("broken"))) == (attempt, state)
    assert q.task("standard").error == "ValueError: broken"

    claim = taken(q, selector="performance_class>=high_performance")
    claim.release()
    assert (q.task("high_performance").attempt, str(q.task("high_performance").state)) == (0, "inserted")
    assert taken(q).task.attempt == 1
    with pytest.raises(ClaimLost):
        claim.complete()

    states = {"inserted": [], "claimed": ["high_performance", "performance"], "finished": ["low"], "dead": ["standard"]}
    assert {state: sorted(task.id for task in q.tasks(state=state)) for state in states} == states
    assert q.counts() == {"inserted": 0, "scheduled": 0, "claimed": 2, "finished": 1, "dead": 1, "cancelled": 0}
    assert [task.id for task in q.tasks(selector="performance_class<=low")] == ["low"]
    assert zk.queues() == ["census"]


def test_a_key_names_the_tasks_of_a_call(zk: Zkmq, q: Queue) -> None:
    """The same call writes them once, whatever became of them; another queue's have other ids."""
    ids = q.enqueue_many([Message("x"), Message("y")], idempotency_key="k")
    taken(q).complete()
    assert q.enqueue_many([Message("z")] * 2, idempotency_key="k") == ids
    assert (q.enqueue("z", idempotency_key="k"), len(q.tasks())) == (ids[0], 2)
    assert q.task(ids[1]).data == b"y"
    assert zk.queue("another").enqueue("x", idempotency_key="k") not in ids
    for wrong in (Message("x", task_id="own"), Message("x", priority="high"), "no message"):
        with pytest.raises(ConfigError) as caught:
            q.enqueue_many([wrong], idempotency_key="l")
        assert not isinstance(caught.value, BadMessage)
    assert len(q.tasks()) == 2


def test_an_id_in_use_is_refused_until_its_task_is_finished(q: Queue) -> None:
    """A queued, claimed or dead task keeps its id, the others of the call are written; a finished one is run anew."""
    q.enqueue("x", task_id="a")
    with pytest.raises(DuplicateTask) as caught:
        q.enqueue_many([Message("y", task_id="a"), Message("z", task_id="b")])
    assert (caught.value.duplicates, caught.value.enqueued, caught.value.status) == (("a",), ("b",), "queued")
    claim = taken(q)
    with pytest.raises(DuplicateTask, match="locked"):
        q.enqueue("y", task_id="a")
    claim.complete("first")
    assert q.enqueue("again", task_id="a") == "a"
    task = q.task("a")
    assert (task.data, str(task.state), task.attempt, task.result) == (b"again", "inserted", 0, None)
    assert sorted(it.id for it in q.tasks()) == ["a", "b"]
    taken(q).fail("gone", retry=False)
    taken(q).fail("gone", retry=False)
    with pytest.raises(DuplicateTask, match="dead"):
        q.enqueue("y", task_id="a")


def test_what_is_given_comes_back(q: Queue) -> None:
    """Any bytes and texts as data and as results, metadata, a policy of the task's own; generated ids are its own."""
    payloads = [b"", b"\xff\x00", "zwei\nZeilen\n", " -=!#\\ ", "ünï\r\n", b"x" * 5_000, "\u2028"]
    ids = q.enqueue_many([Message(data, metadata={"k": [1, "ü"]}, policy=ConsumeTimes(1)) for data in payloads])
    assert len(set(ids)) == len(payloads)
    for task_id, data in zip(ids, payloads, strict=True):
        raw = data.encode() if isinstance(data, str) else data
        task = q.task(task_id)
        assert (task.data, task.metadata) == (raw, {"k": [1, "ü"]})
        claim = taken(q)
        assert claim.task.data == raw
        claim.complete(data)
        assert q.task(claim.task.id).result == raw
    with pytest.raises(TaskTooLarge):
        q.enqueue(b"x" * 2_000_000)
    q.enqueue("x", policy=ConsumeTimes(1))
    claim = taken(q)
    with pytest.raises(TaskTooLarge):
        claim.complete(b"x" * 2_000_000)
    assert claim.fail("once only") == "dead"


def test_a_delay_and_a_backoff_put_a_task_off(q: Queue) -> None:
    """A task is scheduled until its time comes, after an enqueue, a failure and a snooze; a waiting claim gets it."""
    q.enqueue("x", task_id="a", delay=3600)
    assert (q.claim(), q.counts()["scheduled"], q.task("a").due_ms is not None) == (None, 1, True)
    q.enqueue("x", task_id="b", policy=RetryPolicy(attempts=3, factor=0, min_backoff=3600, max_backoff=3600))
    assert taken(q).fail("later") == "inserted"
    assert str(q.task("b").status) == "queued-with-backoff"
    q.enqueue("x", task_id="c", delay=0.2)
    claim = taken(q, timeout=20)
    assert claim.task.id == "c"
    claim.snooze(0.2)
    assert str(q.task("c").status) == "queued-with-backoff"
    assert taken(q, timeout=20).task.attempt == 1


def test_tasks_are_waited_for(q: Queue) -> None:
    """`wait` returns when all have ended, or are claimed, or, if so asked, when one failed; a time-out names both."""

    def wait(event: str) -> list[str]:
        return [str(it.state) for it in q.wait(["b", "a"], event)]

    with ThreadPoolExecutor(2) as pool:
        claimed = pool.submit(taken, q, timeout=30)
        q.enqueue("x", task_id="first")
        claimed.result(30).complete()
        q.enqueue_many([Message("x", task_id=name) for name in ("a", "b")])
        with pytest.raises(WaitTimeout) as caught:
            q.wait(["a", "b"], timeout=0.1)
        assert caught.value.left == ("a", "b")
        with pytest.raises(TaskNotFound):
            q.wait(["a", "none"], timeout=1)
        waiting = pool.submit(wait, "claim")
        claims = [taken(q), taken(q)]
        assert waiting.result(20) == ["claimed", "claimed"]
        q.enqueue("x", task_id="open")
        waiting = pool.submit(wait, "completion")
        stopping = pool.submit(lambda: q.wait(["open", "b"], stop_at_failure=True))
        claims[0].complete()
        claims[1].fail("broken", retry=False)
        assert [str(it.state) for it in stopping.result(20)] == ["inserted", "dead"]
        with pytest.raises(WaitTimeout, match=r"within timeout \(0 s\): open; 1 dead or cancelled: b$"):
            q.wait(["open", "b"], timeout=0)
        assert waiting.result(20) == ["dead", "finished"]


def test_a_worker_settles_by_what_its_handler_returns(q: Queue) -> None:
    """What is refused of a handler is a failed delivery with the reason; `until_empty` ends with the last task."""
    outcomes: dict[str, Callable[[], object]] = {
        "plain": lambda: b"r",
        "raises": lambda: 1 // 0,
        "error": lambda: Error("no"),
        "snooze": lambda: Snooze(3600),
        "into the past": lambda: Snooze(-1),
        "no time": lambda: Retry("busy", backoff="soon"),
        "exit": lambda: sys.exit(3),
        "window": lambda: Success(dedupe=60),
    }
    ids = {name.replace(" ", "-"): call for name, call in outcomes.items()}
    q.enqueue_many([Message("x", task_id=name, policy=ConsumeTimes(2)) for name in ids])
    worker = q.worker(lambda task: ids[task.id](), threads=2)
    worker.run(until_empty=True)
    window = ("dead", 1, "refused") if isinstance(q, FileQueue) else ("done-with-backoff", 1, "")
    expected = {
        "plain": ("done-awaiting-gc", 1, ""),
        "raises": ("dead", 2, "ZeroDivisionError: "),
        "error": ("dead", 1, "no"),
        "snooze": ("queued-with-backoff", 0, ""),
        "into-the-past": ("dead", 2, "delay -1"),
        "no-time": ("dead", 2, "'soon'"),
        "exit": ("dead", 2, "SystemExit: 3"),
        "window": window,
    }
    found = {task.id: (str(task.status), task.attempt, task.error or "") for task in q.tasks()}
    assert {name: it[:2] for name, it in found.items()} == {name: it[:2] for name, it in expected.items()}
    assert [name for name, it in expected.items() if it[2] not in found[name][2]] == []
    assert (worker.finished, worker.failed) == ((1, 11) if isinstance(q, FileQueue) else (2, 10))


def test_a_worker_waits_for_its_queue_until_it_is_stopped(zk: Zkmq) -> None:
    """Before it is there, and again once it was deleted; a bad node, or no queue, is refused at once."""
    q, done = zk.queue("census"), threading.Semaphore(0)

    def handle(task: Any) -> str:
        done.release()
        return str(task.queue)

    worker = q.worker(handle)
    assert worker.start()
    for name in ("first", "second"):
        q.configure(policy=ConsumeTimes(2))
        q.enqueue("x", task_id=name)
        assert done.acquire(timeout=30)
        eventually(lambda name=name: q.task(name).result == b"census")
        with pytest.raises(ConfigError, match="not declared"):
            q.worker(print, node={"colour": "red"}).run(until_empty=True)
        q.delete(confirm=True)
    assert worker.stop()
    worker.join()
    assert worker.finished == 2
    with pytest.raises(QueueNotFound):
        q.worker(handle).run(until_empty=True)


def test_a_claim_goes_by_its_token(where: dict[str, Any], q: Queue) -> None:
    """Whoever has id and token settles it, once; a claim ends with its connection, a leased one outlives it."""
    q.enqueue("x", task_id="a")
    first = taken(q)
    q.claim_handle("a", first.token).release()
    with Zkmq.connect(**where, gc=False) as other:
        second = taken(other.queue("census"))
        assert second.task.attempt == 1
    third = taken(q, timeout=20)
    assert third.task.attempt == 2
    for earlier in (first, second):
        with pytest.raises(ClaimLost):
            q.claim_handle("a", earlier.token).complete()
    q.claim_handle("a", third.token).complete("r")
    assert q.task("a").result == b"r"
    with pytest.raises(ClaimLost):
        q.claim_handle("a", third.token).fail("late")
    with pytest.raises(TaskNotFound):
        q.claim_handle("none", 1).complete()
    q.enqueue("x", task_id="b")
    with Zkmq.connect(**where, gc=False) as other:
        leased = taken(other.queue("census"), lease=60)
    q.claim_handle("b", leased.token).extend(lease=30)
    q.claim_handle("b", leased.token).complete(result="from elsewhere")


def test_a_lease_that_ended_is_taken_over(q: Queue) -> None:
    """A claim that is not extended in time goes to another, attempt + 1; its late owner changes nothing."""
    q.enqueue("x", task_id="a")
    late = taken(q, lease=0.5)
    second = taken(q, timeout=20)
    assert (second.task.id, second.task.attempt) == ("a", 2)
    for settle in (late.complete, late.release, lambda: late.fail("x"), lambda: late.extend(60)):
        with pytest.raises(ClaimLost):
            settle()
    second.extend(60)
    second.complete("in time")
    assert q.task("a").result == b"in time"


def test_bad_arguments_are_config_errors(zk: Zkmq, q: Queue) -> None:
    """Names, filters, states, selectors and lists that are not understood; a queue that does not exist."""
    for ask in (
        lambda: zk.queue("a/b"),
        lambda: q.enqueue("x", {"colour": "red"}),
        lambda: q.enqueue("x", {"performance_class": "huge"}),
        lambda: q.enqueue("x", task_id="a b"),
        lambda: q.enqueue_many([Message("x", task_id="a"), Message("x", task_id="a")]),
        lambda: q.tasks(state="broken"),
        lambda: q.claim(selector="colour=="),
        lambda: q.claim(timeout="soon"),
        lambda: q.wait("a"),
        lambda: zk.queue("none").counts(),
    ):
        with pytest.raises(ConfigError):
            ask()
    assert q.counts()["inserted"] == 0
    assert zk.queues() == ["census"]


def test_only_what_is_new_is_written(q: Any) -> None:
    """What a task has the id of is left alone, finished or queued; a refused message is told by its position."""
    q.enqueue("x", task_id="done")
    q.claim().complete("r")
    q.enqueue("x", task_id="queued")
    new = internals(q).enqueue_new([Message("other", task_id=name) for name in ("queued", "new", "done")])
    assert (new.written, new.existing) == (("new",), ("queued", "done"))
    assert (q.task("done").state, q.task("queued").data, q.task("new").data) == ("finished", b"x", b"other")
    for bad in (Message("x"), Message("x", task_id="a b"), Message(None, task_id="a")):
        with pytest.raises(BadMessage) as refused:
            internals(q).enqueue_new([Message("x", task_id="good"), bad])
        assert refused.value.position == 1
    assert sorted(internals(q).ids()) == ["done", "new", "queued"]
