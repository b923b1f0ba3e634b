"""Waiting for work that fits, in the triggerer or on a worker, claiming nothing meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from airflow_provider_zkmq.hooks.deferring import deferral_limit
from airflow_provider_zkmq.triggers.zkmq import ZkmqReadyTrigger

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue, QueueNotFound


class Waiting(Protocol):
    """An operator that goes on, in its `execute_complete`, with the trigger's event and the deadline that it gave."""

    zkmq_queue: str | None
    selector: str | None
    zkmq_conn_id: str
    log: Any

    def defer(self, **kwargs: object) -> None:
        """Raise what tells Airflow to defer: every operator's."""
        ...


def tell_missing(error: QueueNotFound, on_empty: str, log: Any) -> list[Any]:
    """Return nothing where a queue is not there: it has no work, and whoever enqueues first makes it.

    Raises `error` where nobody is to wait for it or to go on without it (``on_empty="fail"``).
    """
    if on_empty == "fail":
        raise error
    log.warning("There is no work: %s", error)
    return []


def block_until_ready(
    queue: AnyQueue, selector: str | None, timeout: float | None, stopping: Callable[[], bool] = lambda: False
) -> bool:
    """Wait on this worker, for the queue, too, until there is work, for so many seconds; return whether there is."""
    deadline = None if timeout is None else time.monotonic() + timeout
    if not queue.exists(timeout, stopping=stopping) or stopping():
        return False
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    return queue.ready(selector=selector, timeout=left, stopping=stopping)


def defer_until_ready(operator: Waiting, deadline: float | None) -> NoReturn:
    """Give up the worker's slot until there is work, at the latest until the deadline, in seconds since 1970."""
    where = "the connection's queue" if not operator.zkmq_queue else f"queue {operator.zkmq_queue!r}"
    operator.log.info("Waiting for work in %s that fits: %s", where, operator.selector or "any task")
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
