"""What tasks of Airflow did with queues, as metrics of Airflow's own stats: StatsD or OpenTelemetry, as it is set up.

=====================  =======  ==================================================================================
name                   kind     what
=====================  =======  ==================================================================================
``zkmq.enqueued``      counter  tasks that were enqueued; not those that an earlier try had
``zkmq.claimed``       counter  tasks that were claimed, by triggers, too; again where no run accepted them in time
``zkmq.settled``       counter  claims that were settled; tag ``outcome``: completed, failed, released, lost
``zkmq.dead``          counter  tasks that were seen dead by who settled them or waited for them; not for a batch
``zkmq.wait_time``     timing   milliseconds from a task's enqueue, or when it was due, to its claim
``zkmq.run_time``      timing   milliseconds from a task's claim to its end: of ``@task.zkmq``, and of who waited
=====================  =======  ==================================================================================

Of a batch nothing is told but that it was enqueued: who waits for one hears which members failed, not which are dead.
Each has the tag ``queue``. The option ``stats`` of the section ``[zkmq]`` switches them off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .settings import switched_on

if TYPE_CHECKING:
    from ..engine import Task


def count_enqueued(queue: str, number: int) -> None:
    """Count tasks that were written."""
    _count("enqueued", number, queue=queue)


def count_claimed(queue: str, tasks: Iterable[Task]) -> None:
    """Count tasks that were claimed, and tell how long each had waited."""
    claimed = list(tasks)
    _count("claimed", len(claimed), queue=queue)
    _waited(queue, claimed)


def count_settled(queue: str, outcome: str, number: int = 1, *, run_ms: float | None = None) -> None:
    """Count settled claims, ``outcome`` being completed, failed, released or lost; `run_ms`: since the claim."""
    _count("settled", number, queue=queue, outcome=outcome)
    if run_ms is not None:
        _time("run_time", run_ms, queue)


def count_dead(queue: str, number: int = 1) -> None:
    """Count tasks that are dead."""
    _count("dead", number, queue=queue)


def count_ended(queue: str, tasks: Iterable[Task]) -> None:
    """Tell of tasks that others have handled and that ended: how long they waited and ran, and how many are dead."""
    ended = list(tasks)
    _waited(queue, ended)
    for task in ended:
        if task.started_ms is not None and task.ended_ms is not None:
            _time("run_time", task.ended_ms - task.started_ms, queue)
    count_dead(queue, sum(task.state == "dead" for task in ended))


def _waited(queue: str, tasks: Iterable[Task]) -> None:
    for task in tasks:
        began = task.claimed_ms if task.started_ms is None else task.started_ms
        if began is not None:
            _time("wait_time", began - max(task.enqueued_ms, task.due_ms or 0), queue)


def _count(name: str, number: int, **tags: Any) -> None:
    if number > 0 and switched_on("stats"):
        from airflow.sdk.observability import stats

        stats.incr(f"zkmq.{name}", number, tags=tags)


def _time(name: str, milliseconds: float, queue: str) -> None:
    if switched_on("stats"):
        from airflow.sdk.observability import stats

        stats.timing(f"zkmq.{name}", max(0.0, milliseconds), tags={"queue": queue})
