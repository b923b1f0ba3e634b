"""A worker's threads: daemons that do not end silently."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.working.verdicts import RETRY_SECONDS


def guarded(work: Callable[[], None], name: str, queue: str) -> threading.Thread:
    """A thread that carries out `work` for the worker on a queue; not started yet."""
    return threading.Thread(target=_guard, args=(work, queue), name=name, daemon=True)


def _guard(work: Callable[[], None], queue: str) -> None:
    """No thread of a worker ends silently, or before its time: whatever it met is logged, and it goes on."""
    while True:
        try:
            work()
        except BaseException:  # noqa: BLE001  also what was meant to end a thread
            log.exception("a thread of the worker on queue %r met an error and goes on", queue)
            time.sleep(RETRY_SECONDS)
        else:
            return


def call_after(delay: float, call: Callable[[], object]) -> None:
    """Call something after so many seconds; at once where there are none."""
    if delay == 0:
        call()
        return
    timer = threading.Timer(delay, call)
    timer.daemon = True
    timer.start()
