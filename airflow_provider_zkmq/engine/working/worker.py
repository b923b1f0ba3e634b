"""Workers: claim, run, settle, until told to stop."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine.core.model.durations import optional_seconds, seconds
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.tasks.outcome import settle_outcome
from airflow_provider_zkmq.engine.core.upkeep.rescue import tend
from airflow_provider_zkmq.engine.errors import ConfigError, ZkmqError
from airflow_provider_zkmq.engine.fronts.methods import Method, wanted
from airflow_provider_zkmq.engine.fronts.transaction import UnitOfWork, is_over
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, Deliveries, Delivery
from airflow_provider_zkmq.engine.working.handling import Handler, Running, call, check_options
from airflow_provider_zkmq.engine.working.heart import Heart
from airflow_provider_zkmq.engine.working.monitoring import Looks, Monitor, tell
from airflow_provider_zkmq.engine.working.settler import LEFT_SECONDS, RETRY_SECONDS, Settler
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import log

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.fronts.queue import Claim, Queue

IDLE_SECONDS = 30.0
BUSY_SECONDS = 0.5
KEEPER_SECONDS = 1.0
#: How long `join` waits beyond the grace for what is in hand to be settled.
GIVE_UP_SECONDS = 2.0


class Worker:
    """Claims tasks of one queue and runs a handler on each.

    The handler gets the task (`Running`); what it returns (bytes, text or None) is the result, or it returns
    `Success`, `Error`, `Retry` or `Snooze`; an exception fails the task, to be tried again by its retry policy.

    Args:
        queue: where the tasks come from.
        handler: a plain function.
        threads: tasks in hand at once; 0: none, the worker only monitors.
        node, filter_method, selector: what fits, as for `Queue.claim`.
        grace: seconds that `stop` allows running handlers to finish. A handler that goes on after that is fenced off
            and can settle nothing; its delivery counts as failed, so that its task is retried or dead by its policy.
        transactional: the handler gets the task and a `UnitOfWork` that has taken it, which is committed when the
            handler returns and rolled back when it raises.
        lease: seconds; claim with a lease, which outlives the session, instead of bound to it.
        heartbeat: extend locks and leases while their handlers run; without it a handler that takes longer than the
            lock loses its task, unless it extends it itself. What a transactional handler takes besides is not
            extended.
        throttle: seconds between two tasks of a thread.
        monitor: called about once a second with a `Poll`; see `monitor`.
        auto_start: start at once (True), or after so many seconds.

    Closing it (`stop`, `join`) does not close the connection.

    """

    def __init__(
        self,
        queue: Queue,
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
        monitor: Monitor | None = None,
        auto_start: bool | float = False,
    ) -> None:
        check_options(threads, 0, lease, transactional=transactional)
        if not callable(handler) or inspect.iscoroutinefunction(handler):
            msg = f"handler {handler!r} is no plain function: give one that takes a task and returns its result"
            raise ConfigError(msg)
        self.queue = queue
        self.handler = handler
        self.grace = grace
        self._asked: dict[str, Any] = {"node": node, "filter_method": filter_method, "selector": selector}
        self._lease = optional_seconds("lease", lease)
        self._throttle = seconds("throttle", throttle)
        self._transactional = transactional
        self._threads = [self._thread(self._loop, f"zkmq-worker-{n}") for n in range(threads)]
        self._keeper = self._thread(self._keep, "zkmq-keeper")
        self._others = [self._thread(self._beat, "zkmq-heart")] if threads and heartbeat else []
        if monitor is not None:
            self._others.append(self._thread(lambda: self._watch(monitor), "zkmq-monitor"))
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._wake = threading.Event()
        self._until_empty = False
        self._started = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._deliveries = Deliveries()
        self._settler = Settler(self._deliveries, self._settle_once, self._is_over)
        self._heart = Heart(self._deliveries)
        self._looks = Looks()
        if auto_start is not False:
            self._start_in(0.0 if auto_start is True else seconds("auto_start", auto_start))

    @property
    def finished(self) -> int:
        """How many tasks were completed."""
        return self._settler.finished

    @property
    def failed(self) -> int:
        """How many deliveries ended otherwise."""
        return self._settler.failed

    def _thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)

    def _guard(self, work: Callable[[], None]) -> None:
        """No thread of a worker ends silently, or before its time: whatever it met is logged, and it goes on."""
        while True:
            try:
                work()
            except BaseException:  # noqa: BLE001  also what was meant to end a thread
                log.exception("a thread of the worker on queue %r met an error and goes on", self.queue.name)
                time.sleep(RETRY_SECONDS)
            else:
                return

    def _start_in(self, delay: float) -> None:
        if delay == 0:
            self.start()
            return
        timer = threading.Timer(delay, self.start)
        timer.daemon = True
        timer.start()

    def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop` is called; `until_empty`: or until nothing that fits is left to claim.

        Raises `ConfigError` for a selector that the queue refuses.
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
        self._check_selector()
        for thread in (*self._threads, self._keeper, *self._others):
            thread.start()
        return True

    def _check_selector(self) -> None:
        asked, queue = self._asked, self.queue
        run(
            queue._session,  # noqa: SLF001  the two are one piece
            wanted(queue._context, asked["node"], asked["filter_method"], asked["selector"], None),  # noqa: SLF001
        )

    def stop(self) -> bool:
        """Claim nothing more; callable from a signal handler. False if it was stopping already."""
        if self._stopping.is_set():
            return False
        self._stopping.set()
        # The waiting threads are woken from another one: a signal handler may have interrupted the holder of a lock.
        threading.Thread(target=self.queue._context.signal.fire, daemon=True).start()  # noqa: SLF001
        return True

    def join(self) -> None:
        """Wait until the worker has ended; after `stop`, handlers have `grace` seconds to finish.

        Raises what ended it, if it was not `stop`.
        """
        deadline: float | None = None
        while (alive := self._alive()) is not None:
            if self._stopping.is_set() and deadline is None:
                deadline = time.monotonic() + self.grace
            if deadline is not None and time.monotonic() >= deadline:
                break
            alive.join(0.1)
        self._stopping.set()
        self._give_up()
        self._over.set()
        if self._error is not None:
            raise self._error

    def _alive(self) -> threading.Thread | None:
        """A thread that is still at work; of a worker without any, the keeper."""
        return next((thread for thread in self._threads or [self._keeper] if thread.is_alive()), None)

    def _goes_on(self) -> bool:
        return not self._stopping.is_set() and (not self._threads or self._alive() is not None)

    def _give_up(self) -> None:
        """Settle what handlers still hold; what they do with it afterwards is refused.

        Each in a thread of its own, which goes on where ZooKeeper is away for longer than we wait here.
        """
        for delivery in self._deliveries.in_hand():
            if self._deliveries.give_up(delivery):
                self._thread(lambda it=delivery: self._settler.settle(it), "zkmq-give-up").start()  # type: ignore[misc]
        if self._deliveries.wait_empty(GIVE_UP_SECONDS):
            self._settler.settle_left()
        else:
            log.warning("worker on queue %r: not everything in hand could be settled yet", self.queue.name)

    # --- the threads

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                claim = self.queue.claim(
                    **self._asked,
                    lease=self._lease,
                    timeout=self._patience(),
                    stopping=self._stopping.is_set,
                )
            except ConfigError as error:  # what was asked for; `join` raises it
                self._error = error
                self.stop()
            except Exception as error:  # noqa: BLE001  of the transport, or of something foreign in the queue
                if self.queue.closed:  # no other try would end otherwise; `join` raises it
                    self._error = error
                    self.stop()
                    return
                log.warning("worker on queue %r: %s", self.queue.name, error, exc_info=not isinstance(error, ZkmqError))
                self._looks.found("unavailable")
                self._stopping.wait(RETRY_SECONDS)
            else:
                self._looks.found("nothing" if claim is None else "handled")
                if claim is not None:
                    self._handle(claim)
                    self._stopping.wait(self._throttle)
                elif self._until_empty and not self._deliveries:
                    return

    def _patience(self) -> float:
        """Seconds to wait for a task: to the end, unless the worker ends with the last one."""
        if not self._until_empty:
            return IDLE_SECONDS
        return BUSY_SECONDS if self._deliveries else 0.0

    def _handle(self, claim: Claim) -> None:
        delivery = self._deliveries.add(claim, self._span(claim), self._begin(claim))
        self._heart.quicken()  # one more to extend
        begun = not self._stopping.is_set() and self._deliveries.begin(delivery)
        outcome = call(lambda: self._run(delivery)) if begun else NOT_BEGUN
        if self._deliveries.decide(delivery, outcome):
            self._settler.settle(delivery)

    def _span(self, claim: Claim) -> float | None:
        """For how many seconds a claim holds unless it is extended."""
        return claim._held.claim.get("lease")  # noqa: SLF001  the two are one piece

    def _begin(self, claim: Claim) -> UnitOfWork | None:
        """The transaction that the handler gets, with the claim in it."""
        if not self._transactional:
            return None
        transaction = self.queue._begin()  # noqa: SLF001
        transaction.adopt(self.queue.name, claim._held)  # noqa: SLF001
        return transaction

    def _run(self, delivery: Delivery) -> object:
        task = Running(delivery.claim)
        return self.handler(task) if delivery.transaction is None else self.handler(task, delivery.transaction)

    # --- settling

    def _settle_once(self, delivery: Delivery) -> bool:
        context, held, outcome = self.queue._context, delivery.claim._held, delivery.outcome or NOT_BEGUN  # noqa: SLF001
        if delivery.transaction is not None:
            return delivery.transaction.settle(context, held, outcome, delivery.progress)  # type: ignore[no-any-return]
        return run(self.queue._session, settle_outcome(context, held, outcome, None, delivery.progress))  # noqa: SLF001

    def _is_over(self, delivery: Delivery) -> bool:
        """Whether the session that holds the claim has ended: merely cut off, it still holds it."""
        return is_over(self.queue._session, delivery.claim._held)  # noqa: SLF001

    # --- the keeper, the heart and the monitor: none waits for another

    def _keep(self) -> None:
        """Look after the queue while every thread is busy: rescue, promote, settle what was left."""
        tried = time.monotonic()
        while self._goes_on():
            self._wake.clear()
            seen = self._seen()
            try:
                self._look_after()
            except ZkmqError as error:
                log.warning("looking after queue %r: %s", self.queue.name, error)
                self._stopping.wait(RETRY_SECONDS)
            if time.monotonic() - tried >= LEFT_SECONDS:
                self._settler.settle_left()
                tried = time.monotonic()
            self._doze(seen)

    def _seen(self) -> int:
        return self.queue._context.signal.count  # noqa: SLF001

    def _doze(self, seen: int) -> None:
        """Until something changes in the queue, but no longer than it takes for something to come due."""
        signal: Any = self.queue._context.signal  # noqa: SLF001
        if signal.on_next(seen, self._wake.set):
            self._wake.wait(KEEPER_SECONDS)
            signal.forget(self._wake.set)

    def _look_after(self) -> None:
        context, session = self.queue._context, self.queue._session  # noqa: SLF001
        if context.registration.consumer is not None and self._threads and len(self._deliveries) >= len(self._threads):
            run(session, tend(context))

    def _beat(self) -> None:
        """Until the last handler has returned or been given up, also after `stop`."""
        self._heart.beat(lambda: not self._over.is_set() and self._alive() is not None)

    def _watch(self, monitor: Monitor) -> None:
        while self._goes_on() and not self._stopping.wait(KEEPER_SECONDS):
            tell(monitor, self.queue.name, lambda: self.queue.counts()["inserted"], self._looks)
