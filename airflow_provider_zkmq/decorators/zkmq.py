"""`@task.zkmq`: a function that an Airflow task runs for each task that it claims from a queue."""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import Context, conf
from airflow.sdk.bases.decorator import DecoratedOperator, KeywordParameters, is_async_callable, task_decorator_factory
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from .. import engine, traces
from ..engine.queue_internals import internals
from ..hooks import arguments, claim_references, connection_options, deferring, lineage, metrics, outages, xcom_results
from ..hooks.claim_references import ClaimReference
from ..hooks.zkmq import ZkmqHook
from ..operators import claiming
from ..operators.settling import as_result
from ..triggers.zkmq import nothing_came

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import TaskDecorator

    from ..engine import AnyClaim, AnyQueue, Task, Worker

_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
#: What settles a task by itself.
_RETURNABLE: Final = (engine.Success, engine.Error, engine.Retry, engine.Snooze)
#: So many failures of a function are logged with their tracebacks.
_TRACEBACKS: Final = 3
#: What the function skips is not delivered again for so many seconds: the same run would take it again and again.
_SKIPPED: Final = 10.0


def without_first(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return the function with the signature that is left for TaskFlow: the first `count` parameters are ours.

    Raises `ValueError` for a function that does not take them, and for a coroutine function.
    """
    name = getattr(function, "__name__", repr(function))
    if is_async_callable(function):
        raise ValueError(f"@task.zkmq: {name} is a coroutine function: give a plain one")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    first, rest = parameters[:count], parameters[count:]
    if len(first) < count or any(each.kind not in _BY_POSITION for each in first):
        wanted = "the task and its transaction" if count > 1 else "the task"
        raise ValueError(f"@task.zkmq: {name} is called with {wanted} first: it must take {count} argument(s) for it")

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    called.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return called


def handler_of(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], log: Any
) -> Callable[..., Any]:
    """Return what a worker calls for each task, in its own thread: there, too, Airflow's context is at hand.

    What the function returns and a worker knows no meaning of is kept as JSON. What is none fails the task for good, as
    does `AirflowFailException`: another try would end alike. `AirflowSkipException` gives it back, which is no attempt.
    """
    around, logged = contextvars.copy_context(), list[str]()

    def handle(*named: Any) -> Any:
        try:
            done = around.copy().run(function, *named, *args, **kwargs)
        except AirflowSkipException as error:
            log.info("Task %s is given back, as the function skipped it: %s", named[0].id, error)
            return engine.Snooze(_SKIPPED)
        except Exception as error:
            if len(logged) < _TRACEBACKS:
                logged.append(named[0].id)
                log.warning("The function failed: task %s", named[0].id, exc_info=True)
            if isinstance(error, AirflowFailException):
                return engine.Error(error)
            raise
        try:
            return done if isinstance(done, _RETURNABLE) else as_result(done)
        except engine.ConfigError as error:
            return engine.Error(error)

    return handle


#: So many errors are in the XCom, and so many characters of each.
_ERRORS: Final = 5
_LENGTH: Final = 500
#: So many failed tasks are logged, each in a line.
_LINES: Final = 20
#: So many of the others are read together, to count those that are dead.
_AT_ONCE: Final = 512
_OUTCOMES: Final = {
    engine.Success: "completed",
    engine.Error: "failed",
    engine.Retry: "failed",
    engine.Snooze: "released",
    type(None): "lost",
}


class Consumed:
    """Counts what a worker settles. One lock guards it: it is told by the worker's threads."""

    def __init__(self, queue: str, *, claims: bool = False) -> None:
        """`claims`: the tasks were claimed by others, who have counted that."""
        self._queue = queue
        self._counted = claims
        self.finished = self.failed = self.released = self.lost = 0
        self._failures: list[tuple[str, str]] = []
        self._failed_ids: dict[str, None] = {}  # of all: which of them are dead is read in the end
        self._first: list[str] = []
        self._lock = threading.Lock()

    @property
    def handled(self) -> int:
        """How many tasks the function was called for."""
        return self.finished + self.failed + self.released + self.lost

    def settled(self, task: Task, outcome: engine.Success | engine.Error | engine.Retry | engine.Snooze | None) -> None:
        """The function has handled a task, which was settled by this outcome; None: its claim was lost."""
        if not self._counted:
            metrics.count_claimed(self._queue, [task])
        since = None if task.claimed_ms is None else 1000 * time.time() - task.claimed_ms
        metrics.count_settled(self._queue, _OUTCOMES[type(outcome)], run_ms=since)
        with self._lock:
            if len(self._first) < _ERRORS:
                self._first.append(task.id)
            self.finished += isinstance(outcome, engine.Success)
            self.released += isinstance(outcome, engine.Snooze)
            self.lost += outcome is None
            if isinstance(outcome, engine.Error | engine.Retry):
                self.failed += 1
                self._failed_ids[task.id] = None
                if len(self._failures) < _LINES:
                    self._failures.append((task.id, _text(outcome.error)))

    def summary(self) -> dict[str, Any]:
        """Return the XCom: bounded, however many tasks there were."""
        errors = [{"id": task_id, "error": error} for task_id, error in self._failures[:_ERRORS]]
        counts = {name: getattr(self, name) for name in ("finished", "failed", "released", "lost")}
        return {**counts, "errors": errors}

    def log_results(self, queue: AnyQueue, log: Any, conn_id: str) -> None:
        """Log how many tasks were handled, and what became of the first that failed: an error for each dead one."""
        log.info(
            "Handled %d task(s) of queue %r: %d finished, %d failed, %d given back, %d lost%s",
            self.handled, queue.name, self.finished, self.failed, self.released, self.lost,
            f"; the first: {', '.join(self._first)}" if self._first else "",
        )  # fmt: skip
        if not self._failures:
            return
        errors = dict(self._failures)
        try:
            tasks = queue.tasks(ids=list(errors), parts=())
            metrics.count_dead(queue.name, sum(task.state == "dead" for task in tasks))
            for task in tasks:
                line = "Failed, and %s on attempt %d: task %s of queue %r: %s; see: %s"
                see = xcom_results.typed(conn_id, "show", queue.name, task.id)
                values = (task.status, task.attempt, task.id, queue.name, errors[task.id], see)
                (log.error if task.state == "dead" else log.warning)(line, *values)
            if self.failed > len(errors):
                log.warning("%d more task(s) of queue %r failed", self.failed - len(errors), queue.name)
            others = [task_id for task_id in self._failed_ids if task_id not in errors]
            for at in range(0, len(others), _AT_ONCE):  # of these the dead are counted alone
                tasks = queue.tasks(ids=others[at : at + _AT_ONCE], parts=())
                metrics.count_dead(queue.name, sum(task.state == "dead" for task in tasks))
        except engine.ZkmqError as error:  # what was handled is settled, whatever can be read of it
            log.warning("What became of the %d task(s) that failed is not known now: %s", self.failed, error)

    def check(self, queue: str, fail_on: str, error: type[AirflowException] = AirflowException) -> None:
        """Raise `error` where so many failures are to fail the Airflow task."""
        if not self.failed or fail_on == "none" or (fail_on == "all" and self.finished):
            return
        lines = [f"{task_id}: {error}" for task_id, error in self._failures[:_ERRORS]]
        more = [f"and {self.failed - _ERRORS} more"] if self.failed > _ERRORS else []
        what = f"{self.failed} of {self.handled} task(s) of queue {queue!r} failed"
        raise error(f"{what}, {self.finished} finished: {'; '.join([*lines, *more])}")


def _text(error: str | BaseException) -> str:
    """Return an error as its task keeps it and an XCom may hold it, cut where it is long."""
    try:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  whatever its `__str__` raises
        text = type(error).__name__
    return xcom_results.clipped(xcom_results.storable(text), _LENGTH)


#: What was given back is claimed anew with a lease of so many seconds, where none is asked for; it is extended.
_ANEW: Final = 60.0


@dataclass(slots=True)
class _Waiting:
    """A claim that waits for a thread; `taken_over`: it, to be extended from `due` on, by the monotonic clock."""

    reference: ClaimReference
    taken_over: AnyClaim | None = None
    due: float = 0.0


class ClaimsOfOthers:
    """Hands out claims that another process made, each taken over when a thread is free for it.

    Those that wait for a thread are extended meanwhile, whenever the worker looks after its queue. What does not hold
    any more is passed over, with a line in the log; a later try of the Airflow task (`again`) first claims anew, by its
    id, what an earlier one gave back: the same delivery, which has counted no attempt.
    """

    def __init__(
        self,
        queue: AnyQueue,
        claims: Iterable[ClaimReference],
        lease: float | None,
        log: Any,
        *,
        again: bool = False,
    ) -> None:
        self._queue = queue
        self._internals = internals(queue)
        self._waiting = deque(
            _Waiting(reference) for reference in {(each["id"], each["token"]): each for each in claims}.values()
        )
        self._lease = lease
        self._log = log
        self._again = again
        self._turn = threading.Lock()
        self._handed = 0
        self._refused: engine.ZkmqError | None = None

    def worker(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """Return a worker that handles what is given. Raises `ConfigError` for what goes with claiming alone."""
        from ..engine import Worker  # it loads much: reading a DAG does without

        if options.pop("selector") is not None:
            raise engine.ConfigError("@task.zkmq: with claims there is nothing left to select: leave selector out")
        if options.pop("transactional", False):
            raise engine.ConfigError("@task.zkmq: a transaction takes what it claims itself: leave out claims or it")
        del options["lease"]
        queue: Any = self  # the rest of it is `__getattr__`'s
        return Worker(queue, handler, **options | {"prefetch": 0})

    def check_wanted(self, **_: object) -> None:
        """Nothing is chosen; where there is no queue any more, no claim holds, which is found one by one."""

    def claim(self, *_: object, timeout: float = 0, **__: object) -> AnyClaim | None:
        """Return the next claim that holds, begun. Raises `TransportError`; the claim is then asked for again."""
        with self._turn:
            while self._waiting:
                held = self._hold(self._waiting[0], begins=True)
                first = self._waiting.popleft()
                if held:
                    self._handed += 1
                    return first.taken_over
        if timeout:  # another thread has something in hand, and what it gives back is nobody's here
            self._internals.wait_for_change(self._internals.changes, timeout)
        return None

    def run_maintenance(self) -> None:
        """Extend what waits for a thread, each a third of its span after the last time."""
        with self._turn:
            for each in [each for each in self._waiting if each.due <= time.monotonic()]:
                if not self._hold(each):
                    self._waiting.remove(each)
        self._internals.run_maintenance()

    def check_handled(self) -> None:
        """Raise where nothing was handled for another reason than that no claim holds any more."""
        if self._refused is not None:
            raise self._refused
        if self._handed:
            raise AirflowException(f"{self._handed} task(s) were taken over and none was settled; see the log above")

    @contextmanager
    def failing_for_good(self) -> Iterator[None]:
        """After a time-out in which a function had begun, have Airflow not try again: its claim is over.

        What no thread got to is given back then.
        """
        try:
            yield
        except AirflowTaskTimeout as error:
            if not self._handed:
                raise
            if self._turn.acquire(timeout=1.0):  # else a thread waits for ZooKeeper: so would we
                try:
                    left = [claiming.Taken(each.reference, 0) for each in self._waiting]
                    self._waiting.clear()
                finally:
                    self._turn.release()
                claiming.give_back(lambda _: self._queue, left, self._log)
            raise AirflowFailException(f"{error}; no other try could handle what a function has begun") from None

    def _hold(self, waiting: _Waiting, *, begins: bool = False) -> bool:
        """Take a claim over, or extend it; False where it does not hold any more, or is refused."""
        reference = waiting.reference
        try:
            with claiming.logging_lost_claim(reference, self._log):
                taken_over = waiting.taken_over = waiting.taken_over or self._taken_over(reference)
                if taken_over is None:
                    return False
                taken_over.extend(taken_over.span or 0.0)
                if begins and taken_over.prefetched:
                    taken_over.begin()
                waiting.due = time.monotonic() + (taken_over.span or 0.0) / 3
                return True
        except (engine.AccessDenied, engine.TransportError):
            raise
        except engine.ZkmqError as error:  # its task is damaged, say: the others are to be handled
            self._refused = error
            self._log.warning(
                "Claim %d of %s is passed over: %s", reference["token"], claim_references.shown(reference), error
            )
        return False

    def _taken_over(self, reference: ClaimReference) -> AnyClaim | None:
        claim: AnyClaim | None = None
        with suppress(engine.ClaimLost, engine.TaskNotFound):
            claim = self._queue.claim_handle(reference["id"], reference["token"], lease=self._lease)
        if claim is None and self._again:
            claim = self._queue.claim_task(reference["id"], lease=self._lease or _ANEW, attempt=reference["attempt"])
            reference["token"] = reference["token"] if claim is None else claim.token
        if claim is None:
            task = self._queue.task(reference["id"])
            now = f"it is {task.status}, attempt {task.attempt}"
            self._log.info(
                "Claim %d of %s does not hold any more: %s", reference["token"], claim_references.shown(reference), now
            )
        return claim

    def __getattr__(self, name: str) -> Any:
        """Whatever else a worker asks of a queue, or of its internals."""
        return getattr(self._internals if hasattr(self._internals, name) else self._queue, name)

    def __internals__(self) -> ClaimsOfOthers:
        return self


def queue_of(claims: Iterable[ClaimReference], queue: str | None) -> str | None:
    """Return the one queue of the claims. Raises `ConfigError` where they are of several, or of another."""
    names = {claim["queue"] for claim in claims} | ({queue} if queue else set())
    if len(names) > 1:
        raise engine.ConfigError(
            f"@task.zkmq: the claims are of several queues, {', '.join(sorted(names))}: map over them"
        )
    return next(iter(names), None)


#: Fields that an argument of the function sets, if it has the field's name, and what None is then: no XCom is no claim.
_OF_FUNCTION: Final = {"zkmq_queue": None, "selector": None, "claims": ()}
#: Airflow kills a process five seconds after it told it to end: handlers have so long, in seconds.
_GRACE: Final = 1.0


class ZkmqDecoratedOperator(lineage.ReadsQueue, DecoratedOperator):
    """Claims tasks and calls the function for each, until none is left or it has had `max_tasks`.

    The function is called with the task (`Running`: its ``data``, ``filters``, ``attempt``, …, ``report``, ``extend``),
    then with what TaskFlow passes. What it returns is the task's result, bytes, text, None or JSON, or it returns
    `Success`, `Error`, `Retry` or `Snooze`; an exception fails the task, to be tried again by its queue's policy.
    `AirflowFailException`, and a value that is none of these, fails it for good; `AirflowSkipException` gives it back,
    for ten seconds at least, and counts no attempt. Each task is settled when the function has returned, whatever
    becomes of others. The XCom is ``{"finished", "failed", "released", "lost", "errors": [{"id", "error"}]}``, with the
    first few errors. Locks and leases are extended while the function runs. A task of Airflow's that is tried again, or
    cleared, claims what is there. One that is ended gives back what it has in hand, which counts as no attempt; one
    whose process dies does so when its session ends. A time-out by ``execution_timeout`` is a failure of what is in
    hand.

    Args:
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        selector: only tasks that it matches, as text; None: all. An argument of the function named ``selector``,
            ``zkmq_queue`` or ``claims`` sets it, too, so that ``expand`` can map over it.
        claims: handle all of these, a claim or a list of them, as `ZkmqClaimOperator` gives them, and claim nothing.
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
        lease: engine.Duration | str | None = None,
        threads: int = 1,
        transactional: bool = False,
        on_empty: str = "wait",
        timeout: engine.Duration | str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        fail_on: str = "none",
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        arguments.check_number("@task.zkmq: max_tasks", max_tasks)
        arguments.check_number("@task.zkmq: threads", threads)
        arguments.check_choice("@task.zkmq: on_empty", on_empty, ("wait", "succeed", "skip", "fail"))
        arguments.check_choice("@task.zkmq: fail_on", fail_on, ("none", "any", "all"))
        seconds = arguments.span("lease", lease)
        if transactional not in (True, False):
            raise ValueError(f"@task.zkmq: transactional {transactional!r} is not allowed: True or False")
        if transactional and seconds is not None:
            raise ValueError("@task.zkmq: a transaction ends with its session: give either transactional or lease")
        if seconds is not None and seconds <= 0:
            raise ValueError(f"@task.zkmq: lease {seconds!r} is not allowed: more than 0 seconds")
        rest = without_first(python_callable, 1 + transactional)
        super().__init__(python_callable=rest, **kwargs)
        self._own = set(inspect.signature(python_callable).parameters) - set(inspect.signature(rest).parameters)
        self.zkmq_queue = zkmq_queue
        self.selector = selector
        self.claims = claims
        self.max_tasks = max_tasks
        self.lease = seconds
        self.threads = threads
        self.transactional = transactional
        self.on_empty = on_empty
        self.timeout = arguments.span("timeout", timeout)
        self.deferrable = deferrable
        self.fail_on = fail_on
        self.zkmq_conn_id = zkmq_conn_id
        self._queue: AnyQueue | None = None
        self._worker: Worker | None = None
        self._cancelled_on_kill = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Handle what is there, or wait for it; return what became of it.

        Raises `AirflowSkipException` where there was nothing, and `on_empty` says so, `AirflowException` where there
        was nothing, or nothing in time, or tasks failed and `fail_on` says so, and `ZkmqError` where nothing could be
        claimed.
        """
        limit = deferring.wait_limit(self)
        return self._consume(context, None if limit is None else time.time() + limit)

    def execute_complete(
        self, context: Context, event: dict[str, Any], deadline: float | None = None
    ) -> dict[str, Any]:
        """Go on after the trigger; where others were faster, defer again. Raises what `execute` does."""
        if event["status"] != "done":
            raise AirflowException(deferring.naming(event["message"], deferring.wait_limit(self)))
        return self._consume(context, deadline)

    def on_kill(self) -> None:
        """Claim nothing more, and give back what is in hand; called from a signal handler."""
        self._cancelled_on_kill = True
        if self._worker is not None:
            self._worker.stop(forgive=True)
        if self._queue is not None:  # from another thread: the signal may have interrupted the holder of a lock
            threading.Thread(target=internals(self._queue).wake, daemon=True).start()

    def _consume(self, context: Context, deadline: float | None) -> dict[str, Any]:
        # An argument that the function is called with sets the field of its name; the default of one, an empty field.
        bound = inspect.signature(self.python_callable).bind_partial(*self.op_args, **self.op_kwargs)
        given = {**self.op_kwargs, **bound.arguments}
        bound.apply_defaults()
        for name, nothing in _OF_FUNCTION.items():
            if name in given:
                setattr(self, name, nothing if given[name] is None else given[name])
            elif getattr(self, name) is None and name in bound.arguments:
                setattr(self, name, bound.arguments[name])
        if self.claims is not None:
            return self._consume_claims_of_others(context)
        backoff = outages.Backoff(self.log, what="Waiting", longest=outages.LONGEST_OF_A_WAIT)
        while True:
            try:
                with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                    self._queue = hook.queue()
                    return self._handle_or_wait(self._queue, context, deadline)
            except outages.NO_OUTAGE:
                raise
            except engine.TransportError as error:  # nothing had been handled
                if self.on_empty != "wait" or deferring.seconds_left(deadline) == 0:
                    raise
                if self.deferrable:
                    claiming.defer_until_ready(self, deadline)
                backoff.block_after(error, outages.LONGEST_OF_A_WAIT)
            finally:
                self._queue = None

    def _consume_claims_of_others(self, context: Context) -> dict[str, Any]:
        """Handle claims that others made. What failed has lost its claim, so no other try could handle it again."""
        claims = claim_references.read_claims("claims", self.claims)
        self.zkmq_queue = queue_of(claims, self.zkmq_queue)
        if claims:
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                self._queue = outages.outlast(self.log, "Taking over", outages.RETRY_SECONDS, lambda _: hook.queue())
                named = ClaimsOfOthers(self._queue, claims, self.lease, self.log, again=context["ti"].try_number > 1)
                with named.failing_for_good():
                    done = self._handle(named, context, len(claims))
                if done.handled or self._cancelled_on_kill:
                    return self._ended(done, self._queue, AirflowFailException)
                named.check_handled()
        why = f"none of the {len(claims)} claim(s) holds any more; see the log above" if claims else "there is no claim"
        if self.on_empty == "fail":
            raise AirflowFailException(why)
        if self.on_empty != "succeed":  # there is nothing to wait for
            raise AirflowSkipException(why)
        return Consumed("").summary()

    def _handle_or_wait(self, queue: AnyQueue, context: Context, deadline: float | None) -> dict[str, Any]:
        """Handle what is there; while there is nothing, wait. Raises `TransportError` where that ended by one."""
        while not (done := self._handle(queue, context, self.max_tasks)).handled:
            if self._cancelled_on_kill:
                raise AirflowException("told to end before there was a task")
            if self.on_empty == "succeed":
                break
            if self.on_empty == "skip":
                raise AirflowSkipException(f"queue {queue.name!r} has nothing to claim")
            if self.on_empty == "fail" or deferring.seconds_left(deadline) == 0:
                waited = deferring.wait_limit(self) if self.on_empty == "wait" else None
                raise AirflowException(nothing_came(queue.name, self.selector, waited))
            if self.deferrable:
                claiming.defer_until_ready(self, deadline)
            claiming.block_until_ready(
                queue, self.selector or None, deferring.seconds_left(deadline), lambda: self._cancelled_on_kill
            )
        return self._ended(done, queue)

    def _handle(self, queue: AnyQueue | ClaimsOfOthers, context: Context, most: int) -> Consumed:
        """Let a worker handle what is there, at most so many."""
        done = Consumed(queue.name, claims=isinstance(queue, ClaimsOfOthers))
        # What is TaskFlow's of the function's other arguments, and what it names of Airflow's context.
        offered = {name: value for name, value in {**context, **self.op_kwargs}.items() if name not in self._own}
        named = KeywordParameters.determine(self.python_callable, tuple(self.op_args), offered).unpacking()
        handler = traces.handler(handler_of(self.python_callable, self.op_args, named, self.log), queue.name)
        worker = self._worker = queue.worker(
            handler, selector=self.selector or None, limit=most, lease=self.lease, threads=self.threads,
            grace=_GRACE, on_settled=done.settled, **({"transactional": True} if self.transactional else {}),
        )  # fmt: skip
        try:
            if not self._cancelled_on_kill:
                worker.run(until_empty=True)
        except BaseException as error:
            worker.stop()
            worker.join()
            if done.handled or not isinstance(error, engine.QueueNotFound):
                raise
            claiming.skip_missing_queue(error, self.on_empty, self.log)
        finally:
            self._worker = None
        return done

    def _ended(
        self, done: Consumed, queue: AnyQueue, failure: type[AirflowException] = AirflowException
    ) -> dict[str, Any]:
        """Tell what became of the tasks, raise `failure` where they are to fail this one, else return the XCom."""
        done.log_results(queue, self.log, self.zkmq_conn_id)
        if self._cancelled_on_kill:
            raise AirflowException(f"told to end after {done.handled} task(s); what was in hand is given back")
        done.check(queue.name, self.fail_on, failure)
        return done.summary()


def zkmq_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function ``@task.zkmq``: the keyword arguments are `ZkmqDecoratedOperator`'s, and every operator's."""
    if kwargs.pop("multiple_outputs", False):
        raise ValueError("@task.zkmq: multiple_outputs is not allowed: what it returns is one summary")
    return task_decorator_factory(
        python_callable, multiple_outputs=False, decorated_operator_class=ZkmqDecoratedOperator, **kwargs
    )
