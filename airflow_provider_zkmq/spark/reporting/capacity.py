"""How many consumers are needed: the formula, what it reads off a history, and the report's section on it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from . import rendering
from .rendering import Row, Table, label, moment, span
from .tables import Tables, quoted

# --- The formula: the mean wait of the M/M/c queue, times (1 + C²) / 2 of Allen and Cunneen for how run times vary.
#
# Sources: A. K. Erlang, "Solution of some problems in the theory of probabilities" (1917), by the recursion of Erlang
# B; A. O. Allen, "Probability, Statistics, and Queueing Theory" (1978). It assumes that tasks arrive independently of
# each other at a steady rate, that whoever becomes free takes the oldest task, that waits are exponential, and that the
# queue is in balance; each crew is a pool of its own, in which all work at the same mean run time. The page says so.

#: More consumers than this are never suggested.
MOST: Final = 100_000
#: Targets are for 95 of 100 tasks.
POINT: Final = 0.95


def erlang_c(load: float, servers: int) -> float:
    """The chance that an arriving task finds all `servers` busy; `load`: arrival rate times mean service time."""
    if load >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def expected_wait(arrivals: float, service: float, squared: float, servers: int) -> tuple[float, float]:
    """The mean wait in seconds at so many `arrivals` a second, and the wait that 95 of 100 tasks stay below.

    `service` is the mean of the run times in seconds, `squared` their squared coefficient of variation. Who waits at
    all does so exponentially. Where more arrives than so many `servers` can do there is no end to it.
    """
    load = arrivals * service
    if not arrivals:
        return 0.0, 0.0
    if load >= servers:
        return math.inf, math.inf
    chance = erlang_c(load, servers)
    alone = service / (servers - load) * (1 + squared) / 2
    return chance * alone, alone * max(0.0, math.log(chance / (1 - POINT))) if chance else 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be met: 95 of 100 tasks wait no longer than `wait` seconds, and no consumers are busier than that."""

    wait: float | None = 60.0
    utilisation: float | None = None

    def needed(self, arrivals: float, service: float, squared: float) -> int | None:
        """The least number of servers that meets it; None: there is none."""

        def met(servers: int) -> bool:
            busy, (_, wait) = arrivals * service / servers, expected_wait(arrivals, service, squared, servers)
            return busy < 1 and busy <= (self.utilisation or 1) and (self.wait is None or wait <= self.wait)

        least = 1 + bisect_left(range(1, MOST + 1), True, key=met)
        return least if least <= MOST else None


# --- Crews: consumers of a queue by the classes that they serve, and what arrives for each.

#: How unlikely it must be that a consumer accepts a class and has not met it by chance.
CHANCE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Crew:
    """Consumers that serve the same classes, as they were seen.

    `seen`: the deliveries of each class; `consumers`: how many there were in all; `servers`: how many tasks they held
    at once lately; `service` and `squared`: the mean of the run times in seconds, and their squared coefficient of
    variation.
    """

    seen: Counter[str]
    consumers: int
    servers: int
    service: float
    squared: float

    def resembles(self, other: Crew) -> bool:
        """Whether these may serve all that `other` serves, and have met less by chance: each of them had few tasks."""
        share = sum(other.seen[name] for name in self.seen) / other.seen.total()
        return self.seen.keys() <= other.seen.keys() and share ** (self.seen.total() / self.consumers) > CHANCE

    def joined(self, other: Crew) -> Crew:
        """Both as one crew."""
        seen, both = self.seen + other.seen, (self, other)
        mean = sum(crew.seen.total() * crew.service for crew in both) / seen.total()
        squares = sum(crew.seen.total() * crew.service**2 * (1 + crew.squared) for crew in both) / seen.total()
        squared = max(0.0, squares / mean**2 - 1) if mean else 0.0
        return Crew(seen, self.consumers + other.consumers, self.servers + other.servers, mean, squared)


def crews(seen: Iterable[Crew]) -> list[Crew]:
    """The crews, those that served too few tasks to tell counted with the smallest one that they resemble."""
    whole = list[Crew]()
    for crew in sorted(seen, key=lambda crew: (-len(crew.seen), -crew.seen.total())):
        alike = [other for other in whole if crew.resembles(other)]
        near = min(alike, key=lambda other: len(other.seen), default=None)
        whole = [other for other in whole if other is not near] + [crew if near is None else near.joined(crew)]
    return whole


