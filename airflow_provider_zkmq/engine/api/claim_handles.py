"""Claims in the hands of callers, and how they get there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ..core.claim.claim import ClaimRequest
from ..core.context import Caller, Claimed, Context
from ..core.model.states import State, derive_status
from ..core.read.inspect import Task
from ..core.tasks.settle import give_back
from ..errors import ZkmqError
from ..log import log
from ..working.async_worker import OF_CALLS
from ..zk.connection import CallDeadline
from ..zk.drivers import arun, run
from ..zk.session import Session

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """What `call` returns or raises. Cancelled, the call goes on.

    Not on the loop's own threads: of those there are few, so that many clients that wait for one server would wait
    behind one another.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from now on it cannot be cancelled

    def work() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  it is the caller's
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=work, name="zkmq-aside", daemon=True).start()
    return await asyncio.wrap_future(future)


# --- A claim in a caller's hand: what claims of both APIs, workers and transactions know of it.

#: What a session's id is while it is not known, which is no news of its end.
UNKNOWN_SESSION: Final = 0


@dataclass(frozen=True, slots=True)
class ClaimHandle:
    """A claim, and its client's memory of the queue that it was taken from."""

    context: Context
    claimed: Claimed

    @property
    def span(self) -> float | None:
        """For how many seconds the claim holds unless it is extended; None: to the end of its session."""
        return self.claimed.claim.get("lease")

    def is_over(self, session: Session) -> bool:
        """Whether the session that the claim is bound to has ended: one that is merely cut off still holds it."""
        leased = self.span is not None and not self.claimed.state.bound
        return session.closed or not (leased or session.id in {self.claimed.session, UNKNOWN_SESSION})


def task_of(context: Context, claimed: Claimed) -> Task:
    """The task of a claim, as it was handed out."""
    state = claimed.state
    return Task(
        id=claimed.task_id,
        state=State.CLAIMED,
        status=derive_status(State.CLAIMED, scheduled=False),
        attempt=state.attempt,
        priority=state.priority,
        filters=dict(state.filters),
        metadata=claimed.metadata or {},
        data=claimed.data,
        result=None,
        error=state.error,
        consumer=state.consumer,
        enqueued_ms=claimed.created,
        claimed_ms=state.claimed,
        ended_ms=None,
        due_ms=state.was_due,
        history=state.history,
        version=claimed.token,
        batch=state.batch,
        started_ms=None if claimed.began is None else context.clock.at(claimed.began),
    )


# --- Claims on their way through the APIs: whoever is cut off before it has its claim leaves nothing behind.

#: For so many seconds a cancelled call waits until what it took has been given back; then that goes on behind it.
DELIVERY_SECONDS: Final = 1.0


def handed_over(
    session: Session, request: ClaimRequest, receive: Callable[[list[Claimed]], T], call_deadline: CallDeadline
) -> T:
    """Claim, and hand what `receive` makes of it to the caller: all of it, or none.

    Cut off, the client gives it back before it claims again, and in the background as soon as there is a connection.
    Nothing that an interrupt could cut in two stands between `deliver` and the return.
    """
    context, caller = request.context, Caller()
    try:
        claims = run(session, request.claiming(caller), call_deadline)
        received = receive(claims)
        if not claims:
            return received
        context.claims.deliver(claims[0])
        return received
    except BaseException:
        caller.left = True
        if context.claims.handovers:
            context.run.finish_later()
        raise


async def handed_over_async(
    session: Session, request: ClaimRequest, receive: Callable[[list[Claimed]], T], call_deadline: CallDeadline
) -> T:
    """The same on an event loop. Cancelled, it stops the claim, and gives back what that may have taken.

    That is waited for, but not for long: then, or cancelled once more, it goes on in the background.
    """
    context, caller = request.context, Caller()
    job = asyncio.ensure_future(arun(session, request.claiming(caller), call_deadline))
    try:
        claims = await asyncio.shield(job)
    except asyncio.CancelledError:
        caller.left = True  # a claim that waits is told by the signal
        context.signal.fire()
        await asyncio.wait({OF_CALLS.do(_put_right(session, context, job))}, timeout=DELIVERY_SECONDS)
        raise
    except BaseException:
        caller.left = True
        if context.claims.handovers:
            context.run.finish_later()
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
        context.run.finish_later()
