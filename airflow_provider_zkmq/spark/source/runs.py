"""Runs that ended, as rows: the data source's columns of a task as it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from airflow_provider_zkmq.engine import Attempt, State, Status, Task

#: What clean-up, a dedupe window and a run in escrow make of a finished task later on is no part of its run.
_STATUS: Final = {
    State.FINISHED: Status.DONE_AWAITING_GC,
    State.DEAD: Status.DEAD,
    State.CANCELLED: Status.CANCELLED,
}
#: The columns that are not what a task says by the same name.
_MADE: Final[Mapping[str, Callable[[Task], object]]] = {
    "task_id": lambda task: task.id,
    "state": lambda task: str(task.state),
    "status": lambda task: str(_STATUS.get(task.state, task.status)),
    "filters": lambda task: list(task.filters.items()),
    "metadata": lambda task: json_text(task.metadata),
    "enqueued_at": lambda task: moment(task.enqueued_ms),
    "claimed_at": lambda task: moment(task.claimed_ms),
    "ended_at": lambda task: moment(task.ended_ms),
    "wait_ms": lambda task: _span(task.enqueued_ms, task.claimed_ms),
    "run_ms": lambda task: _span(task.claimed_ms, task.ended_ms),
    "history": lambda task: [attempt(each) for each in task.history],
}


def row(queue: str, task: Task, columns: list[str]) -> dict[str, object]:
    """The values of `columns` for a run that ended: always the same ones, however late it is read."""
    return {name: queue if name == "queue" else _value(task, name) for name in columns}


def _value(task: Task, column: str) -> object:
    make = _MADE.get(column)
    return getattr(task, column) if make is None else make(task)


def attempt(each: Attempt) -> dict[str, object]:
    """A delivery that ended, of this run of the id or of an earlier one."""
    times = {"claimed_at": moment(each.claimed), "ended_at": moment(each.ended)}
    return {name: getattr(each, name) for name in ("number", "consumer", "outcome", "error")} | times


def json_text(metadata: Mapping[str, Any]) -> str:
    """JSON that can be encoded: of what callers may put into metadata, lone surrogates stay escaped."""
    return json.dumps(metadata, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def moment(milliseconds: int | None) -> datetime | None:
    """A time of the server's."""
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def _span(begin: int | None, end: int | None) -> int | None:
    return None if begin is None or end is None else end - begin
