"""Operations carried out on an event loop, which goes on meanwhile: `blocking` once more, with awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

from airflow_provider_zkmq.engine.core.protocol.ops import (
    EnsureRoot,
    Op,
    Pipeline,
    Post,
    Reconnect,
    Seat,
    Tell,
    Wait,
    Within,
)
from airflow_provider_zkmq.engine.errors import TransportError
from airflow_provider_zkmq.engine.zk.connecting import Patience, left, over
from airflow_provider_zkmq.engine.zk.operations import (
    LOST,
    WINDOW,
    WRITES,
    Request,
    Sent,
    check_sizes,
    failed,
    gathered,
    post,
    receive,
    submit,
    troubled,
    unknown,
)
from airflow_provider_zkmq.engine.zk.session import Session
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal
from airflow_provider_zkmq.engine.zk.sync_driver import ensure_root


async def execute(session: Session, op: Op, patience: Patience) -> Any:
    """Carry one operation out. What it raises is thrown into its procedure; a cancellation is not."""
    match op:
        case Wait(ThreadSignal() as signal, seen, timeout, turn, seat):
            if turn:
                return await _turn(session, signal, seen, patience)
            woken = await _wait(session, signal, seen, timeout, seat)
            patience.answered()
            return woken
        case Wait(signal):
            raise TypeError(f"{signal!r} is no signal that a thread can wait for: use the one that the runtime makes")
        case Within(seconds):
            return patience.within(seconds)
        case Pipeline(ops):
            return await _pipeline(session, ops, patience)
        case Reconnect(since):
            patience.begin()
            return await _connected(session, patience.deadline(since), patience)
        case EnsureRoot(path):
            return await carry_out(session, ensure_root(path), patience)
        case Tell(call):
            return call()
        case Post():
            return post(session, op)
        case _:
            return (await _pipeline(session, (op,), patience))[0]


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
    session: Session, signal: ThreadSignal, seen: int, timeout: float | None, seat: Seat | None = None
) -> bool:
    future = asyncio.get_running_loop().create_future()
    wake = session.wakes.line().waker(future)
    try:
        return not signal.on_next(seen, wake, seat) or await _until(future, timeout)
    finally:
        signal.forget(wake, seat)


async def _turn(session: Session, signal: ThreadSignal, seen: int, patience: Patience) -> bool:
    patience.begin()
    if not await _wait(session, signal, seen, left(patience.deadline())):
        raise session.unavailable(patience.limit)
    return True


async def _connected(session: Session, deadline: float, patience: Patience) -> None:
    while True:
        seen = session.changed.count
        session.usable()
        if over(deadline):
            raise session.unavailable(patience.limit)
        if session.connected.is_set():
            return
        await _wait(session, session.changed, seen, left(deadline))


async def carry_out(session: Session, steps: Generator[Request, Any, None], patience: Patience) -> None:
    """Carry requests out, one after the other."""
    result = None
    while True:
        try:
            op = steps.send(result)
        except StopIteration:
            return
        result = gathered(session, (op,), await _window(session, (op,), patience))[0]


async def _pipeline(session: Session, ops: Sequence[Request], patience: Patience) -> list[Any]:
    check_sizes(ops)
    for steps in session.access.questions(ops):
        await carry_out(session, steps, patience)
    results: list[Any] = []
    for start in range(0, len(ops), WINDOW):
        try:
            results += await _window(session, ops[start : start + WINDOW], patience)
        except TransportError:
            if not results:
                raise
            break  # those before were sent
        if any(map(troubled, results)):
            break
    return gathered(session, ops, results)


async def _window(session: Session, ops: Sequence[Request], patience: Patience) -> list[Any]:
    patience.begin()
    deadline = patience.deadline()
    await _connected(session, deadline, patience)
    try:
        pending = [submit(session, op, more=True) for op in ops]
    finally:
        session.flush_soon()
    return [await _collect(session, sent, deadline, patience) for sent in pending]


async def _collect(session: Session, sent: Sent, deadline: float, patience: Patience) -> Any:
    try:
        while True:
            try:
                value = await _ready(session, sent.reply, left(deadline))
            except LOST:
                patience.missed()
                if isinstance(sent.op, WRITES):
                    return unknown(sent)
                await _connected(session, deadline, patience)
                sent = submit(session, sent.op)
            except Exception as error:  # noqa: BLE001  mapped, or raised as it is
                patience.answered()
                return failed(session, sent, error)
            else:
                patience.answered()
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
