"""`ZkmqTaskSensor`: wait in a DAG until tasks are claimed or completed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_zkmq.engine.core.wait import wait_event
from airflow_provider_zkmq.engine.errors import WaitTimeout, ZkmqError
from airflow_provider_zkmq.hooks.zkmq import DEFAULT_CONN_ID, ZkmqHook, check_outcomes, flat_ids, outcome
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.engine.core.inspect import Task
    from airflow_provider_zkmq.engine.queue import Queue


class ZkmqTaskSensor(BaseSensorOperator):
    """Waits for tasks; its XCom is the list of their outcomes, in the order of the ids.

    An outcome is ``{"id", "state", "attempt", "error", "result"}``; a result that is not UTF-8 comes as base64 in
    ``"result_b64"``. The sensor fails, naming them, when tasks end dead or cancelled; with `soft_fail` it skips.
    It waits on ZooKeeper watches and does not poke, except with ``mode="reschedule"``.

    Args:
        task_ids: the queue's ids: one, a list, or lists in a list, as mapped tasks give them.
        selector: instead of ids: wait for the tasks that match, as soon as there are `min_tasks` of them.
        min_tasks: see `selector`.
        event: ``"completion"``: finished, dead or cancelled; ``"claim"``: claimed at least once, or ended.
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        zkmq_conn_id: the Airflow connection.
        deferrable: wait in the triggerer rather than on a worker.

    """

    template_fields: Sequence[str] = ("task_ids", "selector", "zkmq_queue", "zkmq_conn_id")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        task_ids: Any = None,
        selector: str | None = None,
        min_tasks: int = 1,
        event: str = "completion",
        zkmq_queue: str | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (task_ids is None) == (selector is None):
            raise ValueError("ZkmqTaskSensor: give either task_ids or a selector")
        self.task_ids = task_ids
        self.selector = selector
        self.min_tasks = min_tasks
        self.event = str(wait_event(event))
        self.zkmq_queue = zkmq_queue
        self.zkmq_conn_id = zkmq_conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Wait, on the worker or deferred; return the outcomes.

        Raises:
            AirflowSensorTimeout: not in time (`AirflowSkipException` with `soft_fail`).
            AirflowException: tasks ended dead or cancelled, do not exist, or ZooKeeper refused.

        """
        if self.reschedule and not self.deferrable:
            told: list[dict[str, Any]] = super().execute(context)
            return told
        with self._failing_softly():
            deadline = time.time() + self._span()
            try:
                return self._waited(0 if self.deferrable else self._span())
            except WaitTimeout as error:
                if not self.deferrable:
                    raise AirflowSensorTimeout(str(error)) from error
                raise self._deferral(deadline) from None

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002
        """Look once (``mode="reschedule"``). Raises `AirflowException` for tasks that are dead or cancelled."""
        with self._failing_softly():
            try:
                return PokeReturnValue(is_done=True, xcom_value=self._waited(0))
            except WaitTimeout:
                return PokeReturnValue(is_done=False)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG002
        """Go on after the trigger: read the outcomes on the worker. Raises what `execute` does."""
        with self._failing_softly():
            if event["status"] == "timeout":
                raise AirflowSensorTimeout(event["message"])
            if event["status"] != "done":
                raise AirflowException(event["message"])
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                queue = hook.queue()
                return _outcomes(queue, self._read(queue, event["ids"]))

    def _waited(self, span: float) -> list[dict[str, Any]]:
        """Wait at most `span` seconds on this worker. Raises `WaitTimeout`."""
        end = time.monotonic() + span
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            queue = hook.queue()
            if self.selector is None:
                ids = flat_ids(self.task_ids)
            else:
                ids = queue.find(self.selector, self.min_tasks, max(0.0, end - time.monotonic()))
            return _outcomes(queue, queue.wait(ids, self.event, max(0.0, end - time.monotonic())))

    def _read(self, queue: Queue, ids: list[str]) -> list[Task]:
        """Read tasks that got there; one by one where something was claimed and has been given back since."""
        try:
            return queue.wait(ids, self.event, 0)
        except WaitTimeout:
            return [queue.task(task_id) for task_id in ids]

    def _deferral(self, deadline: float) -> TaskDeferred:
        return TaskDeferred(
            trigger=ZkmqTaskTrigger(
                task_ids=None if self.selector is not None else flat_ids(self.task_ids),
                selector=self.selector,
                min_tasks=self.min_tasks,
                event=self.event,
                queue=self.zkmq_queue or None,
                zkmq_conn_id=self.zkmq_conn_id,
                deadline=deadline,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=max(0.0, deadline - time.time())),
        )

    def _span(self) -> float:
        """Return how long to wait in seconds: Airflow does not hold a deferred task to its `execution_timeout`."""
        limit = self.execution_timeout
        return float(self.timeout if limit is None else min(self.timeout, limit.total_seconds()))

    @contextmanager
    def _failing_softly(self) -> Iterator[None]:
        """Turn the engine's errors into Airflow's, and failures into skips where `soft_fail` or `never_fail` ask."""
        try:
            try:
                yield
            except WaitTimeout:
                raise
            except ZkmqError as error:
                raise AirflowException(str(error)) from error
        except (AirflowSkipException, AirflowNotFoundException):
            raise
        except AirflowException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"Skipping instead of failing: {error}") from error
            raise


def _outcomes(queue: Queue, tasks: list[Task]) -> list[dict[str, Any]]:
    check_outcomes(queue.name, tasks)
    return [outcome(task) for task in tasks]
