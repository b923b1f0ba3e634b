"""What became of tasks, for XComs, for the end of an Airflow task, and for its log."""

from __future__ import annotations

import base64
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException

from airflow_provider_zkmq.engine import ZkmqError
from airflow_provider_zkmq.hooks import telemetry
from airflow_provider_zkmq.hooks.naming import typed

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue, Batch, Task

#: How many tasks an error names.
_SHOWN: Final = 5
#: So many dead tasks have a line of their own in the log.
_LINES: Final = 100
#: Stands for a character that cannot be kept or shown.
_UNKNOWN: Final = "\ufffd"


def outcome(task: Task) -> dict[str, Any]:
    """Return what an XCom tells about a task: ``id``, ``state``, ``attempt``, ``error``, and its result.

    The result is text under ``result``, or, where the bytes are no UTF-8 or hold a NUL, base64 under ``result_b64``:
    PostgreSQL keeps no NUL in an XCom.
    """
    summary: dict[str, Any] = {
        "id": task.id,
        "state": str(task.state),
        "attempt": task.attempt,
        "error": None if task.error is None else storable(task.error),
        "result": None,
    }
    if task.result is not None:
        summary |= _spelt(task.result)
    return summary


def _spelt(result: bytes) -> dict[str, str]:
    with contextlib.suppress(UnicodeDecodeError):
        if b"\0" not in result:
            return {"result": result.decode()}
    return {"result_b64": base64.b64encode(result).decode()}


def storable(text: str) -> str:
    """Return a text as an XCom may hold it: PostgreSQL refuses the whole XCom for a NUL or half a surrogate pair.

    U+FFFD stands for the one, the other is spelt out, as where a queue keeps it.
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", _UNKNOWN)


def one_line(text: str, most: int) -> str:
    """Return a text in one line of `most` characters at the most, such as an XCom and a log may hold.

    U+FFFD stands for what is not printable: an escape sequence would reach the terminal of whoever reads the log.
    """
    line = "".join(each if each.isprintable() else _UNKNOWN for each in " ".join(storable(text).split()))
    return clipped(line, most)


def clipped(text: str, most: int) -> str:
    """Return a text, cut where it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def check_outcomes(queue: str, tasks: Iterable[Task]) -> None:
    """Raise `AirflowException` naming the tasks that are dead or cancelled, the first few with their errors."""
    bad = [task for task in tasks if task.state in {"dead", "cancelled"}]
    if bad:
        lines = [f"{task.id} is {task.state}" + (f" ({task.error})" if task.error else "") for task in bad]
        raise AirflowException(f"{len(bad)} task(s) of queue {queue!r} failed: {few(lines)}")


def check_batch(queue: str, batch: Batch) -> None:
    """Raise `AirflowException` naming the first few members of a batch that ended dead or cancelled."""
    if batch.failed:
        members = f"{len(batch.failed)} of {batch.total} task(s) of batch {batch.name!r} of queue {queue!r}"
        raise AirflowException(f"{members} ended dead or cancelled: {few(batch.failed)}")


def few(lines: Sequence[str]) -> str:
    """Return the first lines in one, and how many more there are."""
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "; ".join([*lines[:_SHOWN], *more])


def tell_open(log: Any, queue: AnyQueue, left: Sequence[str], conn_id: str) -> None:
    """Log that a wait begins, and how many tasks it is for; and, as a warning, if no live consumer accepts the first.

    A queue in files, which knows no consumers, has no such warning; nor has what can just not be read.
    """
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


def tell_ended(log: Any, queue: str, ended: Sequence[Task] | Batch, conn_id: str) -> None:
    """Log and count what has ended; the first that are dead each in a line, with what shows more; how many more are.

    `conn_id`: the Airflow connection, for the commands that show more.
    """
    if not isinstance(ended, Sequence):
        log.info(
            "Ended: batch %r of queue %r: %d task(s), %d failed", ended.name, queue, ended.total, len(ended.failed)
        )
        for task_id in ended.failed[:_LINES]:
            see = typed(conn_id, "show", queue, task_id)
            log.error("Dead or cancelled: task %s of queue %r; see: %s", task_id, queue, see)
        _tell_more(log, len(ended.failed), f"of batch {ended.name!r} of queue {queue!r} ended dead or cancelled")
        return
    if not ended:
        return
    telemetry.tell_ended(queue, ended)
    states = ", ".join(f"{count} {state}" for state, count in Counter(str(task.status) for task in ended).items())
    first = few([f"{task.id} (attempt {task.attempt})" for task in ended])
    see = typed(conn_id, "show", queue, ended[0].id)
    log.info("%d task(s) of queue %r: %s: %s; see: %s", len(ended), queue, states, first, see)
    dead = [each for each in ended if each.state == "dead"]
    for task in dead[:_LINES]:
        see = typed(conn_id, "show", queue, task.id)
        log.error(
            "Dead after %d attempt(s): task %s of queue %r: %s; see: %s", task.attempt, task.id, queue, task.error, see
        )
    see = typed(conn_id, "list", queue, "--state", "dead")
    _tell_more(log, len(dead), f"of queue {queue!r} are dead; see: {see}")


def _tell_more(log: Any, number: int, what: str) -> None:
    if number > _LINES:
        log.error("%d more task(s) %s", number - _LINES, what)


def progress_log(log: Any) -> Callable[[str, float, str], None]:
    """Return what logs the progress that a task's handler reports; see the `on_progress` of `Queue.wait`."""

    def report(task_id: str, progress: float, note: str) -> None:
        log.info("At %.0f %%%s: task %s", 100 * progress, f", {note}" if note else "", task_id)

    return report
