"""What a sensor waits for, looked at: on a worker, after its trigger, and once more when it was not in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_provider_zkmq.engine import WaitFor, WaitTimeout
from airflow_provider_zkmq.sensors.wanted import matching_ids, named_ids

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue, Batch, Explanation, Task

    Ended: TypeAlias = Sequence[Task] | Batch

#: So many refusing consumers are told of.
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """Tasks or a batch, as a sensor names them after templating; see `ZkmqTaskSensor`."""

    task_ids: object
    selector: str | None
    min_tasks: int
    since: Any
    batch: str | None
    event: str
    stop_at_failure: bool
    """Whether one task that is dead or cancelled ends the wait for the others."""

    def wait(self, queue: AnyQueue, span: float, tell: Callable[[str, float, str], None] | None) -> Ended:
        """Wait at most `span` seconds. Raises `WaitTimeout`."""
        end = time.monotonic() + span
        if self.batch is not None:
            return queue.wait_batch(self.batch, span)
        ids = self._ids(queue, self.min_tasks, max(0.0, end - time.monotonic()))
        return self._wait_for(queue, ids, max(0.0, end - time.monotonic()), tell)

    def read(self, queue: AnyQueue, event: dict[str, Any]) -> Ended:
        """Read what had ended when the trigger looked. Raises `WaitTimeout` for what has not, or not any more."""
        if "batch" in event:
            return queue.wait_batch(event["batch"], 0)
        if "ids" in event:
            return self._read_again(queue, event["ids"])
        if self.selector is None:
            return self._wait_for(queue, named_ids(self.task_ids), 0)
        ids = matching_ids(queue, self.selector, self.min_tasks, 0, self.since)
        return self._those_that_got_there(queue, ids)

    def first_left(self, queue: AnyQueue) -> str | None:
        """Look once more: the first task that is not there yet; None also where none of them is known by its id."""
        try:
            ids = [] if self.batch is not None else self._ids(queue, 1, 0)
        except WaitTimeout:
            return None
        try:
            _ = queue.wait(ids, self.event, 0) if self.batch is None else queue.wait_batch(self.batch, 0)
        except WaitTimeout as error:
            return next(iter(error.left), None)
        return None

    def _wait_for(
        self, queue: AnyQueue, ids: list[str], span: float, tell: Callable[[str, float, str], None] | None = None
    ) -> list[Task]:
        return queue.wait(ids, self.event, span, tell, stop_at_failure=self.stop_at_failure)

    def _read_again(self, queue: AnyQueue, ids: list[str]) -> list[Task]:
        """Read tasks that got there; one by one where something was claimed and has been given back since.

        Raises `WaitTimeout` where one that had ended is open again: it was redriven.
        """
        try:
            return self._wait_for(queue, ids, 0)
        except WaitTimeout:
            if self.event != WaitFor.CLAIM:
                raise
            return [queue.task(task_id) for task_id in ids]

    def _those_that_got_there(self, queue: AnyQueue, ids: list[str]) -> list[Task]:
        """Read those of the tasks that have got there. Raises `WaitTimeout` where they are too few."""
        try:
            return self._wait_for(queue, ids, 0)
        except WaitTimeout as error:
            left = set(error.left)
            there = [task_id for task_id in ids if task_id not in left]
            if len(there) < self.min_tasks:
                raise
            return self._wait_for(queue, there, 0)

    def _ids(self, queue: AnyQueue, least: int, span: float) -> list[str]:
        """Return the ids to wait for, at the latest after `span` seconds. Raises `WaitTimeout`, `ConfigError`."""
        if self.selector is None:
            return named_ids(self.task_ids)
        return matching_ids(queue, self.selector, least, span, self.since)


def in_one_line(explanation: Explanation) -> str:
    """Return why a task is where it is: the reasons, and the first few consumers that refuse it."""
    refusing = [
        f"{verdict.consumer} refuses it: {verdict.refuses}" for verdict in explanation.consumers if verdict.refuses
    ]
    reasons = "; ".join([*explanation.reasons, *refusing[:_SHOWN]])
    return f"task {explanation.task_id} is {explanation.status}: {reasons}"
