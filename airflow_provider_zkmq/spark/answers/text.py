"""A report on a terminal: tables that fit its width."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from airflow_provider_zkmq.spark.answers.tables import Column, Section, Sort, Table
from airflow_provider_zkmq.spark.answers.words import printable, spell

#: In terminals that are narrower still, lines break where they must.
LEAST: Final = 72
#: Texts are folded, but not below so many columns.
_FOLDED: Final = 20
_LEFT: Final[frozenset[Sort]] = frozenset({"text", "name", "trend"})
_FOLDING: Final[frozenset[Sort]] = frozenset({"text", "name"})


def render(title: str, lines: Iterable[str], sections: Sequence[Section], width: int | None = None) -> str:
    """The report as text of a width; default: the terminal's."""
    columns = width or shutil.get_terminal_size((100, 24)).columns
    target = io.StringIO()
    console = Console(file=target, width=max(LEAST, columns), color_system=None, legacy_windows=False, emoji=False)
    console.print(_plain(title))
    for line in lines:
        console.print(_indented(line))
    for section in sections:
        console.print(_section(section, max(LEAST, columns)))
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines())


def _section(section: Section, width: int) -> RenderableType:
    tables = [table for table in section.tables if not table.folded]
    parts: list[RenderableType] = [Text(f"\n{section.title.upper()}"), *map(_indented, section.said)]
    for table in tables:
        parts.append(Text(f"\n  {table.caption}:" if table.rows else f"\n  {table.empty}"))
        if table.rows:
            parts.append(_grid(table, width))
    return Group(*parts, *(_indented(f"· {note}") for note in section.notes))


def _plain(text: str) -> Text:
    """Text in which nothing is markup, and nothing controls the terminal."""
    return Text(printable(text))


def _indented(text: str) -> Padding:
    return Padding(_plain(text), (0, 0, 0, 2))


def _grid(table: Table, width: int) -> Grid:
    shown = _columns(table, width)
    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=True, padding=(0, 1, 0, 0))
    for column in shown:
        left = column.sort in _LEFT
        fold = column.sort in _FOLDING
        least = min(_least(table, column) - 2, _FOLDED) if fold else None
        justify: JustifyMethod = "left" if left else "right"
        grid.add_column(Text(column.title), justify=justify, overflow="fold", no_wrap=not fold, min_width=least)
    for row in table.rows:
        grid.add_row(*(Text(spell(column.sort, row[column.name])) for column in shown))
    return grid


def _columns(table: Table, width: int) -> list[Column]:
    """Those that there is room for; a queue that is the only one need not be named in each row."""
    one = len({row.get("queue") for row in table.rows}) == 1 and table.name != "queues"
    shown = [column for column in table.columns if not (one and column.name == "queue")]
    while sum(_least(table, column) for column in shown) > width and (top := max(column.rank for column in shown)):
        shown.remove([column for column in shown if column.rank == top][-1])
    return shown


def _least(table: Table, column: Column) -> int:
    """How many columns of the terminal it takes at the least."""
    widest = max([len(column.title), *(len(spell(column.sort, row[column.name])) for row in table.rows)])
    return (min(widest, _FOLDED) if column.sort in _FOLDING else widest) + 2
