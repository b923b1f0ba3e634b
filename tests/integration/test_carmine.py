"""Carmine's message statuses and the moves between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    ClaimLost,
    ConsumeTimes,
    DuplicateTask,
    IllegalTransition,
    Queue,
    RetryPolicy,
    TaskNotFound,
    Zkmq,
)
from tests.integration.conftest import taken
from tests.support import eventually

NOBODY = "performance_class==low"  # what no task of these tests is
LONG = 60.0
ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def second(other: Zkmq) -> Queue:
    return other.queue("census")


def take(queue: Any, data: bytes, attempt: int, *, hold: float | None = None) -> Any:
    """The next task, which must come and be that; its claim lapses after `hold` seconds, if it is not extended."""
    queue.configure(lock=hold or 0)
    claim = taken(queue, timeout=20)
    assert (claim.task.data, claim.task.attempt) == (data, attempt)
    return claim


def put(queue: Any, data: str, task_id: str = "m", **options: Any) -> None:
    assert queue.enqueue(data, task_id=task_id, **options) == task_id


def status(queue: Queue, task_id: str = "m") -> str:
    """The task's status; ``nil`` for none."""
    try:
        return str(queue.task(task_id).status)
    except TaskNotFound:
        return "nil"


def seen(queue: Queue, task_id: str = "m") -> tuple[str, bytes, int]:
    """Status, data and attempt."""
    task = queue.task(task_id)
    return str(task.status), task.data, task.attempt


def becomes(queue: Queue, wanted: str, task_id: str = "m") -> None:
    """Return when a task has the status, a consumer looking after the queue and taking nothing meanwhile."""
    eventually(lambda: queue.claim(selector=NOBODY) is None and status(queue, task_id) == wanted)


@contextlib.contextmanager
def in_use(told: str) -> Iterator[None]:
    """A block in which an enqueue is refused, the error telling the task's status."""
    with pytest.raises(DuplicateTask) as refusal:
        yield
    assert refusal.value.status == told


def test_nil_to_queued_to_locked_to_done(q: Queue, front: Any) -> None:
    """nil → queued → locked → done-awaiting-gc → nil; in the words of zkmq: inserted → claimed → finished."""
    queue = front.queue(q.name)
    assert status(queue) == "nil"
    put(queue, "x", filters={"performance_class": "standard"}, metadata={"who": "me"})
    assert (seen(queue), queue.task("m").state) == (("queued", b"x", 0), "inserted")
    claim = taken(queue, node={"performance_class": "high_performance"}, filter_method="at_least", timeout=5)
    assert (claim.task.id, claim.task.data, claim.task.attempt) == ("m", b"x", 1)
    assert claim.task.metadata == {"who": "me"}
    assert (seen(queue), queue.task("m").state) == (("locked", b"x", 1), "claimed")
    claim.complete(result=b"done")
    task = queue.task("m")
    assert (task.state, task.status, task.result) == ("finished", "done-awaiting-gc", b"done")
    assert task.enqueued_ms <= task.claimed_ms <= task.ended_ms
    with pytest.raises(IllegalTransition, match="finished"):
        queue.cancel("m")
    queue.collect_garbage(0)
    assert status(queue) == "nil"


def test_an_initial_delay_is_a_backoff(q: Queue) -> None:
    """nil → queued-with-backoff, handed out to nobody; its end makes it queued, and it is handed out."""
    put(q, "later", delay=LONG)
    put(q, "soon", "n", delay=0.5)
    assert (status(q), status(q, "n")) == ("queued-with-backoff", "queued-with-backoff")
    becomes(q, "queued", "n")
    take(q, b"soon", 1)
    assert (q.claim(), status(q)) == (None, "queued-with-backoff")


def test_a_run_that_is_given_back_or_fails_is_queued_again(q: Queue) -> None:
    """locked → queued or queued-with-backoff; given back it is attempt 1 again, a failure counts, with its error."""
    put(q, "x")
    take(q, b"x", 1).release()
    assert seen(q) == ("queued", b"x", 0)
    take(q, b"x", 1).snooze(0.5)
    assert seen(q) == ("queued-with-backoff", b"x", 0)
    take(q, b"x", 1).fail("broken", backoff=0)
    assert seen(q) == ("queued", b"x", 1)
    take(q, b"x", 2).fail("broken again", backoff=0.5)
    assert (seen(q), q.task("m").error) == (("queued-with-backoff", b"x", 2), "broken again")
    assert q.claim() is None
    take(q, b"x", 3)


