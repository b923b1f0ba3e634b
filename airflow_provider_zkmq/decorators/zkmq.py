"""`@task.zkmq`: a function that an Airflow task runs for each task that it claims from a queue."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import conf
from airflow.sdk.bases.decorator import DecoratedOperator, KeywordParameters, task_decorator_factory
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from airflow_provider_zkmq.decorators.consuming import Consumed, check_choices, check_kind, check_numbers
from airflow_provider_zkmq.decorators.functions import handler_of, without_first
from airflow_provider_zkmq.engine import Duration
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.deferring import AWAY
from airflow_provider_zkmq.hooks.templating import span
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.lineage import ReadsQueue
from airflow_provider_zkmq.operators.patience import NO_OUTAGE
from airflow_provider_zkmq.operators.waiting import defer_until_ready
from airflow_provider_zkmq.triggers.backoff import LONGEST_OF_A_WAIT, Backoff
from airflow_provider_zkmq.triggers.zkmq import nothing_came

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_provider_zkmq.engine import AnyQueue, Worker

#: The fields that an argument of the function sets, if it has the field's name: so they can be mapped over.
_OF_FUNCTION: Final = ("zkmq_queue", "selector")
#: Airflow kills a process five seconds after it told it to end: handlers have so long, in seconds.
_GRACE: Final = 1.0


class ZkmqDecoratedOperator(ReadsQueue, DecoratedOperator):
    """Claims tasks and calls the function for each, until none is left or it has had `max_tasks`.

    The function is called with the task (`Running`: its ``data``, ``filters``, ``attempt``, …, ``report``, ``extend``),
    then with what TaskFlow passes. What it returns is the task's result, bytes, text or None, or it returns
    `Success`, `Error`, `Retry` or `Snooze`; an exception, and a value that is none of these, fails the task, to be
    tried again by its queue's policy. Each task is settled when the function has returned, whatever becomes of others.
    The XCom is ``{"finished", "failed", "released", "lost", "errors": [{"id", "error"}]}``, with the first few errors.
    Locks and leases are extended while the function runs. A task of Airflow's that is tried again, or cleared, claims
    what is there. One that is told to end gives back what it has in hand, which counts as no attempt; one whose
    process dies does so when its session ends. A time-out by ``execution_timeout`` is a failure of what is in hand.

    Args:
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        selector: only tasks that it matches, as text; None: all. An argument of the function named ``selector`` or
            ``zkmq_queue`` sets it, too, so that ``expand`` can map over it.
        max_tasks: so many tasks at the most; 1 or more.
        lease: claim with a lease of so long, which outlives the session, instead of bound to it.
        threads: so many tasks in hand at once.
        transactional: call the function with the task and a `UnitOfWork` that has taken it, which is committed when
            the function returns and rolled back when it raises.
        on_empty: where there is nothing to claim: ``"wait"`` for it; ``"succeed"``; ``"skip"``; ``"fail"``.
        timeout: how long to wait at the most, in seconds or as text; None: ``execution_timeout``, else without bound.
            After that the Airflow task fails.
        deferrable: wait in the triggerer rather than on a worker; nothing is claimed meanwhile.
        fail_on: which failures of tasks fail the Airflow task, after all have been handled: ``"none"``: each is tried
            again by its queue's policy, or a dead letter, as where a worker handles it; ``"any"``; ``"all"``: at least
            one failed, and none finished.
        zkmq_conn_id: the Airflow connection.

    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, "zkmq_queue", "selector", "zkmq_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = dict(DecoratedOperator.template_fields_renderers)
    custom_operator_name = "@task.zkmq"
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        zkmq_queue: str | None = None,
        selector: str | None = None,
        max_tasks: int = 100,
        lease: Duration | str | None = None,
        threads: int = 1,
        transactional: bool = False,
        on_empty: str = "wait",
        timeout: Duration | str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        fail_on: str = "none",
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        check_numbers(max_tasks=max_tasks, threads=threads)
        check_choices(on_empty, fail_on)
        seconds = span("lease", lease)
        check_kind(transactional, seconds)
        rest = without_first(python_callable, 1 + transactional)
        super().__init__(python_callable=rest, **kwargs)
        self._ours = set(inspect.signature(python_callable).parameters) - set(inspect.signature(rest).parameters)
        self.zkmq_queue = zkmq_queue
        self.selector = selector
        self.max_tasks = max_tasks
        self.lease = seconds
        self.threads = threads
        self.transactional = transactional
        self.on_empty = on_empty
        self.timeout = span("timeout", timeout)
        self.deferrable = deferrable
        self.fail_on = fail_on
        self.zkmq_conn_id = zkmq_conn_id
        self._queue: AnyQueue | None = None
        self._worker: Worker | None = None
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Handle what is there, or wait for it; return what became of it.

        Raises:
            AirflowSkipException: there was nothing, and `on_empty` says so.
            AirflowException: there was nothing, or nothing in time, or tasks failed and `fail_on` says so.
            ZkmqError: nothing could be claimed; the message says why.

        """
        left = self._span()
        return self._consume(context, None if left is None else time.time() + left)

    def execute_complete(
        self, context: Context, event: dict[str, Any], deadline: float | None = None
    ) -> dict[str, Any]:
        """Go on after the trigger; where others were faster, defer again. Raises what `execute` does."""
        if event["status"] != "done":
            raise AirflowException(event["message"])
        return self._consume(context, deadline)

    def on_kill(self) -> None:
        """Claim nothing more, and give back what is in hand; called from a signal handler."""
        self._killed = True
        if self._worker is not None:
            self._worker.stop(forgive=True)
        if self._queue is not None:  # from another thread: the signal may have interrupted the holder of a lock
            threading.Thread(target=self._queue.wake, daemon=True).start()

    def _is_killed(self) -> bool:
        return self._killed

    def _consume(self, context: Context, deadline: float | None) -> dict[str, Any]:
        self._take_from_arguments()
        backoff = Backoff(self.log, what="Waiting", longest=LONGEST_OF_A_WAIT)
        while True:
            try:
                with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                    self._queue = hook.queue()
                    return self._handle_or_wait(self._queue, context, deadline)
            except NO_OUTAGE:
                raise
            except AWAY as error:  # nothing had been handled
                if self.on_empty != "wait" or _passed(deadline):
                    raise
                self._defer_unless_blocking(deadline)
                backoff.block_after(error, LONGEST_OF_A_WAIT)
            finally:
                self._queue = None

    def _handle_or_wait(self, queue: AnyQueue, context: Context, deadline: float | None) -> dict[str, Any]:
        """Handle what is there; while there is nothing, wait. Raises `TransportError` where that ended by one."""
        while not (done := self._handle(queue, context)).handled:
            if self._killed:
                raise AirflowException("told to end before there was a task")
            self._check_empty(queue, deadline)
            if self.on_empty == "succeed":
                break
            self._defer_unless_blocking(deadline)
            if not queue.ready(selector=self.selector or None, timeout=_left(deadline), stopping=self._is_killed):
                self._check_empty(queue, deadline)
        done.tell(queue, self.log)
        if self._killed:
            raise AirflowException(f"told to end after {done.handled} task(s); what was in hand is given back")
        done.check(queue.name, self.fail_on)
        return done.summary()

    def _handle(self, queue: AnyQueue, context: Context) -> Consumed:
        """Let a worker handle what is there."""
        done = Consumed(queue.name)
        handler = handler_of(self.python_callable, self.op_args, self._keywords(context), self.log)
        worker = self._worker = queue.worker(
            handler, selector=self.selector or None, limit=self.max_tasks, lease=self.lease, threads=self.threads,
            grace=_GRACE, on_settled=done.settled, **({"transactional": True} if self.transactional else {}),
        )  # fmt: skip
        try:
            if not self._killed:
                worker.run(until_empty=True)
        except BaseException:
            worker.stop()
            worker.join()
            raise
        finally:
            self._worker = None
        return done

    def _check_empty(self, queue: AnyQueue, deadline: float | None) -> None:
        """Raise where the end of waiting for work is no success."""
        if self.on_empty == "skip":
            raise AirflowSkipException(f"queue {queue.name!r} has nothing to claim")
        if self.on_empty == "fail" or (self.on_empty == "wait" and _passed(deadline)):
            raise AirflowException(nothing_came(queue.name, self.selector))

    def _defer_unless_blocking(self, deadline: float | None) -> None:
        if self.deferrable:
            defer_until_ready(self, deadline)

    def _keywords(self, context: Context) -> Mapping[str, Any]:
        """Return the function's other arguments: TaskFlow's, and those of Airflow's context that it names."""
        given = {name: value for name, value in {**context, **self.op_kwargs}.items() if name not in self._ours}
        keywords: Mapping[str, Any] = KeywordParameters.determine(self.python_callable, self.op_args, given).unpacking()
        return keywords

    def _take_from_arguments(self) -> None:
        """Set the fields that the function is given as arguments."""
        bound = inspect.signature(self.python_callable).bind_partial(*self.op_args, **self.op_kwargs)
        given = set(bound.arguments)
        bound.apply_defaults()
        for name in _OF_FUNCTION:
            if name in given or (name in bound.arguments and getattr(self, name) is None):
                setattr(self, name, bound.arguments[name])

    def _span(self) -> float | None:
        """Return how long to wait, in seconds."""
        limit = self.execution_timeout
        return limit.total_seconds() if self.timeout is None and limit is not None else self.timeout


def _passed(deadline: float | None) -> bool:
    return deadline is not None and time.time() >= deadline


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.time())


def zkmq_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function ``@task.zkmq``: the keyword arguments are `ZkmqDecoratedOperator`'s, and every operator's."""
    if kwargs.pop("multiple_outputs", False):
        raise ValueError("@task.zkmq: multiple_outputs is not allowed: what it returns is one summary")
    return task_decorator_factory(
        python_callable, multiple_outputs=False, decorated_operator_class=ZkmqDecoratedOperator, **kwargs
    )
