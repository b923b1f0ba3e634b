"""Clean-up in the background: every producer and consumer takes its turn, unless it opted out.

zkmq's seed has each producer collect garbage at ``conf/task_gc_interval``. Here the time of the last run stands in
ZooKeeper, so that N processes do the work of one.
"""

from __future__ import annotations

import random
import threading
import time

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.upkeep.collect import collect_if_due
from airflow_provider_zkmq.engine.errors import ZkmqError
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import Session

MIN_PAUSE = 0.2
FIRST_LOOK = 1.0
#: The pause after a look whose queue could not tell its interval.
ERROR_PAUSE = 60.0


class Upkeep:
    """A daemon thread that collects the garbage of the queues its client uses. Started by the first use.

    One lock guards the table of queues and the thread; no request is sent under it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._due: dict[str, tuple[float, Context]] = {}
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, context: Context) -> None:
        """Look after this queue from now on; the first look comes one interval from now."""
        with self._lock:
            if context.queue in self._due:
                return
            self._due[context.queue] = (time.monotonic() + FIRST_LOOK, context)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="zkmq-upkeep", daemon=True)
                self._thread.start()
        self._wake.set()

    def stop(self, patience: float) -> None:
        """End the thread; a clean-up under way is finished first, if that takes no longer than so many seconds."""
        self._stopped.set()
        self._wake.set()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=patience)

    def _loop(self) -> None:
        """Until the end: whatever a look met is logged, and the next one comes."""
        seen: set[str] = set()
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                pause = self._round(seen)
            except BaseException:  # noqa: BLE001  the thread must not end silently
                log.exception("clean-up in the background met an error and goes on")
                pause = ERROR_PAUSE
            self._wake.wait(pause)

    def _round(self, seen: set[str]) -> float:
        """Look at what is due; returns the seconds until the next is."""
        with self._lock:
            table = dict(self._due)
        for name, (due, context) in table.items():
            if due <= time.monotonic() and not self._stopped.is_set():
                pause = self._look(context, run_now=name in seen)
                seen.add(name)
                with self._lock:
                    self._due[name] = (time.monotonic() + pause, context)
        with self._lock:
            nearest = min((due for due, _ in self._due.values()), default=time.monotonic() + ERROR_PAUSE)
        return max(0.0, nearest - time.monotonic())

    def _look(self, context: Context, *, run_now: bool) -> float:
        """Clean up if it is due; returns the seconds until the next look, spread over processes."""
        interval = ERROR_PAUSE
        try:
            interval = run(self._session, read_conf(context)).gc_interval
            if run_now:
                run(self._session, collect_if_due(context))
        except Exception as error:  # noqa: BLE001  one queue's trouble is not the others'
            if not self._stopped.is_set():
                log.warning("clean-up of queue %r: %s", context.queue, error, exc_info=not isinstance(error, ZkmqError))
        return max(MIN_PAUSE, interval * random.uniform(0.9, 1.1))  # noqa: S311  no secret, only spread
