"""The drivers: who may be inside a client's memory, and how an operation ends that nobody waits for any more."""

from __future__ import annotations

import asyncio
import signal as signals
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.connection_config import ConnectionConfig
from airflow_provider_zkmq.engine.core.zk_operations import Callback, Reconnect, SetTimeout, Wait
from airflow_provider_zkmq.engine.errors import SessionLost, Unavailable
from airflow_provider_zkmq.engine.zk import connection
from airflow_provider_zkmq.engine.zk.connection import GRACE, CallDeadline
from airflow_provider_zkmq.engine.zk.procedure_drivers import LoopDriver, arun, run
from airflow_provider_zkmq.engine.zk.session import Session, ThreadSignal
from tests.support import eventually

PATIENCE = 20.0


@pytest.fixture
def session() -> Iterator[Session]:
    """A session that was never connected: these procedures send nothing."""
    made = Session(ConnectionConfig.of("127.0.0.1:1"))
    yield made
    made.closed = True


def on_a_loop(session: Session, procedure: Any) -> Any:
    return asyncio.run(arun(session, procedure))


BLOCKING_OR_NOT = pytest.mark.parametrize("drive", [run, on_a_loop])


def in_threads(*jobs: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def asking(op: Any, closed: list[Any] | None = None) -> Any:
    """A procedure of one operation, which notes that it was closed."""
    try:
        yield op
    finally:
        if closed is not None:
            closed.append(op)


@BLOCKING_OR_NOT
def test_a_step_is_alone_with_the_memory_and_a_function_of_the_users_is_outside(session: Session, drive: Any) -> None:
    """Also after a failure, and where it is closed; what the function returns comes back, what it raises is thrown."""
    alone: list[bool] = []

    def step() -> None:
        in_threads(try_lock)

    def try_lock() -> None:
        if free := session.memory.acquire(blocking=False):
            session.memory.release()
        alone.append(not free)

    def procedure(last: Callable[[], Any]) -> Any:
        try:
            step()
            told = yield Callback(lambda: in_threads(lambda: run(session, asking(Callback(lambda: None)))) or "told")
            step()
            try:
                yield Callback({}.popitem)
            except KeyError:
                step()
            yield Callback(last)
            return told
        finally:
            step()

    assert drive(session, procedure(lambda: None)) == "told"
    with pytest.raises(SystemExit):
        drive(session, procedure(exit))
    assert alone == [True] * 8
    step()
    assert alone.pop() is False


async def test_a_cancelled_wait_leaves_nothing_behind(session: Session, subtests: pytest.Subtests) -> None:
    """Closed, and without a callback left, also where what it waits for comes in the loop's same round."""
    signal, reply, closed = ThreadSignal(), session.client.handler.async_result(), list[Any]()
    waiting, bounded, connecting = Wait(signal, 0), Wait(signal, 0, PATIENCE), Reconnect()
    cases: dict[str, tuple[Callable[[], Any], Any, Callable[[], Any] | None]] = {
        "a signal": (lambda: arun(session, asking(waiting, closed)), signal, None),
        "a connection": (lambda: arun(session, asking(connecting, closed)), session.changed, None),
        "a reply": (lambda: LoopDriver(session).reply(reply, PATIENCE), reply, None),
        "a signal that fires": (lambda: arun(session, asking(bounded, closed)), signal, signal.fire),
        "a reply that comes": (lambda: LoopDriver(session).reply(reply, PATIENCE), reply, lambda: reply.set("answer")),
    }
    for case, (wait, where, comes) in cases.items():
        with subtests.test(case):
            task = asyncio.create_task(wait())
            while not where._callbacks:  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(0)
            if comes is None:
                task.cancel()
            else:
                comes()  # resolves the waiter's future in the loop's next round …
                asyncio.get_running_loop().call_soon(task.cancel)  # … and this follows in the same
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not where._callbacks
    assert closed == [waiting, connecting, bounded]


@pytest.mark.parametrize("at", ["wait", "reconnect", "tell"])
def test_an_interrupt_leaves_the_driver_clean(session: Session, at: str) -> None:
    """Ctrl-C during a blocking operation: the procedure is closed, nothing waits any more, the next call works."""
    signal, begun, closed = ThreadSignal(), threading.Event(), list[Any]()
    ops: dict[str, tuple[Any, Callable[[], Any]]] = {
        "wait": (Wait(signal, 0), lambda: signal._callbacks),
        "reconnect": (Reconnect(), lambda: session.changed._callbacks),
        "tell": (Callback(lambda: begun.set() or threading.Event().wait(PATIENCE)), begun.is_set),
    }
    (op, there), main = ops[at], threading.get_ident()

    def interrupt() -> None:
        eventually(lambda: bool(there()))
        signals.pthread_kill(main, signals.SIGALRM)

    before, thread = signals.signal(signals.SIGALRM, signals.default_int_handler), threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run(session, asking(op, closed))
        thread.join()
    finally:
        signals.signal(signals.SIGALRM, before)
    assert closed == [op]
    assert not signal._callbacks
    assert not session.changed._callbacks
    in_threads(lambda: run(session, asking(Callback(lambda: None))))


@BLOCKING_OR_NOT
def test_who_waits_for_a_connection_hears_that_it_was_closed(session: Session, drive: Any) -> None:
    """At once, not when its patience ends."""
    heard: list[BaseException] = []

    def wait() -> None:
        with pytest.raises(SessionLost) as caught:
            drive(session, asking(Reconnect()))
        heard.append(caught.value)

    def close() -> None:
        eventually(lambda: bool(session.changed._callbacks))
        session.close()

    session.client.stop = lambda: None  # it was never started
    in_threads(wait, close)
    assert len(heard) == 1


# --- for how long a call waits


@BLOCKING_OR_NOT
def test_another_call_is_waited_for_as_long_as_a_server(drive: Any) -> None:
    """Its own time being over, a call ends, whatever the other does; what it was to wait for itself is not bounded."""
    impatient, signal = Session(ConnectionConfig.of("127.0.0.1:1", request_timeout=0.1)), ThreadSignal()

    def procedure() -> Any:
        assert not (yield Wait(signal, 0, 0.2))
        with pytest.raises(Unavailable, match=r"request_timeout \(0.1 s\)"):
            yield Wait(signal, 0, turn=True)
        with pytest.raises(Unavailable):
            yield Reconnect()
        signal.fire()
        return (yield Wait(signal, 0, turn=True))

    assert drive(impatient, procedure())
    assert not signal._callbacks
    impatient.closed = True


@BLOCKING_OR_NOT
def test_a_call_s_own_time_is_named_where_it_ends_first(session: Session, drive: Any, monkeypatch: Any) -> None:
    """It binds what is waited for of servers, with a little grace."""
    monkeypatch.setattr(connection.CallDeadline.limit_to, "__defaults__", ("timeout", 0.0))

    def procedure() -> Any:
        yield SetTimeout(0.1)
        yield Reconnect()

    with pytest.raises(Unavailable, match=r"within timeout \(0.1 s\)"):
        drive(session, procedure())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(connection.time, "monotonic", lambda: made.now)
    return made


def test_what_a_call_waits_for_in_turn_is_one_span(clock: SimpleNamespace) -> None:
    """Until a server answers, without what is computed in between; what is missed counts from the last reply."""
    patience = CallDeadline(5)
    patience.begin()
    clock.now += 3
    patience.begin()
    assert patience.deadline() == 105
    patience.answered()
    clock.now += 600
    patience.begin()
    assert patience.deadline() == clock.now + 5
    clock.now += 1
    patience.answered()
    last = clock.now
    clock.now += 4
    patience.missed()
    assert patience.deadline() == last + 5


def test_the_limit_that_ends_first_is_named(clock: SimpleNamespace) -> None:
    """With its value; a call's own time holds whatever is answered meanwhile."""
    patience, another = CallDeadline(5), CallDeadline(5)
    patience.begin()
    assert str(patience.limit) == "request_timeout (5 s)"
    patience.limit_to(2)
    assert (patience.deadline(), str(patience.limit)) == (102 + GRACE, "timeout (2 s)")
    clock.now += 3
    patience.answered()
    patience.limit_to(60)
    assert patience.deadline() == 102 + GRACE
    another.limit_to(60)
    assert str(another.limit) == "request_timeout (5 s)"


def test_a_write_under_way_is_not_waited_for_longer_than_from_its_sending(clock: SimpleNamespace) -> None:
    """Who finds out what became of it began when it was sent."""
    patience = CallDeadline(5)
    clock.now += 2
    patience.begin()
    assert (patience.deadline(since=100.5), patience.deadline(since=110)) == (105.5, 107)
