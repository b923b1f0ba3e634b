"""A connection that goes away for a while, on a real server: nobody is told that the session ended while it lives.

The drops are shorter than the session's time-out; calls made meanwhile wait for the connection.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncZkmq, Queue, Unavailable, Zkmq
from airflow_provider_zkmq.engine.core.protocol.ops import Children, EnsureRoot, Get, Pipeline, Reconnect, Sync
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Multi
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session
from tests.faulty import Faulty, Hold, Once, is_multi
from tests.integration.clients import together
from tests.support import eventually, fresh_root

DROP = 0.5
PATIENCE = 20.0


@pytest.fixture
def zk(door: Faulty, root: str) -> Iterator[Zkmq]:
    with Zkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as client:
        yield client


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    queue = zk.queue("in")
    queue.enqueue(b"x", task_id="a")
    return queue


def test_a_drop_during_a_transaction(door: Faulty, zk: Zkmq) -> None:
    """Whichever of its calls meets the drop waits for the connection and succeeds; the session keeps its id."""
    session = zk.session_id
    assert session != 0
    zk.queue("out").configure()
    for at in ("try_take", "put", "commit"):
        zk.queue("in").enqueue(b"x", task_id=at)
        with zk.transaction() as tx:
            calls = {"try_take": partial(tx.try_take, "in"), "put": partial(tx.put, "out", at), "commit": tx.commit}
            for name, call in calls.items():
                if name == at:
                    door.down(DROP)
                    eventually(lambda: not zk._session.connected.is_set())
                    assert zk.session_id == session
                assert call() is not None
        assert at.encode() in [task.data for task in zk.queue("out").tasks()]
    assert zk.session_id == session
    assert {(str(task.state), task.attempt) for task in zk.queue("in").tasks()} == {("finished", 1)}
    assert len(zk.queue("in").tasks()) == len(zk.queue("out").tasks()) == 3
    assert zk.queue("in")._context.claims.in_hand == {}
    for name in ("in", "out"):
        zk.queue(name).enqueue(b"next", priority=9)
        claim = zk.queue(name).claim(timeout=5)
        assert claim is not None
        assert claim.task.data == b"next"
        claim.complete()
    zk.close()
    assert zk.session_id == 0


# --- an operation ends in its time


@pytest.fixture
def impatient(door: Faulty) -> Iterator[Session]:
    """A session that waits a second for a reply, on a root that is there."""
    root = fresh_root()
    with Zkmq.connect(door.hosts, root=root, session_timeout=20, request_timeout=1.0, gc=False) as client:
        run(client._session, single(EnsureRoot(root)))
        yield client._session
        door.flow()
        door.up()


def single(op: Any) -> Any:
    return (yield op)


def on_a_loop(session: Session, procedure: Any) -> Any:
    return asyncio.run(arun(session, procedure))


@pytest.mark.parametrize("drive", [run, on_a_loop])
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "away"])
def test_no_operation_waits_for_ever(door: Faulty, impatient: Session, drive: Any, *, silent: bool) -> None:
    """Of a server that does not answer, a read is given up and a write's outcome is unknown after `request_timeout`.

    Also when there are many in flight, and when the connection is away altogether: then nothing was written.
    """
    root = impatient.config.root
    writes = tuple(Multi((Create(f"{root}/n{number}"),)) for number in range(150))
    if silent:
        door.hold("replies")
    else:
        door.down()
        eventually(lambda: not impatient.connected.is_set())

    def end(op: Any, *, unknown: bool) -> bool:
        try:
            found = drive(impatient, single(op))
        except Unavailable:
            return not silent or not unknown
        outcomes = found if isinstance(found, list) else [found]
        return [outcome.unknown for outcome in outcomes] == [True] * (150 if isinstance(op, Pipeline) else 1)

    reads = (Get(root), Sync(root), EnsureRoot(f"{root}/a/b/c"), Pipeline((Children(root),) * 150))
    ends = [partial(end, op, unknown=False) for op in reads]
    assert all(together(*ends, *(partial(end, op, unknown=True) for op in (writes[0], Pipeline(writes)))))
    if not silent:
        with pytest.raises(Unavailable):
            drive(impatient, single(Reconnect()))
    door.flow()
    door.up()
    eventually(impatient.connected.is_set)  # kazoo tries again after 1.2 s at the latest
    drive(impatient, single(Reconnect()))
    made = {f"n{number}" for number in range(64)} if silent else set()
    eventually(lambda: set(drive(impatient, single(Children(root)))) - {"a"} == made)


@pytest.mark.parametrize("drive", [run, on_a_loop])
def test_an_outcome_says_when_it_was_sent(door: Faulty, impatient: Session, drive: Any) -> None:
    """By the monotonic clock, at the sending: however late its reply; each of several its own; unknown ones too."""
    root = impatient.config.root
    door.hold("replies")
    door.plan = last = Once(is_multi, skip=2)
    with ThreadPoolExecutor(1) as pool:
        before = time.monotonic()
        three = pool.submit(
            drive, impatient, single(Pipeline(tuple(Multi((Create(f"{root}/p{at}"),)) for at in range(3))))
        )
        assert last.met.wait(PATIENCE)
        arrived = time.monotonic()
        door.flow()
        outcomes = three.result()
        assert all(outcome.committed and before <= outcome.sent <= arrived for outcome in outcomes)
        assert [outcome.sent for outcome in outcomes] == sorted({outcome.sent for outcome in outcomes})
        door.hold("replies")
        door.plan = last = Once(is_multi)
        before = time.monotonic()
        one = pool.submit(drive, impatient, single(Multi((Create(f"{root}/p3"),))))
        assert last.met.wait(PATIENCE)
        arrived = time.monotonic()
        assert one.result().unknown
        assert before <= one.result().sent <= arrived


def test_a_client_that_sends_into_a_drop_is_not_blocked(door: Faulty, impatient: Session) -> None:
    """Hundreds of requests of many threads, queued for a connection that went away meanwhile, end in their time."""
    reads = Pipeline((Get(impatient.config.root),) * 60)
    door.down()
    eventually(lambda: not impatient.connected.is_set())
    impatient.connected.set()  # as who looked a moment before saw it

    def read() -> bool:
        with pytest.raises(Unavailable):
            run(impatient, single(reads))
        return True

    assert all(together(*(read for _ in range(16))))


# --- a caller that goes away


def test_an_interrupt_during_a_request(door: Faulty, q: Queue) -> None:
    """Ctrl-C while the reply is outstanding: the call ends, and the client and its neighbours go on.

    What an interrupted claim got is given back before the client claims again, and counts as no attempt.
    """
    main = threading.main_thread().ident
    assert main is not None
    calls: list[Callable[[], Any]] = [lambda: q.enqueue(b"interrupted", task_id="b"), lambda: q.claim(timeout=5)]
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for call, which in zip(calls, (is_multi, lambda request: request.claims), strict=True):
            door.plan = sent = Once(which, Hold())
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lambda sent=sent: sent.met.wait(PATIENCE) and signal.pthread_kill(main, signal.SIGALRM))
                with pytest.raises(KeyboardInterrupt):
                    call()
            door.flow()
            assert {task.id for task in q.tasks()} == {"a", "b"}
    finally:
        signal.signal(signal.SIGALRM, before)
    claims = together(q.claim, q.claim)
    assert {(claim.task.id, claim.task.attempt) for claim in claims} == {("a", 1), ("b", 1)}


async def test_a_cancellation_during_a_request(door: Faulty, root: str) -> None:
    """Cancelled while the reply is outstanding: the caller hears so, and the client goes on."""
    async with AsyncZkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as zk:
        q = zk.queue("in")
        await q.enqueue(b"x", task_id="a")
        for call in (lambda: q.enqueue(b"y", task_id="b"), lambda: q.task("a"), q.counts):
            await cancelled(door, call)
        assert [task.id for task in await q.tasks()] == ["a", "b"]
        claim = await q.claim()
        assert claim is not None
        assert claim.task.id == "a"
        assert not zk._session.changed._callbacks


async def cancelled(door: Faulty, call: Callable[[], Any]) -> None:
    """Cancel a call whose request has arrived, then let the reply come."""
    door.plan = sent = Once(lambda request: request.kind != "ping", Hold())
    task = asyncio.ensure_future(call())
    assert await asyncio.to_thread(sent.met.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    door.flow()
