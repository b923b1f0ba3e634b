"""Claims on their way through the fronts: whoever is cut off before it has its claim leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider_zkmq.engine.background import OF_CALLS
from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.giveback import give_back
from airflow_provider_zkmq.engine.core.ops import Procedure
from airflow_provider_zkmq.engine.core.take import Caller, Held, deliver
from airflow_provider_zkmq.engine.errors import ZkmqError
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session, log

T = TypeVar("T")
Claiming = Callable[[Caller], Procedure[Held | None]]


def handed_over(session: Session, context: Context, claiming: Claiming, receive: Callable[[Held], T]) -> T | None:
    """Claim, and hand what `receive` makes of it to the caller; cut off, the client gives it back before it claims again.

    After an interrupt from the keyboard, whose caller may never claim again, that is done at once, in the background.
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
    except BaseException as error:
        caller.left = True
        if not isinstance(error, Exception) and context.handovers:  # interrupted: it may never claim again
            threading.Thread(target=_give_back_soon, args=(session, context), name="zkmq-giveback", daemon=True).start()
        raise


def _give_back_soon(session: Session, context: Context) -> None:
    try:
        run(session, give_back(context))
    except ZkmqError as error:
        _owed(context, error)


def _owed(context: Context, error: ZkmqError) -> None:
    log.warning("a claim of queue %r that was cut off is given back with the next one: %s", context.queue, error)


async def handed_over_async(
    session: Session, context: Context, claiming: Claiming, receive: Callable[[Held], T]
) -> T | None:
    """The same on an event loop. Cancelled, it stops the claim, and gives back what that may have taken.

    That is waited for; where this wait is cancelled as well, it goes on in the background.
    """
    caller = Caller()
    job = asyncio.ensure_future(arun(session, claiming(caller)))
    try:
        held = await asyncio.shield(job)
    except asyncio.CancelledError:
        caller.left = True  # a claim that waits is told by the signal
        context.signal.fire()
        await OF_CALLS.to_its_end(_put_right(session, context, job))
        raise
    except BaseException:
        caller.left = True
        raise
    if held is None:
        return None
    got = receive(held)
    deliver(context, held)
    return got


async def _put_right(session: Session, context: Context, job: asyncio.Future[Any]) -> None:
    """Wait for a claim that nobody waits for any more, and give back what it took."""
    try:
        await asyncio.wait({job})
        if not job.cancelled() and (error := job.exception()) is not None:
            log.info("a cancelled claim of queue %r ended with: %s", context.queue, error)
        await arun(session, give_back(context))
    except ZkmqError as error:
        _owed(context, error)
