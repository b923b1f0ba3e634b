"""Operations carried out on an event loop, which goes on meanwhile: `blocking` once more, with awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

from airflow_provider_zkmq.engine.core.ops import (
    Callback,
    EnsureRoot,
    Op,
    Pipeline,
    Post,
    Reconnect,
    SetTimeout,
    Wait,
    WaitPlace,
)
from airflow_provider_zkmq.engine.errors import TransportError
from airflow_provider_zkmq.engine.zk.connection import CallDeadline, left, over
from airflow_provider_zkmq.engine.zk.operations import (
    LOST,
    WINDOW,
    WRITES,
    Request,
    SentRequest,
    check_sizes,
    failed,
    gathered,
    post,
    receive,
    submit,
    troubled,
    unknown,
)
from airflow_provider_zkmq.engine.zk.session import Session, ThreadSignal
from airflow_provider_zkmq.engine.zk.sync_driver import ensure_root


async def execute(session: Session, op: Op, call_deadline: CallDeadline) -> Any:
    """Carry one operation out. What it raises is thrown into its procedure; a cancellation is not."""
    match op:
        case Wait(ThreadSignal() as signal, seen, timeout, turn, place):
            if turn:
                return await _turn(session, signal, seen, call_deadline)
            woken = await _wait(session, signal, seen, timeout, place)
            call_deadline.answered()
            return woken
        case Wait(signal):
            raise TypeError(f"{signal!r} is no signal that a thread can wait for: use the one that the runtime makes")
        case SetTimeout(seconds):
            return call_deadline.limit_to(seconds)
        case Pipeline(ops):
            return await _pipeline(session, ops, call_deadline)
        case Reconnect(since):
            call_deadline.begin()
            return await _connected(session, call_deadline.deadline(since), call_deadline)
        case EnsureRoot(path):
            return await carry_out(session, ensure_root(path), call_deadline)
        case Callback(call):
            return call()
        case Post():
            return post(session, op)
        case _:
            return (await _pipeline(session, (op,), call_deadline))[0]


async def _until(future: asyncio.Future[Any], timeout: float | None) -> bool:
    """Whether a future came in time. `asyncio.wait_for` would lose a cancellation that meets the future's result."""
    if timeout is None:
        return bool(await future)
    expiry = future.get_loop().call_later(timeout, _expire, future)
    try:
        return bool(await future)
    finally:
        expiry.cancel()


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(False)


async def _wait(
    session: Session, signal: ThreadSignal, seen: int, timeout: float | None, place: WaitPlace | None = None
) -> bool:
    future = asyncio.get_running_loop().create_future()
    wake = session.wakes.line().waker(future)
    try:
        return not signal.on_next(seen, wake, place) or await _until(future, timeout)
    finally:
        signal.forget(wake, place)


async def _turn(session: Session, signal: ThreadSignal, seen: int, call_deadline: CallDeadline) -> bool:
    call_deadline.begin()
    if not await _wait(session, signal, seen, left(call_deadline.deadline())):
        raise session.unavailable(call_deadline.limit)
    return True


async def _connected(session: Session, deadline: float, call_deadline: CallDeadline) -> None:
    while True:
        seen = session.changed.count
        session.usable()
        if over(deadline):
            raise session.unavailable(call_deadline.limit)
        if session.connected.is_set():
            return
        await _wait(session, session.changed, seen, left(deadline))


async def carry_out(session: Session, steps: Generator[Request, Any, None], call_deadline: CallDeadline) -> None:
    """Carry requests out, one after the other."""
    result = None
    while True:
        try:
            op = steps.send(result)
        except StopIteration:
            return
        result = gathered(session, (op,), await _window(session, (op,), call_deadline))[0]


async def _pipeline(session: Session, ops: Sequence[Request], call_deadline: CallDeadline) -> list[Any]:
    check_sizes(ops)
    for steps in session.access.questions(ops):
        await carry_out(session, steps, call_deadline)
    results: list[Any] = []
    for start in range(0, len(ops), WINDOW):
        try:
            results += await _window(session, ops[start : start + WINDOW], call_deadline)
        except TransportError:
            if not results:
                raise
            break  # those before were sent
        if any(map(troubled, results)):
            break
    return gathered(session, ops, results)


async def _window(session: Session, ops: Sequence[Request], call_deadline: CallDeadline) -> list[Any]:
    call_deadline.begin()
    deadline = call_deadline.deadline()
    await _connected(session, deadline, call_deadline)
    try:
        pending = [submit(session, op, more=True) for op in ops]
    finally:
        session.flush_soon()
    return [await _collect(session, sent, deadline, call_deadline) for sent in pending]


async def _collect(session: Session, sent: SentRequest, deadline: float, call_deadline: CallDeadline) -> Any:
    try:
        while True:
            try:
                value = await _ready(session, sent.reply, left(deadline))
            except LOST:
                call_deadline.missed()
                if isinstance(sent.op, WRITES):
                    return unknown(sent)
                await _connected(session, deadline, call_deadline)
                sent = submit(session, sent.op)
            except Exception as error:  # noqa: BLE001  mapped, or raised as it is
                call_deadline.answered()
                return failed(session, sent, error)
            else:
                call_deadline.answered()
                return receive(session, sent, value)
    except Exception as error:  # noqa: BLE001  thrown once the others have been answered
        return error


async def _ready(session: Session, reply: Any, timeout: float) -> Any:
    """kazoo's reply, awaited."""
    if not reply.ready():
        future = asyncio.get_running_loop().create_future()
        wake = session.wakes.line().waker(future)
        try:
            reply.rawlink(wake)
            await _until(future, timeout)
        finally:
            reply.unlink(wake)
    return reply.get_nowait()
