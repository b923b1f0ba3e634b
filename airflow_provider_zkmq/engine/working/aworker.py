"""The worker on an event loop: coroutines instead of threads, otherwise `Worker`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterator, Mapping
from typing import Any

from airflow_provider_zkmq.engine.core.model.durations import Duration, seconds
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.protocols import AsyncQueue
from airflow_provider_zkmq.engine.working.ahandling import AsyncHandling
from airflow_provider_zkmq.engine.working.background import OF_CALLS
from airflow_provider_zkmq.engine.working.monitoring import Monitor, watching
from airflow_provider_zkmq.engine.working.options import Handler, Method, Options, Settled, check_handler
from airflow_provider_zkmq.engine.working.pauses import all_of, end, until
from airflow_provider_zkmq.engine.working.rules import GIVE_UP_SECONDS, KEEPER_SECONDS
from airflow_provider_zkmq.engine.working.verdicts import RETRY_SECONDS


class AsyncWorker(AsyncHandling):
    """Claims tasks of one queue and awaits a handler on each; the parameters are those of `Worker`.

    `threads`: tasks in hand at once; 0: none, it only monitors. `monitor` may be a coroutine function, too, and
    `auto_start` needs a running event loop. `run`, `start` and `join` are awaited. `stop` lets running handlers finish
    within `grace` seconds; then they are cancelled, and as they have run their deliveries count: the tasks are retried
    or dead by their policies.
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
        prefetch: int = 32,
        limit: int | None = None,
        on_settled: Settled | None = None,
        monitor: Monitor | None = None,
        auto_start: bool | float = False,
    ) -> None:
        options = Options.of(
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
        self._tell_start()
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
            yield self._heart.beat()
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
            self._settler.background.do(self._settler.give_back(self._ahead.overdue(every=True)))
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
                delivery = self._ahead.take() or await self._claim(idle=idle)
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
                    await self.queue.look_after()
            except Exception as error:  # noqa: BLE001  the next look may go well
                self._report_keeper(error)
            await self._return(self._ahead.overdue(every=self.stopping))
            await asyncio.sleep(self._ahead.until_overdue(KEEPER_SECONDS))

    async def _watch(self, monitor: Monitor) -> None:
        """Tell the monitor about once a second how the queue stands."""
        while True:
            await asyncio.sleep(KEEPER_SECONDS)
            with watching(self.queue.name):
                telling = monitor(self._looks.poll(self.queue.name, await self._size()))
                if isinstance(telling, Awaitable):
                    await telling
