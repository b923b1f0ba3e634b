"""A report's contents as plain data, for a terminal, and as one HTML page."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from html import escape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ...engine import ConfigError, check_name
from ..history.tables import GOLD, NAME, SILVER, read_manifest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# --- Which queues a history holds: looked for before Spark is started, and refused with what to do about it.

_FIRST = "run the maintenance DAG, or airflow_provider_zkmq.spark.run_pipeline, first"


def need(*packages: str) -> None:
    """Raise `ConfigError` where a package is missing that comes with the extra ``[spark]``."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"this needs {' and '.join(missing)}: pip install 'airflow-provider-zkmq[spark]'")


def known(directory: str | os.PathLike[str], queues: Sequence[str] | None) -> list[str]:
    """The queues of a history that are asked for; None: all. Raises `ConfigError` for those that it does not hold.

    Raises `CorruptRecord` where what says what it holds is damaged.
    """
    root = Path(directory).absolute()
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder: give the directory of the archive; where there is none, {_FIRST}")
    archived = sorted(path.parent.name for path in root.glob(f"*/{NAME}"))
    if not archived:
        raise ConfigError(f"{root} holds no archive of any queue: give the archive's directory, or {_FIRST}")
    requested = archived if queues is None else [check_name("queue", queue) for queue in dict.fromkeys(queues)]
    for queue in requested:
        if queue not in archived:
            near = get_close_matches(queue, archived)
            hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
            raise ConfigError(f"{root} holds no archive of queue {queue!r}{hint}: {_FIRST}")
        tables = [root / queue / table / NAME for table in (SILVER, GOLD)]
        if read_manifest(root / queue).rows and not all(path.is_file() for path in tables):
            raise ConfigError(f"queue {queue!r} is archived in {root}, but its tables were not made yet: {_FIRST}")
    return requested


# --- A report's contents as plain data: sections of tables, and values as people read them.

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
        """The section for JSON, which has no infinite numbers: they are null."""
        tables = {table.name: [_finite(row) for row in table.rows] for table in self.tables}
        return {"title": self.title, "said": self.said, **tables, "notes": self.notes}


def _finite(row: Row) -> Row:
    endless = {name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    return {name: None if name in endless else value for name, value in row.items()}


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
        many = per_second * size
        if many >= 1:
            return f"{many:,.3g}/{unit}" if many < 1000 else f"{many:,.0f}/{unit}"
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


# --- The report for a terminal, as tables that fit its width.

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
    console.print(Text(printable(title)), *map(_indented, lines), sep="\n")
    for section in sections:
        console.print(Text(f"\n{section.title.upper()}"), *map(_indented, section.said), sep="\n")
        for table in section.tables:
            if not table.folded:
                console.print(Text(f"\n  {table.caption}:" if table.rows else f"\n  {table.empty}"))
            if table.rows and not table.folded:
                console.print(_grid(table, max(LEAST, columns)))
        for note in section.notes:
            console.print(_indented(f"· {note}"))
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines())


def _indented(text: str) -> Padding:
    """Text in which nothing is markup, and nothing controls the terminal."""
    return Padding(Text(printable(text)), (0, 0, 0, 2))


def _grid(table: Table, width: int) -> Grid:
    """The columns that there is room for; a queue that is the only one need not be named in each row."""
    one = len({row.get("queue") for row in table.rows}) == 1 and table.name != "queues"
    shown = [column for column in table.columns if not (one and column.name == "queue")]
    least = {column.name: _least(table, column) for column in shown}
    while sum(least[column.name] + 2 for column in shown) > width and (top := max(column.rank for column in shown)):
        shown.remove([column for column in shown if column.rank == top][-1])
    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=True, padding=(0, 1, 0, 0))
    for column in shown:
        left, fold = column.sort in _LEFT, column.sort in _FOLDING
        grid.add_column(
            Text(column.title),
            justify="left" if left else "right",
            overflow="fold",
            no_wrap=not fold,
            min_width=least[column.name] if fold else None,
        )
    for row in table.rows:
        grid.add_row(*(Text(spell(column.sort, row[column.name])) for column in shown))
    return grid


