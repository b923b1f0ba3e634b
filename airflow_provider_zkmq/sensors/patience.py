"""A wait on a worker goes on when ZooKeeper was away."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from airflow.sdk.exceptions import AirflowSensorTimeout

from airflow_provider_zkmq.engine import WaitTimeout
from airflow_provider_zkmq.hooks.deferring import AWAY

T = TypeVar("T")
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 15.0


def persist(log: Any, deadline: float, wait: Callable[[float], T]) -> T:
    """Return what `wait` does, called with the seconds that are left, again and again while ZooKeeper is away.

    The first failure is logged. Raises `AirflowSensorTimeout`.
    """
    failures = 0
    while True:
        try:
            return wait(max(0.0, deadline - time.time()))
        except (WaitTimeout, AWAY) as error:
            left = deadline - time.time()
            if isinstance(error, WaitTimeout) or left <= 0:
                raise AirflowSensorTimeout(str(error)) from error
            if not failures:
                log.warning("Waiting goes on when ZooKeeper is back: %s", error)
        failures += 1
        time.sleep(min(left, _pause(failures)))


def _pause(failures: int) -> float:
    """Return a longer pause after each failure, and each sensor another one, so that not all come at once."""
    pause: float = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 10))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311  no secret
