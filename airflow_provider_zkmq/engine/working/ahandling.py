"""Handling on an event loop: a task for the handler and one for the settling, so that a cancellation loses neither."""

from __future__ import annotations

import asyncio
import threading
import time

from airflow_provider_zkmq.engine.core.model.outcomes import Retry
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled
from airflow_provider_zkmq.engine.working.aasking import AsyncAsking, AsyncDelivery
from airflow_provider_zkmq.engine.working.handling import RunningAsync, outcome_of
from airflow_provider_zkmq.engine.working.pauses import CANCEL_SECONDS, is_cancelled


class AsyncHandling(AsyncAsking):
    """A worker as far as it asks for tasks and handles them."""

    async def _handle(self, delivery: AsyncDelivery) -> None:
        """Run the handler and settle; where handlers are fast, together with others."""
        calling = asyncio.create_task(self._call(delivery))
        try:
            await asyncio.wait({calling})
        finally:  # also when cancelled
            settling = self._settler.background.do(self._end_delivery(delivery, calling))
        await asyncio.shield(settling)

    async def _call(self, delivery: AsyncDelivery) -> Handled:
        if self._stopping.is_set() or not (await self._settler.begin(delivery) and self._deliveries.begin(delivery)):
            return self._unbegun()
        began = time.monotonic()
        try:
            task = RunningAsync(delivery.claim)
            more = () if delivery.transaction is None else (delivery.transaction,)
            return outcome_of(await self.handler(task, *more))
        except KeyboardInterrupt as error:
            if threading.current_thread() is threading.main_thread():
                raise  # meant for the program
            return Retry(error)
        except BaseException as error:  # noqa: BLE001  a handler's failure is the task's
            asked_to_end = isinstance(error, asyncio.CancelledError) and is_cancelled()
            return self._deliveries.outlasted if asked_to_end else Retry(error)
        finally:
            delivery.claim.mark_ended()
            self._ahead.handled(time.monotonic() - began)

    async def _end_delivery(self, delivery: AsyncDelivery, calling: asyncio.Task[Handled]) -> None:
        """Settle by what the handler did; one that is still at work is cancelled, and not waited for for long."""
        if not calling.done():
            calling.cancel()
            await asyncio.wait({calling}, timeout=CANCEL_SECONDS)
        done = calling.done() and not calling.cancelled() and calling.exception() is None
        if done:
            self._deliveries.decide(delivery, calling.result())
        else:
            self._deliveries.give_up(delivery)
        if done and self._ahead.fast and delivery.transaction is None:
            self._settler.settle_later(delivery)
        else:
            await self._settler.settle(delivery)