def _least(table: Table, column: Column) -> int:
    """How many signs wide it is at the least."""
    widest = max([len(column.title), *(len(spell(column.sort, row[column.name])) for row in table.rows)])
    return min(widest, _FOLDED) if column.sort in _FOLDING else widest


# --- as a page

_NUMBERS: Final = frozenset({"count", "span", "rate", "share", "moment", "real"})
#: What an on-call person should see at once, by the column's name.
MARKED: Final = {
    "nobody serves it": "bad",
    "overloaded": "bad",
    "too few": "bad",
    "too few at the peak": "warn",
    "slower than modelled": "warn",
    "enough": "good",
    "more than enough": "good",
}
_LEVELS: Final = {"bad": "Act", "warn": "Look", "good": "Fine", "note": "Note"}
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, lines: Sequence[str], sections: Sequence[Section], findings: Sequence[tuple[str, str]]) -> str:
    """The whole page. `findings`: what to know first, each with how it is: good, note, warn, bad."""
    links = (f'<a href="#{section.name}">{_text(section.title)}</a>' for section in sections)
    marked = (
        f'<li class="{level}"><span class="mark">{_LEVELS[level]}</span> <span>{_text(text)}</span></li>'
        for level, text in findings
    )
    numbers = count(1)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<header><h1>{_text(title)}</h1>",
            *(f"<p>{_text(line)}</p>" for line in lines),
            f'<nav aria-label="Sections">{" ".join(links)}</nav>',
            "</header>\n<main>",
            '<section id="findings" aria-label="What to know first"><ul class="findings">',
            *marked,
            "</ul></section>",
            *(part for section in sections for part in _section(section, numbers)),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _text(value: str) -> str:
    return escape(printable(value))


def _section(section: Section, numbers: Iterator[int]) -> Iterator[str]:
    yield f'<section id="{section.name}"><h2>{_text(section.title)}</h2>'
    yield from (f'<p class="said">{_text(text)}</p>' for text in section.said)
    for plot in section.plots:
        yield f"<figure>{svg(plot, next(numbers))}<figcaption>{_text(plot.title)}</figcaption></figure>"
    for table in section.tables:
        yield from _table(table)
    if section.notes:
        notes = "".join(f"<li>{_text(note)}</li>" for note in section.notes)
        summary = "<summary>What this means, and what it does not</summary>"
        yield f'<details class="notes">{summary}<ul>{notes}</ul></details>'
    yield "</section>"


def _table(table: Table) -> Iterator[str]:
    if not table.rows:
        yield f'<p class="empty">{_text(table.empty)}</p>'
        return
    heads = (f'<th scope="col" class="{_kind(column)}">{_text(column.title)}</th>' for column in table.columns)
    cells = ("".join(_cell(column, row) for column in table.columns) for row in table.rows)
    rows = "\n".join(f"<tr>{each}</tr>" for each in cells)
    inside = f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{rows}\n</tbody>"
    label = _text(table.caption)
    if table.folded:
        yield f"<details><summary>{label} ({len(table.rows):,} rows)</summary>"
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
    yield f"<table><caption>{label}</caption>{inside}</table></div>"
    if table.folded:
        yield "</details>"


def _cell(column: Column, row: Row) -> str:
    value = row[column.name]
    text = _text(spell(column.sort, value))
    if column.name == "verdict":
        text = f'<span class="badge {MARKED[value]}">{text}</span>'
    return f'<td class="{_kind(column)}">{text}</td>'


def _kind(column: Column) -> str:
    return "number" if column.sort in _NUMBERS else column.sort


