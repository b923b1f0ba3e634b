"""The worker on an event loop: coroutines instead of threads, otherwise `Worker`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine.core.model.durations import optional_seconds, seconds
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled
from airflow_provider_zkmq.engine.core.upkeep.rescue import tend
from airflow_provider_zkmq.engine.errors import ConfigError, ZkmqError
from airflow_provider_zkmq.engine.fronts.methods import Method
from airflow_provider_zkmq.engine.fronts.transaction import AsyncUnitOfWork
from airflow_provider_zkmq.engine.outcomes import Retry
from airflow_provider_zkmq.engine.working.asettler import AsyncSettler
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, OUTLASTED, Deliveries, Delivery
from airflow_provider_zkmq.engine.working.handling import Handler, RunningAsync, check_options, outcome_of
from airflow_provider_zkmq.engine.working.settler import RETRY_SECONDS
from airflow_provider_zkmq.engine.working.worker import (
    BUSY_SECONDS,
    GIVE_UP_SECONDS,
    IDLE_SECONDS,
    KEEPER_SECONDS,
)
from airflow_provider_zkmq.engine.zk.drivers import arun
from airflow_provider_zkmq.engine.zk.session import log

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.fronts.aqueue import AsyncClaim, AsyncQueue

#: How long a cancelled handler is waited for, and how often a task is told again to end.
CANCEL_SECONDS = 1.0
MOST_CANCELLATIONS = 3


class AsyncWorker:
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
        grace: float = 30.0,
        transactional: bool = False,
        lease: object = None,
        heartbeat: bool = True,
        throttle: object = 0,
    ) -> None:
        check_options(threads, 1, lease, transactional=transactional)
        if not inspect.iscoroutinefunction(handler):
            msg = f"handler {handler!r} is no coroutine function: give one that takes a task and returns its result"
            raise ConfigError(msg)
        self.queue = queue
        self.handler = handler
        self.grace = grace
        self._threads = threads
        self._asked: dict[str, Any] = {"node": node, "filter_method": filter_method, "selector": selector}
        self._lease = optional_seconds("lease", lease)
        self._heartbeat = heartbeat
        self._throttle = seconds("throttle", throttle)
        self._transactional = transactional
        self._stopping = asyncio.Event()
        self._pulse = asyncio.Event()
        self._deliveries = Deliveries()
        self._settler = AsyncSettler(queue._session, queue._context, self._deliveries)  # noqa: SLF001  the two are one piece
        self._error: Exception | None = None

    @property
    def finished(self) -> int:
        """How many tasks were completed."""
        return self._settler.finished

    @property
    def failed(self) -> int:
        """How many deliveries ended otherwise."""
        return self._settler.failed

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop` is called; `until_empty`: or until nothing that fits is left to claim.

        Raises `ConfigError` for a selector that the queue refuses. Cancelled, it ends within a few seconds; what is in
        hand is settled as after the grace of a stop, in the background where ZooKeeper is away.
        """
        others = [asyncio.create_task(work()) for work in (self._keep, self._beat)]
        loops = [asyncio.create_task(self._loop(until_empty=until_empty)) for _ in range(self._threads)]
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            everything = asyncio.create_task(_all_of(loops))
            others.append(everything)
            await asyncio.wait({everything, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not everything.done():
                await asyncio.wait({everything}, timeout=self.grace)
        finally:
            await self._wind_up(loops, [stopped, *others])
        for loop in loops:
            if loop.done() and not loop.cancelled():
                loop.result()
        if self._error is not None:
            raise self._error

    def stop(self) -> bool:
        """Claim nothing more. False if it was stopping already."""
        if self._stopping.is_set():
            return False
        self._stopping.set()
        return True

    async def _wind_up(self, loops: list[asyncio.Task[None]], others: list[asyncio.Task[Any]]) -> None:
        """End what still runs; heartbeats last, as they go on until everything in hand is settled."""
        try:
            await _end(loops)
            await self._settler.background.wait(GIVE_UP_SECONDS)
        finally:
            for task in others:
                task.cancel()
        await _end(others)

    # --- claiming

    async def _loop(self, *, until_empty: bool) -> None:
        while not self._stopping.is_set():
            patience = (BUSY_SECONDS if self._deliveries else 0.0) if until_empty else IDLE_SECONDS
            try:
                claim = await self._claim(patience)
            except ConfigError as error:  # what was asked for; `run` raises it
                self._error = error
                self.stop()
            except Exception as error:  # noqa: BLE001  of the transport, or of something foreign in the queue
                if self.queue.closed:  # no other try would end otherwise; `run` raises it
                    self._error = error
                    self.stop()
                    return
                log.warning("worker on queue %r: %s", self.queue.name, error, exc_info=not isinstance(error, ZkmqError))
                await _until(self._stopping, RETRY_SECONDS)
            else:
                if claim is not None:
                    await self._handle(claim)
                    await _until(self._stopping, self._throttle)
                elif until_empty and not self._deliveries:
                    return

    async def _claim(self, patience: float) -> AsyncClaim | None:
        """Claim, and stop waiting when told to; what came too late for that, or for a cancellation, is given back."""
        claiming = asyncio.create_task(self.queue.claim(**self._asked, lease=self._lease, timeout=patience))
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

    def _add(self, claim: AsyncClaim) -> Delivery:
        transaction = self._begin(claim) if self._transactional else None
        delivery = self._deliveries.add(claim, claim._held.claim.get("lease"), transaction)  # noqa: SLF001
        self._pulse.set()  # one more to extend
        return delivery

    def _begin(self, claim: AsyncClaim) -> AsyncUnitOfWork:
        """The transaction that the handler gets, with the claim in it."""
        transaction = self.queue._begin()  # noqa: SLF001
        transaction.adopt(self.queue.name, claim._held)  # noqa: SLF001
        return transaction

    async def _handle(self, claim: AsyncClaim) -> None:
        """Run the handler and settle; each in a task of its own, so that a cancellation neither loses nor waits."""
        delivery = self._add(claim)
        calling = asyncio.create_task(self._call(delivery))
        try:
            await asyncio.wait({calling})
        finally:  # also when cancelled
            settling = self._settler.background.do(self._end_delivery(delivery, calling))
        await asyncio.shield(settling)

    async def _call(self, delivery: Delivery) -> Handled:
        if self._stopping.is_set() or not self._deliveries.begin(delivery):
            return NOT_BEGUN
        try:
            task = RunningAsync(delivery.claim)
            given = () if delivery.transaction is None else (delivery.transaction,)
            return outcome_of(await self.handler(task, *given))
        except KeyboardInterrupt as error:
            if threading.current_thread() is threading.main_thread():
                raise  # meant for the program
            return Retry(error)
        except BaseException as error:  # noqa: BLE001  a handler's failure is the task's
            asked_to_end = isinstance(error, asyncio.CancelledError) and _is_cancelled()
            return OUTLASTED if asked_to_end else Retry(error)

    async def _end_delivery(self, delivery: Delivery, calling: asyncio.Task[Handled]) -> None:
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

    # --- the keeper and the heart: neither waits for the other

    async def _keep(self) -> None:
        """Rescue and promote while every slot is busy."""
        context, session = self.queue._context, self.queue._session  # noqa: SLF001
        while True:
            try:
                if context.registration.consumer is not None and len(self._deliveries) >= self._threads:
                    await arun(session, tend(context))
            except Exception as error:  # noqa: BLE001  the next look may go well
                log.warning("looking after queue %r: %s", self.queue.name, error)
            await asyncio.sleep(KEEPER_SECONDS)

    async def _beat(self) -> None:
        """Extend the locks and leases of what is in hand."""
        while self._heartbeat:
            self._pulse.clear()
            for delivery in self._deliveries.due():
                await self._extend(delivery)
            await _until(self._pulse, self._deliveries.until_next_beat(KEEPER_SECONDS))

    async def _extend(self, delivery: Delivery) -> None:
        try:
            await delivery.claim.extend(delivery.span)
        except Exception as error:  # noqa: BLE001  the others are to be extended, too
            log.warning("extending task %r: %s", delivery.claim.task.id, error)
            self._deliveries.beaten(delivery, good=False)
        else:
            self._deliveries.beaten(delivery, good=True)


async def _all_of(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


async def _until(event: asyncio.Event, span: float) -> None:
    """Wait for the event, `span` seconds at the most; a cancellation is never swallowed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(span):
            await event.wait()


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended; one that swallows a cancellation gets another, and is then left alone."""
    for _ in range(MOST_CANCELLATIONS):
        pending = {task for task in tasks if not task.done()}
        if not pending:
            return
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_SECONDS)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
