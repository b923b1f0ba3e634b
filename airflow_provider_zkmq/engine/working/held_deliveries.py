"""The deliveries that a worker holds, and how many tasks it may claim."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ..core.model.handler_outcomes import Handled, Retry, Snooze
from ..core.model.values import spell_duration
from ..core.read.inspect import Task
from ..core.tasks.settle_by_outcome import Settlement
from ..log import log
from .interfaces import WorkerClaim, WorkerTransaction

Handler: TypeAlias = Callable[..., Any]
Settled: TypeAlias = Callable[[Task, Handled | None], object]


# --- What a worker has in hand: who decides how a delivery ends, and when its claim is to be extended.

#: How a delivery ends whose handler was not called: it does not count.
NOT_BEGUN: Final = Snooze(0)
#: How a delivery ends whose handler outlasts the grace of a stop: it has run, so it counts.
OUTLASTED: Final = Retry("the worker was stopped before the handler had ended")
#: The longest pause before a heartbeat that failed is tried again.
SOON_SECONDS: Final = 0.5


@dataclass(slots=True, eq=False)
class Delivery:
    """One claim in a worker's hand. ``span``: for how many seconds it holds unless it is extended; None: no end."""

    claim: WorkerClaim
    span: float | None
    due: float = 0.0
    transaction: WorkerTransaction | None = None
    began: float | None = None
    """When its handler was called, by the monotonic clock; None: it was not."""
    outcome: Handled | None = None
    progress: Settlement = field(default_factory=Settlement)
    left: bool = False
    """A try to settle it has failed for good once: it is tried again later."""
    unsure: bool = False
    """A try to settle it has met an outage: who ended its claim may have been we ourselves."""
    loss_logged: bool = False
    """That others have ended its claim was logged."""

    @property
    def begun(self) -> bool:
        """Whether its handler was called: then it counts."""
        return self.began is not None

    def log(self, level: int, message: str, *words: object, error: object = None, traceback: bool = False) -> None:
        """Log what becomes of it, after the names of its queue and task; a structured log finds them in the record.

        The traceback of an `error` is logged if that is wanted, or at the level DEBUG.
        """
        named = (self.claim.queue, self.claim.task.id)
        shown = isinstance(error, BaseException) and (traceback or log.isEnabledFor(logging.DEBUG))
        more: dict[str, Any] = {"exc_info": error if shown else None}
        more["extra"] = {"queue": named[0], "task": named[1], "attempt": self.claim.task.attempt}
        log.log(level, f"queue %r, task %r: {message}", *named, *words, **more)

    def log_loss(self) -> None:
        """Log, once, that others have ended its claim."""
        logged, self.loss_logged = self.loss_logged, True
        if logged:
            return
        if self.claim.cancelled:
            self.log(logging.INFO, "it was cancelled while in hand")
        elif self.claim.over:
            self.log(logging.WARNING, "it was lost by this worker, whose session has ended")
        else:
            why = "cancelled, released by force, deleted, or its lease ended"
            self.log(logging.WARNING, "it was taken from this worker (%s)", why)


