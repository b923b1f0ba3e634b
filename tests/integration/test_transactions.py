"""ZkQueue's unit of work on a real server: all of it or nothing, whatever the connection does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    ConfigError,
    ConsumeOnce,
    ConsumeTimes,
    DuplicateTask,
    Message,
    Queue,
    SessionLost,
    TaskTooLarge,
    Zkmq,
    ZkmqError,
)
from tests.integration.test_failures import _end_session
from tests.proxy import Proxy
from tests.support import eventually


def data(zk: Zkmq, queue: str) -> list[bytes]:
    return sorted(task.data for task in zk.queue(queue).tasks(state="inserted"))


def test_taking_locks_without_removing_and_putting_writes_nothing(zk: Zkmq) -> None:
    """Before the commit the taken task is still there, locked, and the put one is nowhere; afterwards the reverse."""
    task_id = zk.queue("in").enqueue(b"x")
    with zk.transaction() as tx:
        taken = tx.try_take("in")
        assert taken is not None
        put = tx.put("out", b"y")
        assert zk.queue("in").task(task_id).status == "locked"
        assert "out" not in zk.queues() or data(zk, "out") == []
        assert tx.try_take("in") is None
        assert tx.commit(b"result") == [put]
    assert (zk.queue("in").task(task_id).state, zk.queue("in").task(task_id).result) == ("finished", b"result")
    assert data(zk, "out") == [b"y"]


@pytest.mark.parametrize("policy", [ConsumeOnce(), ConsumeTimes(3)])
def test_each_taking_is_a_delivery(zk: Zkmq, policy) -> None:
    """A task that is rolled back is handed out as often as its policy allows, then it is a dead letter with reasons."""
    q = zk.queue("in")
    q.configure(policy=policy)
    task_id = q.enqueue(b"x")
    for _ in range(policy.attempts):
        with zk.transaction() as tx:
            assert tx.try_take("in") is not None
    with zk.transaction() as tx:
        assert tx.try_take("in") is None
    task = q.task(task_id)
    assert (task.state, task.attempt, task.error) == ("dead", policy.attempts, "rolled back")
    assert [attempt.outcome for attempt in task.history] == ["failed"] * policy.attempts


def test_what_is_too_large_does_not_happen(zk: Zkmq) -> None:
    """A transaction beyond ZooKeeper's limit is refused in one clear error, and nothing of it is written."""
    q = zk.queue("in")
    q.enqueue(b"x", task_id="a")
    with zk.transaction() as tx:
        tx.try_take("in")
        for _ in range(3):
            tx.put("out", b"y" * 400_000)
        with pytest.raises(TaskTooLarge, match="nothing was committed"):
            tx.commit()
        assert q.task("a").status == "locked"
    assert data(zk, "in") == [b"x"]
    assert "out" not in zk.queues()


def test_a_refused_put_refuses_the_whole(zk: Zkmq) -> None:
    """An id in use at commit: nothing was taken or put; what cannot be put at all is refused before."""
    zk.queue("in").enqueue(b"x", task_id="a")
    zk.queue("out").enqueue(b"there already", task_id="b")
    with zk.transaction() as tx:
        tx.try_take("in")
        tx.put("other", b"z")
        tx.put("out", b"y", task_id="b")
        for options in ({"delay": -5}, {"update": True}, {"requeue": True}):
            with pytest.raises(ConfigError):
                tx.put("out", b"y", **options)
        with pytest.raises(DuplicateTask):
            tx.commit()
    assert data(zk, "in") == [b"x"]
    assert data(zk, "other") == []


def test_an_ended_transaction_is_ended(zk: Zkmq) -> None:
    """After commit or rollback every further call is refused."""
    for end in ("commit", "rollback"):
        tx = zk.transaction()
        getattr(tx, end)()
        for call in (lambda tx=tx: tx.try_take("in"), lambda tx=tx: tx.put("in", b"x"), tx.commit):
            with pytest.raises(ZkmqError, match="has ended"):
                call()


def test_many_threads_share_one_transaction(zk: Zkmq) -> None:
    """Taken and put from eight threads, it holds each task once and commits all of them."""
    q = zk.queue("in")
    q.enqueue_many([Message(f"{number}") for number in range(40)])
    with zk.transaction() as tx, ThreadPoolExecutor(8) as pool:

        def move(_: int) -> bytes | None:
            task = tx.try_take("in")
            if task is not None:
                tx.put("out", task.data)
            return None if task is None else task.data

        moved = list(pool.map(move, range(48)))
        tx.commit()
    expected = sorted(str(number).encode() for number in range(40))
    assert sorted(it for it in moved if it is not None) == data(zk, "out") == expected
    assert q.counts()["finished"] == 40


