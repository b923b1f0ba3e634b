"""What was measured, as figures: medians, ratios of the same round with their spread, and the goals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_zkmq.bench.measuring import Figures, Sample
from airflow_provider_zkmq.bench.rows import Goal

Number = float | None


def _per_task(name: str, factor: float = 1.0) -> Callable[[Sample], Number]:
    return lambda sample: sample[name] * factor / sample["tasks"] if name in sample else None


#: The figures of a sample.
FIGURES: Final[dict[str, Callable[[Sample], Number]]] = {
    "rate": lambda sample: sample["tasks"] / sample["seconds"],
    "requests": _per_task("requests"),
    "transactions": _per_task("transactions"),
    "client_us": _per_task("cpu", 1e6),
    "server_us": _per_task("server_cpu", 1e6),
    "waits": _per_task("waits"),
    "syscalls": _per_task("syscalls"),
    "memory": lambda sample: sample.get("memory"),
}


@dataclass(frozen=True)
class Spread:
    """A median, and between which figures the rounds were."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """A goal, and what was reached; None: it could not be measured."""

    goal: Goal
    reached: Spread | None

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal, as far as two digits tell."""
        if self.reached is None:
            return None
        reached, bound = round(self.reached.median, 2), round(self.goal.bound, 2)
        return reached >= bound if self.goal.unit == "rate" else reached <= bound


def spread(values: Iterable[Number]) -> Spread | None:
    """Of the figures that there are."""
    there = [value for value in values if value is not None]
    return Spread(statistics.median(there), min(there), max(there)) if there else None


def of_way(figures: Figures, way: str, figure: str) -> Spread | None:
    """A figure of a way over all rounds."""
    traced = [figures.traced[way]] if way in figures.traced else []
    samples = traced if figure == "syscalls" else figures.samples.get(way, ())
    return spread(FIGURES[figure](sample) for sample in samples)


def ratio(figures: Figures, way: str, against: str, figure: str = "rate") -> Spread | None:
    """One way by another, round for round: what else the machine did in a round hit both."""
    pairs = zip(figures.samples.get(way, ()), figures.samples.get(against, ()), strict=False)
    read = FIGURES[figure]
    values = ((read(one), read(other)) for one, other in pairs)
    return spread(new / old if new is not None and old else None for new, old in values)


def verdicts(figures: Figures) -> list[Verdict]:
    """What became of a row's goals."""
    return [
        Verdict(
            goal,
            of_way(figures, goal.way, goal.unit)
            if goal.against is None
            else ratio(figures, goal.way, goal.against, goal.unit),
        )
        for goal in figures.row.goals
    ]


def record(measured: Sequence[Figures], about: dict[str, Any]) -> dict[str, Any]:
    """All of it as JSON: every sample, so that others can reckon with them, and the verdicts."""
    return about | {"rows": [_row(figures) for figures in measured]}


def _row(figures: Figures) -> dict[str, Any]:
    row = figures.row
    return {
        "key": row.key,
        "title": row.title,
        "ways": {way.name: _way(figures, way.name) for way in row.ways},
        "goals": [_verdict(each) for each in verdicts(figures)],
    }


def _way(figures: Figures, way: str) -> dict[str, Any]:
    if way in figures.skipped:
        return {"skipped": figures.skipped[way]}
    spreads = {name: of_way(figures, way, name) for name in FIGURES}
    return {name: None if each is None else vars(each) for name, each in spreads.items()} | {
        "samples": figures.samples[way],
        "shares": figures.shares.get(way),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    reached = None if verdict.reached is None else vars(verdict.reached)
    return vars(verdict.goal) | {"reached": reached, "met": verdict.met}
