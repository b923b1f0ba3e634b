"""What becomes of a delivery after a try at settling it: one decision and one report for each, for both workers."""

from __future__ import annotations

import threading
from enum import Enum, auto
from typing import Final, TypeVar

from airflow_provider_zkmq.engine.errors import ClaimLost, SessionLost, TransportError
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.protocols import Closing, InHand
from airflow_provider_zkmq.engine.working.deliveries import Delivery

C = TypeVar("C", bound=InHand)
U = TypeVar("U", bound=Closing)

#: The pause between two tries at settling while ZooKeeper is away.
RETRY_SECONDS: Final = 0.5
#: The pause between two tries at settling what cannot be settled.
LEFT_SECONDS: Final = 5.0


class Verdict(Enum):
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

    def __init__(self) -> None:
        self.finished = 0
        self.failed = 0
        self._lock = threading.Lock()

    def settled(self, delivery: Delivery[C, U], *, success: bool) -> Verdict:
        """The delivery is settled. One whose handler was not called counts as neither."""
        if delivery.begun:
            with self._lock:
                self.finished += success
                self.failed += not success
            if not success:
                log.info("task %r: %s", delivery.claim.task.id, delivery.progress.outcome)
        return Verdict.SETTLED


def judge(delivery: Delivery[C, U], error: BaseException) -> Verdict:
    """What becomes of a delivery that a try at settling it raised `error` for; it is reported."""
    verdict = _verdict(delivery, error)
    _report(delivery, verdict, error)
    if verdict is Verdict.LATER:
        delivery.left = True
    return verdict


def _verdict(delivery: Delivery[C, U], error: BaseException) -> Verdict:
    if isinstance(error, ClaimLost) or (isinstance(error, SessionLost) and delivery.claim.over):
        return Verdict.LOST
    return Verdict.AGAIN if isinstance(error, TransportError) else Verdict.LATER


def _report(delivery: Delivery[C, U], verdict: Verdict, error: BaseException) -> None:
    task_id = delivery.claim.task.id
    match verdict:
        case Verdict.LOST:
            log.warning("task %r: %s", task_id, error)
        case Verdict.AGAIN:
            log.warning("task %r: %s; trying again", task_id, error)
        case Verdict.LATER if delivery.left:
            log.warning("task %r can still not be settled: %s", task_id, error)
        case _:
            log.error("task %r could not be settled; this will be tried again", task_id, exc_info=error)
