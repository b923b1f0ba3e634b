"""A connection that is closed, and one that a forked process has inherited: its user is told, and nobody hangs."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from airflow_provider_zkmq.engine import AsyncZkmq, Queue, Zkmq
from airflow_provider_zkmq.engine.errors import SessionLost, TransportError
from tests.support import eventually

PATIENCE_S = 20.0


def waits_in(client: Zkmq | AsyncZkmq, *, there: bool) -> bool:
    """Whether a worker of the client has begun to wait, for tasks of the queue `q` or for the queue itself."""
    if there:
        return client._context("q").registration.consumer is not None
    fans = list(client._session.watches._fans.values())
    return any(fan.path.endswith("/conf/layout") and fan.watches() for fan in fans)


@pytest.mark.parametrize("there", [True, False], ids=["it waits for tasks", "it waits for its queue"])
def test_a_worker_whose_connection_is_closed_ends(zookeeper: str, root: str, there: bool) -> None:
    """It has nobody left to ask: `run` raises what `claim` would."""
    zk = Zkmq.connect(zookeeper, root=root, gc=False)
    if there:
        zk.queue("q").configure()
    worker = zk.queue("q").worker(lambda _task: None)
    ended: list[BaseException] = []

    def work() -> None:
        try:
            worker.run()
        except SessionLost as error:
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    eventually(lambda: waits_in(zk, there=there))
    zk.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(ended) == 1


@pytest.mark.parametrize("there", [True, False], ids=["it waits for tasks", "it waits for its queue"])
async def test_an_asynchronous_worker_whose_connection_is_closed_ends(zookeeper: str, root: str, there: bool) -> None:
    """The same on an event loop."""

    async def handle(_task: object) -> None:
        """Do nothing."""

    zk = await AsyncZkmq.connect(zookeeper, root=root, gc=False)
    if there:
        await zk.queue("q").configure()
    running = asyncio.create_task(zk.queue("q").worker(handle).run())
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(eventually, lambda: waits_in(zk, there=there))
        await zk.close()
        with pytest.raises(SessionLost):
            await running


def test_a_client_is_closed_although_others_begin_to_use_it(zookeeper: str, root: str) -> None:
    """Another thread's first use of a queue does not keep the session open."""
    zk = Zkmq.connect(zookeeper, root=root, gc=False)
    over = threading.Event()

    def use() -> None:
        number = 0
        while not over.is_set():
            zk.queue(f"q{number}")
            number += 1

    thread = threading.Thread(target=use)
    thread.start()
    try:
        eventually(lambda: len(zk._contexts) > 100)
        zk.close()
    finally:
        over.set()
        thread.join()
    assert zk._session.closed
    assert not zk._session.client.connected


def test_a_forked_process_is_told_to_connect_again(zk: Zkmq, q: Queue) -> None:
    """Whatever its parent's threads were at when it was forked, its calls end at once."""
    over = threading.Event()
    threads = [threading.Thread(target=lambda: _busy(q, over)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert _forked(q) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _busy(q: Queue, over: threading.Event) -> None:
    while not over.is_set():
        q.counts()


def _forked(q: Queue) -> int:
    """A child's verdict: 0 when it was told. It is ended if it hangs."""
    child = os.fork()
    if child == 0:
        try:
            q.enqueue(b"x")
        except TransportError:
            os._exit(0)
        finally:
            os._exit(1)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return -1
        time.sleep(0.01)  # looks again


def test_a_claim_of_unknown_outcome_is_given_back_although_its_client_claims_nothing_more(
    zookeeper: str, root: str
) -> None:
    """Once the connection is back its client returns the task by itself, and another client gets it."""
    from tests.proxy import Proxy

    proxy = Proxy(zookeeper)
    with Zkmq.connect(zookeeper, root=root, gc=False) as other:
        other.queue("q").enqueue(b"x", task_id="a")
        with Zkmq.connect(proxy.hosts, root=root, gc=False, session_timeout=30, request_timeout=1) as zk:
            zk.queue("warm").configure()
            assert zk.queue("warm").claim() is None
            proxy.cut(2)  # the registration, the clock, then the claim itself
            q = zk.queue("q")
            try:
                claim = q.claim()
            except TransportError:
                claim = None
            if claim is not None:  # its outcome could be told: that is as good
                claim.release()
            eventually(lambda: str(other.queue("q").task("a").status) == "queued")
            got = other.queue("q").claim(timeout=5)
            assert got is not None
    proxy.close()
