"""A report's contents as plain data, for a terminal, and as one HTML page."""

from __future__ import annotations

import importlib.resources
import importlib.util
import io
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ...engine import ConfigError


def need(*packages: str) -> None:
    """Raise `ConfigError` where a package is missing that comes with the extra ``[spark]``."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"this needs {' and '.join(missing)}: pip install 'airflow-provider-zkmq[spark]'")


def check_page(file: Path | None) -> None:
    """Raise `ConfigError`, before a report is made, where a page cannot be written, or Jinja2 is missing."""
    if file is not None:
        if file.is_dir() or not file.absolute().parent.is_dir():
            why = "it is a folder" if file.is_dir() else f"{file.absolute().parent} is no folder"
            raise ConfigError(f"{file} cannot be written: {why}")
        need("jinja2")


# --- A report's contents as plain data: sections of tables, and values as people read them.

#: ``name``: of a queue, class, task or consumer, which is not broken where there is room; ``span``: seconds; ``rate``:
#: a second; ``share``: of 1; ``moment``: seconds since 1970; ``trend``: a line of numbers; ``real``: any other number.
Sort: TypeAlias = Literal["text", "name", "count", "span", "rate", "share", "moment", "real", "trend"]
Row: TypeAlias = dict[str, Any]
#: Sentences, each with how it is: good, note, warn, bad.
Findings: TypeAlias = Sequence[tuple[str, str]]
#: The columns of all tables by their sorts, each with its title where that is not its name.
_COLUMNS: Final[Mapping[Sort, str]] = {
    "name": "queue class serves consumer task_id kind examples",
    "count": "runs=tasks finished dead cancelled retries retried most deliveries failed failures tasks consumers ended "
    "inserted=waiting scheduled claimed=in_hand arrivals depth_max=most_waiting depth_end=in_the_end servers "
    "needed=needed_now needed_at_peak",
    "span": "wait_p50 wait_p95 wait_p99 wait_max wait_mean run_p50 run_p95 busy=busy_in_all service=run_time "
    "measured_p95 model_p95",
    "share": "dead_share failed_share utilisation=busy",
    "moment": "first last hour worst=at",
    "rate": "rate=arrivals",
    "real": "depth_mean=waiting",
    "trend": "trend",
}
COLUMNS: Final = {
    name: (sort, (title or name).replace("_", " "))
    for sort, columns in _COLUMNS.items()
    for name, _, title in (column.partition("=") for column in columns.split())
}
#: Numbers that have a bar beside them on a page.
BARS: Final = frozenset({"depth_max", "failures", "utilisation", "wait_p95"})


def column(name: str) -> tuple[Sort, str]:
    """What a column holds, and what it is called."""
    return COLUMNS.get(name, ("text", name))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, whose `columns` are named, the most important first; `folded`: pages show it if asked, texts never."""

    name: str
    caption: str
    columns: str
    rows: list[Row]
    empty: str = "nothing to show"
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """One question and its answer: `said` in sentences, `tables`, and `notes` on what they mean and do not mean.

    `level`: how it is, ``bad``, ``warn``, ``good`` or ``note``; none: that is no finding.
    """

    name: str
    title: str
    said: list[str]
    tables: list[Table]
    notes: Sequence[str] = ()
    level: str = "note"

    def record(self) -> Row:
        """The section for JSON, which has no infinite numbers: they are null."""
        record: Row = {"title": self.title, "said": self.said}
        for table in self.tables:
            rows = record[table.name] = [dict(row) for row in table.rows]
            for row in rows:
                endless = [key for key, each in row.items() if isinstance(each, float) and not math.isfinite(each)]
                row |= dict.fromkeys(endless)
        return record | {"notes": list(self.notes)}


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


def trend(values: Sequence[float | None]) -> str:
    """A line of small bars."""
    top = max((value for value in values if value), default=0)
    return "".join(_BARS[math.ceil((value or 0) / top * 7)] if top else _BARS[0] for value in values)


def name(text: str) -> str:
    """A name, which may go on in the next line between two filters; the class without filters has none."""
    return printable(text).replace(";", "; ") if text else "(no filters)"


