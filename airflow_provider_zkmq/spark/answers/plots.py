"""Plots as SVG that stands in a page: drawn by matplotlib, coloured by the page, nothing fetched from anywhere."""

from __future__ import annotations

import io
import re
import warnings
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_zkmq.spark.answers.archive import need
from airflow_provider_zkmq.spark.answers.tables import Plot, Series
from airflow_provider_zkmq.spark.answers.words import printable, spell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

    target = io.StringIO()
    with mpl.rc_context(_SETTINGS | {"svg.hashsalt": f"zkmq-{number}"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that the font lacks are the reader's font's business
        figure = Figure(figsize=(_WIDTH, _height(plot)), layout="constrained")
        _DRAW[plot.sort](figure, plot)
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_a_page(target.getvalue(), plot, number)


def _for_a_page(text: str, plot: Plot, number: int) -> str:
    """Without all that belongs to a file of its own; ids of several plots on one page differ."""
    body = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    inside = body[body.index(">") + 1 :]
    box = re.search(r'viewBox="([\d. ]+)"', body)
    for colour, variable in _VARIABLES.items():
        inside = inside.replace(colour, variable)
    inside = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>plot{number}-", inside).replace("xlink:href", "href")
    head = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-labelledby="plot{number}-alt">'
    return f'{head}<title id="plot{number}-alt">{escape(printable(plot.alt))}</title>{inside}'


def _height(plot: Plot) -> float:
    if plot.sort == "lines":
        return 4.6 if any(series.beside for series in plot.series) else 3.0
    return 0.7 + len(plot.places) * (0.16 + 0.2 * len(plot.series))


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
    _curves(rows[0], places, [series for series in plot.series if not series.beside], 1)
    _finish(rows[0], plot, "y", legend=True)
    if beside:
        _curves(rows[1], places, beside, 3)
        _finish(rows[1], plot, "y", legend=True)
    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=8)
    rows[-1].xaxis.set_major_locator(locator)
    rows[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))


def _curves(axes: Axes, places: Any, series: list[Series], first: int) -> None:
    for number, each in enumerate(series):
        values = [float("nan") if value is None else value for value in each.values]
        axes.plot(
            places, values, color=_SERIES[(first + number) % len(_SERIES)], label=_short(each.label), linewidth=1.6
        )
    axes.set_ylim(bottom=0)


def _finish(axes: Axes, plot: Plot, along: Literal["x", "y"], *, legend: bool) -> None:
    getattr(axes, f"{along}axis").set_major_formatter(lambda value, _place: spell(plot.unit, value))
    axes.grid(axis=along, linewidth=0.6)
    axes.set_axisbelow(True)
    if plot.limit is not None:
        axes.axvline(plot.limit, color=_LIMIT, linewidth=1.2, linestyle="--")
    if legend:
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=6, borderaxespad=0.2)


_DRAW: Final[dict[str, Any]] = {"bars": _bars, "lines": _lines}
