"""The worker on an event loop: coroutines instead of threads, otherwise `Worker`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from ..core.model.handler_outcomes import Handled, Retry
from ..coroutine_runners import OF_CALLS, Background
from . import worker_base
from .held_deliveries import NOT_BEGUN, Deliveries, Delivery
from .interfaces import WorkerClaim, WorkerQueue

#: How long a cancelled task is waited for, and how often it is told again to end.
CANCEL_SECONDS: Final = 1.0
MOST_CANCELLATIONS: Final = 3

# --- What goes on on an event loop whatever becomes of who asked for it.

T = TypeVar("T")


class LoopSettler(worker_base.Settler):
    """Settles deliveries; what does not end in time goes on in the background."""

    def __init__(self, deliveries: Deliveries, tally: worker_base.Tally, calls: worker_base.BlockingCalls) -> None:
        super().__init__(deliveries, tally, calls)
        self.background = Background()
        self.later = set[asyncio.Future[None]]()
        """What is settled together with others, and is not known to be settled."""

    async def give_back(self, deliveries: list[Delivery]) -> None:
        """Settle what was claimed and whose handlers will not be called, all of it at once."""
        mine = [each for each in deliveries if self._deliveries.decide(each, NOT_BEGUN)]
        if mine:
            await asyncio.wait({self.background.do(self.settle(each)) for each in mine})

    def settle_later(self, delivery: Delivery) -> None:
        """Settle together with others, without waiting for it; it is in hand until that is known."""
        loop, known = asyncio.get_running_loop(), self.background.promise()
        self.later.add(known)
        known.add_done_callback(self.later.discard)

        def finish(success: bool, error: Exception | None) -> None:
            if not known.done():  # else it is called once more
                try:
                    self.settled(delivery, success, error)
                finally:
                    known.set_result(None)

        def done(success: bool, error: Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                loop.call_soon_threadsafe(finish, success, error)

        delivery.claim.settle_later(delivery.outcome or NOT_BEGUN, delivery.progress, done)

    def leave(self, delivery: Delivery) -> None:
        """It is tried again in the background."""

        async def settle_left() -> None:
            await asyncio.sleep(worker_base.LEFT_SECONDS)
            delivery.progress.refusals = 0
            await self.settle(delivery)

        self.background.do(settle_left())


async def end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended; one that swallows a cancellation gets another, and is then left alone."""
    for _ in range(MOST_CANCELLATIONS):
        pending = {task for task in tasks if not task.done()}
        if not pending:
            return
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_SECONDS)