class Deliveries:
    """The table of what is in hand, shared by a worker's threads.

    One lock guards the table and what stands in it; nothing is sent and nobody waited for under it. Who decides on an
    outcome first settles the delivery, and nobody else does.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._all: dict[int, Delivery] = {}
        self._left: list[Delivery] = []
        self.outlasted: Handled = OUTLASTED
        """How a delivery ends whose handler outlasts the grace of a stop."""
        self._stuck = set[Delivery]()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, claim: WorkerClaim, span: float | None, transaction: WorkerTransaction | None = None) -> Delivery:
        """Something was claimed."""
        delivery = Delivery(claim, span, time.monotonic() + (span or 0.0) / 3, transaction)
        with self._lock:
            self._all[id(delivery)] = delivery
        return delivery

    def drop(self, delivery: Delivery) -> None:
        """It is out of our hands."""
        with self._lock:
            self._all.pop(id(delivery), None)
            self._lock.notify_all()

    def wait_empty(self, timeout: float) -> bool:
        """Wait until nothing is in hand any more."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._all, timeout)

    def held(self) -> list[Delivery]:
        """Everything, as it stands."""
        with self._lock:
            return list(self._all.values())

    def begin(self, delivery: Delivery) -> bool:
        """The handler is about to be called: from here on the delivery counts. False if it was given up before."""
        with self._lock:
            if delivery.outcome is not None:
                return False
            delivery.began = time.monotonic()
            return True

    def decide(self, delivery: Delivery, outcome: Handled) -> bool:
        """How it ends; False if that is decided already."""
        with self._lock:
            if delivery.outcome is not None:
                return False
            delivery.outcome = outcome
            return True

    def give_up(self, delivery: Delivery) -> bool:
        """The worker ends without waiting any longer; False if how it ends is decided already."""
        with self._lock:  # which its holder may take again
            return self.decide(delivery, self.outlasted if delivery.begun else NOT_BEGUN)

    def time_out(self, delivery: Delivery, span: float) -> bool:
        """Its handler has taken longer than `span` seconds: it has failed. False if how it ends is decided already."""
        outcome = Retry(TimeoutError(f"the handler took longer than {spell_duration(span)}"))
        with self._lock:
            if not self.decide(delivery, outcome):
                return False
            self._stuck.add(delivery)
            return True

    def returned(self, delivery: Delivery) -> bool:
        """A handler has ended; whether its delivery was timed out."""
        with self._lock:
            stuck = delivery in self._stuck
            self._stuck.discard(delivery)
            return stuck

    @property
    def stuck(self) -> int:
        """How many handlers go on whose deliveries were timed out."""
        return len(self._stuck)

    @property
    def at_work(self) -> int:
        """How many handlers are at work whose deliveries are undecided."""
        return sum(each.begun and each.outcome is None for each in self.held())

    def lost(self) -> list[Delivery]:
        """What handlers are at work on although its claim is known to be over.

        A transaction's claim is left out: it is over as well where the handler has committed.
        """
        # Whoever settles has decided before: what is over and undecided was ended by others.
        held = [each for each in self.held() if each.begun and each.transaction is None and each.claim.settled]
        return [each for each in held if each.outcome is None]

    def overtime(self, span: float) -> list[Delivery]:
        """What is in hand and undecided, and whose handlers began `span` seconds ago, or earlier."""
        since = time.monotonic() - span
        return [each for each in self.held() if each.outcome is None and each.began is not None and each.began <= since]

    def seconds_until_overtime(self, span: float, most: float) -> float:
        """Seconds until a handler has taken `span` seconds, at the most `most`."""
        now = time.monotonic()
        waits = [each.began + span - now for each in self.held() if each.outcome is None and each.began is not None]
        return min(most, span, max(0.0, min(waits, default=most)))

    def leave(self, delivery: Delivery) -> None:
        """It could not be settled by whatever means: it is tried again later, and holds up no other thread."""
        with self._lock:
            self._left.append(delivery)

    def take_left(self) -> list[Delivery]:
        """What is to be tried again, now the caller's."""
        with self._lock:
            left, self._left = self._left, []
            return left

    def due(self) -> list[Delivery]:
        """What is to be extended now: a third of its span has passed since the last time."""
        now = time.monotonic()
        return [each for each in self.held() if each.span and each.due <= now and not each.claim.settled]

    def beaten(self, delivery: Delivery, *, good: bool) -> None:
        """It was extended, or that failed: then it is tried again soon, while there is time."""
        span = delivery.span or 0.0
        with self._lock:
            delivery.due = time.monotonic() + (span / 3 if good else min(SOON_SECONDS, span / 12))

    def seconds_until_extension(self, most: float) -> float:
        """Seconds until something is to be extended, at the most `most`."""
        now = time.monotonic()
        waits = [each.due - now for each in self.held() if each.span and not each.claim.settled]
        return min(most, max(0.0, min(waits, default=most)))