def test_many_transactions_share_one_session(zk: Zkmq) -> None:
    """Thirty transactions of one connection, open at the same time, take different tasks; half are rolled back."""
    zk.queue("in").enqueue_many([Message(f"{number}") for number in range(30)])
    open_ones = [zk.transaction() for _ in range(30)]
    taken = [tx.try_take("in") for tx in open_ones]
    assert len({task.id for task in taken if task is not None}) == 30
    for number, tx in enumerate(open_ones):
        if number % 2:
            tx.commit()
        else:
            tx.rollback()
    assert zk.queue("in").counts()["finished"] == 15
    assert len(data(zk, "in")) == 15


def test_a_transaction_dies_with_its_session(zk: Zkmq, zookeeper: str, root: str) -> None:
    """When the session ends the locks are free and others take the tasks; commit is refused, rollback does no harm."""
    zk.queue("in").enqueue(b"x")
    with Zkmq.connect(zookeeper, root=root, gc=False) as own:
        tx = own.transaction()
        assert tx.try_take("in") is not None
        tx.put("out", b"y")
        session, password = own._session.client.client_id
        _end_session(zookeeper, session, password)
        again = zk.queue("in").claim(timeout=20)
        assert again is not None
        eventually(lambda: own.session_id not in (0, session) and own._session.connected.is_set())
        with pytest.raises(SessionLost):
            tx.commit()
        tx.rollback()
        again.complete()
    assert "out" not in zk.queues()


def test_a_rollback_without_a_connection_leaves_no_lock(zk: Zkmq, zookeeper: str, root: str) -> None:
    """The way to ZooKeeper is lost for good: the rollback fails, and the end of the session frees the lock."""
    zk.queue("in").enqueue(b"x")
    proxy = Proxy(zookeeper)
    lost = Zkmq.connect(proxy.hosts, root=root, session_timeout=2, request_timeout=1, gc=False)
    tx = lost.transaction()
    assert tx.try_take("in") is not None
    proxy.close()
    with pytest.raises(ZkmqError):
        tx.rollback()
    again = zk.queue("in").claim(timeout=30)
    assert again is not None
    assert again.task.attempt == 2
    lost.close()


def test_a_put_is_neither_sent_nor_does_it_create_a_queue(zk: Zkmq) -> None:
    """It is in memory only: no request, and no queue before the commit, which creates it with what was put."""
    before = zk.requests
    with zk.transaction() as tx:
        tx.put("out", b"never")
    tx = zk.transaction()
    put = tx.put("out", b"y")
    assert zk.requests == before
    assert "out" not in zk.queues()
    assert tx.commit() == [put]
    assert data(zk, "out") == [b"y"]


def test_a_rollback_whose_session_is_over_raises_nothing(zk: Zkmq, zookeeper: str, root: str) -> None:
    """Out of reach for its time-out, the session has given back what it held: the rollback ends without an error.

    Others take the task and complete it; the handler's own exception leaves the block as it is.
    """
    zk.queue("in").enqueue_many([Message(b"x"), Message(b"y")])
    proxy = Proxy(zookeeper)
    with Zkmq.connect(proxy.hosts, root=root, session_timeout=4, request_timeout=30, gc=False) as lost:
        tx = lost.transaction()
        assert tx.try_take("in") is not None

        def handler() -> None:
            with lost.transaction() as other:
                assert other.try_take("in") is not None
                proxy.close()
                raise KeyError("the handler's own")

        with pytest.raises(KeyError):
            handler()
        again = [zk.queue("in").claim(timeout=30) for _ in range(2)]
        tx.rollback()
        assert sorted(claim.task.attempt for claim in again if claim is not None) == [2, 2]
        for claim in again:
            assert claim is not None
            claim.complete()
    assert zk.queue("in").counts()["finished"] == 2


def test_takers_compete_and_each_task_is_committed_once(zk: Zkmq, q: Queue) -> None:
    """Six threads with transactions of their own move sixty tasks: each arrives exactly once."""
    q.enqueue_many([Message(f"{number}") for number in range(60)])
    go = threading.Event()

    def move() -> None:
        go.wait(20)
        while True:
            with zk.transaction() as tx:
                task = tx.try_take("census")
                if task is None:
                    return
                tx.put("out", task.data)
                tx.commit()

    threads = [threading.Thread(target=move) for _ in range(6)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(60)
    assert data(zk, "out") == sorted(str(number).encode() for number in range(60))


async def test_the_asynchronous_front_has_the_same_transaction(zk: Zkmq, zookeeper: str, root: str) -> None:
    """Awaited: take, put, commit; leaving the block uncommitted rolls back."""
    zk.queue("in").enqueue(b"x", task_id="a")
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as own:
        async with own.transaction() as tx:
            assert (await tx.try_take("in")) is not None
            await tx.put("out", b"never")
        async with own.transaction() as tx:
            assert (await tx.try_take("in")) is not None
            put = await tx.put("out", b"y")
            assert await tx.commit() == [put]
    assert data(zk, "out") == [b"y"]
    assert (zk.queue("in").task("a").state, zk.queue("in").task("a").attempt) == ("finished", 2)
