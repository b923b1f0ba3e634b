"""Waiting in the triggerer for work that fits, claiming nothing meanwhile."""

from __future__ import annotations

import time
from typing import NoReturn, Protocol

from airflow_provider_zkmq.hooks.deferring import deferral_limit
from airflow_provider_zkmq.triggers.zkmq import ZkmqReadyTrigger


class Waiting(Protocol):
    """An operator that goes on, in its `execute_complete`, with the trigger's event and the deadline that it gave."""

    zkmq_queue: str | None
    selector: str | None
    zkmq_conn_id: str

    def defer(self, **kwargs: object) -> None:
        """Raise what tells Airflow to defer: every operator's."""
        ...


def defer_until_ready(operator: Waiting, deadline: float | None) -> NoReturn:
    """Give up the worker's slot until there is work, at the latest until the deadline, in seconds since 1970."""
    operator.defer(
        trigger=ZkmqReadyTrigger(
            zkmq_queue=operator.zkmq_queue or None,
            selector=operator.selector or None,
            zkmq_conn_id=operator.zkmq_conn_id,
            deadline=deadline,
            deferred_at=time.time(),
        ),
        method_name="execute_complete",
        kwargs={"deadline": deadline},
        timeout=deferral_limit(deadline),
    )
    raise AssertionError  # `defer` raises
