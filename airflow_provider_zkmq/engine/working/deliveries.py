"""What a worker has in hand: who decides how a delivery ends, and when its claim is to be extended."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from airflow_provider_zkmq.engine.core.model.outcomes import Retry, Snooze
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled, Settlement
from airflow_provider_zkmq.engine.protocols import Closing, InHand

#: How a delivery ends whose handler was not called: it does not count.
NOT_BEGUN: Final = Snooze(0)
#: How a delivery ends whose handler outlasts the grace of a stop: it has run, so it counts.
OUTLASTED: Final = Retry("the worker was stopped before the handler had ended")
#: The longest pause before a heartbeat that failed is tried again.
SOON_SECONDS: Final = 0.5

C = TypeVar("C", bound=InHand)
U = TypeVar("U", bound=Closing)


@dataclass(slots=True, eq=False)
class Delivery(Generic[C, U]):
    """One claim in a worker's hand. ``span``: for how many seconds it holds unless it is extended; None: no end."""

    claim: C
    span: float | None
    due: float = 0.0
    transaction: U | None = None
    begun: bool = False
    outcome: Handled | None = None
    progress: Settlement = field(default_factory=Settlement)
    left: bool = False
    """A try to settle it has failed for good once: it is tried again later."""

    def ending(self) -> C | U:
        """Who settles it: the claim, or the transaction that adopted the claim, in which no more is taken then."""
        if self.transaction is None:
            return self.claim
        self.transaction.close()
        return self.transaction


class Deliveries(Generic[C, U]):
    """The table of what is in hand, shared by a worker's threads.

    One lock guards the table and what stands in it; nothing is sent and nobody waited for under it. Who decides on an
    outcome first settles the delivery, and nobody else does.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._all: dict[int, Delivery[C, U]] = {}
        self._left: list[Delivery[C, U]] = []
        self.outlasted: Handled = OUTLASTED
        """How a delivery ends whose handler outlasts the grace of a stop."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, claim: C, span: float | None, transaction: U | None = None) -> Delivery[C, U]:
        """Something was claimed."""
        delivery = Delivery(claim, span, _next_beat(span), transaction)
        with self._lock:
            self._all[id(delivery)] = delivery
        return delivery

    def drop(self, delivery: Delivery[C, U]) -> None:
        """It is out of our hands."""
        with self._lock:
            self._all.pop(id(delivery), None)
            self._lock.notify_all()

    def wait_empty(self, timeout: float) -> bool:
        """Wait until nothing is in hand any more."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._all, timeout)

    def in_hand(self) -> list[Delivery[C, U]]:
        """Everything, as it stands."""
        with self._lock:
            return list(self._all.values())

    def begin(self, delivery: Delivery[C, U]) -> bool:
        """The handler is about to be called: from here on the delivery counts. False if it was given up before."""
        with self._lock:
            delivery.begun = delivery.outcome is None
            return delivery.begun

    def decide(self, delivery: Delivery[C, U], outcome: Handled) -> bool:
        """How it ends; False if that is decided already."""
        with self._lock:
            if delivery.outcome is not None:
                return False
            delivery.outcome = outcome
            return True

    def forgive(self) -> None:
        """What is given up from here on counts no attempt, although its handler has run: it ends with the process."""
        self.outlasted = NOT_BEGUN

    def give_up(self, delivery: Delivery[C, U]) -> bool:
        """The worker ends without waiting any longer; False if how it ends is decided already."""
        with self._lock:
            if delivery.outcome is not None:
                return False
            delivery.outcome = self.outlasted if delivery.begun else NOT_BEGUN
            return True

    # --- what could not be settled by whatever means: another delivery's thread must not wait for that

    def leave(self, delivery: Delivery[C, U]) -> None:
        """To be tried again later."""
        with self._lock:
            self._left.append(delivery)

    def take_left(self) -> list[Delivery[C, U]]:
        """What is to be tried again, now the caller's."""
        with self._lock:
            left, self._left = self._left, []
            return left

    # --- heartbeats: a third of the span after the last one

    def due(self) -> list[Delivery[C, U]]:
        """What is to be extended now."""
        now = time.monotonic()
        return [each for each in self.in_hand() if each.span and each.due <= now and not each.claim.settled]

    def beaten(self, delivery: Delivery[C, U], *, good: bool) -> None:
        """It was extended, or that failed: then it is tried again soon, while there is time."""
        with self._lock:
            delivery.due = _next_beat(delivery.span) if good else _retry_beat(delivery.span)

    def until_next_beat(self, most: float) -> float:
        """Seconds until something is to be extended, at the most `most`."""
        now = time.monotonic()
        waits = [each.due - now for each in self.in_hand() if each.span and not each.claim.settled]
        return min(most, max(0.0, min(waits, default=most)))


def _next_beat(span: float | None) -> float:
    return time.monotonic() + (span or 0.0) / 3


def _retry_beat(span: float | None) -> float:
    return time.monotonic() + min(SOON_SECONDS, (span or 0.0) / 12)
