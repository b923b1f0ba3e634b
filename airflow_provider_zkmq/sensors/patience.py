"""A wait on a worker goes on when ZooKeeper was away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from airflow.sdk.exceptions import AirflowSensorTimeout

from airflow_provider_zkmq.engine import WaitTimeout
from airflow_provider_zkmq.hooks.deferring import AWAY
from airflow_provider_zkmq.triggers.backoff import LONGEST_OF_A_WAIT, Backoff

T = TypeVar("T")


def persist(log: Any, deadline: float, wait: Callable[[float], T]) -> T:
    """Return what `wait` does, called with the seconds that are left, again and again while ZooKeeper is away.

    Raises `AirflowSensorTimeout`.
    """
    backoff = Backoff(log, what="Waiting", longest=LONGEST_OF_A_WAIT)
    while True:
        try:
            return wait(max(0.0, deadline - time.time()))
        except (WaitTimeout, AWAY) as error:
            left = deadline - time.time()
            if isinstance(error, WaitTimeout) or left <= 0:
                raise AirflowSensorTimeout(str(error)) from None
            backoff.block_after(error, left)
