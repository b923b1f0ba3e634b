"""What a worker's process logs: each record is one line, for people or in JSON."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, TextIO

from .engine import Task
from .inspection.wording import one_line

#: The task whose handler runs here: what the handler itself logs has its names, too.
_TASK: Final = ContextVar[Mapping[str, object]]("_TASK", default=MappingProxyType({}))
_NAMES: Final = ("queue", "task", "attempt")
_LOG: Final = logging.getLogger("airflow_provider_zkmq")
#: So many characters of an error are told in a line, as in a task's record, and so many of its traceback.
_MOST, _MOST_TRACEBACK = 4_000, 20_000


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
        message, error = record.getMessage().rstrip("\n"), record.exc_info[1] if record.exc_info else None
        if error is None:
            return message, ""
        if self._tracebacks:
            return message, _cut(self.formatException((type(error), error, error.__traceback__)), _MOST_TRACEBACK)
        words = _cut(f"{type(error).__name__}: {error}", _MOST)
        return message if words in message else f"{message}: {words}", ""


class JsonLines(Lines):
    """A JSON object a line: ``time`` (ISO 8601, UTC), ``level``, ``message``, ``queue``; ``task``, ``attempt`` if any.

    ``traceback``, with `tracebacks`; ``logger`` of what other libraries and handlers log. `queue`: of the worker.
    """

    def __init__(self, *, tracebacks: bool, queue: str) -> None:
        super().__init__(tracebacks=tracebacks)
        self._queue = queue

    def format(self, record: logging.LogRecord) -> str:
        """The object, in ASCII."""
        message, traceback = self._texts(record)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {"time": moment, "level": record.levelname, "message": message}
        if record.name != "airflow_provider_zkmq":
            entry["logger"] = record.name
        known = {"queue": self._queue, **_TASK.get()}
        entry |= {name: value for name in _NAMES if (value := getattr(record, name, known.get(name))) is not None}
        if traceback:
            entry["traceback"] = traceback
        # Of bytes that were no UTF-8 the escapes are told: half of a surrogate pair is no JSON that others read.
        return json.dumps({name: _text(value) for name, value in entry.items()})


def _text(value: object) -> object:
    if isinstance(value, int):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def set_up(*, as_json: bool, verbose: bool, queue: str) -> None:
    """Have this process log what the worker does, on standard error. `verbose`: with tracebacks, and more of it.

    So are Python's warnings, and errors that end a thread. In JSON nothing else is left on standard error: what Python
    code writes there by other means is logged, line by line.
    """
    lines = _Log()
    lines.setFormatter(JsonLines(tracebacks=verbose, queue=queue) if as_json else Lines(tracebacks=verbose))
    logging.basicConfig(handlers=[lines])
    _LOG.setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.captureWarnings(capture=True)
    threading.excepthook = _log_thread_error
    if as_json:
        sys.stderr = _Written(lines)


class _Log(logging.StreamHandler[TextIO]):
    """Standard error. A call of the logger that cannot be shown, its arguments not fitting, is told in a line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the name is logging's
        """Log where the call stands. Where the line of this cannot be written either, nobody is there to read."""
        if hasattr(record, "of_a_call"):
            return
        what = ascii(_cut(record.msg, _MOST)) if isinstance(record.msg, str) else type(record.msg).__name__
        failed = _warning(record.name, f"the log call at {record.pathname}:{record.lineno} failed: {what}")
        failed.exc_info, failed.of_a_call = sys.exc_info(), True
        self.emit(failed)


class _Written(io.StringIO):
    """Standard error of code that does not log: each line is logged, past all loggers, as these may write here."""

    encoding = "utf-8"

    def __init__(self, log: _Log) -> None:
        super().__init__()
        self._log, self._begun = log, threading.local()

    def write(self, text: str) -> int:
        """Log the lines that end in it; the rest waits for what this thread writes next."""
        *lines, self._begun.line = (getattr(self._begun, "line", "") + text).split("\n")
        for line in filter(str.strip, lines):
            self._log.handle(_warning("stderr", line))
        return len(text)

    def flush(self) -> None:
        """Log what waits for its end."""
        if getattr(self._begun, "line", ""):
            self.write("\n")

    def fileno(self) -> int:
        """That of the true one, for whoever needs a file."""
        return self._log.stream.fileno()


def _warning(logger: str, message: str) -> logging.LogRecord:
    more = {"name": logger, "levelno": logging.WARNING, "levelname": "WARNING"}
    return logging.makeLogRecord({**more, "msg": message})


def _log_thread_error(ended: threading.ExceptHookArgs) -> None:
    """What `threading.excepthook` prints, in a line."""
    if ended.exc_type is not SystemExit and ended.exc_value is not None:
        name = "unknown" if ended.thread is None else ended.thread.name
        _LOG.error("thread %r ended with an error", name, exc_info=ended.exc_value)


def handler(function: Callable[..., Any], queue: str) -> Callable[..., Any]:
    """The same handler; what it logs meanwhile has the names of its queue and task."""

    def logging_its_task(task: Task, *more: object) -> Any:
        before = _TASK.set({"queue": queue, "task": task.id, "attempt": task.attempt})
        try:
            return function(task, *more)
        finally:
            _TASK.reset(before)

    return logging_its_task
