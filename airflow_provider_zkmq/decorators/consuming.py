"""What became of the tasks that an Airflow task has handled: numbers, the first few errors, and its log."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException

from airflow_provider_zkmq.engine import Error, Retry, Snooze, Success, ZkmqError
from airflow_provider_zkmq.hooks.naming import typed
from airflow_provider_zkmq.hooks.outcomes import clipped, storable
from airflow_provider_zkmq.hooks.telemetry import count_claimed, count_dead, count_settled

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue, Task

#: So many errors are in the XCom, and so many characters of each.
_ERRORS: Final = 5
_LENGTH: Final = 500
#: So many tasks that failed are told of in the log, each in a line.
_LINES: Final = 20
#: So many of the others are read together, to count those that are dead.
_AT_ONCE: Final = 512
_OUTCOMES: Final = {Success: "completed", Error: "failed", Retry: "failed", Snooze: "released", type(None): "lost"}
_FAIL_ON: Final = ("none", "any", "all")
_ON_EMPTY: Final = ("wait", "succeed", "skip", "fail")


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

    def settled(self, task: Task, outcome: Success | Error | Retry | Snooze | None) -> None:
        """The function has handled a task, which was settled by this outcome; None: its claim was lost."""
        if not self._counted:
            count_claimed(self._queue, [task])
        since = None if task.claimed_ms is None else 1000 * time.time() - task.claimed_ms
        count_settled(self._queue, _OUTCOMES[type(outcome)], run_ms=since)
        with self._lock:
            if len(self._first) < _ERRORS:
                self._first.append(task.id)
            self.finished += isinstance(outcome, Success)
            self.released += isinstance(outcome, Snooze)
            self.lost += outcome is None
            if isinstance(outcome, Error | Retry):
                self.failed += 1
                self._failed_ids[task.id] = None
                if len(self._failures) < _LINES:
                    self._failures.append((task.id, _text(outcome.error)))

    def summary(self) -> dict[str, Any]:
        """Return the XCom: bounded, however many tasks there were."""
        errors = [{"id": task_id, "error": error} for task_id, error in self._failures[:_ERRORS]]
        counts = {name: getattr(self, name) for name in ("finished", "failed", "released", "lost")}
        return {**counts, "errors": errors}

    def tell(self, queue: AnyQueue, log: Any, conn_id: str) -> None:
        """Log how many tasks were handled, and what became of the first that failed: an error for each dead one.

        `conn_id`: the Airflow connection, for the commands that show more.
        """
        log.info(
            "Handled %d task(s) of queue %r: %d finished, %d failed, %d given back, %d lost%s",
            self.handled, queue.name, self.finished, self.failed, self.released, self.lost,
            f"; the first: {', '.join(self._first)}" if self._first else "",
        )  # fmt: skip
        if not self._failures:
            return
        try:
            self._tell_failed(queue, log, conn_id)
        except ZkmqError as error:  # what was handled is settled, whatever can be read of it
            log.warning("What became of the %d task(s) that failed is not known now: %s", self.failed, error)

    def _tell_failed(self, queue: AnyQueue, log: Any, conn_id: str) -> None:
        """Tell of the first that failed, and count all that are dead. Raises `ZkmqError`."""
        errors = dict(self._failures)
        tasks = queue.read_many(list(errors), parts=())
        count_dead(queue.name, _dead_among(tasks))
        for task in tasks:
            line = "Failed, and %s on attempt %d: task %s of queue %r: %s; see: %s"
            see = typed(conn_id, "show", queue.name, task.id)
            values = (task.status, task.attempt, task.id, queue.name, errors[task.id], see)
            (log.error if task.state == "dead" else log.warning)(line, *values)
        if self.failed > len(errors):
            log.warning("%d more task(s) of queue %r failed", self.failed - len(errors), queue.name)
        others = [task_id for task_id in self._failed_ids if task_id not in errors]
        for at in range(0, len(others), _AT_ONCE):
            count_dead(queue.name, _dead_among(queue.read_many(others[at : at + _AT_ONCE], parts=())))

    def check(self, queue: str, fail_on: str, error: type[AirflowException] = AirflowException) -> None:
        """Raise `error` where so many failures are to fail the Airflow task."""
        if not self.failed or fail_on == "none" or (fail_on == "all" and self.finished):
            return
        lines = [f"{task_id}: {error}" for task_id, error in self._failures[:_ERRORS]]
        more = [f"and {self.failed - _ERRORS} more"] if self.failed > _ERRORS else []
        what = f"{self.failed} of {self.handled} task(s) of queue {queue!r} failed"
        raise error(f"{what}, {self.finished} finished: {'; '.join([*lines, *more])}")


def check_choices(on_empty: object, fail_on: object) -> None:
    """Raise `ValueError` for values that are not known."""
    for name, value, known in (("on_empty", on_empty, _ON_EMPTY), ("fail_on", fail_on, _FAIL_ON)):
        if value not in known:
            raise ValueError(f"@task.zkmq: {name} {value!r} is not known: give {', '.join(known)}")


def check_kind(transactional: object, lease: float | None) -> None:
    """Raise `ValueError` for a kind of claim that there is not; `lease` in seconds."""
    if transactional not in (True, False):
        raise ValueError(f"@task.zkmq: transactional {transactional!r} is not allowed: True or False")
    if transactional and lease is not None:
        raise ValueError("@task.zkmq: a transaction ends with its session: give either transactional or lease")
    if lease is not None and lease <= 0:
        raise ValueError(f"@task.zkmq: lease {lease!r} is not allowed: more than 0 seconds")


def check_numbers(**numbers: object) -> None:
    """Raise `ValueError` for what is no number of things."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"@task.zkmq: {name} {number!r} is not allowed: a whole number, 1 or more")


def _dead_among(tasks: Iterable[Task]) -> int:
    return sum(task.state == "dead" for task in tasks)


def _text(error: str | BaseException) -> str:
    """Return an error as its task keeps it and an XCom may hold it, cut where it is long."""
    try:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  whatever its `__str__` raises
        text = type(error).__name__
    return clipped(storable(text), _LENGTH)
