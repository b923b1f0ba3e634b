"""Workers: claim, run, settle, until told to stop."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine.core.configure import optional_seconds, seconds
from airflow_provider_zkmq.engine.core.rescue import tend
from airflow_provider_zkmq.engine.core.selectors import Selector
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, SessionLost, TransportError, ZkmqError
from airflow_provider_zkmq.engine.fronts import Method, wanted
from airflow_provider_zkmq.engine.handling import Handler, call, settle
from airflow_provider_zkmq.engine.monitoring import Monitor, Poll
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import log

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.queue import Claim, Queue
    from airflow_provider_zkmq.engine.unit_of_work import UnitOfWork

IDLE_SECONDS = 30.0
RETRY_SECONDS = 0.5
BUSY_SECONDS = 0.5
KEEPER_SECONDS = 1.0


class Worker:
    """Claims tasks of one queue and runs a handler on each.

    The handler gets the task (`Running`); what it returns (bytes, text or None) is the result, or it returns
    `Success`, `Error`, `Retry` or `Snooze`; an exception fails the task, to be tried again by its retry policy.

    Args:
        queue: where the tasks come from.
        handler: a plain function.
        threads: tasks in hand at once; 0: none, the worker only monitors.
        node, filter_method, selector: what fits, as for `Queue.claim`.
        grace: seconds that `stop` allows running handlers to finish before it gives their tasks back; a handler
            that goes on after that is fenced off and can settle nothing.
        transactional: the handler gets the task and a `UnitOfWork` that has taken it, which is committed when the
            handler returns and rolled back when it raises.
        lease: seconds; claim with a lease, which outlives the session, instead of bound to it.
        heartbeat: extend locks and leases while their handlers run; without it a handler that takes longer than the
            lock loses its task, unless it extends it itself.
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
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
            msg = f"threads {threads!r} is not allowed: a whole number, 0 or more"
            raise ConfigError(msg)
        if not callable(handler) or inspect.iscoroutinefunction(handler):
            msg = f"handler {handler!r} is no plain function: give one that takes a task and returns its result"
            raise ConfigError(msg)
        if transactional and lease is not None:
            msg = "a transaction is bound to its session: give either transactional=True or lease=, not both"
            raise ConfigError(msg)
        self.queue = queue
        self.handler = handler
        self.grace = grace
        self.finished = 0
        self.failed = 0
        self._asked: dict[str, Any] = {"node": node, "filter_method": filter_method, "selector": selector}
        self._lease = optional_seconds("lease", lease)
        self._heartbeat = heartbeat
        self._throttle = seconds("throttle", throttle)
        self._monitor = monitor
        self._transactional = transactional
        self._threads = [
            threading.Thread(target=self._loop, name=f"zkmq-worker-{n}", daemon=True) for n in range(threads)
        ]
        self._keeper = threading.Thread(target=self._keep, name="zkmq-keeper", daemon=True)
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._wake = threading.Event()
        self._until_empty = False
        self._started = False
        self._error: BaseException | None = None
        self._in_hand: set[Claim] = set()
        self._beaten: dict[Claim, float] = {}
        self._dry_runs = 0
        self._last = "nothing"
        self._lock = threading.Lock()
        if auto_start is not False:
            self._start_in(0.0 if auto_start is True else seconds("auto_start", auto_start))

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
        for thread in (*self._threads, self._keeper):
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
        self._over.set()
        self._give_back()
        if self._error is not None:
            raise self._error

    def _alive(self) -> threading.Thread | None:
        """A thread that is still at work; of a worker without any, the keeper."""
        return next((thread for thread in self._threads or [self._keeper] if thread.is_alive()), None)

    def _give_back(self) -> None:
        """Release what handlers still hold; what they do with it afterwards is refused."""
        for claim in list(self._in_hand):
            try:
                claim.release()
            except ZkmqError as error:
                log.info("giving back %r: %s", claim.task.id, error)

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
                self._looked("nothing" if claim is None else "handled")
                if claim is not None:
                    self._handle(claim)
                    self._stopping.wait(self._throttle)
                elif self._until_empty and not self._in_hand:
                    return
            except TransportError as error:
                log.warning("worker on queue %r: %s", self.queue.name, error)
                self._looked("unavailable")
                self._stopping.wait(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001  kept for `join`, which raises it
                self._error = error
                self._stopping.set()

    def _looked(self, found: str) -> None:
        self._last = found
        self._dry_runs = 0 if found == "handled" else self._dry_runs + 1

    def _patience(self) -> float:
        """Seconds to wait for a task: to the end, unless the worker ends with the last one."""
        if not self._until_empty:
            return IDLE_SECONDS
        return BUSY_SECONDS if self._in_hand else 0.0

    def _handle(self, claim: Claim) -> None:
        with self._lock:
            self._in_hand.add(claim)
            self._beaten[claim] = time.monotonic()
        self._wake.set()  # the keeper has one more to extend
        try:
            self._run_one(claim)
        except (ClaimLost, TransportError) as error:
            log.warning("task %r: %s", claim.task.id, error)
        finally:
            with self._lock:
                self._in_hand.discard(claim)
                self._beaten.pop(claim, None)

    def _run_one(self, claim: Claim) -> None:
        if self._stopping.is_set():
            claim.release()
            return
        transaction = self._transaction(claim)
        outcome = call(claim, self.handler, transaction)
        good = self._settle(lambda: settle(claim, outcome, transaction))
        with self._lock:
            self.finished += good
            self.failed += not good
        if not good:
            log.info("task %r: %s", claim.task.id, outcome)

    def _transaction(self, claim: Claim) -> UnitOfWork | None:
        """Begin the transaction that the handler gets, with the claim in it."""
        if not self._transactional:
            return None
        transaction = self.queue._begin()  # noqa: SLF001  the two are one piece
        transaction.adopt(self.queue.name, claim._held)  # noqa: SLF001
        return transaction

    def _settle(self, settle_once: Callable[[], bool]) -> bool:
        """Settle, however long ZooKeeper is away while the session lives: what was done must not be done again.

        Raises `TransportError` once the grace of a stop is over.
        """
        while True:
            try:
                return settle_once()
            except SessionLost:
                raise
            except TransportError as error:
                if self._over.wait(RETRY_SECONDS):
                    raise
                log.warning("worker on queue %r: %s; trying again", self.queue.name, error)

    # --- the keeper

    def _keep(self) -> None:
        """Look after the queue while every thread is busy: rescue, promote, extend, monitor."""
        context = self.queue._context  # noqa: SLF001
        monitored = time.monotonic()
        while not self._stopping.is_set() and (not self._threads or self._alive() is not None):
            self._wake.clear()
            seen = context.signal.count
            try:
                self._look_after()
                if self._monitor is not None and time.monotonic() - monitored >= KEEPER_SECONDS:
                    monitored = time.monotonic()
                    self._tell(self._monitor)
            except TransportError:
                self._stopping.wait(RETRY_SECONDS)
            except ZkmqError as error:
                log.warning("looking after queue %r: %s", self.queue.name, error)
            if context.signal.on_next(seen, self._wake.set):  # type: ignore[attr-defined]
                self._wake.wait(self._until_next_beat())
                context.signal.forget(self._wake.set)  # type: ignore[attr-defined]

    def _look_after(self) -> None:
        queue = self.queue
        context, session = queue._context, queue._session  # noqa: SLF001
        if context.consumer is not None and self._threads and len(self._in_hand) >= len(self._threads):
            run(session, tend(context))
        for claim, due, span in self._beats():
            if due <= time.monotonic():
                self._beat(claim, span)

    def _beats(self) -> list[tuple[Claim, float, float]]:
        """Which claims are to be extended, when next (a third of their span after the last time), and by how much."""
        if not self._heartbeat:
            return []
        spans = [(claim, beaten, claim._held.claim.get("lease")) for claim, beaten in list(self._beaten.items())]  # noqa: SLF001
        return [(claim, beaten + span / 3, span) for claim, beaten, span in spans if span and not claim.settled]

    def _until_next_beat(self) -> float:
        nearest = min((due for _, due, _ in self._beats()), default=time.monotonic() + KEEPER_SECONDS)
        return min(KEEPER_SECONDS, max(0.05, nearest - time.monotonic()))

    def _beat(self, claim: Claim, span: float) -> None:
        try:
            claim.extend(span)
        except ClaimLost as error:
            log.warning("task %r: %s", claim.task.id, error)
        with self._lock:
            if claim in self._beaten:
                self._beaten[claim] = time.monotonic()

    def _tell(self, monitor: Monitor) -> None:
        size = self.queue.counts()["inserted"]
        try:
            monitor(Poll(self.queue.name, size, self._dry_runs, self._last))
        except Exception:  # noqa: BLE001  a monitor that fails must not end the work
            log.exception("the monitor of queue %r failed", self.queue.name)
