"""A report's contents as plain data: sections of tables, each column of which says what kind of value it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

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


def rounded(value: float | None, digits: int = 3) -> float | None:
    """A number as precise as anybody wants to read."""
    return None if value is None else round(value, digits) if math.isfinite(value) else value
