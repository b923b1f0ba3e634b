"""The worker on an event loop: coroutines instead of threads, otherwise `Worker`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from ..core.model.policy import Retry
from ..core.model.selectors import Selector
from ..core.model.values import Duration, seconds
from ..core.tasks.outcome import Handled
from ..errors import QueueNotFound
from ..log import log
from ..protocols import AsyncWorkerClaim, AsyncWorkerQueue, AsyncWorkerTransaction
from .deliveries import NOT_BEGUN, Deliveries, Delivery, Handler, Method, Settled, WorkerOptions, check_handler
from .handling import (
    CANCEL_SECONDS,
    GIVE_UP_SECONDS,
    LEFT_SECONDS,
    MAINTENANCE_SECONDS,
    RETRY_SECONDS,
    AsyncHeartbeat,
    DeliveryResult,
    Monitor,
    RunningAsync,
    Tally,
    Working,
    all_of,
    end,
    is_cancelled,
    outcome_of,
    until,
    watching,
)

# --- What goes on on an event loop whatever becomes of who asked for it.

T = TypeVar("T")


class Background:
    """Keeps its tasks alive until they are done: an event loop itself does not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    def do(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def promise(self) -> asyncio.Future[None]:
        """Something that is done elsewhere: who waits for everything waits for that, too."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)
        return future

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something and wait for it; a cancellation ends the waiting only, and what goes wrong then is logged."""
        task = self.do(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log)
            raise

    async def wait(self, timeout: float) -> None:
        """Wait for everything, also for what begins meanwhile; what takes longer goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._tasks:
                    await asyncio.wait(set(self._tasks))


def _log(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("after a call was cancelled: %s", error)


#: For calls that belong to no worker.
OF_CALLS: Final = Background()

# --- `Settler` for coroutines: what does not end in time goes on in the background.


class AsyncSettler:
    """Settles deliveries; see `Settler`."""

    def __init__(self, deliveries: Deliveries[AsyncWorkerClaim, AsyncWorkerTransaction], tally: Tally) -> None:
        self.background = Background()
        self.later = set[asyncio.Future[None]]()
        """What was put down, and is not known to be settled."""
        self._deliveries = deliveries
        self._tally = tally

    async def begin(self, delivery: Delivery[AsyncWorkerClaim, AsyncWorkerTransaction]) -> bool:
        """Its handler is about to be called; False: it is not, since that cannot be said."""
        if delivery.claim.prefetched:
            try:
                await delivery.claim.begin()
            except Exception as error:  # noqa: BLE001  whatever it is: it is given back, which tells more
                log.warning("task %r is not begun: %s", delivery.claim.task.id, error)
                return False
        return True

    async def give_back(self, deliveries: list[Delivery[AsyncWorkerClaim, AsyncWorkerTransaction]]) -> None:
        """Settle what was claimed and whose handlers will not be called, all of it at once."""
        mine = [each for each in deliveries if self._deliveries.decide(each, NOT_BEGUN)]
        if mine:
            await asyncio.wait({self.background.do(self.settle(each)) for each in mine})

    async def settle(self, delivery: Delivery[AsyncWorkerClaim, AsyncWorkerTransaction]) -> None:
        """Settle, however long ZooKeeper is away while the session lives; no task's trouble ends the others."""
        try:
            while (delivery_result := await self._try(delivery)) is DeliveryResult.AGAIN:  # noqa: ASYNC110  the pause between two tries
                await asyncio.sleep(RETRY_SECONDS)
            if delivery_result is DeliveryResult.LATER:
                self.background.do(self._settle_left(delivery))
        finally:
            self._deliveries.drop(delivery)

    def settle_later(self, delivery: Delivery[AsyncWorkerClaim, AsyncWorkerTransaction]) -> None:
        """Settle together with others, without waiting for it; it is in hand until that is known."""
        loop, known = asyncio.get_running_loop(), self.background.promise()
        self.later.add(known)
        known.add_done_callback(self.later.discard)

        def done(success: bool, error: Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._finish, delivery, known, success, error)

        delivery.claim.settle_later(delivery.outcome or NOT_BEGUN, delivery.progress, done)

    def _finish(
        self,
        delivery: Delivery[AsyncWorkerClaim, AsyncWorkerTransaction],
        known: asyncio.Future[None],
        success: bool,
        error: Exception | None,
    ) -> None:
        if known.done():
            return  # told once more
        try:
            if error is None:
                self._tally.settled(delivery, success=success)
            elif self._tally.judge(delivery, error) is not DeliveryResult.LOST:
                self.background.do(self._settle_left(delivery))
        finally:
            self._deliveries.drop(delivery)
            known.set_result(None)

    async def _settle_left(self, delivery: Delivery[AsyncWorkerClaim, AsyncWorkerTransaction]) -> None:
        """What could not be settled by whatever means is tried again, while others are handled."""
        await asyncio.sleep(LEFT_SECONDS)
        delivery.progress.refusals = 0
        await self.settle(delivery)

    async def _try(self, delivery: Delivery[AsyncWorkerClaim, AsyncWorkerTransaction]) -> DeliveryResult:
        try:
            success = await delivery.ending().settle(delivery.outcome or NOT_BEGUN, delivery.progress)
        except Exception as error:  # noqa: BLE001  judged and reported, whatever it is; a cancellation is not
            return self._tally.judge(delivery, error)
        return self._tally.settled(delivery, success=success)


# --- `ClaimingWorker` on an event loop: its waiting ends at once when the worker is told to stop.

AsyncDelivery: TypeAlias = Delivery[AsyncWorkerClaim, AsyncWorkerTransaction]


class AsyncClaimingWorker(Working[AsyncWorkerClaim, AsyncWorkerTransaction]):
    """A worker as far as it asks for tasks; what it gets after it was told to stop, it gives back."""

    def __init__(self, queue: AsyncWorkerQueue, handler: Handler, options: WorkerOptions) -> None:
        super().__init__(queue, handler, options)
        self.queue = queue
        self._stopping = asyncio.Event()
        self._come = asyncio.Event()
        self._settler = AsyncSettler(self._deliveries, self._tally)
        self._heartbeat = AsyncHeartbeat(self._deliveries)
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
            self._log_absence(error, 0)

    async def _claim(self, *, idle: bool) -> AsyncDelivery | None:
        """Claim; None: there was nothing, or no queue, and it was waited for. Fast handlers: one does it for all."""
        if idle or not self._prefetched.fast:
            return await self._fill(idle=idle)
        async with self._filling:  # who had it may have waited for the queue, or for a server
            return None if self.stopping else self._prefetched.take() or await self._fill(idle=False)

    async def _fill(self, *, idle: bool) -> AsyncDelivery | None:
        """Claim, where handlers are fast more than one; the first of them is the caller's."""
        since = self._absence.ended
        self._come.clear()
        try:
            with self._prefetched.requesting(idle=idle):
                claims = await self._claim_within_limit(self._claim_timeout(idle=idle))
        except QueueNotFound as error:
            await self._await_queue(error, since)
            return None
        deliveries = [self._add(claim) for claim in claims]
        self._prefetched.put(deliveries[1:])
        if self._prefetched and self._prefetched.idle:  # who began to wait meanwhile takes of it
            self._come.set()
        return deliveries[0] if deliveries else None

    async def _claim_within_limit(self, timeout: float) -> Sequence[AsyncWorkerClaim]:
        most = self._budget.take(self._prefetched.room)
        claims: Sequence[AsyncWorkerClaim] = []
        try:
            if most:
                claims = await self._claim_unless_stopped(self._claim_many(most, timeout))
        finally:
            self._budget.put_back(most - len(claims))
        return claims

    async def _return(self, deliveries: list[AsyncDelivery]) -> None:
        """Give back what was prefetched and whose handlers will not be called."""
        self._budget.put_back(len(deliveries))
        await self._settler.give_back(deliveries)

    async def _claim_many(self, most: int, timeout: float) -> Sequence[AsyncWorkerClaim]:
        choice, lease = self._options.choice, self._options.lease
        if most > 1:
            return await self.queue.claim_many(most, **choice, lease=lease, timeout=timeout, prefetch=True)
        claim = await self.queue.claim(**choice, lease=lease, timeout=timeout)
        return [] if claim is None else [claim]

    async def _await_queue(self, error: QueueNotFound, since: int) -> None:
        """Wait for the queue to come, or the worker to be stopped."""
        self._log_absence(error, since)
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

    async def _claim_unless_stopped(
        self, requested: Coroutine[Any, Any, Sequence[AsyncWorkerClaim]]
    ) -> Sequence[AsyncWorkerClaim]:
        """Claim, and stop waiting when told to; what came too late for that, or for a cancellation, is given back."""
        claiming = asyncio.create_task(requested)
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

    async def _unclaim(self, claiming: asyncio.Task[Sequence[AsyncWorkerClaim]]) -> None:
        claiming.cancel()
        await asyncio.wait({claiming})
        if not claiming.cancelled() and claiming.exception() is None:
            await self._settler.give_back([self._add(claim) for claim in claiming.result()])

    def _add(self, claim: AsyncWorkerClaim) -> AsyncDelivery:
        transaction = claim.transaction() if self._options.transactional else None
        delivery = self._deliveries.add(claim, claim.span, transaction)
        self._heartbeat.wake()  # one more to extend
        return delivery


# --- Handling on an event loop: a task for the handler and one for the settling, so that a cancellation loses neither.


class AsyncHandling(AsyncClaimingWorker):
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
            ended_on_purpose = isinstance(error, asyncio.CancelledError) and is_cancelled()
            return self._deliveries.outlasted if ended_on_purpose else Retry(error)
        finally:
            delivery.claim.mark_ended()
            self._prefetched.handled(time.monotonic() - began)

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
        if done and self._prefetched.fast and delivery.transaction is None:
            self._settler.settle_later(delivery)
        else:
            await self._settler.settle(delivery)


# --- The worker on an event loop: coroutines instead of threads, otherwise `Worker`.


class AsyncWorker(AsyncHandling):
    """Claims tasks of one queue and awaits a handler on each; the parameters are those of `Worker`.

    `threads`: tasks in hand at once; 0: none, it only monitors. `monitor` may be a coroutine function, too, and
    `auto_start` needs a running event loop. `run`, `start` and `join` are awaited. `stop` lets running handlers finish
    within `grace` seconds; then they are cancelled, and as they have run their deliveries count: the tasks are retried
    or dead by their policies.
    """

    def __init__(
        self,
        queue: AsyncWorkerQueue,
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
        prefetch: int = 32,
        limit: int | None = None,
        on_settled: Settled | None = None,
        monitor: Monitor | None = None,
        auto_start: bool | float = False,
    ) -> None:
        options = WorkerOptions.of(
            threads=threads, node=node, filter_method=filter_method, selector=selector, grace=grace,
            transactional=transactional, lease=lease, heartbeat=heartbeat, throttle=throttle, prefetch=prefetch,
            limit=limit, on_settled=on_settled,
        )  # fmt: skip
        check_handler(handler, awaited=True)
        super().__init__(queue, handler, options)
        self._monitor = monitor
        self._started = False
        self._over = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        if auto_start is True and self._begin(until_empty=False):
            self._working = asyncio.get_running_loop().create_task(self._work())
        elif auto_start is not False:
            OF_CALLS.do(self._start_by_itself(seconds("auto_start", auto_start)))

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop` is called; `until_empty`: or until nothing that fits is left to claim.

        A queue that is not there yet is told of once, in the log, and waited for. Raises `ConfigError` for a selector
        that the queue refuses, and `QueueNotFound` with `until_empty`. Cancelled, it ends within a few seconds; what is
        in hand is settled as after the grace of a stop, in the background where ZooKeeper is away.
        """
        if self._begin(until_empty=until_empty):
            await self._work()
        await self.join()

    async def start(self, *, until_empty: bool = False) -> bool:
        """Begin in the background; False if it had been started already, or stopped. Raises what `run` does at once."""
        if not self._begin(until_empty=until_empty):
            return False
        try:
            await self._check_wanted()
        except BaseException:
            self._over.set()
            raise
        self._working = asyncio.create_task(self._work())
        return True

    def stop(self, *, forgive: bool = False) -> bool:
        """Claim nothing more. False if it was stopping already.

        `forgive`: what outlasts the grace is given back and counts no attempt: its handler ends with the process.
        """
        if forgive:
            self._deliveries.forgive()
        if self._stopping.is_set():
            return False
        self._stopping.set()
        return True

    async def join(self) -> None:
        """Wait until it has ended; after `stop`, handlers have `grace` seconds. Raises what ended it otherwise."""
        if self._started:
            await self._over.wait()
        self._stopping.set()
        if self._working is not None:
            await asyncio.wait({self._working})
            self._working.result()
        self._raise_what_ended_it()

    # --- from its beginning to its end

    def _begin(self, *, until_empty: bool) -> bool:
        if self._started or self._stopping.is_set():
            return False
        self._started, self._until_empty = True, until_empty
        self._log_start()
        return True

    async def _start_by_itself(self, delay: float) -> None:
        """Start after so many seconds, unless it is stopped before; what refuses that is raised by `join`."""
        await until(self._stopping, delay)
        try:
            await self.start()
        except Exception as error:  # noqa: BLE001  for whoever joins
            self._error = error

    async def _work(self) -> None:
        others: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in self._duties()]
        loops = [asyncio.create_task(self._loop()) for _ in range(self._options.threads)]
        try:
            await self._until_ended(loops, others)
        finally:
            try:
                await self._wind_up(loops, others)
            finally:
                self._over.set()
        for loop in loops:
            if loop.done() and not loop.cancelled():
                loop.result()

    def _duties(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What goes on beside the handling of tasks; none of it waits for another."""
        yield self._keep()
        if self._options.heartbeat:
            yield self._heartbeat.run()
        if self._monitor is not None:
            yield self._watch(self._monitor)

    async def _until_ended(self, loops: list[asyncio.Task[None]], others: list[asyncio.Task[Any]]) -> None:
        """Until every loop has ended, or the grace after a stop is over; without any, until the stop."""
        if not loops:
            await self._stopping.wait()
            return
        everything, stopped = asyncio.create_task(all_of(loops)), asyncio.create_task(self._stopping.wait())
        others += [everything, stopped]
        await asyncio.wait({everything, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not everything.done():
            await asyncio.wait({everything}, timeout=self.grace)

    async def _wind_up(self, loops: list[asyncio.Task[None]], others: list[asyncio.Task[Any]]) -> None:
        """End what still runs; heartbeats last, as they go on until everything in hand is settled."""
        try:
            await end(loops)
            self._settler.background.do(self._settler.give_back(self._prefetched.overdue(every=True)))
            await self._settler.background.wait(GIVE_UP_SECONDS)
        finally:
            for task in others:
                task.cancel()
        await end(others)

    # --- claiming

    async def _loop(self) -> None:
        idle = False
        while not (self._stopping.is_set() or self._has_enough()):
            try:
                busy = bool(self._deliveries)
                delivery = self._prefetched.take() or await self._claim(idle=idle)
            except Exception as error:  # noqa: BLE001  told apart in `_ended_by`
                if self._ended_by(error):
                    self.stop()
                    return
                idle = False
                await until(self._stopping, RETRY_SECONDS)
            else:
                idle = delivery is None
                self._looks.ended("nothing" if idle else "handled")
                if delivery is not None:
                    await self._handle(delivery)
                    await until(self._stopping, self._options.throttle)
                elif self._until_empty and not (busy or self._deliveries):  # else it may have come back meanwhile
                    return
        if self._settler.later:
            await asyncio.wait(set(self._settler.later), timeout=self.grace)

    # --- the keeper: it waits for no heartbeat, and none waits for it

    async def _keep(self) -> None:
        """Rescue and promote while every slot is busy."""
        while True:
            try:
                if self._busy():
                    await self.queue.run_maintenance()
            except Exception as error:  # noqa: BLE001  the next look may go well
                self._report_maintenance(error)
            await self._return(self._prefetched.overdue(every=self.stopping))
            await asyncio.sleep(self._prefetched.until_overdue(MAINTENANCE_SECONDS))

    async def _watch(self, monitor: Monitor) -> None:
        """Tell the monitor about once a second how the queue stands."""
        while True:
            await asyncio.sleep(MAINTENANCE_SECONDS)
            with watching(self.queue.name):
                answer = monitor(self._looks.poll(self.queue.name, await self._size()))
                if isinstance(answer, Awaitable):
                    await answer