def needs(queue: str, seen: Sequence[Crew], classes: Mapping[str, Row], target: Target) -> list[Row]:
    """A row for each crew for which any of the `classes` arrives; a class that nobody serves has a crew of none."""
    there = [crew for crew in seen if crew.servers]
    served = sum((crew.seen for crew in there), Counter[str]())
    there += [Crew(Counter({name: 1}), 0, 0, math.nan, math.nan) for name in classes if name not in served]
    found = []
    for crew in there:
        names, servers, kind = sorted(crew.seen), crew.servers, (crew.service, crew.squared)
        own = {name: classes[name] for name in names if name in classes}
        shares = {name: crew.seen[name] / served.get(name, 1) for name in own}
        now, peak = (sum(row[rate] * shares[name] for name, row in own.items()) for rate in ("rate", "peak_rate"))
        if not peak:
            continue
        shown = ", ".join(each if names == [""] else each or rendering.name(each) for each in names[:4])
        mean, p95 = expected_wait(now, *kind, servers) if servers else (math.inf, math.inf)
        row = {
            "queue": queue,
            "serves": shown + (f" and {rendering.several(len(names) - 4, 'more class')}" if len(names) > 4 else ""),
            "classes": names,
            "rate": now,
            "peak_rate": peak,
            "service": crew.service,
            "squared": crew.squared,
            "servers": servers,
            "utilisation": now * crew.service / servers if servers else math.inf,
            "model_mean": mean,
            "model_p95": p95,
            "needed": target.needed(now, *kind) if servers else None,
            "needed_at_peak": target.needed(peak, *kind) if servers else None,
            "arrivals": sum(each["arrivals"] for each in own.values()),
        }
        for name in ("burst", "measured_mean", "measured_p95"):  # the worst that is known of any class
            row[name] = max((each[name] for each in own.values() if each[name] is not None), default=None)
        found.append(row | {"verdict": _verdict(row, target)})
    return found


def _verdict(row: Row, target: Target) -> str:
    """In a word or two."""
    servers, now, peak = row["servers"], row["needed"] or math.inf, row["needed_at_peak"] or math.inf
    if not servers:
        return "nobody serves it"
    if row["utilisation"] >= 1:
        return "overloaded"
    if now > servers:
        return "too few"
    if peak > servers:
        return "too few at the peak"
    if target.wait is not None and (row["measured_p95"] or 0) > target.wait:
        return "slower than modelled"
    return "more than enough" if row["rate"] and max(now, peak) < servers else "enough"


# --- What the formula reads off a history: how much arrives lately, who serves what, and how long tasks waited.

#: So many tasks at once must be held for this part of the time, or else it is by chance.
OVERLAP: Final = 0.01
#: Times are whole milliseconds: what took none took less, and yet somebody was busy with it.
SHORTEST: Final = 0.0005