# How the page looks, by day and by night, on a phone and on paper.
STYLE: Final = """
:root { color-scheme: light dark; --paper: #f6f7f9; --card: #ffffff; --ink: #1d2733; --soft: #5a6775; --line: #d9dee5;
  --good: #1b7f4b; --warn: #a15c00; --bad: #c02b2b; --good-bg: #e3f4ea; --warn-bg: #fdf0dc; --bad-bg: #fde7e7;
  --link: #1f5fbf; --stripe: #f4f6f8; --series-0: #9db8dd; --series-1: #2f66b5; --series-2: #7a4fb0;
  --series-3: #2f66b5; --series-4: #1b8f6a; --series-5: #d0861a; --series-6: #c02b2b; --series-7: #6b7785; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --card: #1b2129; --ink: #e4e9ef; --soft: #9aa7b5;
  --line: #333d49; --good: #5fd097; --warn: #f0b45c; --bad: #ff8585; --good-bg: #173527; --warn-bg: #3a2c14;
  --bad-bg: #431f22; --link: #8ab8ff; --stripe: #202731; --series-0: #3d567c; --series-1: #7fb0f5; --series-2: #bb9af0;
  --series-3: #7fb0f5; --series-4: #5fd0ac; --series-5: #f0b45c; --series-6: #ff8585; --series-7: #9aa7b5; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0 auto; padding: 1.2rem clamp(.8rem, 3vw, 2.5rem) 3rem; max-width: 88rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "DejaVu Sans", sans-serif; }
h1 { font-size: 1.55rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .8rem 0 1rem; }
a { color: var(--link); text-decoration: none; } a:hover, a:focus { text-decoration: underline; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem 1.2rem;
  margin: 0 0 1rem; }
.said { margin: 0 0 .5rem; max-width: 75rem; overflow-wrap: anywhere; }
.findings { list-style: none; margin: 0; padding: 0; display: grid; gap: .45rem; }
.findings li { display: flex; gap: .7rem; align-items: baseline; padding: .4rem .7rem; border-radius: .4rem;
  border-left-style: solid; border-left-width: .3rem; overflow-wrap: anywhere; }
.mark { font-weight: 650; min-width: 2.6rem; }
.good { background: var(--good-bg); border-color: var(--good); } .good .mark, .badge.good { color: var(--good); }
.warn { background: var(--warn-bg); border-color: var(--warn); } .warn .mark, .badge.warn { color: var(--warn); }
.bad { background: var(--bad-bg); border-color: var(--bad); } .bad .mark, .badge.bad { color: var(--bad); }
.note { background: var(--stripe); border-color: var(--soft); } .note .mark { color: var(--soft); }
.badge { padding: .05rem .5rem; border-radius: 1rem; font-weight: 600; white-space: nowrap; }
figure { margin: .6rem 0 1rem; } figure svg { display: block; width: 100%; max-width: 60rem; height: auto; }
figure svg text { font-family: inherit !important; }
figcaption, caption { color: var(--soft); font-size: .88rem; text-align: left; }
caption { padding: .2rem 0 .35rem; }
.scroll { overflow-x: auto; margin: .4rem 0 .8rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; max-width: 32rem; } td.text { min-width: 6rem; }
td.trend { white-space: nowrap; max-width: none; }
td.name { min-width: 17rem; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
tbody tr:nth-child(even) { background: var(--stripe); }
.number { text-align: right; white-space: nowrap; }
details { margin: .3rem 0; } summary { cursor: pointer; color: var(--soft); }
.notes ul { margin: .4rem 0; padding-left: 1.2rem; color: var(--soft); max-width: 75rem; }
.empty { color: var(--soft); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
@media print { body { background: none; max-width: none; } section { break-inside: avoid; } nav { display: none; } }
"""


# --- plots as SVG: drawn by matplotlib, coloured by the page

