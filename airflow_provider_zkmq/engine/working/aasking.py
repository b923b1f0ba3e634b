"""`Asking` on an event loop: its waiting ends at once when the worker is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from airflow_provider_zkmq.engine.errors import QueueNotFound
from airflow_provider_zkmq.engine.protocols import AsyncClaim, AsyncQueue, AsyncTransaction
from airflow_provider_zkmq.engine.working.asettler import AsyncSettler
from airflow_provider_zkmq.engine.working.deliveries import Delivery
from airflow_provider_zkmq.engine.working.heart import AsyncHeart
from airflow_provider_zkmq.engine.working.options import Handler, Options
from airflow_provider_zkmq.engine.working.rules import Working

T = TypeVar("T")
AsyncDelivery: TypeAlias = Delivery[AsyncClaim, AsyncTransaction]


class AsyncAsking(Working[AsyncClaim, AsyncTransaction]):
    """A worker as far as it asks for tasks; what it gets after it was told to stop, it gives back."""

    def __init__(self, queue: AsyncQueue, handler: Handler, options: Options) -> None:
        super().__init__(queue, handler, options)
        self.queue = queue
        self._stopping = asyncio.Event()
        self._come = asyncio.Event()
        self._settler = AsyncSettler(self._deliveries, self._tally)
        self._heart = AsyncHeart(self._deliveries)
        self._filling = asyncio.Lock()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, or has ended."""
        return self._stopping.is_set()

    async def _check_wanted(self) -> None:
        """Raise `ConfigError` for what the queue refuses. One that is not there can refuse nothing yet."""
        try:
            await self.queue.check_wanted(**self._options.choice)
        except QueueNotFound as error:
            self._tell_of_absence(error, 0)

    async def _claim(self, *, idle: bool) -> AsyncDelivery | None:
        """Claim; None: there was nothing, or no queue, and it was waited for. Fast handlers: one does it for all."""
        if idle or not self._ahead.fast:
            return await self._fill(idle=idle)
        async with self._filling:  # who had it may have waited for the queue, or for a server
            return None if self.stopping else self._ahead.take() or await self._fill(idle=False)

    async def _fill(self, *, idle: bool) -> AsyncDelivery | None:
        """Claim, where handlers are fast more than one; the first of them is the caller's."""
        since = self._absence.ended
        self._come.clear()
        try:
            with self._ahead.asking(idle=idle):
                claims = await self._claim_within_limit(self._patience(idle=idle))
        except QueueNotFound as error:
            await self._await_queue(error, since)
            return None
        deliveries = [self._add(claim) for claim in claims]
        self._ahead.put(deliveries[1:])
        if self._ahead and self._ahead.idle:  # who began to wait meanwhile takes of it
            self._come.set()
        return deliveries[0] if deliveries else None

    async def _claim_within_limit(self, patience: float) -> Sequence[AsyncClaim]:
        most = self._budget.take(self._ahead.room)
        claims: Sequence[AsyncClaim] = []
        try:
            if most:
                claims = await self._claim_unless_stopped(self._ask(most, patience))
        finally:
            self._budget.put_back(most - len(claims))
        return claims

    async def _return(self, deliveries: list[AsyncDelivery]) -> None:
        """Give back what was taken ahead and whose handlers will not be called."""
        self._budget.put_back(len(deliveries))
        await self._settler.give_back(deliveries)

    async def _ask(self, most: int, patience: float) -> Sequence[AsyncClaim]:
        choice, lease = self._options.choice, self._options.lease
        if most > 1:
            return await self.queue.claim_many(most, **choice, lease=lease, timeout=patience, ahead=True)
        claim = await self.queue.claim(**choice, lease=lease, timeout=patience)
        return [] if claim is None else [claim]

    async def _await_queue(self, error: QueueNotFound, since: int) -> None:
        """Wait for the queue to come, or the worker to be stopped."""
        self._tell_of_absence(error, since)
        coming = asyncio.create_task(self.queue.exists(None))
        try:
            if await self._unless_stopped(coming):
                self._absence.end()
        finally:
            coming.cancel()

    async def _size(self) -> int:
        """How many tasks are pending, once there is a queue. Raises `QueueNotFound` where none came before the end."""
        since = self._absence.ended
        try:
            return await self.queue.pending()
        except QueueNotFound as error:
            await self._await_queue(error, since)
        return await self.queue.pending()

    async def _claim_unless_stopped(self, asked: Coroutine[Any, Any, Sequence[AsyncClaim]]) -> Sequence[AsyncClaim]:
        """Claim, and stop waiting when told to; what came too late for that, or for a cancellation, is given back."""
        claiming = asyncio.create_task(asked)
        try:
            await self._unless_stopped(claiming, self._come)
        except asyncio.CancelledError:
            self._settler.background.do(self._unclaim(claiming))
            raise
        if claiming.done():
            return () if claiming.cancelled() else claiming.result()
        await self._settler.background.to_its_end(self._unclaim(claiming))
        return ()

    async def _unless_stopped(self, task: asyncio.Task[T], *others: asyncio.Event) -> T | None:
        """Wait for a task, or until told to stop; its result where it has come to one. Raises what it raised.

        `others`: what ends the waiting, too.
        """
        ends = [asyncio.create_task(event.wait()) for event in (self._stopping, *others)]
        try:
            await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        return task.result() if task.done() and not task.cancelled() else None

    async def _unclaim(self, claiming: asyncio.Task[Sequence[AsyncClaim]]) -> None:
        claiming.cancel()
        await asyncio.wait({claiming})
        if not claiming.cancelled() and claiming.exception() is None:
            await self._settler.give_back([self._add(claim) for claim in claiming.result()])

    def _add(self, claim: AsyncClaim) -> AsyncDelivery:
        transaction = claim.transaction() if self._options.transactional else None
        delivery = self._deliveries.add(claim, claim.span, transaction)
        self._heart.quicken()  # one more to extend
        return delivery
