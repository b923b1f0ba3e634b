"""The figures as people read them: a table for each row, in plain text or Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_provider_zkmq.bench.measuring import Figures
from airflow_provider_zkmq.bench.report import Spread, Verdict, of_way, verdicts

HEAD: Final = ("way", "per s", "range", "requests", "transactions", "client µs", "server µs", "waits", "syscalls")
#: The figures of a line after its rate and range, with their digits.
_OTHERS: Final = (
    ("requests", 1),
    ("transactions", 1),
    ("client_us", 0),
    ("server_us", 0),
    ("waits", 1),
    ("syscalls", 0),
)
_GOALS: Final = {"rate": "", "requests": " requests", "client_us": " µs of client CPU"}
_MET: Final = {True: "met", False: "missed", None: "not measured"}


def number(value: float | None, digits: int = 0) -> str:
    """A figure with so many digits after the point; a small one with more."""
    if value is None:
        return "–"
    if value and abs(value) < 10 and not digits:
        digits = 1
    return f"{value:,.{digits}f}".replace(",", " ")


def _line(figures: Figures, way: str) -> list[str]:
    rate = of_way(figures, way, "rate")
    if rate is None:
        return [way, f"skipped: {figures.skipped.get(way, 'it was not measured')}"]
    others = ((of_way(figures, way, name), digits) for name, digits in _OTHERS)
    cells = [number(None if each is None else each.median, digits) for each, digits in others]
    return [way, number(rate.median), f"{number(rate.low)}–{number(rate.high)}", *cells]


def lines(figures: Figures) -> list[list[str]]:
    """A line of cells for each way; one that was skipped says why."""
    return [_line(figures, way.name) for way in figures.row.ways]


def sentence(verdict: Verdict) -> str:
    """A goal and what became of it, such as `claims() ≥ 2 × kazoo Queue: 3.1 (2.9–3.4), met`."""
    goal = verdict.goal
    sign = "≥" if goal.unit == "rate" else "≤"
    against = "" if goal.against is None else f" × {goal.against}"
    said = "" if verdict.reached is None else f"{_reached(verdict.reached)}, "
    return f"{goal.way} {sign} {goal.bound:.3g}{against}{_GOALS[goal.unit]}: {said}{_MET[verdict.met]}"


def _reached(reached: Spread) -> str:
    digits = 2 if reached.median < 100 else 0
    return f"{reached.median:.{digits}f} ({reached.low:.{digits}f}–{reached.high:.{digits}f})"


def profiles(figures: Figures) -> list[str]:
    """Where the processor time went, as in `claim(): kazoo 40 %, engine/zk 25 %`; what is less than 3 % is left out."""
    said = {
        way: [f"{name} {part:.0%}" for name, part in each.items() if part >= 0.03]
        for way, each in figures.shares.items()
    }
    return [f"client CPU of {way}: {', '.join(parts)}" for way, parts in said.items()]


def memory(figures: Figures) -> list[str]:
    """What those who wait take of a client's memory."""
    read = ((way.name, of_way(figures, way.name, "memory")) for way in figures.row.ways)
    return [f"client memory of {name}: {number(each.median)} bytes for each" for name, each in read if each is not None]


def _sentences(figures: Figures) -> list[str]:
    return [*map(sentence, verdicts(figures)), *memory(figures), *profiles(figures)]


def text(measured: Sequence[Figures]) -> str:
    """Everything for a terminal."""
    return "\n\n".join(_text(figures) for figures in measured)


def _text(figures: Figures) -> str:
    table = [list(HEAD), *lines(figures)]
    whole = [cells for cells in table if len(cells) == len(HEAD)]
    widths = [max(len(cells[at]) for cells in whole) for at in range(len(HEAD))]
    widths[0] = max(len(cells[0]) for cells in table)
    shown = ["  ".join(_padded(cells, widths)).rstrip() for cells in table]
    goals = [f"  {each}" for each in _sentences(figures)]
    return "\n".join([f"{figures.row.key}: {figures.row.title}", *shown, *goals])


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Names to the left, figures to the right; a reason why there are none as it is."""
    first = cells[0].ljust(widths[0])
    if len(cells) < len(HEAD):
        return [first, *cells[1:]]
    return [first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))]


def markdown(measured: Sequence[Figures], plots: str | None = None) -> str:
    """Everything for a page. `plots`: the folder of the plots, as the page's links name it."""
    return "\n\n".join(_section(figures, plots) for figures in measured)


def _section(figures: Figures, plots: str | None) -> str:
    row = figures.row
    head = [f"| {' | '.join(HEAD)} |", f"|---|{'---:|' * (len(HEAD) - 1)}"]
    filled = ([*cells, *[""] * (len(HEAD) - len(cells))] for cells in lines(figures))
    body = [f"| {' | '.join(cells)} |" for cells in filled]
    goals = [f"- {each}" for each in _sentences(figures)]
    shown = [] if plots is None else ["", f"![{row.title}: tasks per second]({plots}/{row.key}.svg)"]
    return "\n".join(
        [f"### {row.title[0].upper()}{row.title[1:]}", "", *head, *body, *([""] if goals else []), *goals, *shown]
    )
