"""What both workers do: claim, run a handler, settle, and keep leases alive by heartbeats."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar, cast

from ..core.model import values
from ..core.model.filters import FilterMethods, Selector
from ..core.model.handler_outcomes import Error, Handled, Retry, Snooze, Success
from ..core.model.states import State
from ..core.read.inspect import Task
from ..core.tasks.settle_by_outcome import error_text
from ..errors import ClaimLost, ConfigError, CorruptRecord, QueueNotFound, SessionLost, TransportError, ZkmqError
from ..log import log
from .held_deliveries import NOT_BEGUN, Budget, Deliveries, Delivery, Handler, PrefetchedDeliveries, Settled
from .interfaces import Choice, ClaimOptions, WorkerClaim, WorkerQueue, WorkerTransaction

# --- One task, handled: what its handler gets, and what becomes of what it returns or raises.

R = TypeVar("R")


class InHandler(Task, Generic[R]):
    """What handlers of both APIs get; `R`: what its calls return, nothing or what is to be awaited."""

    __slots__ = ("_claim",)
    _claim: WorkerClaim

    def __init__(self, claim: WorkerClaim) -> None:
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
        reported: R = self._claim.progress(progress, note)
        return reported

    def extend(self, lease: values.Duration) -> R:
        """Hold the task `lease` more seconds from now, where it has a lock or a lease. Raises `ClaimLost`."""
        extended: R = self._claim.extend(lease)
        return extended


class Running(InHandler[None]):
    """The task a handler gets: what it is, and what the handler can do while it has it."""

    __slots__ = ()


class RunningAsync(InHandler[Coroutine[Any, Any, None]]):
    """`Running` for a coroutine: `report` and `extend` are awaited."""

    __slots__ = ()


@contextmanager
def one_process() -> Iterator[None]:
    """A handler runs inside. A process that it has forked ends here, if it gets so far: a second worker it is none.

    It neither waits for locks that other threads held, which it has not got, nor tidies up what is not its own. Its
    exit code is 0, or what it gave ``sys.exit``, or 1 where it raised something else.
    """
    worker, code, error = os.getpid(), 0, None
    try:
        yield
    except BaseException as raised:
        code, error = 1, raised
        if isinstance(raised, SystemExit):
            code, error = raised.code if isinstance(raised.code, int) else int(raised.code is not None), None
        raise
    finally:
        if os.getpid() != worker:
            message = "process %d, which a handler has forked, has returned from it: it ends here, with exit code %d"
            log.warning(message, os.getpid(), code, exc_info=error)
            os._exit(code)


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


# --- What becomes of a delivery after a try at settling it: one decision and one report for each, for both workers.

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

    def settled(self, delivery: Delivery, *, success: bool) -> DeliveryResult:
        """The delivery is settled. One whose handler was not called counts as neither."""
        if not delivery.begun:
            return DeliveryResult.SETTLED
        with self._lock:
            self.finished += success
            self.failed += not success
        if not success:
            self._log_failure(delivery)
        self._call_on_settled(delivery, delivery.progress.outcome)
        return DeliveryResult.SETTLED

    def _log_failure(self, delivery: Delivery) -> None:
        """Log in one line which attempt did not end well, why, and what follows; at DEBUG with the traceback."""
        follows = delivery.progress.follows
        most = None if follows is None else follows.attempts
        attempt = f"attempt {delivery.claim.task.attempt}{'' if most is None else f' of {most}'}"
        match delivery.progress.outcome:
            case Snooze(delay):
                delivery.log(logging.INFO, "%s is not counted: snoozed for %s", attempt, delay)
            case Retry(error) | Error(error) if follows is not None and follows.state is State.DEAD:
                delivery.log(logging.ERROR, "dead: %s failed: %s", attempt, error_text(error), error=error)
            case Retry(error) | Error(error):
                again = "to be tried again" if follows is None else _when(follows.pause)
                delivery.log(logging.WARNING, "%s failed, %s: %s", attempt, again, error_text(error), error=error)
            case _:
                delivery.log(logging.INFO, "%s was rolled back by its handler", attempt)

    def judge(self, delivery: Delivery, error: BaseException) -> DeliveryResult:
        """What becomes of a delivery that a try at settling it raised `error` for; it is reported."""
        if isinstance(error, ClaimLost) or (isinstance(error, SessionLost) and delivery.claim.over):
            if isinstance(error, ClaimLost) and not delivery.unsure:
                delivery.log_loss()
            else:
                delivery.log(logging.WARNING, "%s", error)
            if delivery.begun:
                self._call_on_settled(delivery, None)
            return DeliveryResult.LOST
        if isinstance(error, TransportError):
            delivery.unsure = True
            delivery.log(logging.WARNING, "%s; trying again", error)
            return DeliveryResult.AGAIN
        if delivery.left:
            delivery.log(logging.WARNING, "can still not be settled: %s", error)
        else:
            message = "could not be settled; this will be tried again"
            delivery.log(logging.ERROR, message, error=error, traceback=True)
        delivery.left = True
        return DeliveryResult.LATER

    def _call_on_settled(self, delivery: Delivery, outcome: Handled | None) -> None:
        """Tell the worker's owner; what he raises ends no thread."""
        if self._on_settled is not None:
            try:
                self._on_settled(delivery.claim.task, outcome)
            except Exception as error:  # noqa: BLE001  whatever a callback of the user's raises
                delivery.log(logging.ERROR, "on_settled failed", error=error, traceback=True)


