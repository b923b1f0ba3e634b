"""Claims on their way through the fronts: whoever is cut off before it has its claim leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from airflow_provider_zkmq.engine.background import OF_CALLS
from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.giveback import give_back, owed
from airflow_provider_zkmq.engine.core.ops import Procedure
from airflow_provider_zkmq.engine.core.take import Caller, Held, deliver
from airflow_provider_zkmq.engine.errors import TransportError, ZkmqError
from airflow_provider_zkmq.engine.zk.blocking import wait_for
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session, log

T = TypeVar("T")
Claiming = Callable[[Caller], Procedure[Held | None]]

#: For so many seconds a cancelled call waits until what it took has been given back; then that goes on behind it.
PATIENCE: Final = 1.0
#: The longest pause between two tries to give back what is owed, while the connection is lost.
LOOK_SECONDS: Final = 5.0
#: The pause between two tries on an event loop.
RETRY_SECONDS: Final = 0.5


def handed_over(session: Session, context: Context, claiming: Claiming, receive: Callable[[Held], T]) -> T | None:
    """Claim, and hand what `receive` makes of it to the caller; cut off, the client gives it back before it claims again.

    Since it may never claim again, that is also done in the background, as soon as there is a connection.
    Nothing that an interrupt could cut in two stands between `deliver` and the return.
    """
    caller = Caller()
    try:
        held = run(session, claiming(caller))
        if held is None:
            return None
        got = receive(held)
        deliver(context, held)
        return got
    except BaseException:
        caller.left = True
        if context.handovers and not context.paying:
            threading.Thread(target=_pay, args=(session, context), name="zkmq-giveback", daemon=True).start()
        raise


def _pay(session: Session, context: Context) -> None:
    """Give back what was cut off, however long the connection is lost."""
    context.paying = True
    try:
        while owed(context) and not session.closed:
            seen = session.changed.count
            try:
                run(session, give_back(context))
            except TransportError:
                wait_for(session.changed, seen, LOOK_SECONDS)
    except ZkmqError as error:
        _still_owed(context, error)
    finally:
        context.paying = False


def _still_owed(context: Context, error: ZkmqError) -> None:
    log.warning("a claim of queue %r that was cut off is given back with the next one: %s", context.queue, error)


async def handed_over_async(
    session: Session, context: Context, claiming: Claiming, receive: Callable[[Held], T]
) -> T | None:
    """The same on an event loop. Cancelled, it stops the claim, and gives back what that may have taken.

    That is waited for, but not for long: then, or cancelled once more, it goes on in the background.
    """
    caller = Caller()
    job = asyncio.ensure_future(arun(session, claiming(caller)))
    try:
        held = await asyncio.shield(job)
    except asyncio.CancelledError:
        caller.left = True  # a claim that waits is told by the signal
        context.signal.fire()
        await asyncio.wait({OF_CALLS.do(_put_right(session, context, job))}, timeout=PATIENCE)
        raise
    except BaseException:
        caller.left = True
        if context.handovers and not context.paying:
            OF_CALLS.do(_pay_async(session, context))
        raise
    if held is None:
        return None
    got = receive(held)
    deliver(context, held)
    return got


async def _put_right(session: Session, context: Context, job: asyncio.Future[Any]) -> None:
    """Wait for a claim that nobody waits for any more, and give back what it took."""
    await asyncio.wait({job})
    if not job.cancelled() and (error := job.exception()) is not None:
        log.info("a cancelled claim of queue %r ended with: %s", context.queue, error)
    await _pay_async(session, context)


async def _pay_async(session: Session, context: Context) -> None:
    context.paying = True
    try:
        while owed(context) and not session.closed:
            try:
                await arun(session, give_back(context))
            except TransportError:
                await asyncio.sleep(RETRY_SECONDS)
    except ZkmqError as error:
        _still_owed(context, error)
    finally:
        context.paying = False
