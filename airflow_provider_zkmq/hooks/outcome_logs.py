"""What an Airflow task's log says of queue tasks: which are open, how they ended, how far they have come."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..engine import ZkmqError
from .metrics import count_ended
from .xcom_results import few, typed

if TYPE_CHECKING:
    from ..engine import AnyQueue, Batch, Task


#: So many dead tasks have a line of their own in the log.
_LINES: Final = 100


def log_open(log: Any, queue: AnyQueue, left: Sequence[str], conn_id: str) -> None:
    """Log that a wait begins, for how many tasks, and, as a warning, if no live consumer accepts the first."""
    if not left:
        log.info("Waiting for tasks of queue %r: none of them is known yet", queue.name)
        return
    see = typed(conn_id, "show", queue.name, left[0], "--why")
    log.info("Waiting for %d open task(s) of queue %r; the first is %s; see: %s", len(left), queue.name, left[0], see)
    with contextlib.suppress(ZkmqError):
        why = queue.explain(left[0])
        if str(why.status).startswith("queued") and all(verdict.refuses for verdict in why.consumers):
            refusing = few([f"{verdict.consumer} refuses it: {verdict.refuses}" for verdict in why.consumers])
            reason = refusing or "none is registered"
            log.warning("No live consumer of queue %r accepts task %s: %s", queue.name, left[0], reason)


def log_ended(log: Any, queue: str, ended: Sequence[Task] | Batch, conn_id: str) -> None:
    """Log and count what has ended; the first that are dead each in a line, with what shows more; how many more are."""
    if not isinstance(ended, Sequence):
        log.info(
            "Ended: batch %r of queue %r: %d task(s), %d failed", ended.name, queue, ended.total, len(ended.failed)
        )
        lines = [
            f"Dead or cancelled: task {task_id} of queue {queue!r}; see: {typed(conn_id, 'show', queue, task_id)}"
            for task_id in ended.failed[:_LINES]
        ]
        dead, which = len(ended.failed), f"of batch {ended.name!r} of queue {queue!r} ended dead or cancelled"
    elif ended:
        count_ended(queue, ended)
        states = ", ".join(f"{count} {state}" for state, count in Counter(str(task.status) for task in ended).items())
        first = few([f"{task.id} (attempt {task.attempt})" for task in ended])
        see = typed(conn_id, "show", queue, ended[0].id)
        log.info("%d task(s) of queue %r: %s: %s; see: %s", len(ended), queue, states, first, see)
        died = [each for each in ended if each.state == "dead"]
        lines = [
            f"Dead after {task.attempt} attempt(s): task {task.id} of queue {queue!r}: {task.error}; "
            f"see: {typed(conn_id, 'show', queue, task.id)}"
            for task in died[:_LINES]
        ]
        dead, which = len(died), f"of queue {queue!r} are dead; see: {typed(conn_id, 'list', queue, '--state', 'dead')}"
    else:
        return
    for line in lines:
        log.error("%s", line)
    if dead > _LINES:
        log.error("%d more task(s) %s", dead - _LINES, which)


def progress_log(log: Any) -> Callable[[str, float, str], None]:
    """Return what logs the progress that a task's handler reports; see the `on_progress` of `Queue.wait`."""

    def report(task_id: str, progress: float, note: str) -> None:
        log.info("At %.0f %%%s: task %s", 100 * progress, f", {note}" if note else "", task_id)

    return report
