"""`@task.zkmq`: a function that an Airflow task runs for each task that it claims from a queue."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import conf
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_zkmq.decorators.consuming import Consumed, check_choices, check_kind, check_numbers
from airflow_provider_zkmq.decorators.functions import handler_of, keywords_of, take_fields, without_first
from airflow_provider_zkmq.decorators.given import Given, none_holds, queue_of
from airflow_provider_zkmq.engine import Duration, QueueNotFound
from airflow_provider_zkmq.hooks.claims import read_claims
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.deferring import AWAY, naming, seconds_left
from airflow_provider_zkmq.hooks.templating import span
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.lineage import ReadsQueue
from airflow_provider_zkmq.operators.patience import NO_OUTAGE, PATIENCE, outlast
from airflow_provider_zkmq.operators.waiting import block_until_ready, defer_until_ready, tell_missing
from airflow_provider_zkmq.triggers.backoff import LONGEST_OF_A_WAIT, Backoff
from airflow_provider_zkmq.triggers.zkmq import nothing_came

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_provider_zkmq.engine import AnyQueue, Worker

#: Fields that an argument of the function sets, if it has the field's name, and what None is then: no XCom is no claim.
_OF_FUNCTION: Final = {"zkmq_queue": None, "selector": None, "claims": ()}
#: Airflow kills a process five seconds after it told it to end: handlers have so long, in seconds.
_GRACE: Final = 1.0


class ZkmqDecoratedOperator(ReadsQueue, DecoratedOperator):
    """Claims tasks and calls the function for each, until none is left or it has had `max_tasks`.

    The function is called with the task (`Running`: its ``data``, ``filters``, ``attempt``, …, ``report``, ``extend``),
    then with what TaskFlow passes. What it returns is the task's result, bytes, text, None or JSON, or it returns
    `Success`, `Error`, `Retry` or `Snooze`; an exception fails the task, to be tried again by its queue's policy.
    `AirflowFailException`, and a value that is none of these, fails it for good; `AirflowSkipException` gives it back,
    for ten seconds at least, and counts no attempt. Each task is settled when the function has returned, whatever
    becomes of others. The XCom is ``{"finished", "failed", "released", "lost", "errors": [{"id", "error"}]}``, with the
    first few errors. Locks and leases are extended while the function runs. A task of Airflow's that is tried again, or
    cleared, claims what is there. One that is told to end gives back what it has in hand, which counts as no attempt;
    one whose process dies does so when its session ends. A time-out by ``execution_timeout`` is a failure of what is in
    hand.

    Args:
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        selector: only tasks that it matches, as text; None: all. An argument of the function named ``selector``,
            ``zkmq_queue`` or ``claims`` sets it, too, so that ``expand`` can map over it.
        claims: handle all of these, a claim or a list of them, as `ZkmqClaimOperator` tells them, and claim nothing.
            Each is taken over, extended and settled as if claimed here; one that does not hold any more is passed over.
            Where none holds, ``on_empty="wait"`` skips, too; what failed, or took too long, is not tried again by
            Airflow, since its claim is over.
        max_tasks: claim so many tasks at the most; 1 or more.
        lease: claim with a lease of so long, which outlives the session, instead of bound to it; with `claims`, extend
            them by so much, each time, rather than by the lease they were taken with.
        threads: so many tasks in hand at once.
        transactional: call the function with the task and a `UnitOfWork` that has taken it, which is committed when
            the function returns and rolled back when it raises.
        on_empty: where there is no work, or no queue: ``"wait"`` for it; ``"succeed"``; ``"skip"``; ``"fail"``.
        timeout: after so many seconds, or their text, without a task, fail; None: ``execution_timeout``, else never.
        deferrable: wait in the triggerer rather than on a worker; nothing is claimed meanwhile.
        fail_on: which failures of tasks fail the Airflow task, after all have been handled: ``"none"``: each is its
            queue's affair, as where a worker handles it; ``"any"``; ``"all"``: one failed at least, and none finished.
        zkmq_conn_id: the Airflow connection.

    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *_OF_FUNCTION, "zkmq_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = dict(DecoratedOperator.template_fields_renderers)
    custom_operator_name, ui_color = "@task.zkmq", "#e8f0e4"
    holds_claims: ClassVar[bool] = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        zkmq_queue: str | None = None,
        selector: str | None = None,
        claims: object = None,
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
        self.claims = claims
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
        return self._consume(context, None if self._span is None else time.time() + self._span)

    def execute_complete(
        self, context: Context, event: dict[str, Any], deadline: float | None = None
    ) -> dict[str, Any]:
        """Go on after the trigger; where others were faster, defer again. Raises what `execute` does."""
        if event["status"] != "done":
            raise AirflowException(naming(event["message"], self._span))
        return self._consume(context, deadline)

    @property
    def _span(self) -> float | None:
        """For how many seconds it waits for work; None: without bound."""
        limit = self.execution_timeout
        return limit.total_seconds() if self.timeout is None and limit is not None else self.timeout

    def on_kill(self) -> None:
        """Claim nothing more, and give back what is in hand; called from a signal handler."""
        self._killed = True
        if self._worker is not None:
            self._worker.stop(forgive=True)
        if self._queue is not None:  # from another thread: the signal may have interrupted the holder of a lock
            threading.Thread(target=self._queue.wake, daemon=True).start()

    def _consume(self, context: Context, deadline: float | None) -> dict[str, Any]:
        take_fields(self, _OF_FUNCTION)
        if self.claims is not None:
            return self._consume_given(context)
        backoff = Backoff(self.log, what="Waiting", longest=LONGEST_OF_A_WAIT)
        while True:
            try:
                with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                    self._queue = hook.queue()
                    return self._handle_or_wait(self._queue, context, deadline)
            except NO_OUTAGE:
                raise
            except AWAY as error:  # nothing had been handled
                if self.on_empty != "wait" or seconds_left(deadline) == 0:
                    raise
                self._defer_unless_blocking(deadline)
                backoff.block_after(error, LONGEST_OF_A_WAIT)
            finally:
                self._queue = None

    def _consume_given(self, context: Context) -> dict[str, Any]:
        """Handle claims that others made. What failed has lost its claim, so no other try could handle it again."""
        claims = read_claims("claims", self.claims)
        self.zkmq_queue = queue_of(claims, self.zkmq_queue)
        if claims:
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                self._queue = outlast(self.log, "Taking over", PATIENCE, lambda _: hook.queue())
                given = Given(self._queue, claims, self.lease, self.log, again=context["ti"].try_number > 1)
                with given.failing_for_good():
                    done = self._handle(given, context, len(claims))
                if done.handled or self._killed:
                    return self._ended(done, self._queue, AirflowFailException)
                given.check_handled()
        return none_holds(len(claims), self.on_empty)

    def _handle_or_wait(self, queue: AnyQueue, context: Context, deadline: float | None) -> dict[str, Any]:
        """Handle what is there; while there is nothing, wait. Raises `TransportError` where that ended by one."""
        while not (done := self._handle(queue, context, self.max_tasks)).handled:
            if self._killed:
                raise AirflowException("told to end before there was a task")
            self._check_empty(queue, deadline)
            if self.on_empty == "succeed":
                break
            self._defer_unless_blocking(deadline)
            block_until_ready(queue, self.selector or None, seconds_left(deadline), lambda: self._killed)
        return self._ended(done, queue)

    def _handle(self, queue: AnyQueue | Given, context: Context, most: int) -> Consumed:
        """Let a worker handle what is there, at most so many."""
        done = Consumed(queue.name, claims=isinstance(queue, Given))
        given = keywords_of(self.python_callable, self.op_args, self.op_kwargs, context, self._ours)
        handler = handler_of(self.python_callable, self.op_args, given, self.log)
        worker = self._worker = queue.worker(
            handler, selector=self.selector or None, limit=most, lease=self.lease, threads=self.threads,
            grace=_GRACE, on_settled=done.settled, **({"transactional": True} if self.transactional else {}),
        )  # fmt: skip
        try:
            if not self._killed:
                worker.run(until_empty=True)
        except BaseException as error:
            worker.stop()
            worker.join()
            if done.handled or not isinstance(error, QueueNotFound):
                raise
            tell_missing(error, self.on_empty, self.log)
        finally:
            self._worker = None
        return done

    def _ended(
        self, done: Consumed, queue: AnyQueue, failure: type[AirflowException] = AirflowException
    ) -> dict[str, Any]:
        """Tell what became of the tasks, raise `failure` where they are to fail this one, else return the XCom."""
        done.tell(queue, self.log, self.zkmq_conn_id)
        if self._killed:
            raise AirflowException(f"told to end after {done.handled} task(s); what was in hand is given back")
        done.check(queue.name, self.fail_on, failure)
        return done.summary()

    def _check_empty(self, queue: AnyQueue, deadline: float | None) -> None:
        """Raise where the end of waiting for work is no success."""
        if self.on_empty == "skip":
            raise AirflowSkipException(f"queue {queue.name!r} has nothing to claim")
        waited = self.on_empty == "wait"
        if self.on_empty == "fail" or (waited and seconds_left(deadline) == 0):
            raise AirflowException(nothing_came(queue.name, self.selector, self._span if waited else None))

    def _defer_unless_blocking(self, deadline: float | None) -> None:
        if self.deferrable:
            defer_until_ready(self, deadline)


def zkmq_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function ``@task.zkmq``: the keyword arguments are `ZkmqDecoratedOperator`'s, and every operator's."""
    if kwargs.pop("multiple_outputs", False):
        raise ValueError("@task.zkmq: multiple_outputs is not allowed: what it returns is one summary")
    return task_decorator_factory(
        python_callable, multiple_outputs=False, decorated_operator_class=ZkmqDecoratedOperator, **kwargs
    )