def _when(pause: float | None) -> str:
    """After how many seconds a task is tried again, in words."""
    if pause is None:
        return "to be tried again"
    if pause < 0.1:
        return "again at once"
    return f"again in {round(pause, 1):g} s" if pause < 100 else f"again in {values.spell_duration(round(pause))}"


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
    period: values.Duration = SIX_HOURS,
    warn: Callable[[str], object] = log.warning,
    clock: Callable[[], float] = time.monotonic,
) -> Monitor:
    """A monitor that calls `warn` when more than `max_size` tasks are pending, at most once in a `period`.

    Carmine's ``monitor-fn``, with its default values. Raises `ConfigError`.
    """
    most, span = values.whole_number("max_size", max_size), values.seconds("period", period)
    warned: list[float] = []

    def look(poll: Poll) -> None:
        now = clock()
        if poll.size > most and (not warned or now - warned[-1] >= span):
            warned[:] = [now]
            warn(f"queue {poll.queue!r} has {poll.size} pending tasks, more than {most}")

    return look


class Absence:
    """Whether a worker has logged its queue's absence. One lock guards it: each of its threads may be the first."""

    def __init__(self, queue: str) -> None:
        self.noticed = False
        self.ended = 0
        """How often the queue has come."""
        self._queue = queue
        self._named = {"queue": queue}
        self._lock = threading.Lock()

    def warn_absent(self, error: QueueNotFound, since: int) -> None:
        """The queue is not there: a warning, for all threads and for as long as that is so.

        `since`: what ``ended`` was when the queue was asked. It may have come meanwhile, as another thread has told.
        """
        with self._lock:
            news = not self.noticed and since == self.ended
            self.noticed = self.noticed or news
        if news:
            log.warning("worker on queue %r: %s; it waits for the queue", self._queue, error, extra=self._named)

    def end(self) -> None:
        """The queue has come."""
        with self._lock:
            message, self.noticed = self.noticed, False
            self.ended += message
        if message:
            log.info("worker on queue %r: the queue is there", self._queue, extra=self._named)


#: How long one claim waits for a task.
IDLE_SECONDS: Final = 30.0
#: The same in a worker that ends with the last task, while others are in hand that may be given back.
BUSY_SECONDS: Final = 0.5
#: The longest pause between two rounds of maintenance, heartbeats or a monitor.
MAINTENANCE_SECONDS: Final = 1.0
#: How long the end of a worker waits beyond the grace for what is in hand to be settled.
GIVE_UP_SECONDS: Final = 2.0