class AwaitedCalls(worker_base.BlockingCalls):
    """Awaits on the running event loop, which cancellations and interrupts are to end."""

    judged = Exception
    event = asyncio.Event
    awaited = True

    async def result(self, call: Any) -> Any:
        """Await it."""
        return await call

    async def wait(self, event: Any, seconds: float) -> None:
        """Wait for an event, so many seconds at the most; a cancellation is never swallowed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def sleep(self, seconds: float) -> None:
        """Let others go on."""
        await asyncio.sleep(seconds)


class AsyncWorker(worker_base.Working[WorkerQueue]):
    """Claims tasks of one queue and awaits a handler on each; the parameters are those of `Worker`.

    `threads`: tasks in hand at once; 0: none, it only monitors. `monitor` may be a coroutine function, too, and
    `auto_start` needs a running event loop. `run`, `start` and `join` are awaited. `stop` lets running handlers finish
    within `grace` seconds; then they are cancelled, and as they have run their deliveries count: the tasks are retried
    or dead by their policies. A handler that takes longer than `task_timeout` is cancelled, too; one that swallows this
    goes on, fenced off, beside the others (`stuck`).
    """

    _calls = AwaitedCalls()
    _settler: LoopSettler
    _stopping: asyncio.Event

    def _set_up(self) -> None:
        self._settler = LoopSettler(self._deliveries, self._tally, self._calls)
        self._filling, self._come = asyncio.Lock(), asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    def _start_after(self, delay: float | None) -> None:
        async def start() -> None:
            await self._calls.wait(self._stopping, delay or 0.0)
            try:
                await self.start()
            except Exception as error:  # noqa: BLE001  for whoever joins
                self._error = error

        if delay is not None:
            OF_CALLS.do(start())
        elif self._begin(until_empty=False):
            self._working = asyncio.get_running_loop().create_task(self._work())

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop` is called; `until_empty`: or until nothing that fits is left to claim.

        A queue that is not there yet is logged once, and waited for. Raises `ConfigError` for a selector
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

    async def join(self) -> None:
        """Wait until it has ended; after `stop`, handlers have `grace` seconds. Raises what ended it otherwise."""
        if self._started:
            await self._over.wait()
        self._stopping.set()
        if self._working is not None:
            await asyncio.wait({self._working})
            self._working.result()
        if self._error is not None:
            raise self._error

    def _begin(self, *, until_empty: bool) -> bool:
        if self._started or self._stopping.is_set():
            return False
        self._started, self._until_empty = True, until_empty
        self._log_start()
        return True

    async def _work(self) -> None:
        """From its beginning to its end. What goes on beside the handling of tasks waits for nothing of the others."""
        duties: list[Coroutine[Any, Any, None]] = [self._keep()]
        if self._extends:
            duties.append(self._keep_extending(lambda: True))
        if self._monitor is not None:
            duties.append(self._watch(self._monitor))
        others: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in duties]
        loops = [asyncio.create_task(self._loop()) for _ in range(self._thread_count)]
        try:
            if not loops:
                await self._stopping.wait()
            else:  # until every loop has ended, or the grace after a stop is over
                everything = asyncio.create_task(asyncio.wait(loops))
                stopped = asyncio.create_task(self._stopping.wait())
                others += [everything, stopped]
                await asyncio.wait({everything, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not everything.done():
                    await asyncio.wait({everything}, timeout=self.grace)
        finally:
            try:
                try:
                    await end(loops)
                    self._settler.background.do(self._settler.give_back(self._prefetched.overdue(every=True)))
                    await self._settler.background.wait(worker_base.GIVE_UP_SECONDS)
                finally:  # heartbeats last: they go on until everything in hand is settled
                    for task in others:
                        task.cancel()
                await end(others)
            finally:
                self._over.set()
        for loop in loops:
            if loop.done() and not loop.cancelled():
                loop.result()

    # --- claiming: the waiting ends at once when the worker is told to stop; what comes after that is given back

    async def _loop(self) -> bool:
        good = await super()._loop()
        if good and self._settler.later:
            await asyncio.wait(set(self._settler.later), timeout=self.grace)
        return good

    async def _claim_for_all(self) -> Delivery | None:
        async with self._filling:
            return await self._take_or_fill()

    async def _request(self, most: int, timeout: float) -> Sequence[WorkerClaim]:
        """Claim, and stop waiting when told to; what came too late for that, or for a cancellation, is given back."""
        self._come.clear()
        claiming = asyncio.create_task(self._claim_many(most, timeout))
        try:
            await self._unless_stopped(claiming, self._come)
        except asyncio.CancelledError:
            self._settler.background.do(self._unclaim(claiming))
            raise
        if claiming.done():
            return () if claiming.cancelled() else claiming.result()
        await self._settler.background.to_its_end(self._unclaim(claiming))
        return ()

    async def _queue_comes(self) -> bool:
        coming = asyncio.create_task(self.queue.exists(None))
        try:
            return bool(await self._unless_stopped(coming))
        finally:
            coming.cancel()

    def _wake_idle(self) -> None:
        self._come.set()

    async def _unless_stopped(self, task: asyncio.Task[T], *others: asyncio.Event) -> T | None:
        """The result of a task, if it comes to one before the worker is told to stop, or one of the others is set."""
        ends = [asyncio.create_task(event.wait()) for event in (self._stopping, *others)]
        try:
            await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        return task.result() if task.done() and not task.cancelled() else None

    async def _unclaim(self, claiming: asyncio.Task[Sequence[WorkerClaim]]) -> None:
        claiming.cancel()
        await asyncio.wait({claiming})
        if not claiming.cancelled() and claiming.exception() is None:
            await self._settler.give_back([self._add(claim) for claim in claiming.result()])

    # --- handling: a task for the handler and one for the settling, so that a cancellation loses neither

    async def _handle(self, delivery: Delivery) -> None:
        """Run the handler and settle; where handlers are fast, together with others."""
        calling = asyncio.create_task(self._call(delivery))
        try:
            await self._within_timeout(delivery, calling)
        finally:  # also when cancelled
            settling = self._settler.background.do(self._end_delivery(delivery, calling))
        await asyncio.shield(settling)

    async def _within_timeout(self, delivery: Delivery, calling: asyncio.Task[Handled]) -> None:
        """Wait for the handler; one that takes too long is timed out, and cancelled by whoever settles it."""
        left = span = self._task_timeout
        while not calling.done():
            await asyncio.wait({calling}, timeout=left)
            if span is None or calling.done():
                return
            began = delivery.began  # None: that the handler begins is still being written
            left = span if began is None else began + span - time.monotonic()
            if left <= 0:
                self._deliveries.time_out(delivery, span)
                return

    async def _call(self, delivery: Delivery) -> Handled:
        if self._stopping.is_set() or not (await self._settler.begin(delivery) and self._deliveries.begin(delivery)):
            return self._unbegun()
        began = time.monotonic()
        try:
            task = worker_base.RunningAsync(delivery.claim)
            more = () if delivery.transaction is None else (delivery.transaction,)
            with worker_base.one_process():
                returned = await self.handler(task, *more)
            return worker_base.outcome_of(returned)
        except KeyboardInterrupt as error:
            if threading.current_thread() is threading.main_thread():
                raise  # meant for the program
            return Retry(error)
        except BaseException as error:  # noqa: BLE001  a handler's failure is the task's
            me = asyncio.current_task()
            ended_on_purpose = me is not None and me.cancelling() > 0
            if isinstance(error, asyncio.CancelledError) and ended_on_purpose:
                return self._deliveries.outlasted
            return Retry(error)
        finally:
            delivery.claim.mark_ended()
            self._prefetched.handled(time.monotonic() - began)
            self._deliveries.returned(delivery)

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
        if done and self._prefetched.fast and delivery.transaction is None:
            self._settler.settle_later(delivery)
        else:
            await self._settler.settle(delivery)

    # --- the keeper: it waits for no heartbeat, and none waits for it

    async def _keep(self) -> None:
        """Rescue and promote while every slot is busy."""
        while True:
            self._log_lost()
            try:
                if self._busy():
                    await self._internals.run_maintenance()
            except Exception as error:  # noqa: BLE001  the next look may go well
                self._warn("looking after queue", error)
            await self._return(self._prefetched.overdue(every=self.stopping))
            await asyncio.sleep(self._prefetched.until_overdue(worker_base.MAINTENANCE_SECONDS))

    async def _watch(self, monitor: worker_base.Monitor) -> None:
        """Tell the monitor about once a second how the queue stands."""
        while True:
            await asyncio.sleep(worker_base.MAINTENANCE_SECONDS)
            with worker_base.watching(self.queue.name):
                answer = monitor(self._poll(await self._size()))
                if isinstance(answer, Awaitable):
                    await answer
