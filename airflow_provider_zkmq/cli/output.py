"""Answers: one JSON value, or short aligned tables."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..engine import Task

# --- Times as the command line tells them: with zone and age for people, in ISO 8601 for programs.

#: Fields that hold milliseconds since 1970, and what the same time is called as text.
_TEXTS: Final = {
    **{f"{name}_ms": f"{name}_at" for name in ("enqueued", "claimed", "started", "ended", "due")},
    **{name: f"{name}_at" for name in ("claimed", "started", "ended")},  # of an attempt
    "dedupe_ms": "dedupe_until",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def moment(milliseconds: int | None) -> str | None:
    """A server's time for people, such as ``2026-11-22 10:31:05 UTC, 5 min ago``; None for none."""
    when = _utc(milliseconds)
    if when is None:
        return None if milliseconds is None else f"{milliseconds} ms since 1970"
    return f"{when:%Y-%m-%d %H:%M:%S} UTC, {age(time.time() - when.timestamp())}"


def age(seconds: float) -> str:
    """How long ago something was, or in how long it will be, in its largest unit; by this machine's clock."""
    for unit, size in _UNITS:
        count = int(abs(seconds) / size)
        if count:
            return f"{count} {unit} ago" if seconds > 0 else f"in {count} {unit}"
    return "now"


def with_text(record: Mapping[str, object]) -> dict[str, object]:
    """A record for JSON, its times also in ISO 8601."""
    return {**record, **{name: iso(record[field]) for field, name in _TEXTS.items() if field in record}}


def iso(milliseconds: object) -> str | None:
    """A server's time in ISO 8601, in UTC; None for none, and for what is no time of a calendar."""
    when = _utc(milliseconds)
    return None if when is None else when.isoformat(timespec="milliseconds")


def _utc(milliseconds: object) -> datetime | None:
    if not isinstance(milliseconds, int):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


# --- Answers: one JSON value, or short aligned tables.

_CELL = 60
#: What stands out on a terminal: the head of a table, and the words of trouble.
_STYLES: Final = ((r"(?m)^[A-Z][A-Z ]+$", "bold"), (r"\b(dead|cancelled|paused)\b", "red"))
_MOMENTS = ("enqueued", "due", "claimed", "started", "ended")


def say(value: object, text: str, *, as_json: bool) -> None:
    """Print `value` as JSON, or `text` for people, and see it out of this process."""
    if as_json:
        print(json.dumps(value, allow_nan=False), flush=True)
    elif text:
        shown = "\n".join(map(one_line, text.split("\n")))
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            _print_in_color(shown)
        else:
            print(shown, flush=True)


def warn(text: str) -> None:
    """Print one line on standard error."""
    print(f"zkmq: {one_line(text)}", file=sys.stderr)


def one_line(text: str) -> str:
    """Text without line ends and control characters, each of which is shown as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _print_in_color(text: str) -> None:
    """Print on a terminal. The text is never markup, and is not wrapped."""
    from rich.console import Console
    from rich.text import Text

    shown = Text(text)
    for pattern, style in _STYLES:
        shown.highlight_regex(pattern, style)
    Console(highlight=False, emoji=False, markup=False).print(shown, soft_wrap=True)
    sys.stdout.flush()


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Aligned columns, the last one open; without rows only the head."""
    cells = [[printable(cell) for cell in row] for row in ([head, *rows] if head else rows)]
    if not cells:
        return ""
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def facts(values: Mapping[str, object]) -> str:
    """One ``name  value`` line each; what is None is left out."""
    return table([(name, value) for name, value in values.items() if value is not None])


def printable(value: object) -> str:
    """Text that cannot disturb a terminal or a table."""
    text = "-" if value is None else str(value)
    return text if text.isprintable() else json.dumps(text)


def percent(part: float | None) -> str | None:
    """A part of 1 for people."""
    return None if part is None else f"{part:.0%}"


def spread(mapping: Mapping[str, object]) -> str | None:
    """``a=1 b=2``; None for nothing."""
    return " ".join(f"{name}={value}" for name, value in mapping.items()) or None


def payload(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes as JSON can hold them: text under `name`, else base64 under ``name_base64``."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def brief(data: bytes | None) -> str | None:
    """Bytes in a table's cell; those that are no text are marked."""
    ((name, text),) = payload("", data).items()
    if text is None:
        return None
    text = f"base64:{text}" if name else text
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def task_record(task: Task) -> dict[str, object]:
    """Everything known of a task, for JSON; times in milliseconds and as text."""
    from msgspec import structs

    record: dict[str, object] = {
        name: getattr(task, name)
        for name in (
            "id", "state", "status", "attempt", "priority", "filters", "metadata", "error", "consumer",
            "enqueued_ms", "claimed_ms", "started_ms", "ended_ms", "due_ms", "version", "progress", "note", "dedupe_ms",
            "batch",
        )
    }  # fmt: skip
    record |= {"state": str(task.state), "status": str(task.status)}
    record |= payload("data", task.data) | payload("result", task.result)
    return with_text(record) | {"history": [with_text(structs.asdict(attempt)) for attempt in task.history]}


def task_facts(task: Task) -> dict[str, object]:
    """Everything known of a task, for people."""
    plain = {name: getattr(task, name) for name in ("id", "state", "status", "attempt", "priority")}
    more = {
        "filters": spread(task.filters),
        "metadata": json.dumps(task.metadata) if task.metadata else None,
        **{name: moment(getattr(task, f"{name}_ms")) for name in _MOMENTS},
        "dedupe until": moment(task.dedupe_ms),
        "consumer": task.consumer,
        "progress": percent(task.progress),
        "note": task.note or None,
        "batch": task.batch,
        "error": task.error,
    }
    return plain | more | payload("data", task.data) | payload("result", task.result)