_WIDTH: Final = 9.0
_LABEL: Final = 46
#: Colours that the page replaces by its own, which differ by day and night.
_INK, _FAINT, _LIMIT = "#0a0b01", "#0a0b02", "#0a0b03"
_SERIES: Final = tuple(f"#0a0c0{number}" for number in range(8))
_VARIABLES: Final = {
    _INK: "var(--ink)",
    _FAINT: "var(--line)",
    _LIMIT: "var(--bad)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(_SERIES)},
}
_SETTINGS: Final = {
    "svg.fonttype": "none",  # texts stay texts, which screen readers and searches find
    "text.parse_math": False,  # a dollar sign in a name is no formula
    "axes.unicode_minus": False,
    "font.size": 10,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.major.size"), _FAINT),
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def svg(plot: Plot, number: int) -> str:
    """The plot as an element of a page; `number`: that of the plot on its page.

    Raises `ConfigError` where matplotlib is not installed.
    """
    need("matplotlib")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    height = 0.7 + len(plot.places) * (0.16 + 0.2 * len(plot.series))
    if plot.sort == "lines":
        height = 4.6 if any(series.beside for series in plot.series) else 3.0
    target = io.StringIO()
    with mpl.rc_context(_SETTINGS | {"svg.hashsalt": f"zkmq-{number}"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that the font lacks are the reader's font's business
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        (_lines if plot.sort == "lines" else _bars)(figure, plot)
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    # What belongs to a file of its own is left out; ids of several plots on one page differ.
    text = target.getvalue()
    body = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    inside = body[body.index(">") + 1 :]
    box = re.search(r'viewBox="([\d. ]+)"', body)
    for colour, variable in _VARIABLES.items():
        inside = inside.replace(colour, variable)
    inside = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>plot{number}-", inside).replace("xlink:href", "href")
    head = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-labelledby="plot{number}-alt">'
    return f'{head}<title id="plot{number}-alt">{escape(printable(plot.alt))}</title>{inside}'


def _bars(figure: Figure, plot: Plot) -> None:
    axes = figure.subplots()
    wide = 0.8 / len(plot.series)
    finite = [value for series in plot.series for value in series.values if value is not None]
    for number, series in enumerate(plot.series):
        places = [place + (number - (len(plot.series) - 1) / 2) * wide for place in range(len(plot.places))]
        values = [value or 0.0 for value in series.values]
        axes.barh(places, values, wide * 0.92, color=_SERIES[number if len(plot.series) > 1 else 1], label=series.label)
        for place, value in zip(places, series.values, strict=True):
            axes.annotate(spell(plot.unit, value), (value or 0, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(plot.places)), [_short(label) for label in plot.places])
    axes.invert_yaxis()
    axes.set_xlim(0, max([*finite, (plot.limit or 0) * 0.9]) * 1.15 or 1)
    _finish(axes, plot, "x", legend=len(plot.series) > 1)


def _short(label: object) -> str:
    text = printable(str(label))
    return text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"


def _lines(figure: Figure, plot: Plot) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    beside = [series for series in plot.series if series.beside]
    rows = figure.subplots(2 if beside else 1, 1, sharex=True, squeeze=False)[:, 0]
    places = date2num([datetime.fromtimestamp(place, UTC) for place in plot.places])
    above = [series for series in plot.series if not series.beside]
    for axes, curves, first in zip(rows, (above, beside), (1, 3), strict=False):
        for number, each in enumerate(curves, first):
            values = [float("nan") if value is None else value for value in each.values]
            colour = _SERIES[number % len(_SERIES)]
            axes.plot(places, values, color=colour, label=_short(each.label), linewidth=1.6)
        axes.set_ylim(bottom=0)
        _finish(axes, plot, "y", legend=True)
    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=8)
    rows[-1].xaxis.set_major_locator(locator)
    rows[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))


def _finish(axes: Axes, plot: Plot, along: Literal["x", "y"], *, legend: bool) -> None:
    getattr(axes, f"{along}axis").set_major_formatter(lambda value, _place: spell(plot.unit, value))
    axes.grid(axis=along, linewidth=0.6)
    axes.set_axisbelow(True)
    if plot.limit is not None:
        axes.axvline(plot.limit, color=_LIMIT, linewidth=1.2, linestyle="--")
    if legend:
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=6, borderaxespad=0.2)
