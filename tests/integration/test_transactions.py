"""ZkQueue's unit of work on a real server: all of it or nothing, whatever the connection does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    ClaimLost,
    ConsumeOnce,
    ConsumeTimes,
    DuplicateTask,
    Message,
    SessionLost,
    TaskTooLarge,
    UnitOfWork,
    Zkmq,
    ZkmqError,
)
from tests.faulty import Faulty
from tests.integration.clients import end_session
from tests.integration.conftest import taken
from tests.support import eventually


def data(zk: Zkmq, queue: str) -> list[bytes]:
    return sorted(task.data for task in zk.queue(queue).tasks(state="inserted"))


def test_taking_locks_without_removing_and_putting_writes_nothing(zk: Zkmq, front: Any) -> None:
    """A put sends no request, the commit writes all at once, leaving without it gives back; then calls are refused.

    So is a commit with an id in use, or too large: one clear error, and nothing of it is written.
    """
    task_id = zk.queue("in").enqueue(b"x")
    before = dict(front.requests)
    with front.transaction() as tx:
        tx.put("out", b"never")
        assert front.requests == before
        assert tx.try_take("in") is not None
    with front.transaction() as tx:
        assert tx.try_take("in") is not None
        put = tx.put("out", b"y")
        assert (zk.queue("in").task(task_id).status, zk.queues()) == ("locked", ["in"])
        assert tx.try_take("in") is None
        assert tx.commit(b"result") == [put]
    task = zk.queue("in").task(task_id)
    assert (task.state, task.result, task.attempt) == ("finished", b"result", 2)
    other = front.transaction()
    other.put("out", b"z", task_id=put)
    with pytest.raises(DuplicateTask):
        other.commit()
    for _ in range(2):
        other.put("out", b"z" * 600_000)
    with pytest.raises(TaskTooLarge, match="nothing was committed"):
        other.commit()
    other.rollback()
    assert data(zk, "out") == [b"y"]
    for ended in (tx, other):
        for call in (lambda it: it.try_take("in"), lambda it: it.put("in", b"x"), lambda it: it.commit()):
            with pytest.raises(ZkmqError, match="has ended"):
                call(ended)


def test_each_taking_is_a_delivery(zk: Zkmq) -> None:
    """A task that is rolled back is handed out as often as its policy allows, then it is a dead letter with reasons."""
    for policy in (ConsumeOnce(), ConsumeTimes(3)):
        q = zk.queue(f"in-{policy.attempts}")
        task_id = q.enqueue(b"x", policy=policy)
        taken = []
        for _ in range(policy.attempts + 1):
            with zk.transaction() as tx:
                taken.append(tx.try_take(q.name) is not None)
        assert taken == [True] * policy.attempts + [False]
        task = q.task(task_id)
        assert (task.state, task.attempt, task.error) == ("dead", policy.attempts, "rolled back")
        assert [attempt.outcome for attempt in task.history] == ["failed"] * policy.attempts


def test_many_transactions_share_one_session(zk: Zkmq) -> None:
    """Thirty take different tasks, half are rolled back; threads move those, in one transaction or one for each."""
    q = zk.queue("in")
    q.enqueue_many([Message(f"{number}") for number in range(30)])
    open_ones = [zk.transaction() for _ in range(30)]
    taken = [tx.try_take("in") for tx in open_ones]
    assert len({task.id for task in taken if task is not None}) == 30
    for number, tx in enumerate(open_ones):
        tx.commit() if number % 2 else tx.rollback()
    left = data(zk, "in")
    assert (q.counts()["finished"], len(left)) == (15, 15)

    def move(tx: UnitOfWork) -> bool:
        task = tx.try_take("in")
        return task is not None and bool(tx.put("out", task.data))

    def move_each(_: int) -> None:
        while True:
            with zk.transaction() as own:
                if not move(own):
                    return
                own.commit()

    with zk.transaction() as tx, ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(lambda _: move(tx), range(8))) == 8
        tx.commit()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(move_each, range(6)))
    assert data(zk, "out") == left


def test_a_transaction_dies_with_its_session(zk: Zkmq, other: Zkmq) -> None:
    """Others take its tasks; its commit, and the completion of a claim, is refused; rollback does no harm."""
    zk.queue("in").enqueue_many([Message(b"x")] * 2)
    claim, tx, session = taken(other.queue("in")), other.transaction(), other.session_id
    assert tx.try_take("in") is not None
    tx.put("out", b"y")
    end_session(other)
    eventually(lambda: other.session_id not in (0, session) and other._session.connected.is_set())
    with pytest.raises(ClaimLost):
        claim.complete()
    with pytest.raises(SessionLost):
        tx.commit()
    tx.rollback()
    for _ in range(2):
        again = taken(zk.queue("in"), timeout=20)
        assert again.task.attempt == 2
        again.complete()
    assert "out" not in zk.queues()


def test_a_rollback_out_of_reach_leaves_no_lock(zk: Zkmq, door: Faulty, root: str) -> None:
    """It fails, or its session is over, which frees its locks; the handler's own exception leaves the block."""
    zk.queue("in").enqueue_many([Message(b"x") for _ in range(3)])
    options = {"root": root, "session_timeout": 3, "gc": False}
    with (
        Zkmq.connect(door.hosts, request_timeout=30, **options) as patient,
        Zkmq.connect(door.hosts, request_timeout=1, **options) as hasty,
    ):
        open_ones = [client.transaction() for client in (patient, hasty)]
        assert all(tx.try_take("in") is not None for tx in open_ones)

        def handler() -> None:
            with patient.transaction() as other:
                assert other.try_take("in") is not None
                door.down()
                with pytest.raises(ZkmqError):
                    open_ones[1].rollback()
                raise KeyError("the handler's own")

        with pytest.raises(KeyError):
            handler()
        again = [taken(zk.queue("in"), timeout=30) for _ in range(3)]
        open_ones[0].rollback()
        for claim in again:
            assert claim.task.attempt == 2
            claim.complete()
    assert zk.queue("in").counts()["finished"] == 3