def test_a_late_owner_is_refused_whatever_it_tries(q: Queue, second: Queue) -> None:
    """The lock has ended, another has attempt 2: the late owner gets ClaimLost and, unlike in v3.2, frees no lock."""
    put(q, "x")
    late = take(q, b"x", 1, hold=1)
    becomes(second, "queued")
    assert seen(q) == ("queued", b"x", 1)
    owner = take(second, b"x", 2)
    acts: list[Callable[[], object]] = [
        late.complete,
        lambda: late.complete(dedupe=1),
        lambda: late.fail("broken"),
        late.release,
        lambda: late.snooze(1),
        lambda: late.extend(LONG),
        lambda: late.progress(0.5),
    ]
    for act in acts:
        with pytest.raises(ClaimLost):
            act()
    assert (q.claim(), seen(q), q.task("m").progress) == (None, ("locked", b"x", 2), None)
    owner.complete()
    assert status(q) == "done-awaiting-gc"
    assert [at.outcome for at in q.task("m").history] == ["rescued", "finished"]


def test_a_claim_holds_as_long_as_its_lock_says(q: Queue, second: Queue) -> None:
    """A task's own lock bounds its claim, though the queue has none; an extension prolongs one, an update drops it."""
    put(q, "extended")
    extended = take(q, b"extended", 1, hold=1)
    extended.extend(LONG)
    put(q, "with a lock", "n", lock=1)
    put(q, "updated", "n", on_conflict="replace")
    updated = take(q, b"updated", 1)
    put(q, "bound", "o", lock=1)
    take(q, b"bound", 1)
    take(second, b"bound", 2)
    assert second.claim() is None, "the others' second was over before"
    for claim in (extended, updated):
        claim.complete()
        assert status(q, claim.task.id) == "done-awaiting-gc"


def test_a_requeue_waits_for_the_end_of_the_run(q: Queue) -> None:
    """locked-with-requeue → queued with the NEW data, attempt 1; a second one is refused or, by `update`, replaces."""
    put(q, "old")
    take(q, b"old", 1).fail("broken", backoff=0)
    claim = take(q, b"old", 2)
    put(q, "first", on_conflict="requeue")
    assert seen(q) == ("locked-with-requeue", b"old", 2)
    for options in ({"on_conflict": "requeue"}, {"on_conflict": "replace"}):
        with in_use("locked-with-requeue"):
            put(q, "second", **options)
    put(q, "new", on_conflict="replace-or-requeue")
    assert status(q) == "locked-with-requeue"
    claim.complete()
    assert seen(q) == ("queued", b"new", 0)
    take(q, b"new", 1).complete()
    assert (status(q), q.claim()) == ("done-awaiting-gc", None)


def test_no_requeue_flag_is_left_after_a_final_error_and_clean_up(q: Queue, second: Queue) -> None:
    """A run that would be dead makes way for the one in escrow, which runs once; the id begins anew without requeue."""
    put(q, "1", policy=ONCE)
    claim = take(q, b"1", 1)
    put(q, "2", on_conflict="requeue")
    claim.fail("broken")
    assert (seen(q), q.task("m").history[-1].error) == (("queued", b"2", 0), "broken")
    claim = take(q, b"2", 1)
    assert status(q) == "locked"
    put(q, "3", on_conflict="requeue", policy=ONCE)
    claim.fail("broken", retry=False)
    take(q, b"3", 1, hold=1)
    put(q, "4", on_conflict="requeue")
    take(second, b"4", 1).complete()
    q.collect_garbage(0)
    assert status(q) == "nil"
    put(q, "anew")
    claim = take(q, b"anew", 1)
    assert status(q) == "locked"
    claim.complete()
    assert (status(q), q.claim()) == ("done-awaiting-gc", None)


