"""The figures as people read them: tables for a terminal, one table for a page, and a plot for each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.benchmarks.compare.measuring import Figures, Goal, Row, Spread, Way, met, of_way, reached

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAD: Final = ("way", "per s", "range", "requests", "transactions", "client µs", "server µs")
#: The figures of a line after its rate and range, with their digits.
_OTHERS: Final = (("requests", 1), ("transactions", 1), ("client_us", 0), ("server_us", 0))
_UNITS: Final = {"rate": "", "requests": " requests", "client_us": " µs of client CPU"}
_MARKS: Final = ("<!-- bench: begin -->", "<!-- bench: end -->")
_OURS, _PEER, _INK = "#2f66b5", "#b9c2cc", "#5a6775"
_SETTINGS: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "zkmq-bench",  # the same figures make the same file
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
}
_METADATA: Final = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
#: Beyond such a factor between the longest bar and the shortest, a bar's length says its digits.
_FAR: Final = 30


def number(value: float | None, digits: int = 0) -> str:
    """A figure with so many digits after the point; a small one with more."""
    if value is None:
        return "–"
    if value and abs(value) < 10 and not digits:
        digits = 1
    return f"{value:,.{digits}f}".replace(",", " ")


def _line(figures: Figures, way: str) -> list[str]:
    """The cells of a way; of one that was skipped, why."""
    rate = of_way(figures, way, "rate")
    if rate is None:
        return [way, f"skipped: {figures.skipped.get(way, 'it was not measured')}"]
    others = ((of_way(figures, way, name), digits) for name, digits in _OTHERS)
    cells = [number(None if each is None else each.median, digits) for each, digits in others]
    return [way, number(rate.median), f"{number(rate.low)}–{number(rate.high)}", *cells]


def sentence(goal: Goal, spread: Spread | None) -> str:
    """A goal and what became of it, such as `claims() ≥ 2 × kazoo Queue: 3.1 (2.9–3.4), met`."""
    sign = "≥" if goal.unit == "rate" else "≤"
    against = "" if goal.against is None else f" × {goal.against}"
    said = f"{goal.way} {sign} {goal.bound:.3g}{against}{_UNITS[goal.unit]}"
    if spread is None:
        return f"{said}: not measured"
    digits = 2 if spread.median < 100 else 0
    values = f"{spread.median:.{digits}f} ({spread.low:.{digits}f}–{spread.high:.{digits}f})"
    return f"{said}: {values}, {'met' if met(goal, spread) else 'missed'}"


def text(measured: Sequence[Figures]) -> str:
    """A table for each row, and its goals."""
    return "\n\n".join(map(_text, measured))


def _text(figures: Figures) -> str:
    table = [HEAD, *(_line(figures, way.name) for way in figures.row.ways)]
    whole = [cells for cells in table if len(cells) == len(HEAD)]
    widths = [max(len(cells[at]) for cells in whole) for at in range(1, len(HEAD))]
    first = max(len(cells[0]) for cells in table)
    shown = []
    for way, *cells in table:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)] if len(cells) > 1 else cells
        shown.append("  ".join([way.ljust(first), *padded]).rstrip())
    goals = [f"  {sentence(goal, reached(figures, goal))}" for goal in figures.row.goals]
    return "\n".join([f"{figures.row.key}: {figures.row.title}", *shown, *goals])


def markdown(measured: Sequence[Figures]) -> str:
    """One table for a page, without what was skipped."""
    lines = [f"| {' | '.join(HEAD)} |", f"|---|{'---:|' * (len(HEAD) - 1)}"]
    for figures in measured:
        lines.append(f"| **{figures.row.title}** |{' |' * (len(HEAD) - 1)}")
        ways = (_line(figures, way.name) for way in figures.row.ways if way.name in figures.samples)
        lines += [f"| {' | '.join(cells)} |" for cells in ways]
    return "\n".join(lines)


def write_page(page: Path, content: str) -> None:
    """Replace what stands between the two marks of a page; the rest is its author's."""
    before, rest = page.read_text(encoding="utf-8").split(_MARKS[0])
    _, after = rest.split(_MARKS[1])
    page.write_text(f"{before}{_MARKS[0]}\n\n{content}\n\n{_MARKS[1]}{after}", encoding="utf-8")


def write_plots(measured: Sequence[Figures], folder: Path) -> list[Path]:
    """Draw each row that has figures, as PNG and as SVG: bars of the medians, and between which the rounds were."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for figures in measured if figures.samples for path in _write(figures, folder)]


def _write(figures: Figures, folder: Path) -> list[Path]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    row: Row = figures.row
    rates = ((way, of_way(figures, way.name, "rate")) for way in row.ways)
    bars = [(way, rate) for way, rate in rates if rate is not None]
    paths = [folder / f"{row.key}.{kind}" for kind in _METADATA]
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(8, 1.0 + 0.36 * len(bars)), layout="constrained")
        _draw(figure.subplots(), bars)
        figure.suptitle(row.title, x=0.01, ha="left", fontweight="bold")
        for path in paths:
            figure.savefig(path, dpi=120, facecolor="white", metadata=_METADATA[path.suffix[1:]])
    return paths


def _draw(axes: Axes, bars: Sequence[tuple[Way, Spread]]) -> None:
    places, rates = range(len(bars)), [rate for _, rate in bars]
    medians = [rate.median for rate in rates]
    apart = ([rate.median - rate.low for rate in rates], [rate.high - rate.median for rate in rates])
    colours = [_OURS if way.ours else _PEER for way, _ in bars]
    axes.barh(places, medians, 0.7, color=colours, xerr=apart, error_kw={"ecolor": _INK, "capsize": 2})
    for place, rate in enumerate(rates):
        axes.annotate(number(rate.median), (rate.high, place), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [way.name for way, _ in bars])
    axes.invert_yaxis()
    if max(medians) > _FAR * min(medians):
        axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel("tasks per second" + (", logarithmic" if axes.get_xscale() == "log" else ""))
