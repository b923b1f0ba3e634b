"""One delivery from claim to settlement, its lease kept by heartbeats meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar

from ..core.model.policy import Error, Retry, Snooze, Success
from ..core.model.states import State
from ..core.model.values import Duration, seconds, whole_number
from ..core.read.inspect import Task
from ..core.tasks.outcome import Handled, error_text
from ..errors import ClaimLost, ConfigError, CorruptRecord, QueueNotFound, SessionLost, TransportError, ZkmqError
from ..log import log
from ..protocols import (
    AsyncWorkerClaim,
    AsyncWorkerTransaction,
    BaseClaim,
    Closing,
    Held,
    Named,
    WorkerClaim,
    WorkerTransaction,
)
from .deliveries import NOT_BEGUN, Budget, Deliveries, Delivery, Handler, PrefetchedDeliveries, WorkerOptions

# --- How both workers handle a task: what its handler gets, how its outcome is judged and told, what ends a worker.

# --- One task, handled: what its handler gets, and what becomes of what it returns or raises.

R = TypeVar("R")


class InHandler(Task, Generic[R]):
    """What handlers of both APIs get; `R`: what its calls return, nothing or what is to be awaited."""

    __slots__ = ("_claim",)
    _claim: Held[R]

    def __init__(self, claim: Held[R]) -> None:
        known = {spec.name: getattr(claim.task, spec.name) for spec in fields(Task)}
        super().__init__(**known | {"started_ms": claim.mark_begun()})
        object.__setattr__(self, "_claim", claim)

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled meanwhile: then nobody wants the result, and none will be taken."""
        return self._claim.cancelled

    @property
    def lost(self) -> bool:
        """Whether the claim is known to be over: cancelled, taken away, its lock or lease or its session has ended.

        What the handler does is for nothing then, and another may be at the task.
        """
        return self._claim.settled or self._claim.over

    @property
    def queue(self) -> str:
        """The name of the queue that it was taken from."""
        return self._claim.queue

    @property
    def token(self) -> int:
        """The fencing token of this delivery."""
        return self._claim.token

    def report(self, progress: float, note: str = "") -> R:
        """Tell how far it has come, from 0 to 1, for `Queue.task` and ``zkmq show --watch``. Raises `ClaimLost`."""
        return self._claim.progress(progress, note)

    def extend(self, lease: Duration) -> R:
        """Hold the task `lease` more seconds from now, where it has a lock or a lease. Raises `ClaimLost`."""
        return self._claim.extend(lease)


class Running(InHandler[None]):
    """The task a handler gets: what it is, and what the handler can do while it has it."""

    __slots__ = ()


class RunningAsync(InHandler[Coroutine[Any, Any, None]]):
    """`Running` for a coroutine: `report` and `extend` are awaited."""

    __slots__ = ()


def outcome_of(returned: object) -> Handled:
    """What a handler returned, as an outcome. Raises `TypeError`."""
    if isinstance(returned, Success | Error | Retry | Snooze):
        return returned
    if returned is None or isinstance(returned, bytes | str):
        return Success(returned)
    msg = (
        f"the handler returned {type(returned).__name__}; return bytes, text, None, "
        "or Success, Error, Retry or Snooze of airflow_provider_zkmq.engine"
    )
    raise TypeError(msg)


def call(work: Callable[[], object]) -> Handled:
    """Run a handler in a thread of its worker's; whatever it raises is an outcome, too, and ends no thread."""
    try:
        return outcome_of(work())
    except BaseException as error:  # noqa: BLE001  a handler's failure is the task's
        return Retry(error)


# --- What becomes of a delivery after a try at settling it: one decision and one report for each, for both workers.

C = TypeVar("C", bound=BaseClaim)
U = TypeVar("U", bound=Closing)

#: The pause between two tries at settling while ZooKeeper is away.
RETRY_SECONDS: Final = 0.5
#: The pause between two tries at settling what cannot be settled.
LEFT_SECONDS: Final = 5.0


class DeliveryResult(Enum):
    """What becomes of a delivery."""

    SETTLED = auto()
    AGAIN = auto()
    """ZooKeeper is away and the session may live: what was done must not be done again, so it is tried until it is."""
    LOST = auto()
    """Nothing is left to settle."""
    LATER = auto()
    """It cannot be settled by whatever means: it is tried again later, while others are handled."""


