"""`Settler` for coroutines: what does not end in time goes on in the background."""

from __future__ import annotations

import asyncio
import contextlib

from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.protocols import AsyncClaim, AsyncTransaction
from airflow_provider_zkmq.engine.working.background import Background
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, Deliveries, Delivery
from airflow_provider_zkmq.engine.working.verdicts import LEFT_SECONDS, RETRY_SECONDS, Tally, Verdict


class AsyncSettler:
    """Settles deliveries; see `Settler`."""

    def __init__(self, deliveries: Deliveries[AsyncClaim, AsyncTransaction], tally: Tally) -> None:
        self.background = Background()
        self.later = set[asyncio.Future[None]]()
        """What was put down, and is not known to be settled."""
        self._deliveries = deliveries
        self._tally = tally

    async def begin(self, delivery: Delivery[AsyncClaim, AsyncTransaction]) -> bool:
        """Its handler is about to be called; False: it is not, since that cannot be said."""
        if delivery.claim.ahead:
            try:
                await delivery.claim.begin()
            except Exception as error:  # noqa: BLE001  whatever it is: it is given back, which tells more
                log.warning("task %r is not begun: %s", delivery.claim.task.id, error)
                return False
        return True

    async def give_back(self, deliveries: list[Delivery[AsyncClaim, AsyncTransaction]]) -> None:
        """Settle what was claimed and whose handlers will not be called, all of it at once."""
        mine = [each for each in deliveries if self._deliveries.decide(each, NOT_BEGUN)]
        if mine:
            await asyncio.wait({self.background.do(self.settle(each)) for each in mine})

    async def settle(self, delivery: Delivery[AsyncClaim, AsyncTransaction]) -> None:
        """Settle, however long ZooKeeper is away while the session lives; no task's trouble ends the others."""
        try:
            while (verdict := await self._try(delivery)) is Verdict.AGAIN:  # noqa: ASYNC110  the pause between two tries
                await asyncio.sleep(RETRY_SECONDS)
            if verdict is Verdict.LATER:
                self.background.do(self._settle_left(delivery))
        finally:
            self._deliveries.drop(delivery)

    def settle_later(self, delivery: Delivery[AsyncClaim, AsyncTransaction]) -> None:
        """Settle together with others, without waiting for it; it is in hand until that is known."""
        loop, known = asyncio.get_running_loop(), self.background.promise()
        self.later.add(known)
        known.add_done_callback(self.later.discard)

        def told(success: bool, error: Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._told, delivery, known, success, error)

        delivery.claim.settle_later(delivery.outcome or NOT_BEGUN, delivery.progress, told)

    def _told(
        self,
        delivery: Delivery[AsyncClaim, AsyncTransaction],
        known: asyncio.Future[None],
        success: bool,
        error: Exception | None,
    ) -> None:
        if known.done():
            return  # told once more
        try:
            if error is None:
                self._tally.settled(delivery, success=success)
            elif self._tally.judge(delivery, error) is not Verdict.LOST:
                self.background.do(self._settle_left(delivery))
        finally:
            self._deliveries.drop(delivery)
            known.set_result(None)

    async def _settle_left(self, delivery: Delivery[AsyncClaim, AsyncTransaction]) -> None:
        """What could not be settled by whatever means is tried again, while others are handled."""
        await asyncio.sleep(LEFT_SECONDS)
        delivery.progress.refusals = 0
        await self.settle(delivery)

    async def _try(self, delivery: Delivery[AsyncClaim, AsyncTransaction]) -> Verdict:
        try:
            success = await delivery.ending().settle(delivery.outcome or NOT_BEGUN, delivery.progress)
        except Exception as error:  # noqa: BLE001  judged and reported, whatever it is; a cancellation is not
            return self._tally.judge(delivery, error)
        return self._tally.settled(delivery, success=success)
