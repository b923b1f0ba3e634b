"""Drivers: they carry a procedure's operations out, blocking or on an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

from kazoo.exceptions import NodeExistsError

from airflow_provider_zkmq.engine.core.ops import EnsureRoot, Op, Pipeline, Procedure, Reconnect, Sync, Tell, Wait
from airflow_provider_zkmq.engine.zk.session import Session
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal
from airflow_provider_zkmq.engine.zk.wire import LOST, UNKNOWN, WRITES, Request, failed, mapped, receive, submit

T = TypeVar("T")

#: Requests in flight at once; unbounded, kazoo's wake-up socket fills and blocks its caller.
WINDOW: Final = 64


def run(session: Session, procedure: Procedure[T]) -> T:
    """Carry a procedure out, blocking the calling thread."""
    try:
        op = next(procedure)
        while True:
            try:
                result = _execute(session, op)
            except Exception as error:  # noqa: BLE001  every failure belongs to the procedure that asked
                op = procedure.throw(error)
            else:
                op = procedure.send(result)
    except StopIteration as stop:
        return cast(T, stop.value)
    finally:
        procedure.close()


def _execute(session: Session, op: Op) -> Any:
    match op:
        case Wait(signal, seen, timeout):
            return _wait(cast(ThreadSignal, signal), seen, timeout)
        case Pipeline(ops):
            return _pipeline(session, ops)
        case Reconnect():
            return _connected(session)
        case EnsureRoot(path):
            return _ensure(session, path)
        case Sync(path):
            _connected(session)
            return session.client.sync_async(path).get(timeout=session.config.request_timeout)
        case Tell(call):
            return call()
        case _:
            return _pipeline(session, (op,))[0]


def _wait(signal: ThreadSignal, seen: int, timeout: float | None) -> bool:
    event = threading.Event()
    if not signal.on_next(seen, event.set):
        return True
    try:
        return event.wait(timeout)
    finally:
        signal.forget(event.set)


def _connected(session: Session) -> None:
    session.usable()
    if not session.connected.wait(session.config.request_timeout):
        raise session.unavailable()
    session.usable()


def _ensure(session: Session, path: str) -> None:
    """Create a path's missing parts; a create that meets its znode is as good as one that made it."""
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        part = "/" + "/".join(parts[:depth])
        _connected(session)
        if session.client.exists_async(part).get(timeout=session.config.request_timeout) is not None:
            continue
        try:
            session.client.create_async(part, b"", acl=session.acl).get(timeout=session.config.request_timeout)
        except NodeExistsError:
            continue
        except Exception as error:
            raise mapped(session, error) from error


def _pipeline(session: Session, ops: Sequence[Request]) -> list[Any]:
    results: list[Any] = []
    for start in range(0, len(ops), WINDOW):
        chunk = ops[start : start + WINDOW]
        _connected(session)
        pending = [submit(session, op) for op in chunk]
        results += [_collect(session, op, result) for op, result in zip(chunk, pending, strict=True)]
    return results


def _collect(session: Session, op: Request, pending: Any) -> Any:
    """A reply; a read whose connection was lost is sent again, a write's outcome is then unknown."""
    deadline = time.monotonic() + session.config.request_timeout
    while True:
        try:
            value = pending.get(timeout=max(0.001, deadline - time.monotonic()))
        except LOST as error:
            session.usable()
            if isinstance(op, WRITES):
                return UNKNOWN
            if time.monotonic() > deadline:
                raise session.unavailable() from error
            _connected(session)
            pending = submit(session, op)
        except Exception as error:  # noqa: BLE001  mapped, or raised as it is
            return failed(session, op, error)
        else:
            return receive(session, op, value)


# --- the same on an event loop


async def arun(session: Session, procedure: Procedure[T]) -> T:
    """Carry a procedure out on the running event loop, which is never blocked."""
    try:
        op = next(procedure)
        while True:
            try:
                result = await _aexecute(session, op)
            except Exception as error:  # noqa: BLE001  every failure belongs to the procedure that asked
                op = procedure.throw(error)
            else:
                op = procedure.send(result)
    except StopIteration as stop:
        return cast(T, stop.value)
    finally:
        procedure.close()


async def _aexecute(session: Session, op: Op) -> Any:
    match op:
        case Wait(signal, seen, timeout):
            return await _await_signal(cast(ThreadSignal, signal), seen, timeout)
        case Pipeline(ops):
            return await _apipeline(session, ops)
        case Reconnect():
            return await _aconnected(session)
        case EnsureRoot(path):
            return await asyncio.to_thread(_ensure, session, path)
        case Sync(path):
            await _aconnected(session)
            return await _ready(session.client.sync_async(path), session.config.request_timeout)
        case Tell(call):
            return call()
        case _:
            return (await _apipeline(session, (op,)))[0]


def _waker(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> Callable[[], None]:
    """Resolve a future from another thread; the loop may be gone by then, which concerns nobody."""

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            return  # the loop was closed: its waiters are gone

    return wake


async def _await_signal(signal: ThreadSignal, seen: int, timeout: float | None) -> bool:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    wake = _waker(loop, future)
    if not signal.on_next(seen, wake):
        return True
    try:
        await asyncio.wait_for(future, timeout)
    except TimeoutError:
        return False
    else:
        return True
    finally:
        signal.forget(wake)


async def _aconnected(session: Session) -> None:
    session.usable()
    deadline = time.monotonic() + session.config.request_timeout
    while True:
        seen = session.changed.count
        session.usable()
        if session.connected.is_set():
            return
        if time.monotonic() >= deadline:
            raise session.unavailable()
        await _await_signal(session.changed, seen, deadline - time.monotonic())


async def _apipeline(session: Session, ops: Sequence[Request]) -> list[Any]:
    results: list[Any] = []
    for start in range(0, len(ops), WINDOW):
        chunk = ops[start : start + WINDOW]
        await _aconnected(session)
        pending = [submit(session, op) for op in chunk]
        for op, result in zip(chunk, pending, strict=True):
            results.append(await _acollect(session, op, result))
    return results


async def _acollect(session: Session, op: Request, pending: Any) -> Any:
    deadline = time.monotonic() + session.config.request_timeout
    while True:
        try:
            value = await _ready(pending, max(0.001, deadline - time.monotonic()))
        except LOST as error:
            session.usable()
            if isinstance(op, WRITES):
                return UNKNOWN
            if time.monotonic() > deadline:
                raise session.unavailable() from error
            await _aconnected(session)
            pending = submit(session, op)
        except Exception as error:  # noqa: BLE001  mapped, or raised as it is
            return failed(session, op, error)
        else:
            return receive(session, op, value)


async def _ready(pending: Any, timeout: float) -> Any:
    """kazoo's result, awaited."""
    if not pending.ready():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        wake = _waker(loop, future)

        def linked(_result: Any) -> None:
            wake()

        pending.rawlink(linked)
        waiting: Awaitable[Any] = asyncio.wait_for(future, timeout)
        try:
            await waiting
        except TimeoutError:
            pending.unlink(linked)
    return pending.get_nowait()
