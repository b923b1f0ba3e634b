"""The end of what was enqueued: of tasks, or of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_zkmq.hooks.outcomes import check_batch, check_outcomes

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue


def await_end(queue: AnyQueue, batch: str | None, ids: list[str], left: float | None) -> None:
    """Wait for the batch, else for the tasks. Raises `WaitTimeout`, and `AirflowException` naming those that failed."""
    if batch is None:
        check_outcomes(queue.name, queue.wait(ids, timeout=left))
    else:
        check_batch(queue.name, queue.wait_batch(batch, left))
