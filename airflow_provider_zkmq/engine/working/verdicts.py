"""What becomes of a delivery after a try at settling it: one decision and one report for each, for both workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final, TypeVar

from airflow_provider_zkmq.engine.core.model.outcomes import Error, Retry, Snooze
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled, error_text
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

    def __init__(self, on_settled: Callable[[Task, Handled | None], object] | None = None) -> None:
        self.finished = 0
        self.failed = 0
        self._on_settled = on_settled
        self._lock = threading.Lock()

    def settled(self, delivery: Delivery[C, U], *, success: bool) -> Verdict:
        """The delivery is settled. One whose handler was not called counts as neither."""
        if delivery.begun:
            with self._lock:
                self.finished += success
                self.failed += not success
            if not success:
                _tell_failure(delivery)
            self._tell(delivery, delivery.progress.outcome)
        return Verdict.SETTLED

    def judge(self, delivery: Delivery[C, U], error: BaseException) -> Verdict:
        """What becomes of a delivery that a try at settling it raised `error` for; it is reported."""
        verdict = _verdict(delivery, error)
        _report(delivery, verdict, error)
        if verdict is Verdict.LATER:
            delivery.left = True
        if verdict is Verdict.LOST and delivery.begun:
            self._tell(delivery, None)
        return verdict

    def _tell(self, delivery: Delivery[C, U], outcome: Handled | None) -> None:
        """Tell the worker's owner; what he raises ends no thread."""
        if self._on_settled is not None:
            try:
                self._on_settled(delivery.claim.task, outcome)
            except Exception:  # noqa: BLE001  whatever a callback of the user's raises
                log.exception("on_settled failed for task %r", delivery.claim.task.id)


def _tell_failure(delivery: Delivery[C, U]) -> None:
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
            told = "failed: attempt %d of task %r in queue %r, which is tried again%s: %s"
            log.info(told, *which, when, error_text(error))
        case _:
            log.info("rolled back by its handler: attempt %d of task %r in queue %r", *which)


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