class Tally:
    """How the deliveries of a worker ended. One lock guards the counters."""

    def __init__(self, on_settled: Callable[[Task, Handled | None], object] | None = None) -> None:
        self.finished = 0
        self.failed = 0
        self._on_settled = on_settled
        self._lock = threading.Lock()

    def settled(self, delivery: Delivery[C, U], *, success: bool) -> DeliveryResult:
        """The delivery is settled. One whose handler was not called counts as neither."""
        if delivery.begun:
            with self._lock:
                self.finished += success
                self.failed += not success
            if not success:
                _log_failure(delivery)
            self._call_on_settled(delivery, delivery.progress.outcome)
        return DeliveryResult.SETTLED

    def judge(self, delivery: Delivery[C, U], error: BaseException) -> DeliveryResult:
        """What becomes of a delivery that a try at settling it raised `error` for; it is reported."""
        delivery_result = _delivery_result(delivery, error)
        _report(delivery, delivery_result, error)
        if delivery_result is DeliveryResult.LATER:
            delivery.left = True
        if delivery_result is DeliveryResult.LOST and delivery.begun:
            self._call_on_settled(delivery, None)
        return delivery_result

    def _call_on_settled(self, delivery: Delivery[C, U], outcome: Handled | None) -> None:
        """Tell the worker's owner; what he raises ends no thread."""
        if self._on_settled is not None:
            try:
                self._on_settled(delivery.claim.task, outcome)
            except Exception:  # noqa: BLE001  whatever a callback of the user's raises
                log.exception("on_settled failed for task %r", delivery.claim.task.id)


def _log_failure(delivery: Delivery[C, U]) -> None:
    """Say in the log which attempt ended otherwise than well, why, and what follows."""
    task, queue, outcome = delivery.claim.task, delivery.claim.queue, delivery.progress.outcome
    follows = delivery.progress.follows
    which = (task.attempt, task.id, queue)
    match outcome:
        case Snooze(delay):
            log.info("snoozed for %s: attempt %d of task %r in queue %r, which is not counted", delay, *which)
        case Retry(error) | Error(error) if follows is not None and follows.state is State.DEAD:
            log.error("dead: attempt %d of task %r in queue %r failed and was its last: %s", *which, error_text(error))
        case Retry(error) | Error(error):
            due = None if follows is None else follows.due
            when = "" if due is None else f" at {datetime.fromtimestamp(due / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
            message = "failed: attempt %d of task %r in queue %r, which is tried again%s: %s"
            log.info(message, *which, when, error_text(error))
        case _:
            log.info("rolled back by its handler: attempt %d of task %r in queue %r", *which)


def _delivery_result(delivery: Delivery[C, U], error: BaseException) -> DeliveryResult:
    if isinstance(error, ClaimLost) or (isinstance(error, SessionLost) and delivery.claim.over):
        return DeliveryResult.LOST
    return DeliveryResult.AGAIN if isinstance(error, TransportError) else DeliveryResult.LATER


def _report(delivery: Delivery[C, U], delivery_result: DeliveryResult, error: BaseException) -> None:
    task_id = delivery.claim.task.id
    match delivery_result:
        case DeliveryResult.LOST:
            log.warning("task %r: %s", task_id, error)
        case DeliveryResult.AGAIN:
            log.warning("task %r: %s; trying again", task_id, error)
        case DeliveryResult.LATER if delivery.left:
            log.warning("task %r can still not be settled: %s", task_id, error)
        case _:
            log.error("task %r could not be settled; this will be tried again", task_id, exc_info=error)


# --- Watching a worker's queue: what a worker tells its monitor, and Carmine's ready-made one.

SIX_HOURS: Final = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Poll:
    """How a worker and its queue stand: ``size`` pending tasks, ``dry_runs`` looks in a row that found nothing.

    ``last`` is what the last look found: ``"handled"`` (a task), ``"nothing"``, also while the worker waits for more,
    or ``"unavailable"``.
    """

    queue: str
    size: int
    dry_runs: int
    last: str


Monitor = Callable[[Poll], object]


class Looks:
    """What a worker's threads found when they looked for tasks. One lock guards it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dry_runs = 0
        self._last = "nothing"

    def ended(self, what: str) -> None:
        """A look has ended: ``"handled"``, ``"nothing"`` or ``"unavailable"``."""
        with self._lock:
            self._last = what
            self._dry_runs = 0 if what == "handled" else self._dry_runs + 1

    def poll(self, queue: str, size: int) -> Poll:
        """How it stands now."""
        with self._lock:
            return Poll(queue, size, self._dry_runs, self._last)


@contextmanager
def watching(queue: str) -> Iterator[None]:
    """A block that tells a monitor how the queue stands: neither the monitor's failure nor an outage ends the work."""
    try:
        yield
    except (QueueNotFound, TransportError) as error:
        log.info("the monitor of queue %r: %s", queue, error)
    except Exception:  # noqa: BLE001  whatever a monitor of the user's raises
        log.exception("the monitor of queue %r failed", queue)


