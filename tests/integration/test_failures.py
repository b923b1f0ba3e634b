"""Processes that die, connections that drop, credentials that are wrong: on a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import (
    AccessDenied,
    AsyncZkmq,
    ClaimLost,
    Message,
    Queue,
    Unavailable,
    Zkmq,
)
from tests.support import eventually, fresh_root, python

IMPORT_AND_TELL = """
import signal
before = {number: signal.getsignal(number) for number in signal.valid_signals()}
import airflow_provider_zkmq.engine
print(before == {number: signal.getsignal(number) for number in signal.valid_signals()})
"""

CLAIM_AND_HANG = """
import sys
from airflow_provider_zkmq.engine import Zkmq
zk = Zkmq.connect(sys.argv[1], root=sys.argv[2], session_timeout=2)
claim = zk.queue("census").claim(timeout=10)
print(claim.token, flush=True)
sys.stdin.read()
"""

ENQUEUE_FOR_EVER = """
import sys
from airflow_provider_zkmq.engine import Message, Zkmq
q = Zkmq.connect(sys.argv[1], root=sys.argv[2]).queue("census")
print("go", flush=True)
while True:
    q.enqueue_many([Message(b"x" * 1000, filters={"performance_class": "low"}) for _ in range(50)])
"""


def test_a_killed_worker_s_task_is_claimed_by_another(zookeeper: str, root: str, q: Queue) -> None:
    """kill -9 in the middle of a task: another consumer gets it, attempt 2, and the old token is refused."""
    task_id = q.enqueue(b"x")
    victim = python(CLAIM_AND_HANG, zookeeper, root)
    assert victim.stdout is not None
    token = int(victim.stdout.readline())
    victim.kill()
    victim.communicate()
    claim = q.claim(timeout=20)
    assert claim is not None
    assert (claim.task.id, claim.task.attempt) == (task_id, 2)
    assert claim.task.history[0].outcome == "rescued"
    with pytest.raises(ClaimLost):
        q.complete(task_id, token)
    claim.complete(b"once")
    assert q.task(task_id).result == b"once"


@pytest.mark.parametrize("written", [1, 150, 400])
def test_a_killed_producer_leaves_whole_tasks_only(zookeeper: str, root: str, q: Queue, written: int) -> None:
    """kill -9 while enqueuing: every tree that is there is complete, pending, and listed exactly once."""
    victim = python(ENQUEUE_FOR_EVER, zookeeper, root)
    assert victim.stdout is not None
    victim.stdout.readline()
    eventually(lambda: q.counts()["inserted"] >= written)
    victim.kill()
    victim.communicate()
    tasks = q.tasks()
    assert len(tasks) == q.counts()["inserted"]
    assert all(len(task.data) == 1000 and task.filters == {"performance_class": "low"} for task in tasks)
    assert all(len({node.czxid for node in q.tree(task.id)}) == 1 for task in tasks[:: max(1, len(tasks) // 20)])


def test_a_sessionless_owner_cannot_settle(zookeeper: str, root: str, q: Queue) -> None:
    """A claim dies with its session: even before a rescue its owner is refused, whose client has a new session."""
    task_id = q.enqueue(b"x")
    with Zkmq.connect(zookeeper, root=root, gc=False) as owner:
        claim = owner.queue("census").claim()
        assert claim is not None
        session, password = owner._session.client.client_id
        _end_session(zookeeper, session, password)
        eventually(lambda: owner.session_id not in (0, session) and owner._session.connected.is_set())
        with pytest.raises(ClaimLost):
            claim.complete()
    again = q.claim(timeout=20)
    assert again is not None
    assert again.task.id == task_id


def _end_session(hosts: str, session: int, password: bytes) -> None:
    """Take a session over and close it, which is how the server ends one at once."""
    from kazoo.client import KazooClient

    thief = KazooClient(hosts, client_id=(session, password))
    thief.start()
    thief.stop()
    thief.close()


def test_no_server_is_one_error_that_names_the_hosts() -> None:
    """Connecting to a closed port ends within the time-out and names the hosts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=hosts):
            Zkmq.connect(hosts, connect_timeout=1)


