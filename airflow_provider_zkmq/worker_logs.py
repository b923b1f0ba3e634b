"""What a worker's process logs: each record is one line, for people or in JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from .engine import Task
from .inspection.wording import one_line

#: The task whose handler runs here: what the handler itself logs has its names, too.
_TASK: Final = ContextVar[Mapping[str, object]]("_TASK", default=MappingProxyType({}))
_NAMES: Final = ("queue", "task", "attempt")


class Lines(logging.Formatter):
    """A line for people. `tracebacks`: those of errors follow; without them an error is told in its line."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Time, level and message, without line ends and control characters."""
        message, traceback = self._texts(record)
        line = f"{self.formatTime(record)} {record.levelname} {one_line(message)}"
        return f"{line}\n{traceback}" if traceback else line

    def _texts(self, record: logging.LogRecord) -> tuple[str, str]:
        """The message and the traceback of a record."""
        message, error = record.getMessage(), record.exc_info[1] if record.exc_info else None
        if error is None:
            return message, ""
        if self._tracebacks:
            return message, self.formatException((type(error), error, error.__traceback__))
        words = f"{type(error).__name__}: {error}"
        return message if words in message else f"{message}: {words}", ""


class JsonLines(Lines):
    """A JSON object a line: ``time`` (ISO 8601, UTC), ``level``, ``message``; ``queue``, ``task``, ``attempt`` if any.

    ``traceback``, with `tracebacks`; ``logger`` of what other libraries and handlers log.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The object, in ASCII."""
        message, traceback = self._texts(record)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {"time": moment, "level": record.levelname, "message": message}
        if record.name != "airflow_provider_zkmq":
            entry["logger"] = record.name
        entry |= {name: value for name in _NAMES if (value := getattr(record, name, _TASK.get().get(name))) is not None}
        if traceback:
            entry["traceback"] = traceback
        # Of bytes that were no UTF-8 the escapes are told: half of a surrogate pair is no JSON that others read.
        return json.dumps({name: _text(value) for name, value in entry.items()})


def _text(value: object) -> object:
    if isinstance(value, int):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def set_up(*, as_json: bool, verbose: bool) -> None:
    """Have this process log what the worker does, on standard error. `verbose`: with tracebacks, and more of it."""
    handler = logging.StreamHandler()
    handler.setFormatter((JsonLines if as_json else Lines)(tracebacks=verbose))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("airflow_provider_zkmq").setLevel(logging.DEBUG if verbose else logging.INFO)


def handler(function: Callable[..., Any], queue: str) -> Callable[..., Any]:
    """The same handler; what it logs meanwhile has the names of its queue and task."""

    def logging_its_task(task: Task, *more: object) -> Any:
        before = _TASK.set({"queue": queue, "task": task.id, "attempt": task.attempt})
        try:
            return function(task, *more)
        finally:
            _TASK.reset(before)

    return logging_its_task
