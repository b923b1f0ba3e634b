"""A plot for each row, as PNG and as SVG: bars of the medians, and between which figures the rounds were."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_zkmq.bench.measuring import Figures
from airflow_provider_zkmq.bench.report import Spread, of_way
from airflow_provider_zkmq.bench.rows import Way
from airflow_provider_zkmq.bench.tables import number
from airflow_provider_zkmq.engine import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def check_plots() -> None:
    """Raise `ConfigError` where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plots need matplotlib: pip install 'airflow-provider-zkmq[spark]'")


def write_plots(measured: Sequence[Figures], folder: Path) -> list[Path]:
    """Write the plots of the rows that have figures, and return the files. Raises `ConfigError`, see `check_plots`."""
    check_plots()
    folder.mkdir(parents=True, exist_ok=True)
    return [path for figures in measured if figures.samples for path in _write(figures, folder)]


def _write(figures: Figures, folder: Path) -> list[Path]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    bars = [(way, of_way(figures, way.name, "rate")) for way in figures.row.ways]
    there = [(way, rate) for way, rate in bars if rate is not None]
    paths = [folder / f"{figures.row.key}.{kind}" for kind in _METADATA]
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(8, 1.0 + 0.36 * len(there)), layout="constrained")
        _draw(figure.subplots(), there)
        figure.suptitle(figures.row.title, x=0.01, ha="left", fontweight="bold")
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
