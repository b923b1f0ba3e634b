"""The worker with threads: claim, run a handler, settle, until told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from ..core.model.handler_outcomes import Handled, Retry
from ..coroutine_runners import run_blocking
from ..errors import ZkmqError
from ..log import log
from . import worker_base
from .held_deliveries import NOT_BEGUN, Delivery
from .interfaces import BlockingWorkerQueue, WorkerClaim


class ThreadSettler(worker_base.Settler):
    """Settles deliveries in the thread that it is called from."""

    def settle_later(self, delivery: Delivery) -> None:
        """Settle together with others, without waiting for it; it is in hand until that is known."""
        delivery.claim.settle_later(delivery.outcome or NOT_BEGUN, delivery.progress, partial(self.settled, delivery))

    async def settle_left(self) -> None:
        """Try once more what could not be settled."""
        for delivery in self._deliveries.take_left():
            delivery.progress.refusals = 0
            if await self.attempt(delivery) in {worker_base.DeliveryResult.AGAIN, worker_base.DeliveryResult.LATER}:
                self.leave(delivery)


class Worker(worker_base.Working[BlockingWorkerQueue]):
    """Claims tasks of one queue and runs a handler on each.

    The handler gets the task (`Running`); what it returns (bytes, text or None) is the result, or it returns
    `Success`, `Error`, `Retry` or `Snooze`; an exception fails the task, to be tried again by its retry policy.

    Args:
        queue: where the tasks come from.
        handler: a plain function.
        threads: tasks in hand at once; 0: none, the worker only monitors.
        node, filter_method, selector: what fits, as for `Queue.claim`.
        grace: how long `stop` lets running handlers finish. A handler that goes on after that is fenced off
            and can settle nothing; its delivery counts as failed, so that its task is retried or dead by its policy.
        transactional: the handler gets the task and a `UnitOfWork` that has taken it, which is committed when the
            handler returns and rolled back when it raises.
        lease: claim with a lease of so long, which outlives the session, instead of bound to it.
        heartbeat: extend locks and leases while their handlers run; without it a handler that takes longer than the
            lock loses its task, unless it extends it itself. What a transactional handler takes besides is not
            extended.
        throttle: the pause between two tasks of a thread.
        prefetch: so many tasks at the most are prefetched, in groups of about 50 ms of work: none until handlers are
            known to be as fast as that, none in transactions, with a throttle or without heartbeats. What no handler
            has begun counts no attempt, whatever becomes of the worker, and is given back after a second. Where several
            are claimed together, they are settled together, too: at the latest 50 ms after their handlers are done.
        limit: handle so many tasks at the most, and end.
        task_timeout: the attempt of a handler that takes longer has failed, which is settled at once: what the handler
            does with the task afterwards is refused. A thread cannot be ended: it is at work until the handler returns
            (`stuck`), and the worker has one thread less until then. A handler can look at ``task.lost``, and end.
        on_settled: called, in whichever thread, with each task that was handled and the outcome that it was settled by;
            None instead where its claim was lost. It must not block.
        monitor: called about once a second with a `Poll`; see `monitor`.
        auto_start: start at once (True), or after so long.

    Closing it (`stop`, `join`) does not close the connection.

    """

    _calls = worker_base.BlockingCalls()
    _settler: ThreadSettler
    _stopping: threading.Event

    def _set_up(self) -> None:
        self._settler = ThreadSettler(self._deliveries, self._tally, self._calls)
        self._filling, self._lock = threading.Lock(), threading.Lock()
        self._threads = [self._thread(self._work, f"zkmq-worker-{n}") for n in range(self._thread_count)]
        self._maintenance = self._thread(self._keep, "zkmq-keeper")
        self._others = (
            [self._thread(self._run_heartbeat, "zkmq-heartbeat")] if self._thread_count and self._extends else []
        )
        if self._task_timeout is not None:
            self._others.append(self._thread(partial(self._time_out, self._task_timeout), "zkmq-timeout"))
        if self._monitor is not None:
            self._others.append(self._thread(partial(self._watch, self._monitor), "zkmq-monitor"))

    def _start_after(self, delay: float | None) -> None:
        if not delay:
            self.start()
            return
        timer = threading.Timer(delay, self.start)
        timer.daemon = True
        timer.start()

    def _thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        """A thread of the worker, not started yet. It never ends silently, or before its time."""

        def guard() -> None:
            while True:
                try:
                    work()
                except BaseException:  # noqa: BLE001  also what was meant to end a thread
                    log.exception("a thread of the worker on queue %r met an error and goes on", self.queue.name)
                    time.sleep(worker_base.RETRY_SECONDS)
                else:
                    return

        return threading.Thread(target=guard, name=name, daemon=True)

    def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop` is called; `until_empty`: or until nothing that fits is left to claim.

        A queue that is not there yet is logged once, and waited for. Raises `ConfigError` for a selector
        that the queue refuses, and `QueueNotFound` with `until_empty`.
        """
        self.start(until_empty=until_empty)
        self.join()

    def start(self, *, until_empty: bool = False) -> bool:
        """Begin in the background; False if it had been started already, or stopped."""
        with self._lock:
            if self._started or self._stopping.is_set():
                return False
            self._started = True
        self._until_empty = until_empty
        run_blocking(self._check_wanted())
        self._log_start()
        for thread in (*self._threads, self._maintenance, *self._others):
            thread.start()
        return True

    def stop(self, *, forgive: bool = False) -> bool:
        """Claim nothing more; callable from a signal handler. False if it was stopping already.

        `forgive`: what outlasts the grace is given back and counts no attempt: its handler ends with the process.
        """
        if not super().stop(forgive=forgive):
            return False
        # The waiting threads are woken from another one: a signal handler may have interrupted the holder of a lock.
        threading.Thread(target=self._internals.wake, daemon=True).start()
        return True

    def join(self) -> None:
        """Wait until it has ended; after `stop`, handlers have `grace` seconds. Raises what ended it otherwise."""
        deadline: float | None = None
        while (alive := self._alive()) is not None:
            if self._stopping.is_set() and deadline is None:
                deadline = time.monotonic() + self.grace
            if deadline is not None and time.monotonic() >= deadline:
                break
            alive.join(0.1)
        self._stopping.set()
        if alive is None:  # what was handled last may be on its way still
            self._deliveries.wait_empty(self.grace if deadline is None else max(0.0, deadline - time.monotonic()))
        # What handlers still have in hand is settled; what they do with it afterwards is refused. Each has a thread of
        # its own, which goes on where ZooKeeper is away for longer than we wait here.
        for delivery in self._deliveries.held():
            if self._deliveries.give_up(delivery):
                self._thread(partial(self._settle, delivery), "zkmq-give-up").start()
        if self._deliveries.wait_empty(worker_base.GIVE_UP_SECONDS):
            run_blocking(self._settler.settle_left())
        else:
            log.warning("worker on queue %r: not everything in hand could be settled yet", self.queue.name)
        self._over.set()
        if self._absence.noticed:
            self._internals.wake()  # whoever waits for the queue still
        if self._error is not None:
            raise self._error

    def _alive(self) -> threading.Thread | None:
        """A thread that is still at work; of a worker without any, the keeper. A stop waits for no stuck handler."""
        alive = [thread for thread in self._threads or [self._maintenance] if thread.is_alive()]
        ends = self.stopping or len(alive) < len(self._threads) or self._budget.left == 0
        return None if not alive or (ends and len(alive) <= self._deliveries.stuck) else alive[0]

    def _goes_on(self) -> bool:
        return not self._stopping.is_set() and (not self._threads or self._alive() is not None)

    def _settle(self, delivery: Delivery) -> None:
        run_blocking(self._settler.settle(delivery))

    def _work(self) -> None:
        """What one thread does."""
        run_blocking(self._loop())
        if self.stopping:  # what came after the stop, behind the keeper's back: nobody may ever join
            run_blocking(self._return(self._prefetched.overdue(every=True)))

    async def _claim_for_all(self) -> Delivery | None:
        with self._filling:  # released whatever an exception that another thread sends falls on
            return await self._take_or_fill()

    async def _request(self, most: int, timeout: float) -> Sequence[WorkerClaim]:
        return await self._claim_many(most, timeout, stopping=lambda: self.stopping or bool(self._prefetched))

    async def _queue_comes(self) -> bool:
        return self.queue.exists(None, stopping=self._stopping.is_set) is True

    def _wake_idle(self) -> None:
        self._internals.wake()

    async def _handle(self, delivery: Delivery) -> None:
        """Run the handler and settle; where handlers are fast, together with others."""
        begun = not self.stopping and await self._settler.begin(delivery) and self._deliveries.begin(delivery)
        outcome = self._run(delivery) if begun else self._unbegun()
        if not self._deliveries.decide(delivery, outcome):
            if self._deliveries.returned(delivery):
                seconds = time.monotonic() - (delivery.began or 0.0)
                delivery.log(logging.WARNING, "the handler that was timed out has ended, after %.1f s", seconds)
            return
        if self._prefetched.fast and delivery.transaction is None:
            self._settler.settle_later(delivery)
        else:
            await self._settler.settle(delivery)

    def _run(self, delivery: Delivery) -> Handled:
        """Call the handler; whatever it raises is an outcome, too, and ends no thread."""
        try:
            task, began = worker_base.Running(delivery.claim), time.monotonic()
            more = () if delivery.transaction is None else (delivery.transaction,)
            try:
                with worker_base.one_process():
                    returned = self.handler(task, *more)
            finally:
                delivery.claim.mark_ended()
                self._prefetched.handled(time.monotonic() - began)
            return worker_base.outcome_of(returned)
        except BaseException as error:  # noqa: BLE001  a handler's failure is the task's
            return Retry(error)

    # --- maintenance, heartbeat and monitor: none waits for another

    def _keep(self) -> None:
        """Look after the queue while every thread is busy: rescue, promote, settle what was left."""
        tried = time.monotonic()
        while self._goes_on():
            seen = self._internals.changes
            self._log_lost()
            try:
                if self._busy():
                    self._internals.run_maintenance()
            except ZkmqError as error:
                self._warn("looking after queue", error)
                self._stopping.wait(worker_base.RETRY_SECONDS)
            if time.monotonic() - tried >= worker_base.LEFT_SECONDS:
                run_blocking(self._settler.settle_left())
                tried = time.monotonic()
            run_blocking(self._return(self._prefetched.overdue()))
            # No longer than it takes for something to come due.
            self._internals.wait_for_change(seen, self._prefetched.until_overdue(worker_base.MAINTENANCE_SECONDS))
        run_blocking(self._return(self._prefetched.overdue(every=True)))

    def _run_heartbeat(self) -> None:
        """Until the last handler has returned and what it did is settled, or was given up, also after `stop`."""
        wanted = lambda: not self._over.is_set() and (self._alive() is not None or bool(self._deliveries))  # noqa: E731
        run_blocking(self._keep_extending(wanted))

    def _time_out(self, span: float) -> None:
        """Fail what takes too long. Each is settled by a thread of its own, as its handler has the worker's."""
        while not self._over.is_set() and (self._alive() is not None or self._deliveries):
            for delivery in self._deliveries.overtime(span):
                if self._deliveries.time_out(delivery, span):
                    self._thread(partial(self._settle, delivery), "zkmq-timed-out").start()
                    if self.stuck >= self._thread_count:
                        message = "worker on queue %r: every thread is with a handler that was timed out; none is free"
                        log.error(message, self.queue.name, extra={"queue": self.queue.name})
            self._over.wait(self._deliveries.seconds_until_overtime(span, worker_base.MAINTENANCE_SECONDS))

    def _watch(self, monitor: worker_base.Monitor) -> None:
        while self._goes_on() and not self._stopping.wait(worker_base.MAINTENANCE_SECONDS):
            with worker_base.watching(self.queue.name):
                monitor(self._poll(run_blocking(self._size())))
