"""What became of tasks: for XComs, and for the end of an Airflow task."""

from __future__ import annotations

import base64
import contextlib
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException

from .arguments import check_choice, check_number
from .compact_task_ids import first_within

if TYPE_CHECKING:
    from ..engine import Batch, Task

#: How many tasks an error names.
_SHOWN: Final = 5
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


#: The least that leaves room for what is told besides ids.
_LEAST: Final = 1_000


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


def typed(conn_id: str, *words: str) -> str:
    """Return what to type in a shell to see more: ``airflow zkmq`` with the connection that an Airflow task has."""
    return shlex.join(["airflow", "zkmq", "--conn-id", conn_id, *words])
