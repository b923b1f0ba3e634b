"""Loops over claims, blocking and on an event loop: `q.claims`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from .. import lazy_asyncio as asyncio
from ..core.claim.claim_iterator import Loop, go_on, wind_up
from ..core.client_state import Caller, Claimed, Context
from ..coroutine_runners import OF_CALLS
from ..errors import TransportError
from ..log import log
from ..zk.procedure_drivers import arun, run
from ..zk.session import Session
from .bases import ClaimBase
from .calls import DELIVERY_SECONDS

C = TypeVar("C", bound=ClaimBase[Any])


class LoopOf(Generic[C]):
    """What loops of both APIs are. Each is one thread's, or one coroutine's.

    What its body does not settle is completed with ``claim.result`` when the loop comes back. An error of that is
    raised by the step, after which the loop can go on: what is over is not met again, anything else is settled once
    more. A loop that is left, or closed, fails what is unsettled, and gives back what it has prefetched.
    """

    def __init__(self, session: Session, loop: Loop, receive: Callable[[Context, Claimed], C]) -> None:
        self._session = session
        self._loop = loop
        self._receive = receive
        self._claim: C | None = None
        self._ended = False

    def _next_claim(self) -> C:
        """The next one, for the body.

        There are only statements at the end: an interrupt comes with a call, and would leave in between a claim that
        is taken for handled, or is nobody's.
        """
        loop = self._loop
        claim = self._receive(loop.context, loop.ready[0])
        self._claim = claim
        loop.current, loop.ready = loop.ready[0], loop.ready[1:]
        return claim

    def _leave(self) -> None:
        self._ended, self._claim = True, None
        with self._session.memory:
            self._loop.leave()

    def __del__(self) -> None:
        if not self._ended and not self._session.closed and self._session.pid == os.getpid():
            self._leave()


class Claims(LoopOf[C]):
    """A loop whose steps block."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> C:
        """Settle what the body has left, and claim the next one."""
        if self._ended:
            raise StopIteration
        if self._claim is not None:
            self._loop.result = self._claim.result
        if run(self._session, go_on(self._loop, Caller())):
            return self._next_claim()
        self._ended, self._claim = True, None
        raise StopIteration

    def close(self) -> None:
        """Leave the loop: what is unsettled fails, what was prefetched is given back. Idempotent.

        What cannot be settled now, since no server answers, is settled in the background.
        """
        self._leave()
        if not self._session.closed:
            try:
                run(self._session, wind_up(self._loop))
            except TransportError as error:
                log.info("leaving a loop of queue %r: %s; the rest is done later", self._loop.context.queue, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClaims(LoopOf[C]):
    """A loop whose steps are awaited."""

    _step: asyncio.Task[bool] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> C:
        """Settle what the body has left, and claim the next one. Cancelled, it claims nothing more."""
        await self._still()
        if self._ended:
            raise StopAsyncIteration
        if self._claim is not None:
            self._loop.result = self._claim.result
        caller = Caller()
        self._step = OF_CALLS.do(arun(self._session, go_on(self._loop, caller)))
        try:
            more = await asyncio.shield(self._step)
        except asyncio.CancelledError:
            caller.left = True  # a claim that waits is told by the signal
            self._loop.context.signal.fire()
            self._step.add_done_callback(_log)
            await asyncio.wait({self._step}, timeout=DELIVERY_SECONDS)
            raise
        finally:
            if self._step.done():
                self._step = None
        if more:
            return self._next_claim()
        self._ended, self._claim = True, None
        raise StopAsyncIteration

    async def _still(self) -> None:
        """Wait for a step that was cancelled, and goes on behind."""
        if self._step is not None:
            await asyncio.wait({self._step})
            self._step = None

    async def aclose(self) -> None:
        """Leave the loop, see `Claims.close`."""
        await self._still()
        self._leave()
        if not self._session.closed:
            try:
                await arun(self._session, wind_up(self._loop))
            except TransportError as error:
                log.info("leaving a loop of queue %r: %s; the rest is done later", self._loop.context.queue, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _log(step: asyncio.Task[bool]) -> None:
    if not step.cancelled() and (error := step.exception()) is not None:
        log.info("a cancelled step of a loop ended with: %s", error)
