"""Watching a worker's queue: what a worker tells its monitor, and Carmine's ready-made one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from airflow_provider_zkmq.engine.core.model.durations import Duration, seconds
from airflow_provider_zkmq.engine.core.model.numbers import whole_number
from airflow_provider_zkmq.engine.errors import QueueNotFound, TransportError
from airflow_provider_zkmq.engine.log import log

SIX_HOURS: Final = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Poll:
    """How a worker and its queue stand: ``size`` pending tasks, ``dry_runs`` looks in a row that found nothing.

    ``last`` is what the last look found: ``"handled"`` (a task), ``"nothing"``, also while the worker waits for more,
    or ``"unavailable"``.
    """

    queue: str
    size: int
    dry_runs: int
    last: str


Monitor = Callable[[Poll], object]


class Looks:
    """What a worker's threads found when they looked for tasks. One lock guards it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dry_runs = 0
        self._last = "nothing"

    def ended(self, what: str) -> None:
        """A look has ended: ``"handled"``, ``"nothing"`` or ``"unavailable"``."""
        with self._lock:
            self._last = what
            self._dry_runs = 0 if what == "handled" else self._dry_runs + 1

    def poll(self, queue: str, size: int) -> Poll:
        """How it stands now."""
        with self._lock:
            return Poll(queue, size, self._dry_runs, self._last)


@contextmanager
def watching(queue: str) -> Iterator[None]:
    """A block that tells a monitor how the queue stands: neither the monitor's failure nor an outage ends the work."""
    try:
        yield
    except (QueueNotFound, TransportError) as error:
        log.info("the monitor of queue %r: %s", queue, error)
    except Exception:  # noqa: BLE001  whatever a monitor of the user's raises
        log.exception("the monitor of queue %r failed", queue)


def monitor(
    max_size: int = 1000,
    period: Duration = SIX_HOURS,
    warn: Callable[[str], object] = log.warning,
    clock: Callable[[], float] = time.monotonic,
) -> Monitor:
    """A monitor that calls `warn` when more than `max_size` tasks are pending, at most once in a `period`.

    Carmine's ``monitor-fn``, with its default values. Raises `ConfigError`.
    """
    most, span = whole_number("max_size", max_size), seconds("period", period)
    warned: list[float] = []

    def look(poll: Poll) -> None:
        now = clock()
        if poll.size > most and (not warned or now - warned[-1] >= span):
            warned[:] = [now]
            warn(f"queue {poll.queue!r} has {poll.size} pending tasks, more than {most}")

    return look