def test_a_wrong_password_is_refused_at_once(zookeeper: str) -> None:
    """What was created with credentials opens to them alone; the error names the user and never the password."""
    root = fresh_root()
    with Zkmq.connect(zookeeper, root=root, auth="ann:right", gc=False) as zk:
        zk.queue("q").enqueue(b"x")
    for auth in ("ann:wrong", None):
        with pytest.raises(AccessDenied) as caught:
            Zkmq.connect(zookeeper, root=root, auth=auth)
        assert "wrong" not in str(caught.value)
    with Zkmq.connect(zookeeper, root=root, auth=("ann", "right"), gc=False) as zk:
        assert zk.queue("q").counts()["inserted"] == 1


def test_waiters_and_claims_survive_a_server_restart(tmp_path: Path) -> None:
    """Watches lost with the connection are armed again: a wait and a blocked claim go on after a restart."""
    with EmbeddedServer(tmp_path, force_sync=False) as server:
        with Zkmq.connect(server.hosts, session_timeout=30, gc=False) as zk:
            q = zk.queue("q")
            task_id = q.enqueue(b"x")
            claimed = q.claim()
            assert claimed is not None
            got: list[object] = []
            waiter = threading.Thread(target=lambda: got.append(q.wait([task_id], timeout=60)[0].state))
            taker = threading.Thread(target=lambda: got.append(q.claim(timeout=60)))
            waiter.start()
            taker.start()
            server.restart(0)
            claimed.complete()
            q.enqueue(b"y")
            waiter.join(60)
            taker.join(60)
            assert "finished" in got
            assert any(getattr(item, "task", None) and item.task.data == b"y" for item in got)  # type: ignore[attr-defined]


async def test_the_asynchronous_front_does_the_same(zookeeper: str) -> None:
    """AsyncZkmq: the same names, awaitable; a cancelled claim leaves nothing claimed."""
    async with AsyncZkmq.connect(zookeeper, root=fresh_root(), gc=False) as zk:
        q = zk.queue("q")
        await q.configure()
        waiting = asyncio.create_task(q.claim(timeout=30))
        await asyncio.sleep(0)
        (task_id,) = await q.enqueue_many([Message("x")])
        claim = await waiting
        assert claim is not None
        done = asyncio.create_task(q.wait([task_id]))
        await claim.complete("r")
        assert [task.result for task in await done] == [b"r"]
        blocked = asyncio.create_task(q.claim(timeout=30))
        await asyncio.sleep(0)
        blocked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocked
        await q.enqueue("y")
        assert (await q.counts())["inserted"] == 1


def test_a_worker_stops_on_demand(q: Queue) -> None:
    """stop lets the handler finish within its grace; afterwards its delivery has failed, and others get the task."""
    started, release = threading.Event(), threading.Event()

    def handler(_task: object) -> bytes:
        started.set()
        release.wait(30)
        return b"late"

    task_id = q.enqueue(b"x")
    worker = q.worker(handler, grace=0.1)
    assert worker.start() is True
    assert worker.start() is False
    assert started.wait(20)
    assert worker.stop() is True
    worker.join()
    assert (q.task(task_id).state, q.task(task_id).attempt) == ("inserted", 1)
    assert "stopped" in (q.task(task_id).error or "")
    release.set()


def test_a_worker_completes_fails_and_retries(q: Queue) -> None:
    """The handler's value is the result, its exception fails the task with its text."""
    good, bad = q.enqueue(b"good"), q.enqueue(b"bad")

    def handler(task: object) -> bytes:
        data: bytes = task.data  # type: ignore[attr-defined]
        if data == b"bad":
            msg = "cannot do this"
            raise RuntimeError(msg)
        return data.upper()

    q.worker(handler, threads=2).run(until_empty=True)
    assert q.task(good).result == b"GOOD"
    assert q.task(bad).status == "queued-with-backoff"
    assert q.task(bad).error == "RuntimeError: cannot do this"


def test_no_signal_is_caught_by_the_library() -> None:
    """Importing the engine changes no signal handler, seen in a process where nothing else has run."""
    told, _ = python(IMPORT_AND_TELL).communicate(timeout=60)
    assert told.strip() == "True"
