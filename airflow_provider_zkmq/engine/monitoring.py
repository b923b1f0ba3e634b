"""Watching a worker's queue: what a worker tells its monitor, and Carmine's ready-made one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from airflow_provider_zkmq.engine.core.configure import seconds
from airflow_provider_zkmq.engine.errors import ConfigError
from airflow_provider_zkmq.engine.zk.session import log

SIX_HOURS: Final = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Poll:
    """How a worker and its queue stand: ``size`` pending tasks, ``dry_runs`` looks in a row that found nothing.

    ``last`` is what the last look found: ``"handled"``, ``"nothing"`` or ``"unavailable"``.
    """

    queue: str
    size: int
    dry_runs: int
    last: str


Monitor = Callable[[Poll], None]


def monitor(
    max_size: int = 1000,
    period: object = SIX_HOURS,
    warn: Callable[[str], object] = log.warning,
    clock: Callable[[], float] = time.monotonic,
) -> Monitor:
    """A monitor that calls `warn` when more than `max_size` tasks are pending, at most once in a `period` of seconds.

    Carmine's ``monitor-fn``, with its default values. Raises `ConfigError`.
    """
    if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < 0:
        msg = f"max_size {max_size!r} is not allowed: a whole number, 0 or more"
        raise ConfigError(msg)
    span = seconds("period", period)
    warned: list[float] = []

    def look(poll: Poll) -> None:
        now = clock()
        if poll.size > max_size and (not warned or now - warned[-1] >= span):
            warned[:] = [now]
            warn(f"queue {poll.queue!r} has {poll.size} pending tasks, more than {max_size}")

    return look
