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

from airflow_provider_zkmq.engine import Queue, Unavailable, Zkmq
from airflow_provider_zkmq.engine.core.zk_operations import (
    Children,
    Create,
    EnsureRoot,
    Get,
    Multi,
    Pipeline,
    Reconnect,
    Sync,
)
from airflow_provider_zkmq.engine.zk.procedure_drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session
from tests.faulty import Faulty, Hold, Once, is_multi
from tests.integration.clients import together
from tests.integration.conftest import taken
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
    zk.queue("out").configure()
    for at in ("try_take", "put", "commit"):
        zk.queue("in").enqueue(b"x", task_id=at)
        with zk.transaction() as tx:
            calls = {"try_take": partial(tx.try_take, "in"), "put": partial(tx.put, "out", at), "commit": tx.commit}
            for name, call in calls.items():
                if name == at:
                    door.down()
                    eventually(lambda: not zk._session.connected.is_set())
                    threading.Timer(DROP, door.up).start()
                    assert zk.session_id == session != 0
                assert call() is not None
    assert sorted(task.data for task in zk.queue("out").tasks()) == [b"commit", b"put", b"try_take"]
    assert zk.session_id == session
    assert {(str(task.state), task.attempt) for task in zk.queue("in").tasks()} == {("finished", 1)}
    assert zk.queue("in")._context.claims.held == {}
    for name in ("in", "out"):
        zk.queue(name).enqueue(b"next", priority=9)
        assert taken(zk.queue(name), timeout=5).task.data == b"next"
    zk.close()
    assert zk.session_id == 0


# --- an operation ends in its time

DRIVERS = pytest.mark.parametrize(
    "drive", [run, lambda session, it: asyncio.run(arun(session, it))], ids=["run", "loop"]
)


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


@DRIVERS
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "away"])
def test_no_operation_waits_for_ever(door: Faulty, impatient: Session, drive: Any, *, silent: bool) -> None:
    """A read is given up, a write's outcome is unknown, however many are in flight; if away, nothing is written."""
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


@DRIVERS
def test_an_outcome_says_when_it_was_sent(door: Faulty, impatient: Session, drive: Any) -> None:
    """By the monotonic clock, at the sending: however late its reply; each of several its own; unknown ones too."""
    root = impatient.config.root

    def sent(count: int, *, answered: bool) -> list[Any]:
        """The outcomes of so many transactions, whose replies come when the last has arrived, or never."""
        door.hold("replies")
        door.plan = last = Once(is_multi, skip=count - 1)
        writes = Pipeline(tuple(Multi((Create(f"{root}/p{count}.{at}"),)) for at in range(count)))
        with ThreadPoolExecutor(1) as pool:
            before = time.monotonic()
            call = pool.submit(drive, impatient, single(writes))
            assert last.met.wait(PATIENCE)
            arrived = time.monotonic()
            if answered:
                door.flow()
            outcomes: list[Any] = call.result()
        assert all(before <= outcome.sent <= arrived for outcome in outcomes)
        return outcomes

    three = sent(3, answered=True)
    assert [(it.committed, it.sent) for it in three] == [(True, at) for at in sorted({it.sent for it in three})]
    assert [it.unknown for it in sent(1, answered=False)] == [True]


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
    """The call ends, all go on; what an interrupted claim got is given back and counts as no attempt."""
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
