"""Answers: one JSON value, or short aligned tables."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from airflow_provider_zkmq.cli.times import moment, with_text

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import Task

_CELL = 60
_MOMENTS = {
    "enqueued": "enqueued_ms",
    "due": "due_ms",
    "claimed": "claimed_ms",
    "started": "started_ms",
    "ended": "ended_ms",
    "dedupe until": "dedupe_ms",
}


def say(value: object, text: str, *, as_json: bool) -> None:
    """Print `value` as JSON, or `text` for people, and see it out of this process."""
    answer = json.dumps(value, allow_nan=False) if as_json else text
    if answer:
        print(answer, flush=True)


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


def clipped(text: str) -> str:
    """A text at the length of a table's cell."""
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


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
    return None if text is None else clipped(f"base64:{text}" if name else text)


def task_record(task: Task) -> dict[str, object]:
    """Everything known of a task, for JSON; times in milliseconds and as text."""
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
    return with_text(record) | {"history": [with_text(asdict(attempt)) for attempt in task.history]}


def task_facts(task: Task) -> dict[str, object]:
    """Everything known of a task, for people."""
    plain = {name: getattr(task, name) for name in ("id", "state", "status", "attempt", "priority")}
    more = {
        "filters": spread(task.filters),
        "metadata": json.dumps(task.metadata) if task.metadata else None,
        **{name: moment(getattr(task, field)) for name, field in _MOMENTS.items()},
        "consumer": task.consumer,
        "progress": percent(task.progress),
        "note": task.note or None,
        "batch": task.batch,
        "error": task.error,
    }
    return plain | more | payload("data", task.data) | payload("result", task.result)
