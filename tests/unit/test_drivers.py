"""The drivers: who may be inside a client's memory, and how an operation ends that nobody waits for any more."""

from __future__ import annotations

import asyncio
import contextlib
import signal as signals
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.core.protocol.ops import Reconnect, Tell, Wait, Within
from airflow_provider_zkmq.engine.errors import SessionLost, Unavailable
from airflow_provider_zkmq.engine.zk import limits
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.looping import _ready
from airflow_provider_zkmq.engine.zk.session import Session
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal

PATIENCE = 20.0


@pytest.fixture
def session() -> Iterator[Session]:
    """A session that was never connected: these procedures send nothing."""
    made = Session(ConnectionConfig.of("127.0.0.1:1"))
    yield made
    made.closed = True


def on_a_loop(session: Session, procedure: Any) -> Any:
    return asyncio.run(arun(session, procedure))


def in_threads(*jobs: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.full
@pytest.mark.parametrize("first", [run, on_a_loop])
@pytest.mark.parametrize("second", [run, on_a_loop])
def test_two_threads_never_meet_inside_a_step(session: Session, first: Any, second: Any) -> None:
    """Each waits inside its step for the other to come in, in vain; both come to their end."""
    inside = threading.Barrier(2)
    met: list[bool] = []

    def step() -> None:
        try:
            inside.wait(0.3)
            met.append(True)
        except threading.BrokenBarrierError:
            inside.reset()
            met.append(False)

    def procedure() -> Any:
        step()  # from the start to the first operation
        yield Tell(lambda: None)
        step()  # between two operations
        with contextlib.suppress(KeyError):
            yield Tell({}.popitem)
        step()  # after one that failed, to the end

    in_threads(lambda: first(session, procedure()), lambda: second(session, procedure()))
    assert met == [False] * 6


@pytest.mark.parametrize("drive", [run, on_a_loop])
def test_a_function_of_the_users_is_called_outside_of_the_memory(session: Session, drive: Any) -> None:
    """While it runs, another thread of the client goes on; what it returns comes back, what it raises is thrown."""

    def other() -> Any:
        yield Tell(lambda: None)

    def tell() -> str:
        in_threads(lambda: run(session, other()))
        return "told"

    def procedure() -> Any:
        told = yield Tell(tell)
        try:
            yield Tell({}.popitem)
        except KeyError:
            return told, "thrown"

    assert drive(session, procedure()) == ("told", "thrown")


@pytest.mark.parametrize("drive", [run, on_a_loop])
def test_a_procedure_is_closed_under_the_lock(session: Session, drive: Any) -> None:
    """Also when what ends it is no failure of its own: its last step is alone with the memory too."""
    alone: list[bool] = []

    def try_lock() -> None:
        free = session.memory.acquire(blocking=False)
        if free:
            session.memory.release()
        alone.append(not free)

    def procedure() -> Any:
        try:
            yield Tell(exit)
        finally:
            in_threads(try_lock)

    with pytest.raises(SystemExit):
        drive(session, procedure())
    assert alone == [True]
    in_threads(try_lock)
    assert alone == [True, False]


async def parked(at: Any) -> None:
    """Return once somebody waits at this signal or reply."""
    while not at._callbacks:  # noqa: ASYNC110  it tells nobody
        await asyncio.sleep(0)


async def test_a_cancellation_that_meets_the_signal_is_not_lost(session: Session) -> None:
    """The signal fires and, before its waiter has run, the waiter is cancelled: it ends cancelled."""
    signal, after = ThreadSignal(), []

    def procedure() -> Any:
        after.append((yield Wait(signal, 0, PATIENCE)))

    task = asyncio.create_task(arun(session, procedure()))
    await parked(signal)
    signal.fire()  # resolves the waiter's future in the loop's next round …
    asyncio.get_running_loop().call_soon(task.cancel)  # … and this follows in the same
    with pytest.raises(asyncio.CancelledError):
        await task
    assert after == []
    assert not signal._callbacks


async def test_a_cancellation_that_meets_the_reply_is_not_lost(session: Session) -> None:
    """As above, for a reply of kazoo's."""
    reply = session.client.handler.async_result()
    task = asyncio.create_task(_ready(session, reply, PATIENCE))
    await parked(reply)
    reply.set("answer")
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_wait_leaves_nothing_behind(session: Session) -> None:
    """Cancelled at a signal, at a reply, at a lost connection: the procedure is closed, no callback of it is left."""
    signal, closed = ThreadSignal(), []

    def procedure(op: Any) -> Any:
        try:
            yield op
        finally:
            closed.append(op)

    for op, where in ((Wait(signal, 0), signal), (Reconnect(), session.changed)):
        task = asyncio.create_task(arun(session, procedure(op)))
        await parked(where)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed[-1] is op
        assert not where._callbacks
    reply = session.client.handler.async_result()
    task = asyncio.create_task(_ready(session, reply, PATIENCE))
    await parked(reply)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply._callbacks == []


@pytest.mark.parametrize("at", ["wait", "reconnect", "tell"])
def test_an_interrupt_leaves_the_driver_clean(session: Session, at: str) -> None:
    """Ctrl-C during a blocking operation: the procedure is closed, nothing waits any more, the next call works."""
    signal, closed = ThreadSignal(), []
    ops = {"wait": Wait(signal, 0), "reconnect": Reconnect(), "tell": Tell(lambda: threading.Event().wait(PATIENCE))}

    def procedure() -> Any:
        try:
            yield ops[at]
        except BaseException as error:
            closed.append(type(error))
            raise

    before = signals.signal(signals.SIGALRM, signals.default_int_handler)
    try:
        signals.setitimer(signals.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            run(session, procedure())
    finally:
        signals.signal(signals.SIGALRM, before)
    assert closed == [GeneratorExit]
    assert not signal._callbacks
    assert not session.changed._callbacks
    in_threads(lambda: run(session, iter_of(Tell(lambda: None))))


def iter_of(op: Any) -> Any:
    yield op


@pytest.mark.parametrize("drive", [run, on_a_loop])
def test_who_waits_for_a_connection_hears_that_it_was_closed(session: Session, drive: Any) -> None:
    """At once, not when its patience ends."""
    heard: list[BaseException] = []

    def wait() -> None:
        with pytest.raises(SessionLost) as caught:
            drive(session, iter_of(Reconnect()))
        heard.append(caught.value)

    def close() -> None:
        while not session.changed._callbacks:
            pass
        session.close()

    session.client.stop = lambda: None  # it was never started
    in_threads(wait, close)
    assert len(heard) == 1


# --- for how long a call waits


@pytest.fixture
def impatient() -> Iterator[Session]:
    made = Session(ConnectionConfig.of("127.0.0.1:1", request_timeout=0.2))
    yield made
    made.closed = True


@pytest.mark.parametrize("drive", [run, on_a_loop])
def test_another_call_is_waited_for_as_long_as_a_server(impatient: Session, drive: Any) -> None:
    """Its own time being over, a call ends, whatever the other does; what it was to wait for itself is not bounded."""
    signal = ThreadSignal()

    def procedure() -> Any:
        assert not (yield Wait(signal, 0, 0.4))
        with pytest.raises(Unavailable, match=r"request_timeout \(0.2 s\)"):
            yield Wait(signal, 0, turn=True)
        with pytest.raises(Unavailable):
            yield Reconnect()
        signal.fire()
        return (yield Wait(signal, 0, turn=True))

    assert drive(impatient, procedure())
    assert not signal._callbacks


@pytest.mark.parametrize("drive", [run, on_a_loop])
def test_a_call_s_own_time_is_named_where_it_ends_first(session: Session, drive: Any, monkeypatch: Any) -> None:
    """It binds what is waited for of servers, with a little grace."""
    monkeypatch.setattr(limits.Patience.within, "__defaults__", ("timeout", 0.0))

    def procedure() -> Any:
        yield Within(0.1)
        yield Reconnect()

    with pytest.raises(Unavailable, match=r"within timeout \(0.1 s\)"):
        drive(session, procedure())