def test_a_dedupe_window_is_a_backoff_of_the_done(q: Queue) -> None:
    """locked → done-with-backoff, kept by clean-up; when the window has passed → done-awaiting-gc → nil."""
    put(q, "x")
    take(q, b"x", 1).complete(dedupe=LONG)
    q.collect_garbage(0)
    assert (status(q), q.task("m").state) == ("done-with-backoff", "finished")
    put(q, "y", "n")
    take(q, b"y", 1).complete(dedupe=0.5)
    eventually(lambda: status(q, "n") == "done-awaiting-gc")
    q.collect_garbage(0)
    assert (status(q, "n"), status(q)) == ("nil", "done-with-backoff")


def test_a_requeue_waits_for_the_end_of_the_window(q: Queue, front: Any) -> None:
    """done-with-requeue → queued with the new data; a second one is refused or, by `update`, replaces."""
    there = front.queue("census")
    put(there, "old", "in-the-run")
    claim = take(there, b"old", 1)
    put(there, "new", claim.task.id, on_conflict="requeue")
    claim.complete(dedupe=2)
    put(there, "old", "in-the-window")
    take(there, b"old", 1).complete(dedupe=2)
    put(there, "first", "in-the-window", on_conflict="requeue")
    with in_use("done-with-requeue"):
        put(there, "second", "in-the-window", on_conflict="requeue")
    put(there, "new", "in-the-window", on_conflict="replace-or-requeue")
    for name in ("in-the-run", "in-the-window"):
        assert seen(q, name) == ("done-with-requeue", b"old", 1)
    becomes(q, "queued", "in-the-run")
    for _ in range(2):
        (again := take(there, b"new", 1)).complete()
        assert status(q, again.task.id) == "done-awaiting-gc"
    assert there.claim() is None


def test_duplicates_are_refused_with_the_status(q: Queue) -> None:
    """An id that is queued, in backoff, locked, with requeue, in its window or dead is refused, and nothing changes."""

    def refuses(status_now: str, *ways: str) -> None:
        for way in ("raise", *ways):
            with in_use(status_now):
                put(q, "duplicate", on_conflict=way)
            assert status(q) == status_now

    put(q, "x", delay=0.5)
    refuses("queued-with-backoff", "requeue")
    becomes(q, "queued")
    refuses("queued", "requeue")
    claim = take(q, b"x", 1)
    refuses("locked", "replace")
    put(q, "y", on_conflict="requeue")
    refuses("locked-with-requeue")
    claim.complete(dedupe=1)
    refuses("done-with-requeue", "requeue")
    becomes(q, "queued")
    take(q, b"y", 1).complete(dedupe=LONG)
    refuses("done-with-backoff", "replace")
    assert q.task("m").data == b"y"
    q.drop("m")
    put(q, "z")
    take(q, b"z", 1).fail("broken", retry=False)
    refuses("dead", "replace-or-requeue")


def test_dead_and_redriven(q: Queue, second: Queue) -> None:
    """The last allowed attempt, a final failure, a lapsed lock → dead; redrive → queued, attempt 1."""
    put(q, "x", policy=RetryPolicy(attempts=2, factor=0.2))
    assert take(q, b"x", 1).fail("broken 1") == "inserted"
    assert status(q) == "queued-with-backoff"
    assert take(q, b"x", 2).fail("broken 2") == "dead"
    assert (seen(q), q.task("m").error, q.claim()) == (("dead", b"x", 2), "broken 2", None)
    assert [dead.id for dead in q.tasks(state="dead")] == ["m"]
    q.redrive("m")
    assert seen(q) == ("queued", b"x", 0)
    assert [done.error for done in q.task("m").history] == ["broken 1", "broken 2"]
    assert take(q, b"x", 1).fail("broken", retry=False) == "dead"
    with pytest.raises(IllegalTransition):
        q.cancel("m")
    put(q, "lapses", "n", policy=ONCE)
    take(q, b"lapses", 1, hold=1)
    becomes(second, "dead", "n")
    put(q, "at most twice", "o", policy=ConsumeTimes(2))
    for attempt in (1, 2):
        take(q, b"at most twice", attempt).fail("no")
    assert (status(q, "o"), q.claim()) == ("dead", None)