class Load:
    """The crews of each queue and what arrives for them, read from its history by a few queries."""

    def __init__(self, tables: Tables, recent: float) -> None:
        self._tables = tables
        # The last `recent` seconds of each queue's history, from and to, which stand for now.
        self.stretches: dict[str, tuple[float, float]] = {}
        # The archive knows a task when it has ended, and so not yet all that arrived lately: a stretch ends so long
        # before the last end as 99 of 100 tasks take from their enqueue to their end, though not before half of it all.
        query = """
            select queue, min(enqueued_at) as begin, max(ended_at) as until,
                   coalesce(percentile_cont(case when attempt = 1 then ended_at - enqueued_at end, 0.99), 0.0) as stay
            from runs group by queue order by queue
        """
        for row in tables.rows(query):
            stop = row["until"] - min(row["stay"], (row["until"] - row["begin"]) / 2)
            self.stretches[row["queue"]] = max(row["begin"], stop - recent), stop
        spans = (f"({quoted(queue)}, {start}, {stop})" for queue, (start, stop) in self.stretches.items())
        self._spans = f"(values {', '.join(spans)}) as spans (name, start, stop)"

    def rows(self, target: Target) -> list[Row]:
        """A row for each crew for which anything arrives, the most urgent first."""
        crews, rows = self.crews(), list[Row]()
        for queue, classes in self.classes().items():
            rows += needs(queue, crews.get(queue, []), classes, target)
        return sorted(rows, key=lambda row: (_ORDER[row["verdict"]], -row["utilisation"], row["queue"], row["serves"]))

    def classes(self) -> dict[str, dict[str, Row]]:
        """What arrives of each queue's classes: tasks a second, each retry counted as one more, now and at the peak.

        Of what arrived in the stretch, also the squared coefficient of variation of the times between (`burst`, 1 for
        Poisson's), and how long first tries waited. What came in less than a minute is taken for what comes in one.
        """
        if not self.stretches:
            return {}
        # The arrivals a second of each class in its queue's busiest hour.
        at_peak = self._tables.rows("""
            with hours as (select queue, hour, sum(arrivals) as total from hourly group by queue, hour),
                 busiest as (
                     select queue, first_value(hour order by total desc, hour) as hour from hours group by queue)
            select queue, class, sum(arrivals) / 3600.0 as rate
            from hourly join busiest using (queue, hour) group by queue, class
        """)
        peaks = {(row["queue"], row["class"]): row["rate"] for row in at_peak}
        arrived = self._tables.rows(f"""
            with known as (
                select *, enqueued_at between start and stop as inside from runs join {self._spans} on queue = name),
            timed as (
                select *, case when inside and attempt = 1 then wait_ms / 1e3 end as waited,
                       case when inside then enqueued_at - lag(enqueued_at) over (
                           partition by queue, class, inside order by enqueued_at) end as gap
                from known)
            select queue, class, count(*) filter (where inside) as arrivals, coalesce(avg(attempt), 0) as tries,
                   case when avg(gap) > 0 then var_pop(gap) / avg(gap) / avg(gap) end as burst,
                   avg(waited) as measured_mean, percentile_cont(waited, {POINT}) as measured_p95
            from timed group by queue, class
        """)
        found = defaultdict[str, dict[str, Row]](dict)
        for row in arrived:
            queue, key, tries = row["queue"], row["class"], row["tries"]
            start, stop = self.stretches[queue]
            now = row["arrivals"] / max(60.0, stop - start) * tries
            found[queue][key] = row | {"rate": now, "peak_rate": max(now, peaks.get((queue, key), 0.0) * tries)}
        return dict(found)

    def crews(self) -> dict[str, list[Crew]]:
        """Each queue's consumers by what they serve, from all deliveries; how many there are, from the stretch."""
        if not self.stretches:
            return {}
        cells = defaultdict[tuple[str, str], list[Row]](list)
        for row in self._tables.rows("""
            select queue, consumer, class, count(*) as deliveries, sum(run_ms) / 1e3 as busy,
                   sum(cast(run_ms as double) * run_ms) / 1e6 as squares
            from deliveries where run_ms is not null group by queue, consumer, class
        """):
            cells[row["queue"], row["consumer"]].append(row)
        alike = defaultdict[tuple[str, frozenset[str]], list[str]](list)
        for (queue, consumer), own in cells.items():
            alike[queue, frozenset(row["class"] for row in own)].append(consumer)
        held, found = self._held_lately(), defaultdict[str, list[Crew]](list)
        for (queue, _), consumers in alike.items():
            served = [row for consumer in consumers for row in cells[queue, consumer]]
            deliveries, busy, squares = (sum(row[fact] for row in served) for fact in ("deliveries", "busy", "squares"))
            seen = Counter[str]()
            for row in served:
                seen[row["class"]] += row["deliveries"]
            # How many tasks the crew could hold at once: of consumers that were there together, each with its most.
            there = [held[queue, consumer] for consumer in consumers if (queue, consumer) in held]
            service = busy / deliveries or SHORTEST
            squared = max(0.0, squares / deliveries / service**2 - 1)
            found[queue].append(Crew(seen, len(consumers), most_at_once(there), service, squared))
        return {queue: crews(each) for queue, each in found.items()}

    def _held_lately(self) -> dict[tuple[str, str], Interval]:
        """Of each consumer from when to when it was there in the stretch, and how many tasks it held at once."""
        lately = defaultdict[tuple[str, str], list[Interval]](list)
        for row in self._tables.rows(f"""
            select queue, consumer, greatest(coalesce(started_at, claimed_at), start) as since, ended_at
            from deliveries join {self._spans} on queue = name where ended_at >= start
        """):
            since = row["since"]
            lately[row["queue"], row["consumer"]].append((since, max(row["ended_at"], since + SHORTEST), 1))
        return {
            key: (min(since for since, _, _ in each), max(until for _, until, _ in each), most_at_once(each))
            for key, each in lately.items()
        }


#: From when to when, and how many.
Interval: TypeAlias = tuple[float, float, int]


