"""`ZkmqTaskSensor`: wait in a DAG until tasks are claimed or completed, or a batch is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, conf, exceptions

from ..engine import ConfigError, TlsRefused, TransportError, WaitFor, WaitTimeout, ZkmqError, wait_event
from ..engine.queue_internals import internals
from ..hooks import (
    arguments,
    compact_task_ids,
    connection_options,
    deferring,
    lineage,
    outages,
    outcome_logs,
    task_instance,
    xcom_results,
)
from ..hooks.deferring import deferral
from ..hooks.zkmq import ZkmqHook
from ..triggers.zkmq import ZkmqTaskTrigger

if TYPE_CHECKING:
    from ..engine import AnyQueue, Batch, Task

    Ended: TypeAlias = Sequence[Task] | Batch


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn the engine's errors into Airflow's, except for a wait that was not in time."""
    try:
        yield
    except WaitTimeout:
        raise
    except ZkmqError as error:
        raise exceptions.AirflowException(str(error)) from None


@contextmanager
def soft_failing(sensor: BaseSensorOperator) -> Iterator[None]:
    """Turn failures into skips where `soft_fail` or `never_fail` say so; unlike Airflow's own, with the reason."""
    soft_fail, never_fail = sensor.soft_fail, sensor.never_fail
    sensor.soft_fail = sensor.never_fail = False
    try:
        yield
    except (
        exceptions.AirflowSkipException,
        exceptions.AirflowNotFoundException,
        exceptions.AirflowRescheduleException,
    ):
        raise
    except Exception as error:
        if never_fail or (soft_fail and isinstance(error, exceptions.AirflowException | exceptions.TaskDeferralError)):
            raise exceptions.AirflowSkipException(f"Skipping instead of failing: {error}") from None
        raise
    finally:
        sensor.soft_fail, sensor.never_fail = soft_fail, never_fail


def named_ids(task_ids: object) -> list[str]:
    """Return the ids after templating. Raises `ConfigError` where there are none, as for an empty list of an XCom."""
    ids = arguments.flat_ids(task_ids)
    if not ids:
        raise ConfigError("task_ids is blank after templating: there is nothing to wait for")
    return ids


