"""`ZkmqTaskSensor`: wait in a DAG until tasks are claimed or completed, or a batch is done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, TaskDeferred

from airflow_provider_zkmq.engine import TransportError, WaitTimeout, wait_event
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.deferring import AWAY, awaited_ids, deferral_limit, naming
from airflow_provider_zkmq.hooks.outcomes import progress_log, tell_ended, tell_open
from airflow_provider_zkmq.hooks.telling import Telling, may_end_in_triggerer, pushed_for
from airflow_provider_zkmq.hooks.templating import moment
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.lineage import ReadsQueue
from airflow_provider_zkmq.operators.patience import persist
from airflow_provider_zkmq.sensors.looking import Wanted, in_one_line
from airflow_provider_zkmq.sensors.softly import airflow_errors, failing_softly, refusing_tls, timing_out
from airflow_provider_zkmq.sensors.wanted import check_search, check_wanted, counted, named_ids
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.sensors.looking import Ended


class ZkmqTaskSensor(ReadsQueue, BaseSensorOperator):
    """Waits for tasks, or for a batch; its XCom is the list of the tasks' outcomes, in the order of the ids.

    An outcome is ``{"id", "state", "attempt", "error", "result"}``; a result that is not UTF-8 comes as base64 in
    ``"result_b64"``. For a batch the XCom is ``{"batch", "total", "failed"}``, however many tasks it has. One that
    would be larger than `max_xcom_bytes` is references: ``{"queue", "count", "states", "ids", "more", "read"}``, with
    as many ids as there is room for. The sensor fails as soon as one of the tasks is dead or cancelled, naming those
    that are, for a batch after the last one has ended; with `soft_fail` it skips. A time-out names what has not ended
    and what is dead, and tells why the first task that has not ended is where it is. Deferred, for a batch or without
    results, it is ended by the triggerer and needs no worker any more, unless it has outlets, an `on_success_callback`,
    tasks that are mapped over its XCom, an XCom back end of one's own, or failures to tell of.
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
        results: tell results, attempts and errors; else the XCom has ``{"id", "state"}`` of each task.
        max_xcom_bytes: see above; as JSON, 1 000 or more.
        fail_on: ``"any"`` task that is dead or cancelled fails the sensor at once (of very many ids of one's own,
            deferred, when the part of them has ended that is waited for); with ``"none"`` it waits for the others, and
            the XCom tells of it.
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
        results: bool = True,
        max_xcom_bytes: int = 48_000,
        fail_on: str = "any",
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
        self.results = results
        self.max_xcom_bytes = max_xcom_bytes
        self.fail_on = fail_on
        self._telling()  # refuses what is not known where the DAG is parsed

    def execute(self, context: Context) -> Any:
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
                return self._waited_or_deferred(context, deadline)
            if self.reschedule:
                return super().execute(context)
            with timing_out():
                return persist(self.log, deadline, self._waited)

    def _waited_or_deferred(self, context: Context, deadline: float) -> Any:
        try:
            return self._waited(0)
        except (WaitTimeout, AWAY) as error:
            raise self._deferral(context, deadline, error) from None

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

    def execute_complete(self, context: Context, event: dict[str, Any], deadline: float | None = None) -> Any:
        """Go on after the trigger: read the outcomes on the worker. Raises what `execute` does."""
        until = time.time() + self._span() if deadline is None else deadline
        with failing_softly(self), airflow_errors():
            if event["status"] == "timeout":
                raise AirflowSensorTimeout(event["message"])
            if event["status"] != "done":
                raise AirflowException(event["message"])
            try:
                with refusing_tls(), ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                    queue = hook.queue()
                    return self._told(queue.name, self._wanted().read(queue, event))
            except (WaitTimeout, AWAY) as error:  # there are more, one was redriven since, or ZooKeeper is away
                if time.time() >= until:
                    raise AirflowSensorTimeout(str(error)) from None
                raise self._deferral(context, until, error) from None

    def _waited(self, span: float) -> Any:
        """Wait at most `span` seconds on this worker. Raises `WaitTimeout`."""
        with refusing_tls(), ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            queue = hook.queue()
            tell = progress_log(self.log) if self.log_progress else None
            try:
                return self._told(queue.name, self._wanted().wait(queue, span, tell))
            except WaitTimeout as error:
                if self.deferrable:
                    tell_open(self.log, queue, error.left, self.zkmq_conn_id)
                raise

    def _told(self, queue: str, ended: Ended) -> Any:
        """Log what has ended; return the XCom. Raises `AirflowException` for what has failed."""
        tell_ended(self.log, queue, ended, self.zkmq_conn_id)
        self._telling().check(queue, ended)
        return self._telling().tell(queue, ended)

    def _wanted(self) -> Wanted:
        return Wanted(self.task_ids, self.selector, self.min_tasks, self.since, self.batch, self.event, self._stops)

    @property
    def _stops(self) -> bool:
        return self.fail_on == "any"

    def _telling(self) -> Telling:
        return Telling(self.results, self.max_xcom_bytes, self.fail_on)

    def _deferral(self, context: Context, deadline: float, why: WaitTimeout | TransportError) -> TaskDeferred:
        if isinstance(why, TransportError):
            self.log.warning("Deferred until ZooKeeper is back: %s", why)
        return TaskDeferred(
            trigger=self._trigger(context, deadline, getattr(why, "left", ())),
            method_name="execute_complete",
            kwargs={"deadline": deadline},
            timeout=deferral_limit(deadline),
        )

    def _trigger(self, context: Context, deadline: float, left: Sequence[str]) -> ZkmqTaskTrigger:
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
            stop_at_failure=self._stops,
            success=self._success(context),
            queue=self.zkmq_queue or None,
            zkmq_conn_id=self.zkmq_conn_id,
            deadline=deadline,
            deferred_at=time.time(),
        )

    def _success(self, context: Context) -> dict[str, Any] | None:
        """Return how the triggerer ends this task by itself; None: a worker is to read what it tells."""
        brief = self.batch is not None or not self.results
        if not (brief and may_end_in_triggerer(self, context)):
            return None
        return {"telling": self._telling().as_dict(), "push": pushed_for(self, context)}

    def _span(self) -> float:
        """Return how long to wait in seconds: Airflow does not hold a deferred task to its `execution_timeout`."""
        limit = self.execution_timeout
        return float(self.timeout if limit is None else min(self.timeout, limit.total_seconds()))

    @contextmanager
    def _telling_why(self) -> Iterator[None]:
        try:
            yield
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(naming(str(error), self._span()) + self._why()) from None

    def _why(self) -> str:
        """Return what to add to a time-out; nothing where it cannot be found out: the time-out is what counts."""
        try:
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                queue = hook.queue()
                waiting = self._wanted().first_left(queue)
                return "" if waiting is None else f"; {in_one_line(queue.explain(waiting))}"
        except Exception as error:  # noqa: BLE001
            self.log.warning("Why it was not in time is unknown: %s", error)
            return ""
