"""Whether there is work in a file, and a task claimed by its id."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_zkmq.engine import ClaimLost, ConfigError, QueueNotFound, String
from airflow_provider_zkmq.filequeue import FileClient, FileQueue
from tests.support import eventually


def test_there_is_work_where_something_fits_and_nothing_is_claimed(q: FileQueue) -> None:
    q.configure(filters={"k": String()})
    assert q.ready() is False
    q.enqueue("x", {"k": "a"})
    before = q.path.read_bytes()
    assert [q.ready(), q.ready(selector="k==a"), q.ready({"k": "b"})] == [True, True, False]
    assert [q.ready("k==a"), q.ready("k==b")] == [True, False]
    assert q.path.read_bytes() == before
    with pytest.raises(ConfigError):
        q.ready(selector="nonsense==1")


def test_who_waits_is_told_of_an_enqueue_of_a_delay_and_of_a_claim_that_ends(q: FileQueue) -> None:
    """Each in a file in which nothing else happens."""
    told: list[bool] = []
    q.configure(lock=1)
    thread = threading.Thread(target=lambda: told.append(q.ready(timeout=None)))
    thread.start()
    q.enqueue("x", task_id="a")
    thread.join(30)
    assert told == [True]
    claim = q.claim(lease=1)
    assert claim is not None
    assert q.ready(timeout=30) is True
    q.claim(lease=600)
    q.enqueue("x", delay=0.5)
    assert q.ready() is False
    assert q.ready(timeout=30) is True


def test_a_wait_is_ended_by_a_wake(q: FileQueue) -> None:
    stop, told = threading.Event(), list[bool]()
    q.configure(lock=60)
    thread = threading.Thread(target=lambda: told.append(q.ready(timeout=None, stopping=stop.is_set)))
    thread.start()
    stop.set()

    def ended() -> bool:
        q.wake()
        return bool(told)

    eventually(ended)
    assert told == [False]


def test_a_task_is_claimed_by_its_id_and_no_other(q: FileQueue) -> None:
    for task_id in ("before", "a", "after"):
        q.enqueue("x", task_id=task_id)
    q.enqueue("x", task_id="later", delay=60)
    claim = q.claim_task("a", lease=30, attempt=1)
    assert claim is not None
    assert (claim.task.id, claim.task.attempt, claim.span) == ("a", 1, 30)
    assert [q.claim_task(name) for name in ("a", "later", "nobodys")] == [None, None, None]
    claim.fail("e", backoff=0)
    assert q.claim_task("a", attempt=1) is None
    again = q.claim_task("a", attempt=2)
    assert again is not None
    again.complete()
    assert [each.task.id for each in q.claim_many(5)] == ["before", "after"]
    for bad in ({"task_id": "a/b"}, {"task_id": "a", "attempt": 0}, {"task_id": "a", "lease": 0}):
        with pytest.raises(ConfigError):
            q.claim_task(**bad)


def test_a_claim_by_id_without_a_lease_ends_with_its_connection(q: FileQueue, files: FileClient) -> None:
    q.enqueue("x", task_id="a")
    other = FileClient(files.config.hosts)
    assert other.queue(q.name).claim_task("a") is not None
    assert q.claim_task("a") is None
    other.close()
    assert q.claim_task("a", attempt=2) is not None


def test_a_file_that_is_not_there_is_told_of(files: FileClient) -> None:
    for call in (lambda q: q.ready(timeout=5), lambda q: q.claim_task("a")):
        with pytest.raises(QueueNotFound):
            call(files.queue("none"))


def test_a_claim_is_taken_over_by_its_token(q: FileQueue) -> None:
    """By another client of the same file; whoever settles it first has."""
    q.enqueue("x", task_id="a")
    made = q.claim(lease=600)
    assert made is not None
    with FileClient(f"textqueue://{q.path.parent}") as other:
        there = other.queue(q.name)
        taken = there.take_over("a", made.token)
        assert taken is not None
        assert (taken.task.data, taken.task.attempt, taken.token) == (b"x", 1, made.token)
        assert there.take_over("a", made.token + 1) is None
        assert there.take_over("gone", made.token) is None
        assert 300 < taken.span < 601, "what is left of the lease; a file says it to the millisecond"
        longer = there.take_over("a", made.token, lease=900)
        assert longer is not None
        assert longer.span == 900
        with pytest.raises(ConfigError):
            there.take_over("a/b", made.token)
        longer.complete("done")
        assert there.take_over("a", made.token) is None
    with pytest.raises(ClaimLost):
        made.complete()
    assert q.task("a").result == b"done"
