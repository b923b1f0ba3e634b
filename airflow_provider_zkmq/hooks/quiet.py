"""What kazoo logs of a connection that is tried again each second: a line a minute, in the logs of Airflow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

_KAZOO: Final = "airflow_provider_zkmq.kazoo"
_SECONDS_BETWEEN_LINES: Final = 60.0


class OneAMinute(logging.Filter):
    """Lets a line pass if none has passed for a minute; errors always pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._passed: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is to be logged."""
        now = self._clock()
        if record.levelno >= logging.ERROR:
            return True
        if self._passed is not None and now - self._passed < _SECONDS_BETWEEN_LINES:
            return False
        self._passed = now
        return True


def keep_kazoo_quiet() -> None:
    """Thin out what kazoo logs in this process; once is enough."""
    logger = logging.getLogger(_KAZOO)
    if not any(isinstance(each, OneAMinute) for each in logger.filters):
        logger.addFilter(OneAMinute())
