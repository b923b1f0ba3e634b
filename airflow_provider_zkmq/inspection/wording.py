"""The same for people: aligned tables and facts, times with zone and age, durations in words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

#: The most characters of a cell, by its column.
_CELLS: Final = {"data": 60, "result": 60, "error": 200}
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
#: Fields that hold seconds.
_SPANS: Final = frozenset(
    {"lease", "lock", "idle", "task_gc_lifetime", "task_gc_interval", "factor", "min_backoff", "max_backoff", "per"}
)


def moment(text: str) -> str:
    """A time of JSON for people, such as ``2026-11-22 10:31:05 UTC, 5 min ago``."""
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S} UTC, {since(text)}"


def since(text: str) -> str:
    """How long ago a time of JSON was, or in how long it will be."""
    return age(time.time() - datetime.fromisoformat(text).timestamp())


def age(seconds: float) -> str:
    """How long ago something was, or in how long it will be, in its largest unit; by this machine's clock."""
    for unit, size in _UNITS:
        count = int(abs(seconds) / size)
        if count:
            return f"{count} {unit} ago" if seconds > 0 else f"in {count} {unit}"
    return "now"


def words(name: str, value: Any) -> str:
    """The value of a field as people read it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Mapping() if name == "metadata":
            return json.dumps(value)
        case Mapping() if name == "policy":
            return " ".join(f"{key}={words(key, each)}" for key, each in value.items() if each not in (None, []))
        case Mapping():  # the names are the user's
            return " ".join(f"{key}={each}" for key, each in value.items()) or "-"
        case list() | tuple():
            return " ".join(words(name, each) for each in value) or "-"
        case str() if name.endswith("_at"):
            return moment(value)
        case str() if name.endswith("_until"):
            return f"{'ends' if since(value).startswith('in') else 'ended'} {moment(value)}"
        case int() | float() if name in _SPANS:
            from ..engine import spell_duration

            return spell_duration(round(value) if name == "idle" and value > 1 else value)  # which was measured
        case float() if name == "progress":
            return f"{value:.0%}"
    return str(value)


def facts(values: Mapping[str, Any]) -> str:
    """One ``name  value`` line each; what there is none of is left out."""
    shown = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    return _aligned([(_label(name), words(name, value)) for name, value in shown.items()])


def table(rows: Iterable[Mapping[str, Any]], columns: str) -> str:
    """Aligned columns, by the names of fields, the last one open; without rows only the head."""
    names = columns.split()
    return _aligned([[_label(name).upper() for name in names], *([_cell(row, name) for name in names] for row in rows)])


def _label(name: str) -> str:
    return name.removesuffix("_at").replace("_", " ")


def _cell(row: Mapping[str, Any], name: str) -> str:
    encoded = row.get(f"{name}_base64")
    text = words(name, row.get(name)) if encoded is None else f"base64:{encoded}"
    most = _CELLS.get(name, len(text))
    return text if len(text) <= most else text[: most - 1] + "…"


def _aligned(rows: Iterable[Iterable[str]]) -> str:
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def error(raised: Any) -> str:
    """An error in one line, with the verb that creates a queue where the engine would name its methods."""
    said = str(raised)
    if fact := getattr(raised, "fact", None):
        said = ", ".join([f"{fact}: zkmq queue create {raised.queue}", *getattr(raised, "__notes__", ())])
    return one_line(" ".join(said.split()))


def one_line(text: str) -> str:
    """Text without line ends and control characters, each of which is shown as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