def printable(text: str) -> str:
    """Text that disturbs neither a terminal nor a page: what does not print is spelt out."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def label(what: str, queue: str) -> str:
    """What a queue has under a name, such as a class."""
    return f"{name(what)} of {printable(queue)}"


def several(count: int, word: str) -> str:
    """So many of something."""
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{count:,} {word if count == 1 else many}"


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
    "trend": trend,
    "real": lambda value: f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}",
}


def spell(value: Any, name: str) -> str:
    """A value as it stands in a column; what is not known is a dash."""
    unknown = value is None or (isinstance(value, float) and math.isnan(value)) or (name == "kind" and not value)
    return "–" if unknown else _SPELL[column(name)[0]](value)


# --- The report for a terminal, as tables that fit its width.

#: In terminals that are narrower still, lines break where they must.
LEAST: Final = 72
#: So many columns are never left out.
KEPT: Final = 4
#: Texts are folded, but not below so many signs, and names not below what they share of the width.
FOLDED: Final = 20


def render(
    head: Sequence[str], findings: Findings, sections: Sequence[Section], width: int | None, most: int | None
) -> str:
    """The report as text of a width, None: the terminal's; `most`: so many rows of a table and no notes, None: all."""
    target, heard = io.StringIO(), {text for _, text in findings}
    columns = max(LEAST, width or shutil.get_terminal_size((100, 24)).columns)
    console = Console(file=target, width=columns, color_system=None, legacy_windows=False, emoji=False)
    marked = (f"{ {'bad': '!!', 'warn': '!'}.get(level, ''):2} {text}" for level, text in findings)
    for line in (*head, "", *marked):
        console.print(_indented(line))
    for section in sections:
        console.print(Text(f"\n{section.title.upper()}"))
        for text in section.said:
            if text not in heard:  # what findings say, sections do not say again
                console.print(_indented(text))
        for table in section.tables:
            if table.folded:
                continue
            rows = table.rows[:most]
            console.print(Text(f"  {table.caption}:" if table.rows else f"  {table.empty}"))
            if rows:
                console.print(_grid(table, rows, console.width))
            if more := len(table.rows) - len(rows):
                console.print(_indented(f"… and {several(more, 'more row')}"))
        for note in section.notes if most is None else ():
            console.print(_indented(f"· {note}"))
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines())


def _indented(text: str) -> Padding:
    """Text in which nothing is markup, and nothing controls the terminal."""
    return Padding(Text(printable(text)), (0, 0, 0, 2))


def _grid(table: Table, rows: list[Row], width: int) -> Grid:
    """The columns that there is room for; a queue that is the only one need not be named in each row."""
    names = table.columns.split()
    if len({row.get("queue") for row in table.rows}) == 1 and table.name != "queues":
        names.remove("queue")
    sorts, titles = zip(*map(column, names), strict=True)
    full = [
        max(len(title), *(len(spell(row[name], name)) for row in rows))
        for name, title in zip(names, titles, strict=True)
    ]
    named = _shared([each for each, sort in zip(full, sorts, strict=True) if sort == "name"], width * 3 // 5)
    least = [
        next(named) if sort == "name" else min(each, FOLDED) if sort == "text" else each
        for each, sort in zip(full, sorts, strict=True)
    ]
    room = sum(end <= width for end in accumulate(each + 2 for each in least))
    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=True, padding=(0, 1, 0, 0))
    shown = names[: max(KEPT, room)]
    for sort, title, each in zip(sorts[: len(shown)], titles, least, strict=False):
        left = sort in {"text", "name"}
        grid.add_column(title, justify="left" if left else "right", overflow="fold", no_wrap=not left, min_width=each)
    for row in rows:
        grid.add_row(*(Text(spell(row[name], name)) for name in shown))
    return grid


def _shared(needs: Sequence[int], room: int) -> Iterator[int]:
    """How wide each is; who needs less leaves more to the others."""
    given = dict[int, int]()
    for at in sorted(range(len(needs)), key=needs.__getitem__):
        given[at] = min(needs[at], (room - sum(given.values())) // (len(needs) - len(given)))
    return iter([given[at] for at in range(len(needs))])


#: What may be said of a crew, the most urgent first, and how bad it is.
VERDICTS: Final = (
    dict.fromkeys(("nobody serves it", "overloaded", "too few"), "bad")
    | dict.fromkeys(("too few at the peak", "slower than modelled"), "warn")
    | dict.fromkeys(("enough", "more than enough"), "good")
)


def page(head: Sequence[str], findings: Findings, sections: Sequence[Section]) -> str:
    """The whole page. `head`: its title, and a line below. Raises `ConfigError` without Jinja2."""
    need("jinja2")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, finalize=_shown, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters |= {"spell": spell, "column": column}
    source = importlib.resources.files(__package__ or "").joinpath("report.html.jinja").read_text(encoding="utf-8")
    template = environment.from_string(source)
    spelt = {"verdicts": VERDICTS, "bars": BARS, "endless": math.inf}
    return template.render(head=head, findings=findings, sections=sections, **spelt)


def _shown(value: object) -> object:
    """What the template shows: no text that was not made by it has signs that do not print."""
    return value if hasattr(value, "__html__") or not isinstance(value, str) else printable(value)
