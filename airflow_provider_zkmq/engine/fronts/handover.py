"""Claims on their way through the fronts: whoever is cut off before it has its claim leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from airflow_provider_zkmq.engine.core.claiming.ask import Asked
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.tasks.giveback import give_back
from airflow_provider_zkmq.engine.errors import ZkmqError
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.working.async_worker import OF_CALLS
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.limits import Patience
from airflow_provider_zkmq.engine.zk.session import Session

T = TypeVar("T")

#: For so many seconds a cancelled call waits until what it took has been given back; then that goes on behind it.
PATIENCE: Final = 1.0


def handed_over(session: Session, asked: Asked, receive: Callable[[list[Claimed]], T], patience: Patience) -> T:
    """Claim, and hand what `receive` makes of it to the caller; cut off, the client gives it back before it claims.

    What was claimed together is delivered by one statement: the caller has all of it, or none.

    Since it may never claim again, that is also done in the background, as soon as there is a connection.
    Nothing that an interrupt could cut in two stands between `deliver` and the return.
    """
    context, caller = asked.context, Caller()
    try:
        claims = run(session, asked.claiming(caller), patience)
        received = receive(claims)
        if not claims:
            return received
        context.claims.deliver(claims[0])
        return received
    except BaseException:
        caller.left = True
        if context.claims.handovers:
            context.run.pay()
        raise


async def handed_over_async(
    session: Session, asked: Asked, receive: Callable[[list[Claimed]], T], patience: Patience
) -> T:
    """The same on an event loop. Cancelled, it stops the claim, and gives back what that may have taken.

    That is waited for, but not for long: then, or cancelled once more, it goes on in the background.
    """
    context, caller = asked.context, Caller()
    job = asyncio.ensure_future(arun(session, asked.claiming(caller), patience))
    try:
        claims = await asyncio.shield(job)
    except asyncio.CancelledError:
        caller.left = True  # a claim that waits is told by the signal
        context.signal.fire()
        await asyncio.wait({OF_CALLS.do(_put_right(session, context, job))}, timeout=PATIENCE)
        raise
    except BaseException:
        caller.left = True
        if context.claims.handovers:
            context.run.pay()
        raise
    received = receive(claims)
    if claims:
        context.claims.deliver(claims[0])
    return received


async def _put_right(session: Session, context: Context, job: asyncio.Future[Any]) -> None:
    """Wait for a claim that nobody waits for any more, and give back what it took."""
    await asyncio.wait({job})
    if not job.cancelled() and (error := job.exception()) is not None:
        log.info("a cancelled claim of queue %r ended with: %s", context.queue, error)
    try:
        await arun(session, give_back(context))
    except ZkmqError:
        context.run.pay()
