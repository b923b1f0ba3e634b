"""A report's contents as plain data: sections of tables, and values as people read them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

#: ``span``: seconds; ``rate``: a second; ``share``: of 1; ``moment``: seconds since 1970; ``real``: any other number.
Sort: TypeAlias = Literal["text", "name", "count", "span", "rate", "share", "moment", "real", "trend"]
Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its `name` in rows and JSON, its `title` for people.

    `rank`: where there is little room those with the highest are left out first, those with 0 never.
    """

    name: str
    title: str
    sort: Sort = "text"
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns, and what is said where there are none."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: list[Row]
    empty: str = "nothing to show"
    folded: bool = False
    """On a page it is shown when it is asked for: a plot shows the same."""


@dataclass(frozen=True, slots=True)
class Section:
    """One question and its answer: `said` in sentences, `tables`, and `notes` on what they mean and do not mean."""

    name: str
    title: str
    said: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)

    def record(self) -> Row:
        """The section for JSON."""
        tables = {table.name: [plain(row) for row in table.rows] for table in self.tables}
        return {"title": self.title, "said": self.said, **tables, "notes": self.notes}


@dataclass(frozen=True, slots=True)
class Series:
    """A line, or bars, of a plot: a value for each place on the plot's axis; None: none known."""

    label: str
    values: list[float | None]
    beside: bool = False
    """On a plot of lines: with an axis of its own below."""


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn: ``bars`` by name, or ``lines`` over time, of values of one sort; `alt` says it in words."""

    sort: Literal["bars", "lines"]
    title: str
    alt: str
    places: list[Any]
    series: list[Series]
    unit: Sort
    limit: float | None = None
    """A line across, such as the target."""


def plain(row: Row) -> Row:
    """A row as JSON can hold it: what has no end, and what is no number, is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


# --- values as people read them

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
_BARS: Final = "▁▂▃▄▅▆▇█"


def span(seconds: float) -> str:
    """How long, in its two largest units: ``1 h 5 min``, ``12.3 s``, ``85 ms``."""
    if math.isinf(seconds):
        return "∞"
    for (unit, size), (below, smaller) in zip(_UNITS, (*_UNITS[1:], ("s", 1)), strict=True):
        if seconds >= size:
            count, rest = divmod(round(seconds / smaller), size // smaller)
            return f"{count:,} {unit} {rest} {below}" if rest else f"{count:,} {unit}"
    if seconds >= 1 or not seconds:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms" if seconds >= 0.001 else "< 1 ms"


def rate(per_second: float) -> str:
    """So many in the shortest time in which that is one or more."""
    for unit, size in (("s", 1), ("min", 60), ("h", 3_600)):
        if per_second * size >= 1:
            return (
                f"{per_second * size:,.3g}/{unit}" if per_second * size < 1000 else f"{per_second * size:,.0f}/{unit}"
            )
    return f"{per_second * 86_400:.3g}/d"


def moment(seconds: float) -> str:
    """A time in UTC, which need not be said in each cell."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def trend(values: list[float | None]) -> str:
    """A line of small bars."""
    top = max((value for value in values if value), default=0)
    return "".join(_BARS[math.ceil((value or 0) / top * 7)] if top else _BARS[0] for value in values)


def name(text: str) -> str:
    """The name of a class; the one without filters has none."""
    return printable(text) if text else "(no filters)"


def printable(text: str) -> str:
    """Text that disturbs neither a terminal nor a page: what does not print is spelt out."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def several(count: int, word: str) -> str:
    """So many of something."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}{'es' if word.endswith('s') else 's'}"


_SPELL: Final[Mapping[Sort, Callable[[Any], str]]] = {
    "text": lambda value: printable(str(value)),
    "name": name,
    "count": "{:,.10g}".format,
    "span": span,
    "rate": rate,
    "share": lambda value: (
        "∞" if math.isinf(value) else f"{value:.0%}" if value >= 0.1 or not value else f"{value:.1%}"
    ),
    "moment": moment,
    "real": lambda value: f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}",
    "trend": trend,
}


def spell(sort: Sort, value: Any) -> str:
    """A value of a sort; what is not known is a dash."""
    unknown = value is None or (isinstance(value, float) and math.isnan(value))
    return "–" if unknown else _SPELL[sort](value)
