"""When more consumers are needed: the capacity model's answer for each class, with what it takes for granted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from airflow_provider_zkmq.spark.reporting.capacity import POINT, Crew, Demand, Model, Need, Stretch, Target
from airflow_provider_zkmq.spark.reporting.page import (
    Column,
    Plot,
    Row,
    Section,
    Series,
    Table,
    moment,
    name,
    several,
    span,
)
from airflow_provider_zkmq.spark.reporting.sections import label

#: Beyond these the model is told to be unsure: of C² of run times, of C² of the times between arrivals, of tasks.
VARIED: Final = (0.2, 4.0)
BURSTS: Final = 2.0
FEW: Final = 100
_OFF: Final = 2.0

_POISSON: Final = (
    "Tasks arrive independently of each other at a steady rate (Poisson); what arrives in bursts waits longer."
)
_OLDEST: Final = "Whoever becomes free takes the oldest task that it accepts; priorities shift waits, not their mean."
_SERVED: Final = (
    "What a consumer accepts is what it has served in this time; one that served too little to tell is taken for one "
    "of those it resembles. A node that takes at_least its class serves several: of each class it takes the share that "
    "it has taken, and all of it keeps it busy."
)
_COUNTED: Final = (
    "A consumer counts for as many as the tasks it held at once lately; one without a delivery in the time that stands "
    "for now is not counted. They work at the mean run time of their kind, and stop for nothing."
)
_FORMULA: Final = (
    "The wait is Erlang's (M/M/c), times (1 + C²) / 2 of Allen and Cunneen for how run times vary. In balance: a queue "
    "just filled, or just being emptied, is in none."
)
_LEAST: Final = (
    "Needed is the least number of consumers that serve the class and meet the target. Where several kinds serve it, "
    "those are added that serve the fewest other classes."
)
ASSUMPTIONS: Final = (_POISSON, _OLDEST, _SERVED, _COUNTED, _FORMULA, _LEAST)
_PLAN: Final = (
    Column("queue", "queue"),
    Column("serves", "consumers that serve", "text"),
    Column("servers", "there are", "count"),
    Column("add", "add now", "count"),
    Column("add_at_peak", "for the peak", "count"),
)
_COLUMNS: Final = (
    Column("queue", "queue"),
    Column("class", "class", "name"),
    Column("verdict", "verdict"),
    Column("rate", "arrivals", "rate", rank=1),
    Column("service", "run time", "span", rank=3),
    Column("servers", "serve it", "count"),
    Column("capacity", "can serve", "rate", rank=5),
    Column("utilisation", "busy", "share"),
    Column("model_mean", "wait, model", "span", rank=4),
    Column("measured_mean", "wait, measured", "span", rank=4),
    Column("model_p95", "p95, model", "span", rank=1),
    Column("measured_p95", "p95, measured", "span", rank=2),
    Column("needed", "needed now", "count"),
    Column("needed_at_peak", "at the peak", "count", rank=1),
)


def rows(demands: Mapping[str, Mapping[str, Demand]], crews: Mapping[str, Sequence[Crew]], target: Target) -> list[Row]:
    """A row for each class in which anything arrives, the most urgent first."""
    answer = []
    for queue, classes in demands.items():
        model = Model(crews.get(queue, []))
        now = model.needs({key: demand.rate for key, demand in classes.items()}, target)
        peak = model.needs({key: demand.peak for key, demand in classes.items()}, target)
        answer += [_row(queue, key, classes[key], now[key], peak[key], target) for key in classes if classes[key].peak]
    return sorted(answer, key=lambda row: (-_URGENT[row["verdict"]], -row["utilisation"], row["queue"], row["class"]))


def _row(queue: str, key: str, demand: Demand, now: Need, peak: Need, target: Target) -> Row:
    return {
        "queue": queue,
        "class": key,
        "arrivals": demand.arrivals,
        "rate": demand.rate,
        "peak_rate": demand.peak,
        "burst": demand.burst,
        "service": now.service,
        "squared": now.squared,
        "servers": now.servers,
        "capacity": now.servers / now.service if now.servers else 0.0,
        "utilisation": now.utilisation,
        "model_mean": now.wait.mean,
        "model_p95": now.wait.quantile(POINT),
        "chance": now.wait.chance,
        "measured_mean": demand.mean,
        "measured_p95": demand.p95,
        "needed": now.needed,
        "needed_at_peak": peak.needed,
        "verdict": verdict(demand, now, peak, target),
    }


_URGENT: Final = {
    "nobody serves it": 5,
    "overloaded": 4,
    "too few": 3,
    "too few at the peak": 2,
    "slower than modelled": 2,
    "enough": 1,
    "more than enough": 0,
}


def verdict(demand: Demand, now: Need, peak: Need, target: Target) -> str:
    """In a word or two."""
    late = target.wait is not None and demand.p95 is not None and demand.p95 > target.wait
    if not now.servers:
        return "nobody serves it"
    if now.utilisation >= 1:
        return "overloaded"
    if now.needed is None or now.needed > now.servers:
        return "too few"
    if peak.needed is None or peak.needed > now.servers:
        return "too few at the peak"
    if late:
        return "slower than modelled"
    return "more than enough" if demand.rate and max(now.needed, peak.needed) < now.servers else "enough"


def plan(demands: Mapping[str, Mapping[str, Demand]], crews: Mapping[str, Sequence[Crew]], target: Target) -> list[Row]:
    """A row for each kind of consumers: how many more meet the target of every class, now and in the busiest hour."""
    answer = []
    for queue, classes in demands.items():
        model = Model(crews.get(queue, []))
        now = model.plan({key: demand.rate for key, demand in classes.items()}, target)
        peak = model.plan({key: demand.peak for key, demand in classes.items()}, target)
        there = {crew.classes: crew.servers for crew in crews.get(queue, [])}
        answer += [
            {"queue": queue, "serves": _kind(key), "servers": there[key], "add": now[key], "add_at_peak": peak[key]}
            for key in now
        ]
    return sorted(answer, key=lambda row: (-row["add"], -row["add_at_peak"], row["queue"], row["serves"]))


def _kind(classes: Iterable[str]) -> str:
    """The classes that consumers of a kind serve."""
    names = [name(key) for key in sorted(classes)]
    return ", ".join(names[:4]) + (f" and {several(len(names) - 4, 'more class')}" if len(names) > 4 else "")


def section(capacity: list[Row], added: list[Row], target: Target, stretches: Mapping[str, Stretch]) -> Section:
    """When more consumers are needed."""
    bad = [row for row in capacity if _URGENT[row["verdict"]] >= 2]
    said = [*_to_add(added), *map(advice, bad[:10])]
    if capacity and not said:
        said = [f"No class needs more consumers: {_wanted(target)}, now and in the busiest hour."]
    shown = [row for row in capacity if math.isfinite(row["utilisation"])][:20]
    plot = Plot(
        "bars",
        "How busy those are who serve a class, now",
        f"Bars: the part of what its consumers can do that is asked of them, for each class. {' '.join(said[:2])}",
        [label(row) for row in shown],
        [Series("busy", [row["utilisation"] for row in shown])],
        "share",
        limit=target.utilisation or 1.0,
    )
    tables = [
        Table("capacity", f"Capacity; the target is that {_wanted(target)}", _COLUMNS, capacity, "nothing arrived"),
        Table("plan", "How many consumers to add, for all classes together", _PLAN, added, "nobody served anything"),
    ]
    warned = [text for row in capacity for text in warnings(row)]
    notes = [*_times(stretches), *warned, *(f"Assumed: {text}" for text in ASSUMPTIONS)] if capacity else []
    return Section("capacity", "Are there enough consumers", said, tables, notes, [plot] if shown else [])


def _to_add(added: Iterable[Row]) -> list[str]:
    """What the plan asks for, in sentences."""
    return [
        f"Add to {row['queue']}: {row['add']:,} now, {row['add_at_peak']:,} for the busiest hour, to the "
        f"{row['servers']:,} that serve {row['serves']}."
        for row in added
        if row["add_at_peak"] or row["add"]
    ]


def _times(stretches: Mapping[str, Stretch]) -> Iterable[str]:
    spans = [f"{queue} from {moment(each.start)} for {span(each.seconds)}" for queue, each in stretches.items()]
    more = f" and {several(len(spans) - 5, 'more queue')}" if len(spans) > 5 else ""
    return [f"Now is: {', '.join(spans[:5])}{more}. The peak is each queue's busiest hour."] if spans else []


def _wanted(target: Target) -> str:
    wait = None if target.wait is None else f"95 of 100 tasks wait no longer than {span(target.wait)}"
    busy = None if target.utilisation is None else f"consumers are busy no more than {target.utilisation:.0%}"
    return " and ".join(filter(None, (wait, busy))) or "no class piles up"


def advice(row: Row) -> str:
    """What is to be done about a class that is served too badly."""
    who = label(row)
    if not row["servers"]:
        return f"{who}: nobody serves it."
    if row["verdict"] == "slower than modelled":
        waited, busy = span(row["measured_p95"]), f"{row['utilisation']:.0%}"
        return (
            f"{who}: 5 of 100 waited {waited} or more, though enough serve it ({busy} busy): look for bursts or delays."
        )
    if row["needed"] is None:
        return f"{who}: {row['verdict']}; no number of consumers like those there are meets the target."
    wanted = max(row["needed"], row["needed_at_peak"] or 0)
    when = " in the busiest hour" if row["needed"] <= row["servers"] else ""
    return f"{who}: {row['verdict']}; {row['servers']:,} serve it, {wanted:,} are needed{when}."


def warnings(row: Row) -> list[str]:
    """Where what the model takes for granted does not hold for a class."""
    known = []
    if row["arrivals"] < FEW:
        known.append(f"only {several(row['arrivals'], 'task')} arrived, so that the rate is uncertain")
    if row["servers"] and not VARIED[0] <= row["squared"] <= VARIED[1]:
        known.append(
            f"run times are far from exponential (C² = {row['squared']:.2g}; 1 is), and so the correction is large"
        )
    if row["burst"] is not None and row["burst"] > BURSTS:
        known.append(
            f"tasks arrive in bursts (C² = {row['burst']:.2g} between arrivals), and wait longer than the model says"
        )
    model, measured = row["model_mean"], row["measured_mean"]
    if measured is not None and math.isfinite(model) and max(measured, model) > 1 and _apart(measured, model):
        known.append(f"measured are {span(measured)}, not {span(model)}: rather believe what was measured")
    return [f"{label(row)}: {'; '.join(known)}."] if known else []


def _apart(one: float, other: float) -> bool:
    return max(one, other) > _OFF * min(one, other)