class BlockingCalls:
    """How a worker waits: it blocks the thread. What both workers do is written once, as coroutines over this."""

    judged: type[BaseException] = BaseException
    """What a try at settling may raise and be tried again for; anything else is meant for the program."""
    event: Callable[[], Any] = threading.Event
    awaited = False
    """Whether the handler is a coroutine function."""

    async def result(self, call: Any) -> Any:
        """What a call of a queue or of a claim returns: it is there already."""
        return call

    async def wait(self, event: Any, seconds: float) -> None:
        """Wait for an event, so many seconds at the most."""
        event.wait(seconds)

    async def sleep(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)  # noqa: ASYNC251  there is no event loop


class Settler:
    """Settles deliveries: again and again, until each is known to be settled or lost."""

    def __init__(self, deliveries: Deliveries, tally: Tally, calls: BlockingCalls) -> None:
        self._deliveries = deliveries
        self._tally = tally
        self._calls = calls

    async def begin(self, delivery: Delivery) -> bool:
        """Its handler is about to be called; False: it is not, since that cannot be said."""
        if delivery.claim.prefetched:
            try:
                await self._calls.result(delivery.claim.begin())
            except Exception as error:  # noqa: BLE001  whatever it is: it is given back, which tells more
                delivery.log(logging.WARNING, "not begun: %s", error)
                return False
        return True

    async def give_back(self, deliveries: list[Delivery]) -> None:
        """Settle what was prefetched and whose handlers will not be called."""
        for delivery in deliveries:
            if self._deliveries.decide(delivery, NOT_BEGUN):
                await self.settle(delivery)

    async def settle(self, delivery: Delivery) -> None:
        """Settle, however long ZooKeeper is away while the session lives; one task's trouble ends no others."""
        try:
            while (result := await self.attempt(delivery)) is DeliveryResult.AGAIN:
                await self._calls.sleep(RETRY_SECONDS)
            if result is DeliveryResult.LATER:
                self.leave(delivery)
        finally:
            self._deliveries.drop(delivery)

    async def attempt(self, delivery: Delivery) -> DeliveryResult:
        """Try once."""
        try:
            ending: WorkerClaim | WorkerTransaction = delivery.claim
            if delivery.transaction is not None:  # it adopted the claim, and takes no more then
                delivery.transaction.close()
                ending = delivery.transaction
            success = await self._calls.result(ending.settle(delivery.outcome or NOT_BEGUN, delivery.progress))
        except self._calls.judged as error:
            return self._tally.judge(delivery, error)
        return self._tally.settled(delivery, success=success)

    def settled(self, delivery: Delivery, success: bool, error: Exception | None) -> None:
        """How a delivery ended that was settled together with others."""
        try:
            if error is None:
                self._tally.settled(delivery, success=success)
            elif self._tally.judge(delivery, error) is not DeliveryResult.LOST:
                self.leave(delivery)
        finally:
            self._deliveries.drop(delivery)

    def leave(self, delivery: Delivery) -> None:
        """It cannot be settled by whatever means: it is tried again later, while others are handled."""
        self._deliveries.leave(delivery)


#: The shortest time, in seconds, that a handler can be given.
LEAST_TIMEOUT: Final = 0.1
#: So many different damages a worker remembers to have logged.
MOST_WARNED: Final = 1_000

Q = TypeVar("Q", bound=WorkerQueue)


