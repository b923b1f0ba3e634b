"""How the calls of both APIs are carried out: here blocking a thread and being awaited differ."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from .. import lazy_asyncio as asyncio
from ..core.claim.claim import ClaimRequest
from ..core.client_state import Caller, Claimed, Context
from ..core.maintenance.due_work import give_back
from ..core.zk_operations import Procedure, explained
from ..coroutine_runners import OF_CALLS
from ..errors import ZkmqError
from ..log import log
from ..zk.connection import CallDeadline
from ..zk.procedure_drivers import arun, run
from ..zk.session import Session

T = TypeVar("T")
C = TypeVar("C")
Choosing: TypeAlias = Callable[[list[C]], T]

#: For so many seconds a cancelled call waits until what it took has been given back; then that goes on behind it.
DELIVERY_SECONDS: Final = 1.0


def not_cleaned_up(_context: Context) -> None:
    """A queue is claimed from, or written to, by a client that takes no part in clean-up."""


class Api:
    """An object whose calls are procedures, carried out over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def _explain(self, _: ZkmqError) -> Procedure[ZkmqError | None]:
        """After an error of a procedure: what callers are to see instead, if anything."""
        yield from ()
        return None

    def _mark_used(self) -> None:
        """Tasks are about to be claimed. A queue overrides this: its client then takes part in clean-up."""


class SyncApi(Api):
    """An API whose calls block the calling thread until they are carried out."""

    def _carry_out(self, procedure: Procedure[T], call_deadline: CallDeadline | None = None) -> T:
        """Carry out a procedure."""
        return run(self._session, explained(procedure, self._explain), call_deadline)


class AsyncApi(Api):
    """An API whose calls are coroutines; the event loop goes on meanwhile."""

    async def _carry_out(self, procedure: Procedure[T], call_deadline: CallDeadline | None = None) -> T:
        """Carry out a procedure."""
        return await arun(self._session, explained(procedure, self._explain), call_deadline)


# --- Claims on their way through the APIs: whoever is cut off before it has its claim leaves nothing behind.


def first(claims: list[C]) -> C:
    """The caller gets the one claim; the procedure raises where there is none."""
    return claims[0]


def first_or_none(claims: list[C]) -> C | None:
    """The caller gets the one claim, if there is one."""
    return claims[0] if claims else None


class SyncClaiming(SyncApi, Generic[C]):
    """A blocking API that claims tasks and hands each over as a `C`."""

    @abstractmethod
    def _receive(self, context: Context, claimed: Claimed) -> C:
        """What the caller gets for a claim. May neither block nor fail."""

    def _take(
        self,
        requesting: Procedure[ClaimRequest],
        choose: Choosing[C, T],
        call_deadline: CallDeadline | None = None,
    ) -> T:
        """Claim what is asked for; the caller gets what `choose` makes of the claims: all of it, or none.

        Cut off, the client gives it back before it claims again, and in the background as soon as there is a
        connection. After `deliver` nothing may happen but returns: an interrupt is raised at the next call or end of a
        ``with`` block, and would lose a claim that the client does not remember any more.
        """
        call_deadline = call_deadline or self._session.call_deadline()
        request = run(self._session, requesting, call_deadline)
        self._mark_used()
        context, caller = request.context, Caller()
        try:
            claims = run(self._session, request.claiming(caller), call_deadline)
            received = choose([self._receive(context, each) for each in claims])
            if not claims:
                return received
            context.claims.deliver(claims[0])
            return received
        except BaseException:
            caller.left = True
            if context.claims.handovers:
                context.run.finish_later()
            raise


class AsyncClaiming(AsyncApi, Generic[C]):
    """An awaited API that claims tasks and hands each over as a `C`."""

    @abstractmethod
    def _receive(self, context: Context, claimed: Claimed) -> C:
        """What the caller gets for a claim. May not fail."""

    async def _take(
        self,
        requesting: Procedure[ClaimRequest],
        choose: Choosing[C, T],
        call_deadline: CallDeadline | None = None,
    ) -> T:
        """Claim what is asked for. Cancelled, it stops the claim, and gives back what that may have taken.

        That is waited for, but not for long: then, or cancelled once more, it goes on in the background.
        """
        call_deadline = call_deadline or self._session.call_deadline()
        request = await arun(self._session, requesting, call_deadline)
        self._mark_used()
        context, caller = request.context, Caller()
        job = asyncio.ensure_future(arun(self._session, request.claiming(caller), call_deadline))
        try:
            claims = await asyncio.shield(job)
        except asyncio.CancelledError:
            caller.left = True  # a claim that waits is told by the signal
            context.signal.fire()
            await asyncio.wait({OF_CALLS.do(_put_right(self._session, context, job))}, timeout=DELIVERY_SECONDS)
            raise
        except BaseException:
            caller.left = True
            if context.claims.handovers:
                context.run.finish_later()
            raise
        received = choose([self._receive(context, each) for each in claims])
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


async def in_thread(call: Callable[[], T]) -> T:
    """What `call` returns or raises. Cancelled, the call goes on.

    Not on the loop's own threads: of those there are few, so that many clients that wait for one server would wait
    behind one another.
    """
    from concurrent.futures import Future

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