class ZkmqTaskSensor(lineage.ReadsQueue, BaseSensorOperator):
    """Waits for tasks, or for a batch; its XCom is the list of the tasks' outcomes, in the order of the ids.

    An outcome is ``{"id", "state", "attempt", "error", "result"}``; a result that is not UTF-8 comes as base64 in
    ``"result_b64"``. For a batch the XCom is ``{"batch", "total", "failed"}``, however many tasks it has. One that
    would be larger than `max_xcom_bytes` is references: ``{"queue", "count", "states", "ids", "more", "read"}``, with
    as many ids as there is room for.

    The sensor fails as soon as one of the tasks is dead or cancelled, naming those that are, for a batch after the last
    one has ended; with `soft_fail` it skips. A time-out names what has not ended and what is dead, and says why the
    first task that has not ended is where it is. Deferred, for a batch or without results, it is ended by the triggerer
    and needs no worker any more, unless it has outlets, an `on_success_callback`, tasks that are mapped over its XCom,
    an XCom back end of one's own, or failures to report. It waits on ZooKeeper watches and does not poke, except with
    ``mode="reschedule"``. A queue that is not there fails it at once where `task_ids` or `batch` say that there are
    tasks; with a `selector` it waits for the queue, too, and warns once, with the names of queues that come close.

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
        results: give results, attempts and errors; else the XCom has ``{"id", "state"}`` of each task.
        max_xcom_bytes: see above; as JSON, 1 000 or more.
        fail_on: ``"any"`` task that is dead or cancelled fails the sensor at once (of very many ids of one's own,
            deferred, when the part of them has ended that is waited for); with ``"none"`` it waits for the others, and
            the XCom shows it.
        log_progress: log the progress that the handlers of the tasks report, at one more watch for each running task.
    """

    template_fields: Sequence[str] = ("task_ids", "selector", "since", "batch", "zkmq_queue", "zkmq_conn_id")
    ui_color = "#e8f0e4"
    operator_extra_links = task_instance.LINKS

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
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        results: bool = True,
        max_xcom_bytes: int = 48_000,
        fail_on: str = "any",
        log_progress: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        named = [value for value in (task_ids, selector, batch) if value is not None]
        if len(named) != 1:
            raise ValueError("ZkmqTaskSensor: give exactly one of task_ids, selector and batch")
        if arguments.is_blank(named[0]):  # what is rendered later is looked at then
            raise ValueError("ZkmqTaskSensor: task_ids, selector or batch is blank: there would be nothing to wait for")
        arguments.check_number("ZkmqTaskSensor: min_tasks", min_tasks)
        if selector is None and since is not None:
            raise ValueError("ZkmqTaskSensor: since goes with a selector; ids and batches are those that were named")
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
        self.results = results
        self.max_xcom_bytes = max_xcom_bytes
        self.fail_on = fail_on
        self._results()  # refuses what is not known where the DAG is parsed

    def execute(self, context: Context) -> Any:
        """Wait, on the worker or deferred; return the outcomes, or the batch's.

        Raises `AirflowSensorTimeout` where it was not in time (`AirflowSkipException` with `soft_fail`),
        `AirflowException` where tasks ended dead or cancelled, they or the batch do not exist, or ZooKeeper refused.
        """
        deadline = time.time() + self._span()
        with soft_failing(self), self._explaining_timeout(), airflow_errors():
            if self.selector is not None:
                # Without a moment, tasks of earlier runs count, too.
                any_time = "at any time and is still kept, also by an earlier run: see since"
                when = any_time if self.since is None else f"since {self.since}"
                what = "Waiting for at least %d task(s) that match %s; one counts that was enqueued %s"
                self.log.info(what, self.min_tasks, self.selector, when)
            if self.deferrable:
                try:
                    return self._waited(0)
                except (WaitTimeout, TransportError) as error:
                    raise self._deferral(context, deadline, error) from None
            if self.reschedule:
                return super().execute(context)
            try:
                return outages.persist(self.log, deadline, self._waited)
            except outages.NO_OUTAGE:
                raise
            except (WaitTimeout, TransportError) as error:
                raise exceptions.AirflowSensorTimeout(str(error)) from None

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002
        """Look once (``mode="reschedule"``). Raises `AirflowException` for tasks that are dead or cancelled."""
        with soft_failing(self), airflow_errors():
            try:
                return PokeReturnValue(is_done=True, xcom_value=self._waited(0))
            except WaitTimeout:
                return PokeReturnValue(is_done=False)
            except TransportError as error:
                self.log.warning("The next look is taken as if this had been: %s", error)
                return PokeReturnValue(is_done=False)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral; a time-out, the trigger's or Airflow's own, tells why."""
        with soft_failing(self), self._explaining_timeout():
            return super().resume_execution(next_method, next_kwargs, context)

    def execute_complete(self, context: Context, event: dict[str, Any], deadline: float | None = None) -> Any:
        """Go on after the trigger: read the outcomes on the worker. Raises what `execute` does."""
        until = time.time() + self._span() if deadline is None else deadline
        with soft_failing(self), airflow_errors():
            if event["status"] == "timeout":
                raise exceptions.AirflowSensorTimeout(event["message"])
            if event["status"] != "done":
                raise exceptions.AirflowException(event["message"])
            try:
                return self._look(partial(self._read, event=event))
            except (
                WaitTimeout,
                TransportError,
            ) as error:  # there are more, or one was redriven since
                if time.time() >= until:
                    raise exceptions.AirflowSensorTimeout(str(error)) from None
                raise self._deferral(context, until, error) from None

    def _waited(self, span: float) -> Any:
        """Wait for the batch, else for the tasks, at most `span` seconds on this worker. Raises `WaitTimeout`."""

        def wait(queue: AnyQueue) -> Ended:
            end = time.monotonic() + span
            try:
                if self.batch is not None:
                    return queue.wait_batch(self.batch, span)
                ids = self._ids(queue, self.min_tasks, span)
                on_progress = outcome_logs.progress_log(self.log) if self.log_progress else None
                left = max(0.0, end - time.monotonic())
                return queue.wait(ids, self.event, left, on_progress, stop_at_failure=self.fail_on == "any")
            except WaitTimeout as error:
                if self.deferrable:
                    outcome_logs.log_open(self.log, queue, error.left, self.zkmq_conn_id)
                raise

        return self._look(wait)

    def _look(self, look: Callable[[AnyQueue], Ended]) -> Any:
        """Log what `look` finds ended; return the XCom. Raises `AirflowException`, also for refused certificates."""
        try:
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                queue = hook.queue()
                if self.task_ids is not None:
                    task_instance.link_tasks(self, queue.name, "waited for", named_ids(self.task_ids))
                ended = look(queue)
        except TlsRefused as error:
            raise exceptions.AirflowException(str(error)) from None
        if isinstance(ended, Sequence):
            failed = [task.id for task in ended if task.state in {"dead", "cancelled"}]
            task_instance.link_tasks(self, queue.name, "waited for", [task.id for task in ended], failed)
        else:
            task_instance.link_tasks(self, queue.name, "waited for", (), ended.failed, batch=ended.name)
        outcome_logs.log_ended(self.log, queue.name, ended, self.zkmq_conn_id)
        self._results().check(queue.name, ended)
        return self._results().to_xcom(queue.name, ended)

    def _ids(self, queue: AnyQueue, least: int, span: float) -> list[str]:
        """Return the ids to wait for, at the latest after `span` seconds. Raises `WaitTimeout`, `ConfigError`."""
        if self.selector is None:
            return named_ids(self.task_ids)
        since = arguments.moment("since", self.since)
        ids: list[str] = internals(queue).find(self.selector, least, span, since=since)
        return ids

    def _read(self, queue: AnyQueue, event: dict[str, Any]) -> Ended:
        """Read what had ended when the trigger looked. Raises `WaitTimeout` for what has not, or not any more."""
        if "batch" in event:
            return queue.wait_batch(event["batch"], 0)
        ids = event["ids"] if "ids" in event else self._ids(queue, self.min_tasks, 0)
        try:
            return queue.wait(ids, self.event, 0, stop_at_failure=self.fail_on == "any")
        except WaitTimeout as error:
            if "ids" in event and self.event == WaitFor.CLAIM:
                return [queue.task(task_id) for task_id in ids]
            left = set(error.left)
            there = [task_id for task_id in ids if task_id not in left]
            if "ids" in event or self.selector is None or len(there) < self.min_tasks:
                raise
            return queue.wait(there, self.event, 0, stop_at_failure=self.fail_on == "any")

    def _results(self) -> xcom_results.XComResults:
        return xcom_results.XComResults(self.results, self.max_xcom_bytes, self.fail_on)

    def _deferral(
        self, context: Context, deadline: float, why: WaitTimeout | TransportError
    ) -> exceptions.TaskDeferred:
        if isinstance(why, TransportError):
            self.log.warning("Deferred until ZooKeeper is back: %s", why)
        since = arguments.moment("since", self.since)
        ids = (
            {}
            if self.task_ids is None
            else compact_task_ids.awaited_ids(named_ids(self.task_ids), None, getattr(why, "left", ()))
        )
        success: dict[str, Any] | None = None  # a worker is to read what the XCom says
        if (self.batch is not None or not self.results) and deferring.may_end_in_triggerer(self, context):
            success = {"telling": asdict(self._results()), "push": deferring.pushed_for(self, context)}
        return exceptions.TaskDeferred(
            **deferral(
                self,
                ZkmqTaskTrigger,
                {"deadline": deadline},
                **ids,
                selector=self.selector,
                min_tasks=self.min_tasks,
                since=None if since is None else since.isoformat(),
                batch=self.batch,
                event=self.event,
                log_progress=self.log_progress,
                stop_at_failure=self.fail_on == "any",
                success=success,
                queue=self.zkmq_queue or None,
            )
        )

    def _span(self) -> float:
        """Return how long to wait in seconds: Airflow does not hold a deferred task to its `execution_timeout`."""
        limit = self.execution_timeout
        return float(self.timeout if limit is None else min(self.timeout, limit.total_seconds()))

    @contextmanager
    def _explaining_timeout(self) -> Iterator[None]:
        try:
            yield
        except exceptions.AirflowSensorTimeout as error:
            raise exceptions.AirflowSensorTimeout(deferring.naming(str(error), self._span()) + self._why()) from None

    def _why(self) -> str:
        """Return what to add to a time-out; nothing where it cannot be found out: the time-out is what counts."""
        try:
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                queue = hook.queue()
                try:
                    ids = [] if self.batch is not None else self._ids(queue, 1, 0)
                except WaitTimeout:  # of a search that finds nothing no task is known by its id
                    return ""
                try:
                    _ = queue.wait(ids, self.event, 0) if self.batch is None else queue.wait_batch(self.batch, 0)
                    return ""
                except WaitTimeout as error:
                    left = error.left
                if not left:
                    return ""
                found = queue.explain(left[0])
                refusing = [f"{each.consumer} refuses it: {each.refuses}" for each in found.consumers if each.refuses]
                reasons = "; ".join([*found.reasons, *refusing[:3]])
                return f"; task {found.task_id} is {found.status}: {reasons}"
        except Exception as error:  # noqa: BLE001
            self.log.warning("Why it was not in time is unknown: %s", error)
            return ""
