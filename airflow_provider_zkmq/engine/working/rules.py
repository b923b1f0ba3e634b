"""What both workers go by: how long they wait, what ends them, and who they tell what went wrong."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from airflow_provider_zkmq.engine.core.tasks.outcome import Handled
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, QueueNotFound, SessionLost, ZkmqError
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.protocols import Closing, InHand, Named
from airflow_provider_zkmq.engine.working.absence import Absence
from airflow_provider_zkmq.engine.working.ahead import Ahead
from airflow_provider_zkmq.engine.working.budget import Budget
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, Deliveries
from airflow_provider_zkmq.engine.working.monitoring import Looks
from airflow_provider_zkmq.engine.working.options import Handler, Options
from airflow_provider_zkmq.engine.working.verdicts import Tally

#: How long one claim waits for a task.
IDLE_SECONDS: Final = 30.0
#: The same in a worker that ends with the last task, while others are in hand that may be given back.
BUSY_SECONDS: Final = 0.5
#: The longest pause between two looks of a keeper, a heart or a monitor.
KEEPER_SECONDS: Final = 1.0
#: How long the end of a worker waits beyond the grace for what is in hand to be settled.
GIVE_UP_SECONDS: Final = 2.0

#: So many different damages a worker remembers to have told of.
MOST_TOLD: Final = 1_000

C = TypeVar("C", bound=InHand)
U = TypeVar("U", bound=Closing)


class Working(Generic[C, U]):
    """What both workers are: options, a table of what is in hand, a tally of how that ended, and their own end."""

    def __init__(self, queue: Named, handler: Handler, options: Options) -> None:
        self.handler = handler
        self.grace = options.grace
        self._named = queue
        self._options = options
        self._deliveries: Deliveries[C, U] = Deliveries()
        self._ahead: Ahead[C, U] = Ahead(options)
        self._budget = Budget(options.limit)
        self._tally = Tally(options.on_settled)
        self._looks = Looks()
        self._absence = Absence(queue.name)
        self._until_empty = False
        self._error: Exception | None = None
        self._told: set[str] = set()

    @property
    def finished(self) -> int:
        """How many tasks were completed."""
        return self._tally.finished

    @property
    def failed(self) -> int:
        """How many deliveries ended otherwise."""
        return self._tally.failed

    def _tell_start(self) -> None:
        """Say in the log who begins to work, on what, and with how many tasks in hand at once."""
        (choice, queue), options = (self._options.choice, self._named), self._options
        chosen = {name: value for name, value in choice.items() if value is not None and value != "absolute"}
        what = ", ".join(f"{name} {value}" for name, value in chosen.items()) or "all tasks"
        mode = f"lease {options.lease:g} s" if options.lease else "session-bound"
        told = "worker started: consumer %s on queue %r; %s; threads %d, %s"
        log.info(told, queue.consumer, queue.name, what, options.threads, mode)

    def _tell_of_absence(self, error: QueueNotFound, since: int) -> None:
        """The queue is not there: it is told of once, and waited for. Raises `error` where nothing is waited for.

        `since`: see `Absence.tell`.
        """
        if self._until_empty:
            raise error
        self._absence.tell(error, since)

    def _patience(self, *, idle: bool) -> float:
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
        return self._budget.spent and not self._ahead

    def _unbegun(self) -> Handled:
        """How a delivery ends whose handler is not called: another task may be handled in its place."""
        self._budget.put_back(1)
        return NOT_BEGUN

    def _busy(self) -> bool:
        """Whether every slot has a task in hand: nobody looks after the queue by claiming."""
        return 0 < self._options.threads <= len(self._deliveries)

    def _report_keeper(self, error: Exception) -> None:
        self._warn("looking after queue", error)

    def _warn(self, what: str, error: Exception) -> None:
        """Tell what went wrong. What is damaged stays so until somebody mends it: each such error is told once."""
        if isinstance(error, CorruptRecord):
            if str(error) in self._told:
                return
            self._told = {*self._told, str(error)} if len(self._told) < MOST_TOLD else {str(error)}
        log.warning("%s %r: %s", what, self._named.name, error, exc_info=not isinstance(error, ZkmqError))


def _closed(error: Exception) -> SessionLost:
    """What ended a worker whose connection was closed, whatever its claim was doing then: `error` is what that met."""
    lost = SessionLost("the connection was closed")
    lost.__cause__ = error
    return lost