def most_at_once(intervals: Iterable[Interval]) -> int:
    """The largest number of what overlaps in time, for `OVERLAP` of the time at least; 0 where there is nothing."""
    # A worker that claims its next task before the last is settled holds two for a moment, and works on one.
    steps = [step for since, until, many in intervals for step in ((since, many), (until, -many))]
    lasted, level, before = defaultdict[int, float](float), 0, 0.0
    for at, step in sorted(steps):
        lasted[level] += at - before
        level, before = level + step, at
    lasted.pop(0, None)
    rare, often = OVERLAP * sum(lasted.values()), 0.0
    for level in sorted(lasted, reverse=True):
        often += lasted[level]
        if often >= rare:
            return level
    return 0


# --- The report's section: a verdict for each crew, how many are needed, and where the formula does not hold.

#: Beyond these the formula is said to be unsure: of C² of run times, of C² of the times between arrivals, of tasks.
VARIED: Final = (0.2, 4.0)
BURSTS: Final = 2.0
FEW: Final = 100
#: Measured and modelled waits that differ by more than this factor are pointed out.
APART: Final = 2.0
_COLUMNS: Final = "queue serves verdict needed servers utilisation measured_p95 rate service needed_at_peak model_p95"
_ORDER: Final = {verdict: place for place, verdict in enumerate(rendering.VERDICTS)}


def section(capacity: list[Row], target: Target, stretches: Mapping[str, tuple[float, float]]) -> rendering.Section:
    """When more consumers are needed."""
    levels = [rendering.VERDICTS[row["verdict"]] for row in capacity]
    level = next((level for level in ("bad", "warn") if level in levels), "good")
    said = [advice(row) for row, level in zip(capacity, levels, strict=True) if level != "good"][:10]
    wanted = [] if target.wait is None else [f"95 of 100 tasks wait no longer than {rendering.span(target.wait)}"]
    wanted += [] if target.utilisation is None else [f"consumers are busy no more than {target.utilisation:.0%}"]
    goal = " and ".join(wanted) or "no class piles up"
    if capacity and not said:
        said = [f"No crew needs more consumers: {goal}, now and in the busiest hour."]
    table = Table("capacity", f"Crews; the target is that {goal}", _COLUMNS, capacity, "nothing arrived")
    notes = [
        f"Now is, of {queue}: from {moment(start)} for {span(stop - start)}; the peak is its busiest hour."
        for queue, (start, stop) in list(stretches.items())[:5]
    ]
    notes += [text for row in capacity for text in warnings(row)]
    return rendering.Section("capacity", "Are there enough consumers", said, [table], notes, level)


def advice(row: Row) -> str:
    """What is to be done about a crew that is too small, or too slow."""
    who = label(row["serves"], row["queue"])
    if not row["servers"]:
        return f"{who}: nobody serves it."
    if row["verdict"] == "slower than modelled":
        waited, busy = rendering.span(row["measured_p95"]), f"{row['utilisation']:.0%}"
        return (
            f"{who}: 5 of 100 waited {waited} or more, though enough serve it ({busy} busy): look for bursts or delays."
        )
    if row["needed"] is None:
        return f"{who}: {row['verdict']}; no number of consumers like those there are meets the target."
    wanted = max(row["needed"], row["needed_at_peak"] or 0)
    when = " in the busiest hour" if row["needed"] <= row["servers"] else ""
    return f"{who}: {row['verdict']}; {row['servers']:,} serve it, {wanted:,} are needed{when}."


def warnings(row: Row) -> list[str]:
    """Where what the formula takes for granted does not hold for a crew."""
    squared, burst, measured = row["squared"], row["burst"] or 0, row["measured_mean"]
    short, long = sorted((row["model_mean"], row["measured_mean"] or row["model_mean"]))
    known = []
    if row["arrivals"] < FEW:
        known.append(f"only {rendering.several(row['arrivals'], 'task')} arrived, so that the rate is uncertain")
    if row["servers"] and not VARIED[0] <= squared <= VARIED[1]:
        known.append(f"run times are far from exponential (C² = {squared:.2g}; 1 is), and so the correction is large")
    if burst > BURSTS:
        known.append(f"tasks arrive in bursts (C² = {burst:.2g} between arrivals), and wait longer than the model says")
    if 1 < long < math.inf and long > APART * short:
        was, modelled = (rendering.spell(each, "busy") for each in (measured, row["model_mean"]))
        known.append(f"measured are {was}, not {modelled}: rather believe what was measured")
    return [f"{label(row['serves'], row['queue'])}: {'; '.join(known)}."] if known else []
