"""Drivers: they carry a procedure's operations out, blocking or on an event loop.

A client's procedures share its memory, so each step of one, from an operation's result to the next operation, runs
under the session's ``memory`` lock; operations are carried out without it. Threads and coroutines of a client
therefore interleave at operations and nowhere else. A watch's event only sets flags, from kazoo's thread.

A call's `Patience` bounds all that it waits for, also for other calls; a wait takes its own time. However a call ends,
by an interrupt or by being cancelled too, the procedure is closed and nothing of ours is left with signals or with
kazoo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider_zkmq.engine.core.protocol.ops import Op, Procedure, Reconnect, Wait
from airflow_provider_zkmq.engine.zk.blocking import execute
from airflow_provider_zkmq.engine.zk.limits import Patience
from airflow_provider_zkmq.engine.zk.looping import execute as execute_on_loop
from airflow_provider_zkmq.engine.zk.session import Session

T = TypeVar("T")


def run(session: Session, procedure: Procedure[T], patience: Patience | None = None) -> T:
    """Carry a procedure out, blocking the calling thread. Raises `TransportError` in a process forked since.

    `patience`: the call's, where it has waited for something before.
    """
    session.refuse_a_fork()
    patience = patience or session.patience()
    try:
        op = _resume(session, procedure.send, None)
        while True:
            try:
                result = execute(session, op, patience)
            except Exception as error:  # noqa: BLE001  every failure belongs to the procedure that asked
                op = _resume(session, procedure.throw, error)
            else:
                op = _resume(session, procedure.send, result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        with session.memory:
            procedure.close()


async def arun(session: Session, procedure: Procedure[T], patience: Patience | None = None) -> T:
    """Carry a procedure out on the running event loop, which is never blocked for long.

    A step does no I/O, and of many that are ready at once some go on in a later round; see `rounds`.
    """
    session.refuse_a_fork()
    patience = patience or session.patience()
    try:
        await session.rounds.turn()
        op = _resume(session, procedure.send, None)
        while True:
            try:
                result = await execute_on_loop(session, op, patience)
                if isinstance(op, Wait | Reconnect):  # what one event wakes, many at once; nothing of theirs is sent
                    await session.rounds.turn()
            except Exception as error:  # noqa: BLE001  every failure belongs to the procedure that asked
                op = _resume(session, procedure.throw, error)
            else:
                op = _resume(session, procedure.send, result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        with session.memory:
            procedure.close()


def _resume(session: Session, go_on: Callable[[Any], Op], result: Any) -> Op:
    """One step of a procedure, alone with its client's memory."""
    with session.memory:
        return go_on(result)