class Working(ABC, Generic[Q]):
    """What both workers are and do; how they wait is said by their `_calls`."""

    _calls: BlockingCalls
    _settler: Settler

    def __init__(
        self,
        queue: Q,
        handler: Handler,
        *,
        threads: int = 1,
        node: Mapping[str, object] | None = None,
        filter_method: FilterMethods = "absolute",
        selector: Selector | str | None = None,
        grace: values.Duration = 30.0,
        transactional: bool = False,
        lease: values.Duration | None = None,
        heartbeat: bool = True,
        throttle: values.Duration = 0,
        prefetch: int = 32,
        limit: int | None = None,
        task_timeout: values.Duration | None = None,
        on_settled: Settled | None = None,
        monitor: Monitor | None = None,
        auto_start: bool | values.Duration = False,
    ) -> None:
        self._thread_count = values.whole_number("threads", threads, 0)
        if transactional and lease is not None:
            msg = "a transaction is bound to its session: give either transactional=True or lease=, not both"
            raise ConfigError(msg)
        self._transactional = transactional
        self._choice = Choice(node=node, filter_method=filter_method, selector=selector)
        self._lease, self._throttle = values.optional_seconds("lease", lease), values.seconds("throttle", throttle)
        self.grace = values.seconds("grace", grace)
        self._task_timeout = values.optional_seconds("task_timeout", task_timeout)
        if self._task_timeout is not None and self._task_timeout < LEAST_TIMEOUT:
            raise ConfigError(f"task_timeout {task_timeout!r} is not allowed: {LEAST_TIMEOUT:g} seconds or more")
        most = values.whole_number("prefetch", prefetch, 0)
        self._budget = Budget(values.optional_whole_number("limit", limit, 1))
        awaited = self._calls.awaited
        if not callable(handler) or inspect.iscoroutinefunction(handler) is not awaited:
            kind = "coroutine function" if awaited else "plain function"
            msg = f"handler {handler!r} is no {kind}: give one that takes a task and returns its result"
            raise ConfigError(msg)
        self.queue = queue
        self.handler = handler
        self._internals = queue.__internals__()
        self._extends = heartbeat
        self._pulse, self._stopping, self._over = self._calls.event(), self._calls.event(), self._calls.event()
        self._deliveries = Deliveries()
        # Where a pause, the lock or a transaction belongs to each single task, nothing is prefetched.
        alone = transactional or self._throttle > 0 or not heartbeat
        self._prefetched = PrefetchedDeliveries(1 if alone else most)
        self._tally = Tally(on_settled)
        self._absence = Absence(queue.name)
        self._until_empty = False
        self._error: Exception | None = None
        self._warned: set[str] = set()
        self._started = False
        self._looking = threading.Lock()
        self._dry_runs, self._last_look = 0, "nothing"
        self._monitor = monitor
        self._set_up()
        if auto_start is not False:
            self._start_after(None if auto_start is True else values.seconds("auto_start", auto_start))

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, or has ended."""
        return bool(self._stopping.is_set())

    @property
    def finished(self) -> int:
        """How many tasks were completed."""
        return self._tally.finished

    @property
    def failed(self) -> int:
        """How many deliveries ended otherwise."""
        return self._tally.failed

    @property
    def threads(self) -> int:
        """How many tasks it has in hand at once."""
        return self._thread_count

    @property
    def stuck(self) -> int:
        """How many handlers go on although their tasks were timed out: in a `Worker` each keeps one thread."""
        return self._deliveries.stuck

    @property
    def in_hand(self) -> int:
        """How many tasks handlers are at work on, but for those that were timed out."""
        return self._deliveries.at_work

    def stop(self, *, forgive: bool = False) -> bool:
        """Claim nothing more; callable from a signal handler. False if it was stopping already.

        `forgive`: what outlasts the grace is given back and counts no attempt: its handler ends with the process.
        """
        if forgive:
            self._deliveries.outlasted = NOT_BEGUN
        if self._stopping.is_set():
            return False
        self._stopping.set()
        return True

    @abstractmethod
    def _set_up(self) -> None:
        """Make what it works with."""

    @abstractmethod
    def _start_after(self, delay: float | None) -> None:
        """Start after so many seconds."""

    @abstractmethod
    async def _handle(self, delivery: Delivery) -> None:
        """Run the handler and settle."""

    @abstractmethod
    async def _request(self, most: int, timeout: float) -> Sequence[WorkerClaim]:
        """Claim so many, waiting for the first one; ended when the worker is told to stop."""

    @abstractmethod
    async def _queue_comes(self) -> bool:
        """Wait until the queue is there, or the worker is told to stop."""

    @abstractmethod
    async def _claim_for_all(self) -> Delivery | None:
        """While handlers are fast one claims for all, the others wait for it: `_take_or_fill`, one after the other."""

    @abstractmethod
    def _wake_idle(self) -> None:
        """Wake who waits for the queue: something is prefetched that can be begun at once."""

    def _log_start(self) -> None:
        """Say in the log who begins to work, on what, and with how many tasks in hand at once."""
        chosen = {name: value for name, value in self._choice.items() if value is not None and value != "absolute"}
        what = ", ".join(f"{name} {value}" for name, value in chosen.items()) or "all tasks"
        mode = f"lease {self._lease:g} s" if self._lease else "session-bound"
        message = "worker started: consumer %s on queue %r; %s; threads %d, %s"
        names = (self.queue.consumer, self.queue.name)
        log.info(message, *names, what, self._thread_count, mode, extra={"queue": self.queue.name})

    def _log_absence(self, error: QueueNotFound, since: int) -> None:
        """The queue is not there: log it once, to wait for it. Raises `error` where nothing is waited for."""
        if self._until_empty:
            raise error
        self._absence.warn_absent(error, since)

    def _ended_by(self, error: Exception) -> bool:
        """Whether what a claim raised ends the worker: no other try would end otherwise. Anything else is logged."""
        self._look_ended("unavailable")
        if not (isinstance(error, ConfigError) or self._internals.closed):
            self._warn("worker on queue", error)
            return False
        if isinstance(error, ConfigError | SessionLost):
            self._error = error
        else:  # what its claim met when the connection was closed
            self._error = SessionLost("the connection was closed")
            self._error.__cause__ = error
        return True

    def _unbegun(self) -> Handled:
        """How a delivery ends whose handler is not called: another task may be handled in its place."""
        self._budget.put_back(1)
        return NOT_BEGUN

    def _busy(self) -> bool:
        """Whether every slot has a task in hand: nobody looks after the queue by claiming."""
        return 0 < self._thread_count <= len(self._deliveries) + self._deliveries.stuck

    def _warn(self, what: str, error: Exception) -> None:
        """Tell what went wrong. What is damaged stays so until somebody mends it: each such error is told once."""
        if isinstance(error, CorruptRecord):
            if str(error) in self._warned:
                return
            self._warned = {*self._warned, str(error)} if len(self._warned) < MOST_WARNED else {str(error)}
        more: dict[str, Any] = {"exc_info": not isinstance(error, ZkmqError), "extra": {"queue": self.queue.name}}
        log.warning("%s %r: %s", what, self.queue.name, error, **more)

    def _log_lost(self) -> None:
        """Tell of what was taken away while its handler is at work, as soon as that is known."""
        for delivery in self._deliveries.lost():
            delivery.log_loss()

    def _look_ended(self, what: str) -> None:
        """A look for tasks has ended: ``"handled"``, ``"nothing"`` or ``"unavailable"``."""
        with self._looking:
            self._last_look = what
            self._dry_runs = 0 if what == "handled" else self._dry_runs + 1

    def _poll(self, size: int) -> Poll:
        with self._looking:
            return Poll(self.queue.name, size, self._dry_runs, self._last_look)

    async def _keep_extending(self, wanted: Callable[[], bool]) -> None:
        """Extend the claims in hand, each in time, while `wanted` says so. It waits for nothing else."""
        while wanted():
            self._pulse.clear()
            for delivery in self._deliveries.due():
                try:
                    await self._calls.result(delivery.claim.extend(delivery.span or 0.0))
                except Exception as error:  # noqa: BLE001  the others are to be extended, too
                    if not isinstance(error, ClaimLost):  # of that the keeper tells, or who settles it
                        delivery.log(logging.WARNING, "not extended: %s", error)
                    self._deliveries.beaten(delivery, good=False)
                else:
                    self._deliveries.beaten(delivery, good=True)
            await self._calls.wait(self._pulse, self._deliveries.seconds_until_extension(MAINTENANCE_SECONDS))

    async def _check_wanted(self) -> None:
        """Raise `ConfigError` for what the queue refuses. One that is not there can refuse nothing yet."""
        try:
            await self._calls.result(self._internals.check_wanted(**self._choice))
        except QueueNotFound as error:
            self._log_absence(error, 0)

    async def _loop(self) -> bool:
        """Claim and handle, one after the other, until told to stop; False: an error ended it."""
        idle = False
        while not (self.stopping or (self._budget.left == 0 and not self._prefetched)):
            try:
                busy = bool(self._deliveries)
                delivery = self._prefetched.take() or await self._claim(idle=idle)
            except Exception as error:  # noqa: BLE001  told apart in `_ended_by`
                if self._ended_by(error):
                    self.stop()
                    return False
                idle = False
                await self._calls.wait(self._stopping, RETRY_SECONDS)
            else:
                idle = delivery is None
                self._look_ended("nothing" if idle else "handled")
                if delivery is not None:
                    await self._handle(delivery)
                    await self._calls.wait(self._stopping, self._throttle)
                elif self._until_empty and not (busy or self._deliveries):  # else it may have come back meanwhile
                    return True
        return True

    async def _claim(self, *, idle: bool) -> Delivery | None:
        """Claim, for all if handlers are fast; None: there was nothing, or no queue, and it was waited for.

        `idle`: the last look found nothing; one that follows upon a task waits for nothing, so that it can be told at
        once what it found.
        """
        if idle or not self._prefetched.fast:
            return await self._fill(idle=idle)
        return await self._claim_for_all()

    async def _take_or_fill(self) -> Delivery | None:
        """Claim, unless whoever claimed for all before has waited for so long that the worker stops, or took enough."""
        return None if self.stopping else self._prefetched.take() or await self._fill(idle=False)

    async def _fill(self, *, idle: bool) -> Delivery | None:
        """Claim, where handlers are fast more than one; the first of them is the caller's."""
        since = self._absence.ended
        claims: Sequence[WorkerClaim] = []
        try:
            with self._prefetched.requesting(idle=idle):
                timeout = 0.0
                if idle and self._until_empty:
                    timeout = BUSY_SECONDS if self._deliveries else 0.0
                elif idle:
                    timeout = IDLE_SECONDS
                most = self._budget.take(self._prefetched.room)
                try:
                    claims = await self._request(most, timeout) if most else []
                finally:
                    self._budget.put_back(most - len(claims))
        except QueueNotFound as error:
            await self._await_queue(error, since)
            return None
        deliveries = [self._add(claim) for claim in claims]
        self._prefetched.put(deliveries[1:])
        if self._prefetched and self._prefetched.idle:  # who began to wait meanwhile takes of it
            self._wake_idle()
        return deliveries[0] if deliveries else None

    async def _claim_many(self, most: int, timeout: float, **stopping: Callable[[], bool]) -> Sequence[WorkerClaim]:
        options = cast("ClaimOptions", {**self._choice, "lease": self._lease, "timeout": timeout, **stopping})
        if most > 1:
            return list(await self._calls.result(self.queue.claim_many(most, **options, prefetch=True)))
        claim = await self._calls.result(self.queue.claim(**options))
        return [] if claim is None else [claim]

    def _add(self, claim: WorkerClaim) -> Delivery:
        transaction = claim.transaction() if self._transactional else None
        delivery = self._deliveries.add(claim, claim.span, transaction)
        self._pulse.set()  # one more to extend
        return delivery

    async def _return(self, deliveries: list[Delivery]) -> None:
        """Give back what was prefetched and whose handlers will not be called."""
        self._budget.put_back(len(deliveries))
        await self._settler.give_back(deliveries)

    async def _await_queue(self, error: QueueNotFound, since: int) -> None:
        """Wait for the queue to come, or the worker to be stopped."""
        self._log_absence(error, since)
        if await self._queue_comes():
            self._absence.end()

    async def _size(self) -> int:
        """How many tasks are pending, once there is a queue. Raises `QueueNotFound` where none came before the end."""
        since = self._absence.ended
        try:
            return int(await self._calls.result(self._internals.pending()))
        except QueueNotFound as error:
            await self._await_queue(error, since)
        return int(await self._calls.result(self._internals.pending()))
