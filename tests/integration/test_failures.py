"""Clients that are closed, forked or killed, servers that restart or refuse: users are told, and others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import AccessDenied, ClaimLost, Queue, Zkmq
from airflow_provider_zkmq.engine.errors import SessionLost, TransportError
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.integration.conftest import started, taken
from tests.integration.fronts import KINDS, connected
from tests.support import eventually, python

PATIENCE_S = 20.0
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


# --- connections that are closed, and one that a forked process has inherited


def waits_in(client: Any, name: str, *, there: bool) -> bool:
    """Whether a worker of the client has begun to wait, for tasks of the queue or for the queue itself."""
    if there:
        return client._context(name).registration.consumer is not None
    fans = list(client._session.watches._fans.values())
    return any(fan.path.endswith(f"{name}/conf") and fan.watches() for fan in fans)


def test_a_worker_whose_connection_is_closed_ends(zookeeper: str, root: str, subtests: pytest.Subtests) -> None:
    """It has nobody left to ask: `run` raises what `claim` would, while it waits for tasks or for its queue."""

    async def on_a_loop(_task: object) -> None:
        """Do nothing."""

    for front, there in product(KINDS, (True, False)):
        with subtests.test(front=front, there=there), connected(front, zookeeper, root=root, gc=False) as zk:
            q = zk.queue(name := f"{front}-{there}")
            if there:
                q.configure()
            running = started(q.worker(on_a_loop if front == "asynchronous" else lambda _task: None).run)
            eventually(lambda zk=zk, name=name, there=there: waits_in(zk, name, there=there))
            zk.close()
            with pytest.raises(SessionLost):
                running.result(PATIENCE_S)


def test_a_client_is_closed_although_others_begin_to_use_it(
    zookeeper: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's first use of a queue, in the middle of it, does not keep the session open."""
    zk = Zkmq.connect(zookeeper, root=root, gc=False)
    signals = [zk.queue(name)._context.signal for name in "ab"]
    fire = type(signals[0]).fire
    monkeypatch.setattr(type(signals[0]), "fire", lambda signal: (zk.queue("late"), fire(signal)))
    zk.close()
    assert (zk._session.closed, zk._session.client.connected) == (True, False)


def test_a_forked_process_is_told_to_connect_again(q: Queue) -> None:
    """Whatever its parent's threads were at when it was forked, its calls end at once."""
    over = threading.Event()

    def use() -> None:
        while not over.is_set():
            q.counts()

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(use)
        try:
            assert [_forked(q) for _ in range(5)] == [0] * 5
        finally:
            over.set()


def _forked(q: Queue) -> int:
    """A child's verdict: 0 when it was told. It is ended if it hangs."""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            q.enqueue(b"x")
        except TransportError:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- processes that die


def said(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_killed_worker_s_task_is_claimed_by_another(zookeeper: str, root: str, q: Queue) -> None:
    """kill -9 in the middle of a task: another consumer gets it, attempt 2, and the old token is refused."""
    task_id = q.enqueue(b"x")
    victim = python(CLAIM_AND_HANG, zookeeper, root)
    token = said(victim)
    kill(victim)
    claim = taken(q, timeout=20)
    assert (claim.task.id, claim.task.attempt, claim.task.history[0].outcome) == (task_id, 2, "rescued")
    with pytest.raises(ClaimLost):
        q.claim_handle(task_id, int(token)).complete()
    claim.complete(b"once")
    assert q.task(task_id).result == b"once"


@pytest.mark.parametrize("written", [1, 250])
def test_a_killed_producer_leaves_whole_tasks_only(zookeeper: str, root: str, q: Queue, written: int) -> None:
    """kill -9 while enqueuing: every tree that is there is complete, pending, and listed exactly once."""
    victim = python(ENQUEUE_FOR_EVER, zookeeper, root)
    said(victim)
    eventually(lambda: q.counts()["inserted"] >= written)
    kill(victim)
    eventually(lambda: len(q.tasks()) == q.counts()["inserted"])  # what it had sent may arrive after its death
    tasks = q.tasks()
    assert all(len(task.data) == 1000 and task.filters == {"performance_class": "low"} for task in tasks)
    some, tree = tasks[:: max(1, len(tasks) // 20)], internals(q).tree
    assert all(len({node.czxid for node in tree(task.id)}) == 1 for task in some)


# --- servers


def test_a_wrong_password_is_refused_at_once(zookeeper: str, root: str) -> None:
    """What was created with credentials opens to them alone; the error names the user and never the password."""
    for auth in ("ann:right", ("ann", "right")):
        with Zkmq.connect(zookeeper, root=root, auth=auth, gc=False) as zk:
            zk.queue("q").enqueue(b"x")
    for auth in ("ann:wrong", None):
        with pytest.raises(AccessDenied) as caught:
            Zkmq.connect(zookeeper, root=root, auth=auth)
        assert "wrong" not in str(caught.value)


def test_waiters_and_claims_survive_a_server_restart(tmp_path: Path) -> None:
    """Watches lost with the connection are armed again: a wait and a blocked claim go on after a restart."""
    with (
        EmbeddedServer(tmp_path, force_sync=False) as server,
        Zkmq.connect(server.hosts, session_timeout=120, request_timeout=120, gc=False) as zk,
    ):
        q = zk.queue("q")
        task_id = q.enqueue(b"x")
        claimed = taken(q)
        waiter, taker = started(lambda: q.wait([task_id], timeout=60)), started(lambda: taken(q, timeout=60))
        server.restart(0)
        claimed.complete()
        q.enqueue(b"y")
        assert (waiter.result()[0].state, taker.result().task.data) == ("finished", b"y")


def test_no_signal_is_caught_by_the_library() -> None:
    """Importing the engine changes no signal handler, seen in a process where nothing else has run."""
    told, _ = python(IMPORT_AND_TELL).communicate(timeout=60)
    assert told.strip() == "True"
