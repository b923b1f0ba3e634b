"""Loops over claims: `q.claims`, blocking and on an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from airflow_provider_zkmq.engine.api.claim_handles import DELIVERY_SECONDS
from airflow_provider_zkmq.engine.api.methods import AsyncClaiming, SyncAndAsync, SyncClaiming, show_result, shown
from airflow_provider_zkmq.engine.core.claim.claim import Loop, go_on, wind_up
from airflow_provider_zkmq.engine.core.client.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.errors import TransportError
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.working.async_worker import OF_CALLS
from airflow_provider_zkmq.engine.zk.run import arun, run
from airflow_provider_zkmq.engine.zk.session import Session


class InLoop(Protocol):
    """A claim, as far as a loop looks at it."""

    result: bytes | str | None


P = ParamSpec("P")
C = TypeVar("C", bound=InLoop)


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

    def _come_back(self) -> None:
        """The body is done with its claim."""
        if self._claim is not None:
            self._loop.result = self._claim.result

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
        self._come_back()
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._come_back()
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _log(step: asyncio.Task[bool]) -> None:
    if not step.cancelled() and (error := step.exception()) is not None:
        log.info("a cancelled step of a loop ended with: %s", error)


class claim_loop(SyncAndAsync, Generic[P]):  # noqa: N801  reads like a decorator
    """What asks for claims one after the other: the caller gets a loop. `returns`: what that is shown to be."""

    def __init__(self, request: Callable[Concatenate[Context, P], Loop], *returns: str) -> None:
        def sync(self: SyncClaiming[Context, C], /, *args: P.args, **kwargs: P.kwargs) -> Claims[C]:
            self._mark_used()
            return Claims(self._session, request(self._subject, *args, **kwargs), self._receive)

        def awaited(self: AsyncClaiming[Context, C], /, *args: P.args, **kwargs: P.kwargs) -> AsyncClaims[C]:
            self._mark_used()
            return AsyncClaims(self._session, request(self._subject, *args, **kwargs), self._receive)

        super().__init__(shown(sync, request), shown(awaited, request))
        for function, text in zip(self.functions, returns, strict=True):
            show_result(function, text)

    @overload
    def __get__(self, api: SyncClaiming[Context, C], owner: type) -> Callable[P, Claims[C]]: ...
    @overload
    def __get__(self, api: AsyncClaiming[Context, C], owner: type) -> Callable[P, AsyncClaims[C]]: ...
    @overload
    def __get__(self, api: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, api: object, owner: type) -> Any:
        """The verb of an object, or of a API's class."""
        return self.of(api, owner)
