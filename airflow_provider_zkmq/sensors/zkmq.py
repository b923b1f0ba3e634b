"""`ZkmqTaskSensor`: wait in a DAG until tasks are claimed or completed, or a batch is done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, TaskDeferred

from airflow_provider_zkmq.engine import TransportError, WaitTimeout, wait_event
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.deferring import AWAY, awaited_ids, deferral_limit
from airflow_provider_zkmq.hooks.outcomes import progress_log
from airflow_provider_zkmq.hooks.templating import moment
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.sensors.outcomes import (
    batch_outcome,
    in_one_line,
    outcomes,
    read_again,
    those_that_got_there,
)
from airflow_provider_zkmq.sensors.patience import persist
from airflow_provider_zkmq.sensors.softly import airflow_errors, failing_softly, refusing_tls
from airflow_provider_zkmq.sensors.wanted import check_search, check_wanted, counted, matching_ids, named_ids
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.engine import AnyQueue

_Told: TypeAlias = list[dict[str, object]] | dict[str, object]


class ZkmqTaskSensor(BaseSensorOperator):
    """Waits for tasks, or for a batch; its XCom is the list of the tasks' outcomes, in the order of the ids.

    An outcome is ``{"id", "state", "attempt", "error", "result"}``; a result that is not UTF-8 comes as base64 in
    ``"result_b64"``. For a batch the XCom is ``{"batch", "total", "failed"}``, however many tasks it has. The sensor
    fails, naming them, when tasks end dead or cancelled, for a batch after the last one has ended; with `soft_fail` it
    skips. A time-out tells why the first task that has not ended is where it is.
    It waits on ZooKeeper watches and does not poke, except with ``mode="reschedule"``. A queue that is not there fails
    it at once where `task_ids` or `batch` say that there are tasks; with a `selector` it waits for the queue, too, and
    warns once in the log, with the names of queues that come close.

    Args:
        task_ids: the queue's ids: one, a list, or lists in a list, as mapped tasks give them.
        selector: instead of ids: wait for the tasks that match, as soon as there are `min_tasks` of them. A task that
            finished long ago and is still kept matches, too, such as those of an earlier run: see `since`.
        min_tasks: see `selector`; 1 or more.
        since: with `selector`: only tasks that were enqueued then or later, by ZooKeeper's clock; a moment with a zone,
            or its text, such as ``"{{ dag_run.start_date }}"`` or ``"{{ data_interval_start }}"``.
        batch: instead of ids: the name of a batch, which must exist; at the cost of one watch.
        event: ``"completion"``: finished, dead or cancelled; ``"claim"``: claimed at least once, or ended.
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        zkmq_conn_id: the Airflow connection.
        deferrable: wait in the triggerer rather than on a worker.
        log_progress: log the progress that the handlers of the tasks report, at one more watch for each running task.

    """

    template_fields: Sequence[str] = ("task_ids", "selector", "since", "batch", "zkmq_queue", "zkmq_conn_id")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        task_ids: object = None,
        selector: str | None = None,
        min_tasks: int = 1,
        since: datetime | str | None = None,
        batch: str | None = None,
        event: str = "completion",
        zkmq_queue: str | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        log_progress: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_wanted(task_ids, selector, batch)
        check_search(selector, min_tasks, since)
        if batch is not None and (event != "completion" or log_progress):
            raise ValueError("ZkmqTaskSensor: a batch is waited for to its end; give neither event nor log_progress")
        self.task_ids = task_ids
        self.selector = selector
        self.min_tasks = min_tasks
        self.since = since
        self.batch = batch
        self.event = str(wait_event(event))
        self.zkmq_queue = zkmq_queue
        self.zkmq_conn_id = zkmq_conn_id
        self.deferrable = deferrable
        self.log_progress = log_progress

    def execute(self, context: Context) -> _Told:
        """Wait, on the worker or deferred; return the outcomes, or the batch's.

        Raises:
            AirflowSensorTimeout: not in time (`AirflowSkipException` with `soft_fail`).
            AirflowException: tasks ended dead or cancelled, they or the batch do not exist, or ZooKeeper refused.

        """
        deadline = time.time() + self._span()
        with failing_softly(self), self._telling_why(), airflow_errors():
            if self.selector is not None:
                self.log.info("%s", counted(self.selector, self.min_tasks, self.since))
            if self.deferrable:
                return self._waited_or_deferred(deadline)
            result: _Told = super().execute(context) if self.reschedule else persist(self.log, deadline, self._waited)
            return result

    def _waited_or_deferred(self, deadline: float) -> _Told:
        try:
            return self._waited(0)
        except (WaitTimeout, AWAY) as error:
            raise self._deferral(deadline, error) from None

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002
        """Look once (``mode="reschedule"``). Raises `AirflowException` for tasks that are dead or cancelled."""
        with failing_softly(self), airflow_errors():
            try:
                return PokeReturnValue(is_done=True, xcom_value=self._waited(0))
            except WaitTimeout:
                return PokeReturnValue(is_done=False)
            except AWAY as error:
                self.log.warning("The next look is taken as if this had been: %s", error)
                return PokeReturnValue(is_done=False)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral; a time-out, the trigger's or Airflow's own, tells why."""
        with failing_softly(self), self._telling_why():
            return super().resume_execution(next_method, next_kwargs, context)

    def execute_complete(self, context: Context, event: dict[str, Any], deadline: float | None = None) -> _Told:  # noqa: ARG002
        """Go on after the trigger: read the outcomes on the worker. Raises what `execute` does."""
        until = time.time() + self._span() if deadline is None else deadline
        with failing_softly(self), airflow_errors():
            if event["status"] == "timeout":
                raise AirflowSensorTimeout(event["message"])
            if event["status"] != "done":
                raise AirflowException(event["message"])
            try:
                return self._ended(event)
            except (WaitTimeout, AWAY) as error:  # there are more, one was redriven since, or ZooKeeper is away
                if time.time() >= until:
                    raise AirflowSensorTimeout(str(error)) from error
                raise self._deferral(until, error) from None

    def _ended(self, event: dict[str, Any]) -> _Told:
        """Read what had ended when the trigger looked. Raises `WaitTimeout` for what has not, or not any more."""
        with refusing_tls(), ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            queue = hook.queue()
            if "batch" in event:
                return batch_outcome(queue, queue.wait_batch(event["batch"], 0))
            if "ids" in event:
                return outcomes(queue, read_again(queue, event["ids"], self.event))
            if self.selector is None:
                return outcomes(queue, queue.wait(named_ids(self.task_ids), self.event, 0))
            ids = matching_ids(queue, self.selector, self.min_tasks, 0, self.since)
            return outcomes(queue, those_that_got_there(queue, ids, self.event, self.min_tasks))

    def _waited(self, span: float) -> _Told:
        """Wait at most `span` seconds on this worker. Raises `WaitTimeout`."""
        end = time.monotonic() + span
        with refusing_tls(), ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            queue = hook.queue()
            if self.batch is not None:
                return batch_outcome(queue, queue.wait_batch(self.batch, span))
            ids = self._ids(queue, self.min_tasks, max(0.0, end - time.monotonic()))
            tell = progress_log(self.log) if self.log_progress else None
            return outcomes(queue, queue.wait(ids, self.event, max(0.0, end - time.monotonic()), tell))

    def _ids(self, queue: AnyQueue, least: int, span: float) -> list[str]:
        """Return the ids to wait for, at the latest after `span` seconds. Raises `WaitTimeout`, `ConfigError`."""
        if self.selector is None:
            return named_ids(self.task_ids)
        return matching_ids(queue, self.selector, least, span, self.since)

    def _deferral(self, deadline: float, why: WaitTimeout | TransportError) -> TaskDeferred:
        if isinstance(why, TransportError):
            self.log.warning("Deferred until ZooKeeper is back: %s", why)
        return TaskDeferred(
            trigger=self._trigger(deadline, getattr(why, "left", ())),
            method_name="execute_complete",
            kwargs={"deadline": deadline},
            timeout=deferral_limit(deadline),
        )

    def _trigger(self, deadline: float, left: Sequence[str]) -> ZkmqTaskTrigger:
        since = moment("since", self.since)
        named = {} if self.task_ids is None else awaited_ids(named_ids(self.task_ids), None, left)
        return ZkmqTaskTrigger(
            **named,
            selector=self.selector,
            min_tasks=self.min_tasks,
            since=None if since is None else since.isoformat(),
            batch=self.batch,
            event=self.event,
            log_progress=self.log_progress,
            queue=self.zkmq_queue or None,
            zkmq_conn_id=self.zkmq_conn_id,
            deadline=deadline,
            deferred_at=time.time(),
        )

    def _span(self) -> float:
        """Return how long to wait in seconds: Airflow does not hold a deferred task to its `execution_timeout`."""
        limit = self.execution_timeout
        return float(self.timeout if limit is None else min(self.timeout, limit.total_seconds()))

    @contextmanager
    def _telling_why(self) -> Iterator[None]:
        try:
            yield
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(f"{error}{self._why()}") from error

    def _why(self) -> str:
        """Return what to add to a time-out; nothing where it cannot be found out: the time-out is what counts."""
        try:
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                queue = hook.queue()
                waiting = self._left(queue)
                return "" if waiting is None else f"; {in_one_line(queue.explain(waiting))}"
        except Exception as error:  # noqa: BLE001
            self.log.warning("Why it was not in time is unknown: %s", error)
            return ""

    def _left(self, queue: AnyQueue) -> str | None:
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
