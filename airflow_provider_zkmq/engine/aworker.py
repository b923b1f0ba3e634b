"""The worker on an event loop: coroutines instead of threads, otherwise `Worker`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine.core.configure import optional_seconds, seconds
from airflow_provider_zkmq.engine.core.rescue import tend
from airflow_provider_zkmq.engine.core.selectors import Selector
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, SessionLost, TransportError, ZkmqError
from airflow_provider_zkmq.engine.fronts import Method
from airflow_provider_zkmq.engine.handling import Handler, RunningAsync, outcome_of
from airflow_provider_zkmq.engine.outcomes import Error, Retry, Snooze, Success
from airflow_provider_zkmq.engine.worker import BUSY_SECONDS, IDLE_SECONDS, KEEPER_SECONDS, RETRY_SECONDS
from airflow_provider_zkmq.engine.zk.drivers import arun
from airflow_provider_zkmq.engine.zk.session import log

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.aqueue import AsyncClaim, AsyncQueue
    from airflow_provider_zkmq.engine.unit_of_work import AsyncUnitOfWork

Outcome = Success | Error | Retry | Snooze


class AsyncWorker:
    """Claims tasks of one queue and awaits a handler on each; see `Worker` for what handlers get and return.

    `threads`: tasks in hand at once. `stop` lets running handlers finish within `grace` seconds; then they are
    cancelled and their tasks given back.
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
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            msg = f"threads {threads!r} is not allowed: a whole number, 1 or more"
            raise ConfigError(msg)
        if not inspect.iscoroutinefunction(handler):
            msg = f"handler {handler!r} is no coroutine function: give one that takes a task and returns its result"
            raise ConfigError(msg)
        if transactional and lease is not None:
            msg = "a transaction is bound to its session: give either transactional=True or lease=, not both"
            raise ConfigError(msg)
        self.queue = queue
        self.handler = handler
        self.grace = grace
        self.finished = 0
        self.failed = 0
        self._threads = threads
        self._asked: dict[str, Any] = {"node": node, "filter_method": filter_method, "selector": selector}
        self._lease = optional_seconds("lease", lease)
        self._heartbeat = heartbeat
        self._throttle = seconds("throttle", throttle)
        self._transactional = transactional
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._in_hand: dict[AsyncClaim, float] = {}

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop` is called; `until_empty`: or until nothing that fits is left to claim.

        Raises `ConfigError` for a selector that the queue refuses. Cancelled, it gives back what is in hand.
        """
        keeper = asyncio.create_task(self._keep())
        loops = [asyncio.create_task(self._loop(until_empty=until_empty)) for _ in range(self._threads)]
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            everything: asyncio.Future[Any] = asyncio.gather(*loops)
            await asyncio.wait([everything, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not everything.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(everything), self.grace)
            if everything.done():
                everything.result()
        finally:
            await _end(keeper, stopped, *loops)

    def stop(self) -> bool:
        """Claim nothing more. False if it was stopping already."""
        if self._stopping.is_set():
            return False
        self._stopping.set()
        return True

    async def _loop(self, *, until_empty: bool) -> None:
        while not self._stopping.is_set():
            patience = (BUSY_SECONDS if self._in_hand else 0.0) if until_empty else IDLE_SECONDS
            try:
                claim = await self._claim(patience)
                if claim is not None:
                    await self._handle(claim)
                    await self._pause(self._throttle)
                elif until_empty and not self._in_hand:
                    return
            except TransportError as error:
                log.warning("worker on queue %r: %s", self.queue.name, error)
                await self._pause(RETRY_SECONDS)

    async def _claim(self, patience: float) -> AsyncClaim | None:
        """Claim, and stop waiting when told to; a cancelled claim gives back what it may have taken."""
        claiming = asyncio.create_task(self.queue.claim(**self._asked, lease=self._lease, timeout=patience))
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({claiming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return claiming.result() if claiming.done() else None
        finally:
            await _end(stopped, claiming)

    async def _pause(self, span: float) -> None:
        if span:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), span)

    async def _handle(self, claim: AsyncClaim) -> None:
        self._in_hand[claim] = time.monotonic()
        self._wake.set()  # the keeper has one more to extend
        transaction = None
        try:
            if self._stopping.is_set():
                await claim.release()
                return
            transaction = self._transaction(claim)
            outcome = await self._call(claim, transaction)
            good = await self._settle(claim, outcome, transaction)
            self.finished += good
            self.failed += not good
        except (ClaimLost, SessionLost) as error:
            log.warning("task %r: %s", claim.task.id, error)
        except asyncio.CancelledError:
            with contextlib.suppress(ZkmqError):
                await asyncio.shield(_give_back(claim, transaction))
            raise
        finally:
            self._in_hand.pop(claim, None)

    def _transaction(self, claim: AsyncClaim) -> AsyncUnitOfWork | None:
        if not self._transactional:
            return None
        transaction = self.queue._begin()  # noqa: SLF001  the two are one piece
        transaction.adopt(self.queue.name, claim._held)  # noqa: SLF001
        return transaction

    async def _call(self, claim: AsyncClaim, transaction: AsyncUnitOfWork | None) -> Outcome:
        try:
            task = RunningAsync(claim)
            returned = self.handler(task) if transaction is None else self.handler(task, transaction)
            return outcome_of(await returned)
        except Exception as error:  # noqa: BLE001  a handler's failure is the task's
            return Retry(error)

    async def _settle(self, claim: AsyncClaim, outcome: Outcome, transaction: AsyncUnitOfWork | None) -> bool:
        """Settle, however long ZooKeeper is away while the session lives."""
        while True:
            try:
                return await _settle_once(claim, outcome, transaction)
            except SessionLost:
                raise
            except TransportError as error:
                log.warning("worker on queue %r: %s; trying again", self.queue.name, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _keep(self) -> None:
        """Rescue and promote while every slot is busy, and extend the locks and leases of what is in hand."""
        context, session = self.queue._context, self.queue._session  # noqa: SLF001
        while True:
            self._wake.clear()
            try:
                if context.consumer is not None and len(self._in_hand) >= self._threads:
                    await arun(session, tend(context))
                for claim, beaten in list(self._in_hand.items()):
                    span = claim._held.claim.get("lease")  # noqa: SLF001
                    if self._heartbeat and span and not claim.settled and time.monotonic() - beaten >= span / 3:
                        await claim.extend(span)
                        self._in_hand[claim] = time.monotonic()
            except ZkmqError as error:
                log.info("looking after queue %r: %s", self.queue.name, error)
            spans = [claim._held.claim.get("lease") or KEEPER_SECONDS for claim in self._in_hand]  # noqa: SLF001
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), min([KEEPER_SECONDS, *(span / 6 for span in spans)]))


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _give_back(claim: AsyncClaim, transaction: AsyncUnitOfWork | None) -> None:
    """Release a task whose handler was cancelled, and whatever else its transaction had taken."""
    if transaction is not None and transaction.open:
        transaction.disown(claim.task.id)
        await transaction.rollback()
    await claim.release()


async def _settle_once(claim: AsyncClaim, outcome: Outcome, transaction: AsyncUnitOfWork | None) -> bool:
    """Settle the claim by the outcome, as `handling.settle` does."""
    if transaction is not None and not transaction.open:
        return isinstance(outcome, Success)
    try:
        if isinstance(outcome, Success):
            if transaction is None:
                await claim.complete(outcome.result, dedupe=outcome.dedupe)
            else:
                await transaction.commit(outcome.result)
            return True
    except TransportError:
        raise
    except ClaimLost as error:
        if transaction is None:
            raise
        outcome = Retry(error)
    except ZkmqError as error:
        outcome = Error(error)
    if transaction is not None:
        transaction.disown(claim.task.id)
        await transaction.rollback()
    await _give_up(claim, outcome)
    return False


async def _give_up(claim: AsyncClaim, outcome: Outcome) -> None:
    match outcome:
        case Snooze(delay):
            await claim.snooze(delay)
        case Retry(error, backoff):
            await claim.fail(error, backoff=backoff)
        case Error(error):
            await claim.fail(error, retry=False)