def monitor(
    max_size: int = 1000,
    period: Duration = SIX_HOURS,
    warn: Callable[[str], object] = log.warning,
    clock: Callable[[], float] = time.monotonic,
) -> Monitor:
    """A monitor that calls `warn` when more than `max_size` tasks are pending, at most once in a `period`.

    Carmine's ``monitor-fn``, with its default values. Raises `ConfigError`.
    """
    most, span = whole_number("max_size", max_size), seconds("period", period)
    warned: list[float] = []

    def look(poll: Poll) -> None:
        now = clock()
        if poll.size > most and (not warned or now - warned[-1] >= span):
            warned[:] = [now]
            warn(f"queue {poll.queue!r} has {poll.size} pending tasks, more than {most}")

    return look


# --- A worker whose queue is not there: it says so once, and waits for the queue to come.


class Absence:
    """What a worker has told of its queue's absence. One lock guards it: each of its threads may be the first."""

    def __init__(self, queue: str) -> None:
        self.noticed = False
        self.ended = 0
        """How often the queue has come."""
        self._queue = queue
        self._lock = threading.Lock()

    def warn_absent(self, error: QueueNotFound, since: int) -> None:
        """The queue is not there: a warning, for all threads and for as long as that is so.

        `since`: what ``ended`` was when the queue was asked. It may have come meanwhile, as another thread has told.
        """
        with self._lock:
            news = not self.noticed and since == self.ended
            self.noticed = self.noticed or news
        if news:
            log.warning("worker on queue %r: %s; it waits for the queue", self._queue, error)

    def end(self) -> None:
        """The queue has come."""
        with self._lock:
            message, self.noticed = self.noticed, False
            self.ended += message
        if message:
            log.info("worker on queue %r: the queue is there", self._queue)


# --- What both workers go by: how long they wait, what ends them, and who they tell what went wrong.

#: How long one claim waits for a task.
IDLE_SECONDS: Final = 30.0
#: The same in a worker that ends with the last task, while others are in hand that may be given back.
BUSY_SECONDS: Final = 0.5
#: The longest pause between two looks of a keeper, a heart or a monitor.
MAINTENANCE_SECONDS: Final = 1.0
#: How long the end of a worker waits beyond the grace for what is in hand to be settled.
GIVE_UP_SECONDS: Final = 2.0

#: So many different damages a worker remembers to have told of.
MOST_WARNED: Final = 1_000


class Working(Generic[C, U]):
    """What both workers are: options, a table of what is in hand, a tally of how that ended, and their own end."""

    def __init__(self, queue: Named, handler: Handler, options: WorkerOptions) -> None:
        self.handler = handler
        self.grace = options.grace
        self._named = queue
        self._options = options
        self._deliveries: Deliveries[C, U] = Deliveries()
        self._prefetched: PrefetchedDeliveries[C, U] = PrefetchedDeliveries(options)
        self._budget = Budget(options.limit)
        self._tally = Tally(options.on_settled)
        self._looks = Looks()
        self._absence = Absence(queue.name)
        self._until_empty = False
        self._error: Exception | None = None
        self._warned: set[str] = set()

    @property
    def finished(self) -> int:
        """How many tasks were completed."""
        return self._tally.finished

    @property
    def failed(self) -> int:
        """How many deliveries ended otherwise."""
        return self._tally.failed

    def _log_start(self) -> None:
        """Say in the log who begins to work, on what, and with how many tasks in hand at once."""
        (choice, queue), options = (self._options.choice, self._named), self._options
        chosen = {name: value for name, value in choice.items() if value is not None and value != "absolute"}
        what = ", ".join(f"{name} {value}" for name, value in chosen.items()) or "all tasks"
        mode = f"lease {options.lease:g} s" if options.lease else "session-bound"
        message = "worker started: consumer %s on queue %r; %s; threads %d, %s"
        log.info(message, queue.consumer, queue.name, what, options.threads, mode)

    def _log_absence(self, error: QueueNotFound, since: int) -> None:
        """The queue is not there: it is told of once, and waited for. Raises `error` where nothing is waited for.

        `since`: see `Absence.warn_absent`.
        """
        if self._until_empty:
            raise error
        self._absence.warn_absent(error, since)

    def _claim_timeout(self, *, idle: bool) -> float:
        """Seconds to wait for a task: to the end, unless the worker ends with the last one.

        `idle`: the last look found nothing; one that follows upon a task waits for nothing, so that it can be told at
        once what it found.
        """
        if not idle:
            return 0.0
        if not self._until_empty:
            return IDLE_SECONDS
        return BUSY_SECONDS if self._deliveries else 0.0

    def _ended_by(self, error: Exception) -> bool:
        """Whether what a claim raised ends the worker: it is refused, or no other try would end otherwise.

        Anything else, of the transport or of something foreign in the queue, is logged, and claiming goes on.
        """
        self._looks.ended("unavailable")
        if isinstance(error, ConfigError) or self._named.closed:
            self._error = error if isinstance(error, ConfigError | SessionLost) else _closed(error)
            return True
        self._warn("worker on queue", error)
        return False

    def _raise_what_ended_it(self) -> None:
        if self._error is not None:
            raise self._error

    def _has_enough(self) -> bool:
        """Whether nothing more is to be handled: the worker has had its limit."""
        return self._budget.spent and not self._prefetched

    def _unbegun(self) -> Handled:
        """How a delivery ends whose handler is not called: another task may be handled in its place."""
        self._budget.put_back(1)
        return NOT_BEGUN

    def _busy(self) -> bool:
        """Whether every slot has a task in hand: nobody looks after the queue by claiming."""
        return 0 < self._options.threads <= len(self._deliveries)

    def _report_maintenance(self, error: Exception) -> None:
        self._warn("looking after queue", error)

    def _warn(self, what: str, error: Exception) -> None:
        """Tell what went wrong. What is damaged stays so until somebody mends it: each such error is told once."""
        if isinstance(error, CorruptRecord):
            if str(error) in self._warned:
                return
            self._warned = {*self._warned, str(error)} if len(self._warned) < MOST_WARNED else {str(error)}
        log.warning("%s %r: %s", what, self._named.name, error, exc_info=not isinstance(error, ZkmqError))


