"""Claims of a file in each way they are made: in a loop, by id, by token, by a worker; and whether there is work."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_zkmq.engine import ClaimLost, ConfigError, ConsumeOnce, Message, RetryPolicy, String, TaskNotFound
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.filequeue import FileClient, FileQueue
from tests.filequeue.conftest import taken
from tests.support import eventually

# --- loops


def fill(q: FileQueue) -> None:
    q.configure(policy=RetryPolicy(attempts=5, factor=0))
    q.enqueue_many([Message(b"x", task_id=name) for name in "abc"])


def test_what_the_body_of_a_loop_leaves_is_completed(q: FileQueue) -> None:
    """With the result that it set; what it settles itself is left as it is; `stopping` ends a loop without a bound."""
    fill(q)
    done: list[str] = []
    for claim in q.claims(stopping=lambda: len(done) == 3, prefetch=8):
        done.append(claim.task.id)
        if claim.task.id == "b":
            claim.fail("broken", retry=False)
        claim.result = f"result of {claim.task.id}"
    assert done == ["a", "b", "c"]
    assert {task.id: task.state.value for task in q.tasks()} == {"a": "finished", "b": "dead", "c": "finished"}
    assert q.task("a").result == b"result of a"
    with pytest.raises(ConfigError, match="prefetch"):
        q.claims(prefetch=0)
    with pytest.raises(ConfigError, match="timeout"):
        q.claims(timeout=-1)


def test_a_loop_that_is_left_fails_what_is_in_hand(files: FileClient, subtests: pytest.Subtests) -> None:
    """It counts as a delivery, as a task that kills its handler must."""
    for how in ("break", "exception", "close", "with"):
        with subtests.test(how):
            q = files.queue(how)
            fill(q)
            loop = q.claims(timeout=0)
            if how == "exception":
                with pytest.raises(ZeroDivisionError), loop:
                    any(1 / (claim.task.id != "b") > 1 for claim in loop)
            else:
                assert next(claim for claim in loop if how != "break" or claim.task.id == "b")
                assert how == "break" or next(loop).task.id == "b"
            if how == "with":
                with loop:
                    pass
            loop.close()
            loop.close()
            assert list(loop) == []
            task = q.task("b")
            assert (task.state.value, task.attempt, q.task("a").state.value) == ("inserted", 1, "finished")
            assert "its loop was left" in str(task.error)
            assert [claim.task.id for claim in q.claims(timeout=0)] == ["b", "c"]


def test_a_lost_claim_is_told_by_the_next_step(files: FileClient, q: FileQueue) -> None:
    """And the loop goes on."""
    fill(q)
    loop = q.claims(timeout=0)
    first = next(loop)
    files.queue(q.name).claim_handle(first.task.id, first.token).release()
    with pytest.raises(ClaimLost):
        next(loop)
    assert [claim.task.id for claim in loop] == ["a", "b", "c"]


# --- whether there is work, and claims by id and by token


def test_there_is_work_where_something_fits_and_nothing_is_claimed(q: FileQueue) -> None:
    """`ready` says whether a claim would find something, by filters or a selector, and writes nothing."""
    q.configure(filters={"k": String()})
    assert q.ready() is False
    q.enqueue("x", {"k": "a"})
    before = q.path.read_bytes()
    assert [q.ready(), q.ready(selector="k==a"), q.ready({"k": "b"})] == [True, True, False]
    assert [q.ready("k==a"), q.ready("k==b")] == [True, False]
    assert q.path.read_bytes() == before
    with pytest.raises(ConfigError):
        q.ready(selector="nonsense==1")


def test_who_waits_for_work_is_told_of_it(q: FileQueue) -> None:
    """Of an enqueue, of a claim and a delay that end while nothing happens in the file; a wake ends the wait."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(q.ready, timeout=None)
        q.enqueue("x", task_id="a")
        assert waiting.result(30) is True
        taken(q, lease=0.5)
        assert q.ready(timeout=30) is True
        taken(q, lease=600)
        q.enqueue("x", delay=2)
        assert (q.ready(), q.ready(timeout=30)) == (False, True)
        taken(q, lease=600)
        waiting = pool.submit(q.ready, timeout=None, stopping=stop.is_set)
        stop.set()
        eventually(lambda: internals(q).wake() or waiting.done())  # type: ignore[func-returns-value]
        assert waiting.result() is False


