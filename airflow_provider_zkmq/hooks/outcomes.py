"""What became of tasks: for XComs, for the end of an Airflow task, and for its log."""

from __future__ import annotations

import base64
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowException

from ..engine import ZkmqError
from . import telemetry
from .arguments import check_choice, check_number
from .deferring import first_within, typed

if TYPE_CHECKING:
    from ..engine import AnyQueue, Batch, Task

#: How many tasks an error names.
_SHOWN: Final = 5
#: So many dead tasks have a line of their own in the log.
_LINES: Final = 100
#: Stands for a character that cannot be kept or shown.
_UNKNOWN: Final = "\ufffd"


def outcome(task: Task) -> dict[str, Any]:
    """Return what an XCom tells about a task: ``id``, ``state``, ``attempt``, ``error``, and its ``result`` as text.

    Where the bytes are no UTF-8, or hold a NUL, which PostgreSQL keeps in no XCom, ``result_b64`` has them as base64.
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


def few(lines: Sequence[str]) -> str:
    """Return the first lines in one, and how many more there are."""
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "; ".join([*lines[:_SHOWN], *more])


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
        telemetry.count_ended(queue, ended)
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


#: The least that leaves room for what is told besides ids.
_LEAST: Final = 1_000
#: Whose methods are known here: Airflow's own, and ours.
_KNOWN: Final = ("airflow.sdk.", "airflow_provider_zkmq.")
_CORE_XCOM: Final = "airflow.sdk.execution_time.xcom.BaseXCom"


@dataclass(frozen=True, slots=True)
class XComResults:
    """What an XCom and a log say of tasks and batches that have ended.

    results: with results, attempts and errors; else ids and states alone. max_xcom_bytes: where it is larger, as JSON,
    it is references. fail_on: ``"any"`` that is dead or cancelled fails the Airflow task, or ``"none"`` does.
    """

    results: bool
    max_xcom_bytes: int
    fail_on: str

    def __post_init__(self) -> None:
        check_choice("fail_on", self.fail_on, ("any", "none"))
        check_number("max_xcom_bytes", self.max_xcom_bytes, _LEAST)

    def check(self, queue: str, ended_tasks: Sequence[Task] | Batch) -> None:
        """Raise `AirflowException` naming the first few tasks, or members, that are dead or cancelled."""
        if self.fail_on == "none":
            return
        if not isinstance(ended_tasks, Sequence):
            if ended_tasks.failed:
                members = f"{len(ended_tasks.failed)} of {ended_tasks.total} task(s) of batch {ended_tasks.name!r}"
                failed = few(ended_tasks.failed)
                raise AirflowException(f"{members} of queue {queue!r} ended dead or cancelled: {failed}")
            return
        bad = [task for task in ended_tasks if task.state in {"dead", "cancelled"}]
        if bad:
            lines = [f"{task.id} is {task.state}" + (f" ({task.error})" if task.error else "") for task in bad]
            raise AirflowException(f"{len(bad)} task(s) of queue {queue!r} failed: {few(lines)}")

    def to_xcom(self, queue: str, ended_tasks: Sequence[Task] | Batch) -> Any:
        """Return the XCom; of tasks that take too much room, which they are, and how to read them."""
        if not isinstance(ended_tasks, Sequence):
            failed = first_within(ended_tasks.failed, self.max_xcom_bytes - _LEAST // 2)
            more = len(ended_tasks.failed) - len(failed)
            xcom = {"batch": ended_tasks.name, "total": ended_tasks.total, "failed": failed}
            return xcom | {"more_failed": more} if more else xcom
        tasks = [outcome(task) if self.results else {"id": task.id, "state": str(task.state)} for task in ended_tasks]
        if size(tasks) <= self.max_xcom_bytes:
            return tasks
        ids = first_within([task.id for task in ended_tasks], self.max_xcom_bytes - _LEAST)
        return {
            "queue": queue,
            "count": len(tasks),
            "states": dict(Counter(str(task.state) for task in ended_tasks)),
            "ids": ids,
            "more": len(tasks) - len(ids),
            "read": f"ZkmqHook().queue({queue!r}).tasks(ids=ids)",
        }


def size(value: object) -> int:
    """Return how many bytes an XCom's value takes as JSON."""
    return len(json.dumps(value))


def pushed_for(operator: BaseOperator, context: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the task instance whose XCom the triggerer writes, as `XCom.set` takes it; None: there is to be none."""
    if not operator.do_xcom_push:
        return None
    return {name: getattr(context["ti"], name) for name in ("dag_id", "run_id", "task_id", "map_index")}


def may_end_in_triggerer(operator: BaseOperator, context: Mapping[str, Any]) -> bool:
    """Whether nothing is lost where the triggerer ends a deferred task: no worker runs once more then.

    It emits no asset events, writes XComs past another backend, records no length by which others are mapped, splits no
    value into several XComs, and calls no hook, method of a subclass, or callback of the operator's.
    """
    backend = conf.get("core", "xcom_backend", fallback=_CORE_XCOM)
    if operator.outlets or operator.on_success_callback or backend != _CORE_XCOM:
        return False
    if operator.multiple_outputs or getattr(operator, "_post_execute_hook", None) is not None:
        return False
    methods = (getattr(type(operator), name, None) for name in ("post_execute", "execute_complete"))
    if not all(str(getattr(method, "__module__", "")).startswith(_KNOWN) for method in methods):
        return False
    if context["ti"].map_index is not None and context["ti"].map_index >= 0:
        return True
    return operator.get_dag() is None or next(operator.iter_mapped_dependants(), None) is None
