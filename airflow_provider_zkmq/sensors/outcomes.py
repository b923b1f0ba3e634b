"""What a sensor tells of tasks and batches, and of a task that was not in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from airflow_provider_zkmq.engine import WaitFor, WaitTimeout
from airflow_provider_zkmq.hooks.outcomes import check_batch, check_outcomes, outcome

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue, Batch, Explanation, Task

#: So many refusing consumers are told of.
_SHOWN: Final = 3


def outcomes(queue: AnyQueue, tasks: Sequence[Task]) -> list[dict[str, object]]:
    """Return each task's outcome. Raises `AirflowException` where some are dead or cancelled."""
    check_outcomes(queue.name, tasks)
    return [outcome(task) for task in tasks]


def batch_outcome(queue: AnyQueue, batch: Batch) -> dict[str, object]:
    """Return a batch's outcome. Raises `AirflowException` where members failed."""
    check_batch(queue.name, batch)
    return {"batch": batch.name, "total": batch.total, "failed": list(batch.failed)}


def in_one_line(explanation: Explanation) -> str:
    """Return why a task is where it is: the reasons, and the first few consumers that refuse it."""
    refusing = [
        f"{verdict.consumer} refuses it: {verdict.refuses}" for verdict in explanation.consumers if verdict.refuses
    ]
    reasons = "; ".join([*explanation.reasons, *refusing[:_SHOWN]])
    return f"task {explanation.task_id} is {explanation.status}: {reasons}"


def read_again(queue: AnyQueue, ids: list[str], event: str) -> list[Task]:
    """Read tasks that got there; one by one where something was claimed and has been given back since.

    Raises `WaitTimeout` where one that had ended is open again: it was redriven.
    """
    try:
        return queue.wait(ids, event, 0)
    except WaitTimeout:
        if event != WaitFor.CLAIM:
            raise
        return [queue.task(task_id) for task_id in ids]


def those_that_got_there(queue: AnyQueue, ids: list[str], event: str, least: int) -> list[Task]:
    """Read those of the tasks that have got there. Raises `WaitTimeout` where they are fewer than `least`."""
    try:
        return queue.wait(ids, event, 0)
    except WaitTimeout as error:
        left = set(error.left)
        there = [task_id for task_id in ids if task_id not in left]
        if len(there) < least:
            raise
        return queue.wait(there, event, 0)
