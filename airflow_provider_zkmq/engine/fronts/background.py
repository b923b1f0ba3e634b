"""What goes on whatever becomes of who asked for it: on an event loop, and what a client still owes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.upkeep.debts import in_debt, pay_debts
from airflow_provider_zkmq.engine.errors import TransportError, ZkmqError
from airflow_provider_zkmq.engine.zk.blocking import wait_for
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import Session, log

T = TypeVar("T")


class Background:
    """Keeps its tasks alive until they are done: an event loop itself does not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def do(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something and wait for it; a cancellation ends the waiting only, and what goes wrong then is logged."""
        task = self.do(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log)
            raise

    async def wait(self, timeout: float) -> None:
        """Wait for everything; what takes longer goes on."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)


def _log(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("after a call was cancelled: %s", error)


#: For calls that belong to no worker.
OF_CALLS: Final = Background()


#: The longest pause between two tries to pay what is owed, while the connection is lost.
LOOK_SECONDS: Final = 5.0


def pay(session: Session, context: Context) -> None:
    """Have what is owed put right by a thread of its own, as soon as there is a connection; one at a time is enough."""
    with session.memory:
        if context.debts.paying:
            return
        context.debts.paying = True
    threading.Thread(target=_pay, args=(session, context), name="zkmq-debts", daemon=True).start()


def _pay(session: Session, context: Context) -> None:
    try:
        while _goes_on(session, context):
            seen = session.changed.count
            with contextlib.suppress(TransportError):
                run(session, pay_debts(context))
            if _goes_on(session, context):
                wait_for(session.changed, seen, LOOK_SECONDS)
    except ZkmqError as error:
        context.debts.paying = False
        log.warning("what calls on queue %r left is put right before its next claim: %s", context.queue, error)


def _goes_on(session: Session, context: Context) -> bool:
    """Whether anything is owed still; decided with the client's memory to ourselves, so no debt falls in between."""
    with session.memory:
        context.debts.paying = in_debt(context) and not session.closed
        return context.debts.paying