def _closed(error: Exception) -> SessionLost:
    """What ended a worker whose connection was closed, whatever its claim was doing then: `error` is what that met."""
    lost = SessionLost("the connection was closed")
    lost.__cause__ = error
    return lost


# --- A worker's heartbeat: it extends the locks and leases of what is in hand, and waits for nothing else.

# --- Waiting on an event loop: for an event or a while, for many tasks, and for tasks that are to end.

#: How long a cancelled task is waited for, and how often it is told again to end.
CANCEL_SECONDS: Final = 1.0
MOST_CANCELLATIONS: Final = 3


async def until(event: asyncio.Event, span: float) -> None:
    """Wait for the event, `span` seconds at the most; a cancellation is never swallowed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(span):
            await event.wait()


async def all_of(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for all of the tasks, however they end."""
    await asyncio.wait(tasks)


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended; one that swallows a cancellation gets another, and is then left alone."""
    for _ in range(MOST_CANCELLATIONS):
        pending = {task for task in tasks if not task.done()}
        if not pending:
            return
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_SECONDS)


def is_cancelled() -> bool:
    """Whether the running task was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# --- A worker's heart: it extends the locks and leases of what is in hand, and waits for nothing else.


class Heartbeat:
    """Beats for the deliveries of one worker, in a thread of its own."""

    def __init__(self, deliveries: Deliveries[WorkerClaim, WorkerTransaction]) -> None:
        self._deliveries = deliveries
        self._pulse = threading.Event()

    def wake(self) -> None:
        """There is one more to extend."""
        self._pulse.set()

    def run(self, wanted: Callable[[], bool]) -> None:
        """Extend what is due, each time a third of its span has passed, while `wanted` says so."""
        while wanted():
            self._pulse.clear()
            for delivery in self._deliveries.due():
                self._extend(delivery)
            self._pulse.wait(self._deliveries.seconds_until_extension(MAINTENANCE_SECONDS))

    def _extend(self, delivery: Delivery[WorkerClaim, WorkerTransaction]) -> None:
        try:
            delivery.claim.extend(delivery.span or 0.0)
        except Exception as error:  # noqa: BLE001  the others are to be extended, too
            _beaten(self._deliveries, delivery, error)
        else:
            _beaten(self._deliveries, delivery)


class AsyncHeartbeat:
    """Beats for the deliveries of one worker, in a task of its own."""

    def __init__(self, deliveries: Deliveries[AsyncWorkerClaim, AsyncWorkerTransaction]) -> None:
        self._deliveries = deliveries
        self._pulse = asyncio.Event()

    def wake(self) -> None:
        """There is one more to extend."""
        self._pulse.set()

    async def run(self) -> None:
        """Extend what is due, each time a third of its span has passed, until cancelled."""
        while True:
            self._pulse.clear()
            for delivery in self._deliveries.due():
                await self._extend(delivery)
            await until(self._pulse, self._deliveries.seconds_until_extension(MAINTENANCE_SECONDS))

    async def _extend(self, delivery: Delivery[AsyncWorkerClaim, AsyncWorkerTransaction]) -> None:
        try:
            await delivery.claim.extend(delivery.span or 0.0)
        except Exception as error:  # noqa: BLE001  the others are to be extended, too
            _beaten(self._deliveries, delivery, error)
        else:
            _beaten(self._deliveries, delivery)


def _beaten(deliveries: Deliveries[C, U], delivery: Delivery[C, U], error: Exception | None = None) -> None:
    """A claim was extended, or that failed: then it is tried again soon."""
    if error is not None:
        log.warning("extending task %r: %s", delivery.claim.task.id, error)
    deliveries.beaten(delivery, good=error is None)
