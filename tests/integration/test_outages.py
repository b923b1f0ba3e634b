"""A connection that goes away for a while, on a real server: nobody is told that the session ended while it lives.

Two seconds are less than the session's time-out; calls made meanwhile wait for the connection.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncZkmq, Queue, SessionLost, Unavailable, Zkmq
from airflow_provider_zkmq.engine.core.protocol.ops import Children, EnsureRoot, Get, Pipeline, Reconnect, Sync
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Multi
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session
from tests.integration.clients import end_session, together
from tests.proxy import Proxy
from tests.support import eventually, fresh_root

DROP = 2.0
PATIENCE = 1.0
#: By how much an operation may outlive its time-out.
LATE = 2.0


@pytest.fixture
def proxy(zookeeper: str) -> Iterator[Proxy]:
    made = Proxy(zookeeper)
    yield made
    made.close()


@pytest.fixture
def zk(proxy: Proxy, root: str) -> Iterator[Zkmq]:
    with Zkmq.connect(proxy.hosts, root=root, session_timeout=20, gc=False) as client:
        yield client


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    queue = zk.queue("in")
    queue.enqueue(b"x", task_id="a")
    zk.queue("out").configure()
    zk.queue("out").counts()
    return queue


def dropped(proxy: Proxy, zk: Zkmq) -> None:
    """Begin a drop, and return when the client has noticed."""
    proxy.down(DROP)
    eventually(lambda: not zk._session.connected.is_set())


def handled_once(zk: Zkmq) -> None:
    """The task came to its end, what its transaction put is there once, and everybody can go on."""
    assert [(task.id, str(task.state), task.attempt) for task in zk.queue("in").tasks()] == [("a", "finished", 1)]
    assert [task.data for task in zk.queue("out").tasks()] == [b"y"]
    assert zk.queue("in")._context.claims.in_hand == {}
    for name in ("in", "out"):
        zk.queue(name).enqueue(b"next", priority=9)
        claim = zk.queue(name).claim(timeout=5)
        assert claim is not None
        assert claim.task.data == b"next"
        claim.complete()


def test_a_drop_during_a_transactional_handler(proxy: Proxy, zk: Zkmq, q: Queue) -> None:
    """The handler puts while the connection is away and returns: one delivery, one completion, one task put."""
    session, refused = zk.session_id, []

    def handler(task: Any, tx: Any) -> None:
        dropped(proxy, zk)
        try:
            tx.put("out", b"y")
        except SessionLost as error:
            refused.append(error)
            raise

    worker = q.worker(handler, transactional=True)
    worker.run(until_empty=True)
    assert refused == []
    assert (worker.finished, worker.failed) == (1, 0)
    assert zk.session_id == session
    handled_once(zk)


@pytest.mark.parametrize("at", ["try_take", "put", "commit"])
def test_a_drop_during_a_transaction(proxy: Proxy, zk: Zkmq, q: Queue, at: str) -> None:
    """Whichever of its calls meets the drop waits for the connection and succeeds."""
    session = zk.session_id
    with zk.transaction() as tx:
        for name, call in (
            ("try_take", lambda: tx.try_take("in")),
            ("put", lambda: tx.put("out", b"y")),
            ("commit", tx.commit),
        ):
            if name == at:
                dropped(proxy, zk)
            assert call() is not None
    assert zk.session_id == session
    handled_once(zk)


def test_the_id_is_the_sessions_while_it_lives(proxy: Proxy, zk: Zkmq, zookeeper: str, q: Queue) -> None:
    """Suspended it stays; a session that has ended is told as such, and the next one has another id."""
    session = zk.session_id
    assert session != 0
    dropped(proxy, zk)
    assert zk.session_id == session
    eventually(zk._session.connected.is_set)
    assert zk.session_id == session
    tx = zk.transaction()
    assert tx.try_take("in") is not None
    end_session(zk)
    eventually(lambda: zk.session_id not in {0, session})
    with pytest.raises(SessionLost):
        tx.commit()
    tx.rollback()
    eventually(lambda: q.claim() is not None)
    zk.close()
    assert zk.session_id == 0


# --- how long an operation takes at the most


@pytest.fixture
def impatient(proxy: Proxy, zookeeper: str) -> Iterator[Session]:
    """A session that waits a second for a reply, on a root that is there."""
    root = fresh_root()
    with Zkmq.connect(proxy.hosts, root=root, session_timeout=20, request_timeout=PATIENCE, gc=False) as client:
        run(client._session, single(EnsureRoot(root)))
        yield client._session
        proxy.replies.set()
        proxy.up()


def single(op: Any) -> Any:
    return (yield op)


def on_a_loop(session: Session, procedure: Any) -> Any:
    return asyncio.run(arun(session, procedure))


@pytest.mark.parametrize("drive", [run, on_a_loop])
@pytest.mark.parametrize("fault", ["silent", "away"])
def test_no_operation_outlives_its_time(proxy: Proxy, impatient: Session, drive: Any, fault: str) -> None:
    """Of a server that does not answer, a read is given up, a write's outcome is unknown, in `request_timeout`.

    Also when there are many in flight, and when the connection is away altogether: then nothing was written.
    """
    root = impatient.config.root
    writes = tuple(Multi((Create(f"{root}/n{number}"),)) for number in range(150))
    if fault == "silent":
        proxy.replies.clear()
    else:
        proxy.down()
        eventually(lambda: not impatient.connected.is_set())
    for op, unknown in (
        (Get(root), False), (Sync(root), False), (EnsureRoot(f"{root}/a/b/c"), False),
        (Pipeline((Children(root),) * 150), False), (writes[0], True), (Pipeline(writes), True),
    ):  # fmt: skip
        began = time.monotonic()
        try:
            found = drive(impatient, single(op))
        except Unavailable:
            assert fault == "away" or not unknown
        else:
            outcomes = found if isinstance(found, list) else [found]
            assert [outcome.unknown for outcome in outcomes] == [True] * (150 if isinstance(op, Pipeline) else 1)
        assert time.monotonic() - began < PATIENCE + LATE
    if fault == "away":
        with pytest.raises(Unavailable):
            drive(impatient, single(Reconnect()))
    proxy.replies.set()
    proxy.up()
    eventually(impatient.connected.is_set)  # kazoo tries again after 1.2 s at the latest
    drive(impatient, single(Reconnect()))
    made = {f"n{number}" for number in range(64)} if fault == "silent" else set()
    eventually(lambda: set(drive(impatient, single(Children(root)))) - {"a"} == made)


@pytest.mark.parametrize("drive", [run, on_a_loop])
def test_an_outcome_says_when_it_was_sent(proxy: Proxy, impatient: Session, drive: Any) -> None:
    """By the monotonic clock, at the sending: however late its reply; each of several its own; unknown ones too."""
    root = impatient.config.root
    proxy.replies.clear()
    threading.Timer(0.5, proxy.replies.set).start()
    before = time.monotonic()
    outcomes = drive(impatient, single(Pipeline(tuple(Multi((Create(f"{root}/p{at}"),)) for at in range(3)))))
    assert time.monotonic() - before >= 0.4
    assert all(outcome.committed and before <= outcome.sent < before + 0.4 for outcome in outcomes)
    assert [outcome.sent for outcome in outcomes] == sorted({outcome.sent for outcome in outcomes})
    proxy.replies.clear()
    before = time.monotonic()
    outcome = drive(impatient, single(Multi((Create(f"{root}/p3"),))))
    assert outcome.unknown
    assert before <= outcome.sent < before + 0.4


# --- a caller that goes away


def test_an_interrupt_during_a_request(proxy: Proxy, zk: Zkmq, q: Queue) -> None:
    """Ctrl-C while the reply is outstanding: the call ends, and the client and its neighbours go on."""
    proxy.replies.clear()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            q.enqueue(b"interrupted", task_id="b")
    finally:
        signal.signal(signal.SIGALRM, before)
        proxy.replies.set()
    assert {task.id for task in q.tasks()} == {"a", "b"}
    claims = together(q.claim, q.claim)
    assert {claim.task.id for claim in claims} == {"a", "b"}


async def test_a_cancellation_during_a_request(proxy: Proxy, zookeeper: str, root: str) -> None:
    """Cancelled while the reply is outstanding: the caller hears so, and the client goes on."""
    async with AsyncZkmq.connect(proxy.hosts, root=root, session_timeout=20, gc=False) as zk:
        q = zk.queue("in")
        await q.enqueue(b"x", task_id="a")
        for call in (lambda: q.enqueue(b"y", task_id="b"), lambda: q.task("a"), q.counts):
            await cancelled(proxy, zk, call)
        assert [task.id for task in await q.tasks()] == ["a", "b"]
        claim = await q.claim()
        assert claim is not None
        assert claim.task.id == "a"
        assert not zk._session.changed._callbacks


async def cancelled(proxy: Proxy, zk: AsyncZkmq, call: Callable[[], Any]) -> None:
    """Cancel a call whose request has been sent, then let the reply come."""
    sent = sum(zk.requests.values())
    proxy.replies.clear()
    task = asyncio.ensure_future(call())
    while sum(zk.requests.values()) == sent:  # noqa: ASYNC110  it tells nobody
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.replies.set()


def test_a_client_that_sends_into_a_drop_is_not_blocked(proxy: Proxy, impatient: Session) -> None:
    """Hundreds of requests of many threads, queued for a connection that went away meanwhile, end in their time."""
    root = impatient.config.root
    proxy.down()
    eventually(lambda: not impatient.connected.is_set())
    impatient.connected.set()  # as who looked a moment before saw it
    began = time.monotonic()
    reads = Pipeline((Get(root),) * 60)

    def read() -> bool:
        with pytest.raises(Unavailable):
            run(impatient, single(reads))
        return True

    assert all(together(*(read for _ in range(16))))
    assert time.monotonic() - began < PATIENCE + LATE
