"""The worker on an event loop: coroutines instead of threads, otherwise `Worker`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.model.outcomes import Retry
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled
from airflow_provider_zkmq.engine.protocols import AsyncClaim, AsyncQueue, AsyncTransaction
from airflow_provider_zkmq.engine.working.asettler import AsyncSettler
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, OUTLASTED, Delivery
from airflow_provider_zkmq.engine.working.handling import RunningAsync, outcome_of
from airflow_provider_zkmq.engine.working.heart import AsyncHeart
from airflow_provider_zkmq.engine.working.options import Handler, Method, Options, check_handler
from airflow_provider_zkmq.engine.working.pauses import CANCEL_SECONDS, all_of, end, is_cancelled, until
from airflow_provider_zkmq.engine.working.rules import GIVE_UP_SECONDS, KEEPER_SECONDS, Working
from airflow_provider_zkmq.engine.working.verdicts import RETRY_SECONDS


class AsyncWorker(Working[AsyncClaim, AsyncTransaction]):
    """Claims tasks of one queue and awaits a handler on each; see `Worker` for what handlers get and return.

    `threads`: tasks in hand at once. `stop` lets running handlers finish within `grace` seconds; then they are
    cancelled, and as they have run their deliveries count: the tasks are retried or dead by their policies.
    """

    def __init__(
        self,
        queue: AsyncQueue,
        handler: Handler,
        *,
        threads: int = 1,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        selector: Selector | str | None = None,
        grace: Duration = 30.0,
        transactional: bool = False,
        lease: Duration | None = None,
        heartbeat: bool = True,
        throttle: Duration = 0,
    ) -> None:
        options = Options.of(
            threads=threads, least=1, node=node, filter_method=filter_method, selector=selector, grace=grace,
            transactional=transactional, lease=lease, heartbeat=heartbeat, throttle=throttle,
        )  # fmt: skip
        check_handler(handler, awaited=True)
        super().__init__(queue, handler, options)
        self.queue = queue
        self._stopping = asyncio.Event()
        self._settler = AsyncSettler(self._deliveries, self._tally)
        self._heart = AsyncHeart(self._deliveries)

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop` is called; `until_empty`: or until nothing that fits is left to claim.

        Raises `ConfigError` for a selector that the queue refuses. Cancelled, it ends within a few seconds; what is in
        hand is settled as after the grace of a stop, in the background where ZooKeeper is away.
        """
        others: list[asyncio.Task[Any]] = [asyncio.create_task(self._keep())]
        if self._options.heartbeat:
            others.append(asyncio.create_task(self._heart.beat()))
        loops = [asyncio.create_task(self._loop(until_empty=until_empty)) for _ in range(self._options.threads)]
        try:
            await self._until_ended(loops, others)
        finally:
            await self._wind_up(loops, others)
        for loop in loops:
            if loop.done() and not loop.cancelled():
                loop.result()
        self._raise_what_ended_it()

    async def _until_ended(self, loops: list[asyncio.Task[None]], others: list[asyncio.Task[Any]]) -> None:
        """Until every loop has ended, or the grace after a stop is over."""
        everything, stopped = asyncio.create_task(all_of(loops)), asyncio.create_task(self._stopping.wait())
        others += [everything, stopped]
        await asyncio.wait({everything, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not everything.done():
            await asyncio.wait({everything}, timeout=self.grace)

    def stop(self) -> bool:
        """Claim nothing more. False if it was stopping already."""
        if self._stopping.is_set():
            return False
        self._stopping.set()
        return True

    async def _wind_up(self, loops: list[asyncio.Task[None]], others: list[asyncio.Task[Any]]) -> None:
        """End what still runs; heartbeats last, as they go on until everything in hand is settled."""
        try:
            await end(loops)
            await self._settler.background.wait(GIVE_UP_SECONDS)
        finally:
            for task in others:
                task.cancel()
        await end(others)

    # --- claiming

    async def _loop(self, *, until_empty: bool) -> None:
        while not self._stopping.is_set():
            try:
                claim = await self._claim(self._patience(until_empty=until_empty))
            except Exception as error:  # noqa: BLE001  told apart in `_ended_by`
                if self._ended_by(error):
                    self.stop()
                    return
                await until(self._stopping, RETRY_SECONDS)
            else:
                if claim is not None:
                    await self._handle(claim)
                    await until(self._stopping, self._options.throttle)
                elif until_empty and not self._deliveries:
                    return

    async def _claim(self, patience: float) -> AsyncClaim | None:
        """Claim, and stop waiting when told to; what came too late for that, or for a cancellation, is given back."""
        asked = self.queue.claim(**self._options.choice, lease=self._options.lease, timeout=patience)
        claiming = asyncio.create_task(asked)
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({claiming, stopped}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._settler.background.do(self._unclaim(claiming))
            raise
        finally:
            stopped.cancel()
        if claiming.done():
            return None if claiming.cancelled() else claiming.result()
        await self._settler.background.to_its_end(self._unclaim(claiming))
        return None

    async def _unclaim(self, claiming: asyncio.Task[AsyncClaim | None]) -> None:
        claiming.cancel()
        await asyncio.wait({claiming})
        if claiming.cancelled() or claiming.exception() is not None:
            return
        claim = claiming.result()
        if claim is not None:
            delivery = self._add(claim)
            self._deliveries.decide(delivery, NOT_BEGUN)
            await self._settler.settle(delivery)

    # --- handling

    def _add(self, claim: AsyncClaim) -> Delivery[AsyncClaim, AsyncTransaction]:
        transaction = claim.transaction() if self._options.transactional else None
        delivery = self._deliveries.add(claim, claim.span, transaction)
        self._heart.quicken()  # one more to extend
        return delivery

    async def _handle(self, claim: AsyncClaim) -> None:
        """Run the handler and settle; each in a task of its own, so that a cancellation neither loses nor waits."""
        delivery = self._add(claim)
        calling = asyncio.create_task(self._call(delivery))
        try:
            await asyncio.wait({calling})
        finally:  # also when cancelled
            settling = self._settler.background.do(self._end_delivery(delivery, calling))
        await asyncio.shield(settling)

    async def _call(self, delivery: Delivery[AsyncClaim, AsyncTransaction]) -> Handled:
        if self._stopping.is_set() or not self._deliveries.begin(delivery):
            return NOT_BEGUN
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
            return OUTLASTED if asked_to_end else Retry(error)

    async def _end_delivery(
        self, delivery: Delivery[AsyncClaim, AsyncTransaction], calling: asyncio.Task[Handled]
    ) -> None:
        """Settle by what the handler did; one that is still at work is cancelled, and not waited for for long."""
        if not calling.done():
            calling.cancel()
            await asyncio.wait({calling}, timeout=CANCEL_SECONDS)
        done = calling.done() and not calling.cancelled() and calling.exception() is None
        if done:
            self._deliveries.decide(delivery, calling.result())
        else:
            self._deliveries.give_up(delivery)
        await self._settler.settle(delivery)

    # --- the keeper: it waits for no heartbeat, and none waits for it

    async def _keep(self) -> None:
        """Rescue and promote while every slot is busy."""
        while True:
            try:
                if self._busy():
                    await self.queue.look_after()
            except Exception as error:  # noqa: BLE001  the next look may go well
                self._report_keeper(error)
            await asyncio.sleep(KEEPER_SECONDS)
