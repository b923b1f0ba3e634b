"""Operations carried out by the calling thread, which waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from airflow_provider_zkmq.engine.core.protocol.ops import EnsureRoot, Op, Pipeline, Reconnect, Tell, Wait
from airflow_provider_zkmq.engine.errors import TransportError
from airflow_provider_zkmq.engine.zk.replies import failed, receive
from airflow_provider_zkmq.engine.zk.root import ensure_root
from airflow_provider_zkmq.engine.zk.session import Session, left
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal
from airflow_provider_zkmq.engine.zk.wire import (
    LOST,
    WINDOW,
    WRITES,
    Request,
    Sent,
    check_sizes,
    gathered,
    submit,
    troubled,
    unknown,
)


def execute(session: Session, op: Op) -> Any:
    """Carry one operation out. What it raises is thrown into its procedure."""
    match op:
        case Wait(ThreadSignal() as signal, seen, timeout):
            return wait_for(signal, seen, timeout)
        case Wait(signal):
            raise TypeError(f"{signal!r} is no signal that a thread can wait for: use the one that the runtime makes")
        case Pipeline(ops):
            return _pipeline(session, ops)
        case Reconnect(since):
            return _connected(session, session.deadline(since))
        case EnsureRoot(path):
            return _ensure(session, path)
        case Tell(call):
            return call()
        case _:
            return _pipeline(session, (op,))[0]


def wait_for(signal: ThreadSignal, seen: int, timeout: float | None) -> bool:
    """Wait until a signal has been fired more than `seen` times; whether it has within `timeout` seconds."""
    event = threading.Event()
    try:
        return not signal.on_next(seen, event.set) or event.wait(timeout)
    finally:
        signal.forget(event.set)


def _connected(session: Session, deadline: float) -> None:
    """Wait for the connection. Raises `Unavailable` at the deadline, and at once where the connection was closed."""
    while True:
        seen = session.changed.count
        session.usable()
        if session.connected.is_set():
            return
        if time.monotonic() >= deadline:
            raise session.unavailable()
        wait_for(session.changed, seen, left(deadline))


def _ensure(session: Session, path: str) -> None:
    deadline, steps, result = session.deadline(), ensure_root(path), None
    while True:
        try:
            op = steps.send(result)
        except StopIteration:
            return
        result = gathered(session, (op,), _window(session, (op,), deadline))[0]


def _pipeline(session: Session, ops: Sequence[Request]) -> list[Any]:
    """Several requests, so many in flight at once; none is sent after one that was not answered."""
    check_sizes(ops)
    results: list[Any] = []
    for start in range(0, len(ops), WINDOW):
        try:
            results += _window(session, ops[start : start + WINDOW], session.deadline())
        except TransportError:
            if not results:
                raise
            break  # those before were sent
        if any(map(troubled, results)):
            break
    return gathered(session, ops, results)


def _window(session: Session, ops: Sequence[Request], deadline: float) -> list[Any]:
    """The results, in order; a request's error stands for its result. Raises only where nothing was sent."""
    _connected(session, deadline)
    pending = [submit(session, op) for op in ops]
    return [_collect(session, sent, deadline) for sent in pending]


def _collect(session: Session, sent: Sent, deadline: float) -> Any:
    """A result or an error; a read whose connection was lost is sent again, a write's outcome is then unknown."""
    try:
        while True:
            try:
                value = sent.reply.get(timeout=left(deadline))
            except LOST:
                if isinstance(sent.op, WRITES):
                    return unknown(sent)
                _connected(session, deadline)
                if time.monotonic() >= deadline:
                    return session.unavailable()
                sent = submit(session, sent.op)
            except Exception as error:  # noqa: BLE001  mapped, or raised as it is
                return failed(session, sent, error)
            else:
                return receive(session, sent, value)
    except Exception as error:  # noqa: BLE001  thrown once the others have been answered
        return error
