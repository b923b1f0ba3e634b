"""Workers: claim, run, settle, until told to stop."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine.core.inspect import Task
from airflow_provider_zkmq.engine.core.rescue import tend
from airflow_provider_zkmq.engine.core.selectors import Selector
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, TransportError, ZkmqError
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import log

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.queue import Claim, Method, Queue

Handler = Callable[[Task], Any]
IDLE_SECONDS = 30.0
RETRY_SECONDS = 0.5
BUSY_SECONDS = 0.5


class Worker:
    """Claims tasks of one queue and runs a handler on each.

    The handler gets the `Task`; what it returns (bytes, text or None) is the result; an exception fails the task,
    to be tried again by its retry policy. `threads`: tasks in hand at once. `node`, `filter_method`, `selector`: as
    for `Queue.claim`. `grace`: seconds that `stop` allows running handlers to finish before it gives their tasks
    back; a handler that goes on after that is fenced off and can settle nothing.
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
    ) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            msg = f"threads {threads!r} is not allowed: a whole number, 1 or more"
            raise ConfigError(msg)
        if not callable(handler) or inspect.iscoroutinefunction(handler):
            msg = f"handler {handler!r} is no plain function: give one that takes a task and returns its result"
            raise ConfigError(msg)
        self.queue = queue
        self.handler = handler
        self.grace = grace
        self.finished = 0
        self.failed = 0
        self._asked: dict[str, Any] = {"node": node, "filter_method": filter_method, "selector": selector}
        self._threads = [
            threading.Thread(target=self._loop, name=f"zkmq-worker-{n}", daemon=True) for n in range(threads)
        ]
        self._stopping = threading.Event()
        self._until_empty = False
        self._started = False
        self._error: BaseException | None = None
        self._in_hand: set[Claim] = set()
        self._lock = threading.Lock()

    def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop` is called; `until_empty`: or until nothing that fits is left to claim.

        Raises `ConfigError` for a selector that the queue refuses.
        """
        self.start(until_empty=until_empty)
        self.join()

    def start(self, *, until_empty: bool = False) -> bool:
        """Begin in the background; False if it had been started already."""
        with self._lock:
            if self._started:
                return False
            self._started = True
        self._until_empty = until_empty
        self._check_selector()
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._keep, name="zkmq-keeper", daemon=True).start()
        return True

    def _check_selector(self) -> None:
        from airflow_provider_zkmq.engine.queue import wanted

        asked = self._asked
        run(
            self.queue._session,  # noqa: SLF001  the two are one piece
            wanted(self.queue._context, asked["node"], asked["filter_method"], asked["selector"], None),  # noqa: SLF001
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
        """Wait until the worker has ended; after `stop`, handlers have `grace` seconds to finish."""
        deadline: float | None = None
        while any(thread.is_alive() for thread in self._threads):
            if self._stopping.is_set() and deadline is None:
                deadline = time.monotonic() + self.grace
            if deadline is not None and time.monotonic() >= deadline:
                break
            for thread in self._threads:
                if thread.is_alive():
                    thread.join(0.1)
                    break
        self._stopping.set()
        self._give_back()
        if self._error is not None:
            raise self._error

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
                    timeout=self._patience(),
                    stopping=self._stopping.is_set,
                )
                if claim is not None:
                    self._handle(claim)
                elif self._until_empty and not self._in_hand:
                    return
            except TransportError as error:
                log.warning("worker on queue %r: %s", self.queue.name, error)
                self._stopping.wait(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001  kept for `join`, which raises it
                self._error = error
                self._stopping.set()

    def _patience(self) -> float:
        """Seconds to wait for a task: to the end, unless the worker ends with the last one."""
        if not self._until_empty:
            return IDLE_SECONDS
        return BUSY_SECONDS if self._in_hand else 0.0

    def _handle(self, claim: Claim) -> None:
        with self._lock:
            self._in_hand.add(claim)
        try:
            self._run_one(claim)
        except ClaimLost as error:
            log.warning("task %r: %s", claim.task.id, error)
        finally:
            with self._lock:
                self._in_hand.discard(claim)

    def _run_one(self, claim: Claim) -> None:
        if self._stopping.is_set():
            claim.release()
            return
        try:
            result = self.handler(claim.task)
            if result is not None and not isinstance(result, bytes | str):
                msg = f"the handler returned {type(result).__name__}; a result is bytes, text or None"
                raise TypeError(msg)
        except Exception as error:  # noqa: BLE001  a handler's failure is the task's
            self.failed += 1
            log.info("task %r failed: %s", claim.task.id, error)
            claim.fail(f"{type(error).__name__}: {error}")
            return
        try:
            claim.complete(result)
        except ZkmqError as error:
            if isinstance(error, ClaimLost | TransportError):
                raise
            claim.fail(f"{type(error).__name__}: {error}", retry=False)  # a result that cannot be stored, say
            self.failed += 1
        else:
            self.finished += 1

    def _keep(self) -> None:
        """Rescue and promote while every thread is busy with a handler."""
        queue = self.queue
        context, session = queue._context, queue._session  # noqa: SLF001
        while not self._stopping.is_set() and any(thread.is_alive() for thread in self._threads):
            seen = context.signal.count
            try:
                if context.consumer is not None and len(self._in_hand) >= len(self._threads):
                    run(session, tend(context))
            except TransportError:
                self._stopping.wait(RETRY_SECONDS)
            except ZkmqError as error:
                log.warning("looking after queue %r: %s", queue.name, error)
            woken = threading.Event()
            if context.signal.on_next(seen, woken.set):  # type: ignore[attr-defined]
                woken.wait(1.0)
                context.signal.forget(woken.set)  # type: ignore[attr-defined]