# --- What a worker has prefetched: what its handlers soon get to, given back where they do not.

#: As much work is prefetched as its handlers do in so many seconds: others wait for no more than that.
WORK_SECONDS: Final = 0.05
#: What has waited for a handler for so long is given back: the handlers are slower than they were.
HELD_SECONDS: Final = 1.0
#: So many tasks can be claimed at once.
MOST_AT_ONCE: Final = 64
#: The share of the latest handler in what handlers are taken to need.
LATEST: Final = 0.2


class PrefetchedDeliveries:
    """The deliveries that wait for a thread, in the order in which they were claimed, and how many there may be.

    One lock guards them; nothing is sent and nobody waited for under it. Whoever takes one out decides on its end.
    `most`: so many are claimed at once at the most.
    """

    def __init__(self, most: int) -> None:
        self._most = max(1, min(MOST_AT_ONCE, most))
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Delivery, float]] = deque()
        self._seconds: float | None = None
        self.idle = 0
        """How many threads wait for the queue: nothing is prefetched that they could begin at once."""

    def __bool__(self) -> bool:
        """Whether anything waits for a thread."""
        return bool(self._waiting)

    @contextmanager
    def requesting(self, *, idle: bool) -> Iterator[None]:
        """A thread asks the queue for tasks; `idle`: it waits until there are some."""
        with self._lock:
            self.idle += idle
        try:
            yield
        finally:
            with self._lock:
                self.idle -= idle

    @property
    def room(self) -> int:
        """How many tasks a thread without any claims: one until handlers are known to be fast, and while they are not.

        One as well while a thread is idle. A thread claims when none is waiting, and where that may be several, one
        thread does it for all: together they have no more than the limit waiting.
        """
        return 1 if self.idle else self._limit

    @property
    def fast(self) -> bool:
        """Whether handlers are known to be so fast that several tasks are claimed, and settled, together."""
        return self._limit > 1

    @property
    def _limit(self) -> int:
        seconds = self._seconds
        if seconds is None:
            return 1
        return self._most if seconds * self._most <= WORK_SECONDS else max(1, int(WORK_SECONDS / seconds))

    def handled(self, seconds: float) -> None:
        """A handler took so long."""
        with self._lock:
            known = seconds if self._seconds is None else self._seconds
            self._seconds = known + LATEST * (seconds - known)

    def put(self, deliveries: list[Delivery]) -> None:
        """These wait from now on."""
        now = time.monotonic()
        with self._lock:
            self._waiting.extend((delivery, now) for delivery in deliveries)

    def take(self) -> Delivery | None:
        """The next one, now the caller's."""
        with self._lock:
            return self._waiting.popleft()[0] if self._waiting else None

    def overdue(self, *, every: bool = False) -> list[Delivery]:
        """What has waited for too long, or all of it, now the caller's to give back."""
        since = time.monotonic() - HELD_SECONDS
        with self._lock:
            count = len(self._waiting) if every else sum(taken <= since for _, taken in self._waiting)
            return [self._waiting.popleft()[0] for _ in range(count)]

    def until_overdue(self, most: float) -> float:
        """Seconds until something has waited for too long, at the most `most`."""
        with self._lock:
            since = self._waiting[0][1] if self._waiting else None
        return most if since is None else min(most, max(0.0, since + HELD_SECONDS - time.monotonic()))


class Budget:
    """What is left of a worker's limit. One lock guards it: several threads claim.

    Who claims takes out first what it asks for, and puts back what it did not get and what nobody has begun: together
    the threads never have more than the limit.
    """

    def __init__(self, limit: int | None) -> None:
        self.left = limit
        self._lock = threading.Lock()

    def take(self, most: int) -> int:
        """How many may be claimed, at the most `most`; they are taken out."""
        with self._lock:
            if self.left is None:
                return most
            count = min(most, self.left)
            self.left -= count
            return count

    def put_back(self, count: int) -> None:
        """So many of them were not claimed, or not begun."""
        with self._lock:
            if self.left is not None:
                self.left += count