def test_a_task_is_claimed_by_its_id_and_no_other(q: FileQueue, folder: Any) -> None:
    """As the delivery that is asked for, if it can be claimed; without a lease the claim ends with its connection."""
    for task_id in ("before", "a", "after"):
        q.enqueue("x", task_id=task_id)
    q.enqueue("x", task_id="later", delay=60)
    claim = q.claim_task("a", lease=30, attempt=1)
    assert claim is not None
    assert (claim.task.id, claim.task.attempt, claim.span) == ("a", 1, 30)
    assert [q.claim_task(name) for name in ("a", "later", "nobodys")] == [None, None, None]
    claim.fail("e", backoff=0)
    assert q.claim_task("a", attempt=1) is None
    with FileClient(f"textqueue://{folder}") as other:
        assert other.queue(q.name).claim_task("a", attempt=2) is not None
        assert q.claim_task("a") is None
    again = q.claim_task("a", attempt=3)
    assert again is not None
    again.complete()
    assert [each.task.id for each in q.claim_many(5)] == ["before", "after"]
    for bad in ({"task_id": "a/b"}, {"task_id": "a", "attempt": 0}, {"task_id": "a", "lease": 0}):
        with pytest.raises(ConfigError):
            q.claim_task(**bad)


def test_a_claim_is_taken_over_by_its_token(q: FileQueue, folder: Any) -> None:
    """By another client of the same file; whoever settles it first has."""
    q.enqueue("x", task_id="a")
    made = taken(q, lease=600)
    with FileClient(f"textqueue://{folder}") as other:
        there = other.queue(q.name)
        over = there.claim_handle("a", made.token)
        assert (over.task.data, over.task.attempt, over.token) == (b"x", 1, made.token)
        with pytest.raises(ClaimLost):
            there.claim_handle("a", made.token + 1)
        with pytest.raises(TaskNotFound):
            there.claim_handle("gone", made.token)
        assert 300 < over.span < 601, "what is left of the lease; a file says it to the millisecond"
        longer = there.claim_handle("a", made.token, lease=900)
        assert longer.span == 900
        with pytest.raises(ConfigError):
            there.claim_handle("a/b", made.token)
        longer.complete("done")
        with pytest.raises(ClaimLost):
            there.claim_handle("a", made.token)
    with pytest.raises(ClaimLost):
        made.complete()
    assert q.task("a").result == b"done"


# --- workers


def test_a_handler_that_outlasts_its_lock_keeps_its_task(q: FileQueue) -> None:
    """Its lock is extended, also in the grace after a stop, where `ConsumeOnce` ends; without heartbeat it is lost."""
    begun, go = threading.Event(), threading.Event()

    def handle(_task: object) -> None:
        begun.set()
        go.wait(60)

    q.configure(policy=ConsumeOnce(), lock=6)
    q.enqueue("x", task_id="a")
    it = q.worker(handle, grace=12)
    it.start()
    assert begun.wait(20)
    assert q.claim(timeout=7) is None
    it.stop()
    joined = threading.Thread(target=it.join)
    joined.start()
    assert q.claim(timeout=7) is None
    joined.join(20)
    assert not joined.is_alive()
    assert (str(q.task("a").state), q.task("a").attempt, q.claim()) == ("dead", 1, None)
    assert "stopped" in (q.task("a").error or "")

    q.enqueue("x", task_id="b", policy=RetryPolicy(factor=0), lock=0.5)
    begun.clear()
    late = q.worker(handle, heartbeat=False)
    late.start()
    assert begun.wait(20)
    other = taken(q, timeout=20, lease=60)
    assert (other.task.id, other.task.attempt) == ("b", 2)
    go.set()
    late.stop()
    late.join()
    other.complete("done")
    assert q.task("b").result == b"done"
