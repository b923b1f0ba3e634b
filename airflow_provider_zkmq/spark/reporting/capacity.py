"""How many consumers a class needs: the formula, what it reads off a history, and the report's section on it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from . import page
from .page import Column, Row
from .sections import Frames, label

# --- The formula: the mean wait of the M/M/c queue, times (1 + C²) / 2 of Allen and Cunneen for how run times vary.
#
# Sources: A. K. Erlang, "Solution of some problems in the theory of probabilities" (1917), by the recursion of Erlang
# B; A. O. Allen, "Probability, Statistics, and Queueing Theory" (1978). It assumes that tasks arrive independently of
# each other at a steady rate, that whoever becomes free takes the oldest task, and that the queue is in balance.

#: More consumers than this are never suggested.
MOST: Final = 100_000
#: Targets are for 95 of 100 tasks.
POINT: Final = 0.95


@dataclass(frozen=True, slots=True)
class Wait:
    """How long tasks wait in the long run: the `chance` of waiting at all, and the `mean` of all tasks, in seconds.

    Where more arrives than can be served everybody waits, and the mean is infinite.
    """

    chance: float
    mean: float

    def quantile(self, point: float) -> float:
        """The wait in seconds that `point` of the tasks stay below: who waits at all does so exponentially."""
        if self.chance <= 1 - point:
            return 0.0
        return self.mean / self.chance * math.log(self.chance / (1 - point))


ENDLESS = Wait(1.0, math.inf)
NONE = Wait(0.0, 0.0)


def erlang_c(load: float, servers: int) -> float:
    """The chance that an arriving task finds all `servers` busy; `load`: arrival rate times mean service time."""
    if load >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def expected_wait(arrivals: float, service: float, squared: float, servers: int) -> Wait:
    """The wait at so many `arrivals` a second for so many `servers`.

    `service` is the mean of the run times in seconds, `squared` their squared coefficient of variation.
    """
    load = arrivals * service
    if load == 0:
        return NONE
    if load >= servers:
        return ENDLESS
    chance = erlang_c(load, servers)
    return Wait(chance, chance * service / (servers - load) * (1 + squared) / 2)


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be met: 95 of 100 tasks wait no longer than `wait` seconds, and no consumers are busier than that."""

    wait: float | None = 60.0
    utilisation: float | None = None

    def met(self, wait: Wait, utilisation: float) -> bool:
        """Whether a class is served well enough."""
        limit, busiest = self.wait, self.utilisation
        return (limit is None or wait.quantile(POINT) <= limit) and (busiest is None or utilisation <= busiest)


# --- Who serves what: consumers of a queue by the classes that they serve.

#: How unlikely it must be that a consumer accepts a class and has not met it by chance.
CHANCE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Crew:
    """Consumers that serve the same classes, as they were seen.

    `seen`: the deliveries of each class; `consumers`: how many there were in all; `servers`: how many tasks they held
    at once lately; `service` and `squared`: the mean of the run times in seconds, and their squared coefficient of
    variation.
    """

    seen: Mapping[str, int]
    consumers: int
    servers: int
    service: float
    squared: float

    @property
    def classes(self) -> frozenset[str]:
        """The classes that they serve."""
        return frozenset(self.seen)

    @property
    def deliveries(self) -> int:
        """How many tasks they were given."""
        return sum(self.seen.values())

    def resembles(self, other: Crew) -> bool:
        """Whether these may serve all that `other` serves, and have met less by chance: each of them had few tasks."""
        if not self.classes <= other.classes:
            return False
        share = sum(other.seen[name] for name in self.classes) / other.deliveries
        return math.pow(share, self.deliveries / self.consumers) > CHANCE

    def joined(self, other: Crew) -> Crew:
        """Both as one crew."""
        seen = {name: self.seen.get(name, 0) + other.seen.get(name, 0) for name in self.classes | other.classes}
        mine, total = self.deliveries, self.deliveries + other.deliveries
        mean = (mine * self.service + other.deliveries * other.service) / total
        squares = sum(crew.deliveries * crew.service**2 * (1 + crew.squared) for crew in (self, other))
        squared = squares / total / mean**2 - 1 if mean else 0.0
        return Crew(seen, self.consumers + other.consumers, self.servers + other.servers, mean, max(0.0, squared))


def crews(seen: Iterable[Crew]) -> list[Crew]:
    """The crews, those that served too few tasks to tell counted with the smallest one that they resemble."""
    whole = list[Crew]()
    for crew in sorted(seen, key=lambda crew: (-len(crew.classes), -crew.deliveries)):
        alike = [other for other in whole if crew.resembles(other)]
        near = min(alike, key=lambda other: len(other.classes), default=None)
        whole = [other for other in whole if other is not near] + [crew if near is None else near.joined(crew)]
    return whole


@dataclass(frozen=True, slots=True)
class Need:
    """What the model says of a class: the `wait`, how busy who serves it is, and how many would do.

    `servers`: how many serve it; `needed`: of how many the target is met, at the least; None where no number does, or
    nobody serves it.
    """

    wait: Wait
    utilisation: float
    servers: int
    service: float
    squared: float
    needed: int | None


class Model:
    """The crews of a queue. Those that serve several classes are busy with all of them, in the shares seen so far."""

    def __init__(self, seen: Sequence[Crew]) -> None:
        self._crews = [crew for crew in seen if crew.servers and crew.service > 0]

    def needs(self, rates: Mapping[str, float], target: Target) -> dict[str, Need]:
        """What is needed for each class; `rates`: its arrivals a second."""
        return {name: self._need(name, rates, target) for name in rates}

    def plan(self, rates: Mapping[str, float], target: Target) -> dict[frozenset[str], int]:
        """How many to add to each crew so that every class that somebody serves meets the target.

        The classes that the fewest crews serve come first: who is added for them helps the others. Of several crews
        that which serves the fewest classes grows.
        """
        added = {crew.classes: 0 for crew in self._crews}
        for name, need in sorted(self.needs(rates, target).items(), key=lambda item: len(self._serving(item[0]))):
            if serving := self._serving(name):
                there = need.servers + sum(added[crew.classes] for crew in serving)
                growing = min(serving, key=lambda crew: (len(crew.classes), -crew.servers))
                added[growing.classes] += max(0, (need.needed or 0) - there)
        return added

    def _serving(self, name: str) -> list[Crew]:
        return [crew for crew in self._crews if name in crew.classes]

    def _need(self, name: str, rates: Mapping[str, float], target: Target) -> Need:
        serving = self._serving(name)
        if not serving:
            wait, busy = (ENDLESS, math.inf) if rates[name] else (NONE, 0.0)
            return Need(wait, busy, 0, math.nan, math.nan, None)
        whole = serving[0]
        for crew in serving[1:]:
            whole = whole.joined(crew)
        arrivals = 0.0
        for each, deliveries in whole.seen.items():
            share = deliveries / sum(crew.seen[each] for crew in self._serving(each))
            arrivals += rates.get(each, 0.0) * share
        load = arrivals * whole.service

        def wait_of(servers: int) -> Wait:
            return expected_wait(arrivals, whole.service, whole.squared, servers)

        fewest, there = int(load / (target.utilisation or 1)) or 1, whole.servers
        enough = (
            servers
            for servers in range(fewest, MOST + 1)
            if load < servers and target.met(wait_of(servers), load / servers)
        )
        return Need(wait_of(there), load / there, there, whole.service, whole.squared, next(enough, None))


# --- What the model reads off a history: how much arrives in each class lately, and who serves what.

#: So many tasks at once must be held for this part of the time, or else it is by chance.
OVERLAP: Final = 0.01
#: Times are whole milliseconds: what took none took less, and yet somebody was busy with it.
SHORTEST: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time of a queue's history that stands for now: it ends where nearly all that arrived has also ended."""

    start: float
    stop: float

    @property
    def seconds(self) -> float:
        """How long it is; what came in less than a minute is taken for what comes in one."""
        return max(60.0, self.stop - self.start)


@dataclass(frozen=True, slots=True)
class Demand:
    """What arrived of a class in the stretch: `rate` a second, each retry counted as one more arrival.

    `peak`: the same in the queue's busiest hour. `burst`: the squared coefficient of variation of the times between
    arrivals, 1 for Poisson's. `mean` and `p95`: how long first tries waited, in seconds; None: nobody did.
    """

    arrivals: int
    rate: float
    peak: float
    burst: float | None
    mean: float | None
    p95: float | None


class Load:
    """The demand and the crews of each queue, read from its history by a few aggregations.

    `stretches`: the last `recent` seconds of each queue's history, which stand for now.
    """

    def __init__(self, frames: Frames, recent: float) -> None:
        self._frames = frames
        self.stretches = self._stretches(recent)
        rows = [(queue, each.start, each.stop) for queue, each in self.stretches.items()]
        spans = frames.runs.sparkSession.createDataFrame(rows, "queue string, start double, stop double")
        self._spans = f.broadcast(spans)

    def _stretches(self, recent: float) -> dict[str, Stretch]:
        """The archive knows a task when it has ended, and so not yet all that arrived lately.

        A stretch ends so long before the last end as 99 of 100 tasks take from their enqueue to their end, though not
        before half of the history.
        """
        stay = f.when(f.col("attempt") == 1, f.col("ended_at") - f.col("enqueued_at"))
        facts = self._frames.runs.groupBy("queue").agg(
            f.min("enqueued_at").alias("first"),
            f.max("ended_at").alias("last"),
            f.coalesce(f.percentile(stay, f.lit(0.99)), f.lit(0.0)).alias("stay"),
        )
        found = {}
        for row in facts.collect():
            stop = row.last - min(row.stay, (row.last - row.first) / 2)
            found[row.queue] = Stretch(max(row.first, stop - recent), stop)
        return found

    def demands(self) -> dict[str, dict[str, Demand]]:
        """The demand of each queue's classes."""
        peaks = self._peaks()
        found = defaultdict[str, dict[str, Demand]](dict)
        for row in self._arrived().collect():
            rate = row.arrivals / self.stretches[row.queue].seconds * row.tries
            peak = max(rate, peaks.get((row.queue, row["class"]), 0.0) * row.tries)
            found[row.queue][row["class"]] = Demand(row.arrivals, rate, peak, row.burst, row.mean, row.p95)
        return dict(found)

    def _arrived(self) -> DataFrame:
        """What was enqueued in the stretch, by class, and how often a task of the class is delivered on the average."""
        inside = f.col("enqueued_at").between(f.col("start"), f.col("stop"))
        waited = f.when(inside & (f.col("attempt") == 1), f.col("wait_ms") / 1000)
        before = Window.partitionBy("queue", "class", "inside").orderBy("enqueued_at")
        gap = f.when(f.col("inside"), f.col("enqueued_at") - f.lag("enqueued_at").over(before))
        mean = f.mean("gap")
        runs = self._frames.runs.join(self._spans, "queue").withColumns({"inside": inside, "waited": waited})
        return (
            runs.withColumn("gap", gap)
            .groupBy("queue", "class")
            .agg(
                f.count_if("inside").alias("arrivals"),
                f.coalesce(f.mean("attempt"), f.lit(0.0)).alias("tries"),
                f.when(mean > 0, f.var_pop("gap") / mean / mean).alias("burst"),
                f.mean("waited").alias("mean"),
                f.percentile("waited", f.lit(POINT)).alias("p95"),
            )
        )

    def _peaks(self) -> dict[tuple[str, str], float]:
        """The arrivals a second of each class in its queue's busiest hour."""
        of_queue = Window.partitionBy("queue", "hour")
        busiest = Window.partitionBy("queue").orderBy(f.desc("total"), "hour")
        hours = self._frames.hourly.groupBy("queue", "class", "hour").agg(f.sum("arrivals").alias("arrivals"))
        totals = hours.withColumn("total", f.sum("arrivals").over(of_queue))
        rows = totals.withColumn("place", f.dense_rank().over(busiest)).where(f.col("place") == 1).collect()
        return {(row.queue, row["class"]): row.arrivals / 3600 for row in rows}

    def crews(self) -> dict[str, list[Crew]]:
        """Each queue's consumers by what they serve, from all deliveries; how many there are, from the stretch."""
        cells = self._cells()
        servers = {(row.queue, tuple(row.serves)): int(row.servers) for row in self._present(cells).collect()}
        sums = [f.sum(name).alias(name) for name in ("deliveries", "busy", "squares")]
        grouped = cells.groupBy("queue", "serves", "class").agg(f.count("*").alias("consumers"), *sums)
        parts = defaultdict[tuple[str, tuple[str, ...]], list[Row]](list)
        for row in grouped.collect():
            parts[row.queue, tuple(row.serves)].append(row.asDict())
        found = defaultdict[str, list[Crew]](list)
        for key, cell in parts.items():
            found[key[0]].append(_crew(cell, servers.get(key, 0)))
        return {queue: crews(each) for queue, each in found.items()}

    def _cells(self) -> DataFrame:
        """A row for each consumer and class, with all the classes that the consumer serves."""
        seconds = f.col("run_ms") / 1000
        sums = {"deliveries": f.lit(1), "busy": seconds, "squares": seconds * seconds}
        timed = self._frames.deliveries.where(f.col("run_ms").isNotNull()).groupBy("queue", "consumer", "class")
        cells = timed.agg(*(f.sum(what).alias(name) for name, what in sums.items()))
        own = Window.partitionBy("queue", "consumer")
        return cells.withColumn("serves", f.sort_array(f.collect_set("class").over(own)))

    def _present(self, cells: DataFrame) -> DataFrame:
        """How many tasks each crew could hold at once: of consumers that were there together, each with its most."""
        serves = cells.select("queue", "consumer", "serves").distinct()
        lately = self._frames.deliveries.join(self._spans, "queue").where(f.col("ended_at") >= f.col("start"))
        since = f.greatest(f.coalesce("started_at", "claimed_at"), "start")
        lately = lately.withColumns({"since": since, "until": f.greatest("ended_at", since + SHORTEST)})
        at_once = _most_at_once(lately, ["queue", "consumer"], f.lit(1))
        there = lately.groupBy("queue", "consumer").agg(f.min("since").alias("since"), f.max("until").alias("until"))
        known = there.join(at_once, ["queue", "consumer"]).join(serves, ["queue", "consumer"])
        return _most_at_once(known, ["queue", "serves"], f.col("servers"))


def _crew(cells: Sequence[Row], servers: int) -> Crew:
    seen = {cell["class"]: cell["deliveries"] for cell in cells}
    count = sum(seen.values())
    mean = sum(cell["busy"] for cell in cells) / count or SHORTEST
    squared = sum(cell["squares"] for cell in cells) / count / mean**2 - 1
    return Crew(seen, max(cell["consumers"] for cell in cells), servers, mean, max(0.0, squared))


def _most_at_once(frame: DataFrame, keys: list[str], weight: Expression) -> DataFrame:
    """The largest sum of weights of what overlaps in time, for each key, that holds for `OVERLAP` of the time at least.

    A worker that claims its next task before the last is settled holds two for a moment, and works on one.
    """
    begun = frame.select(*keys, f.col("since").alias("at"), weight.alias("step"))
    ended = frame.select(*keys, f.col("until").alias("at"), (-weight).alias("step"))
    own = Window.partitionBy(*keys)
    in_time = own.orderBy("at", "step")
    level = f.sum("step").over(in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    lasted = f.coalesce(f.lead("at").over(in_time) - f.col("at"), f.lit(0.0))
    levels = begun.unionAll(ended).withColumns({"level": level, "lasted": lasted}).where(f.col("level") > 0)
    summed = levels.groupBy(*keys, "level").agg(f.sum("lasted").alias("lasted"))
    above = f.sum("lasted").over(own.orderBy(f.desc("level")))
    shares = summed.withColumns({"above": above, "all": f.sum("lasted").over(own)})
    often = shares.where(f.col("above") >= OVERLAP * f.col("all"))
    return often.groupBy(*keys).agg(f.max("level").alias("servers"))


# --- The report's section: a verdict for each class, how many to add, and where the model does not hold.

#: Beyond these the model is told to be unsure: of C² of run times, of C² of the times between arrivals, of tasks.
VARIED: Final = (0.2, 4.0)
BURSTS: Final = 2.0
FEW: Final = 100
#: Measured and modelled waits that differ by more than this factor are pointed out.
APART: Final = 2.0

ASSUMPTIONS: Final = """\
Tasks arrive independently of each other at a steady rate (Poisson); what arrives in bursts waits longer.

Whoever becomes free takes the oldest task that it accepts; priorities shift waits, not their mean.

What a consumer accepts is what it has served in this time; one that served too little to tell is taken for one of
those it resembles. A node that takes at_least its class serves several: of each class it takes the share that it has
taken, and all of it keeps it busy.

A consumer counts for as many as the tasks it held at once lately; one without a delivery in the time that stands for
now is not counted. They work at the mean run time of their kind, and stop for nothing.

The wait is Erlang's (M/M/c), times (1 + C²) / 2 of Allen and Cunneen for how run times vary. In balance: a queue just
filled, or just being emptied, is in none.

Needed is the least number of consumers that serve the class and meet the target. Where several kinds serve it, those
are added that serve the fewest other classes.
"""
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
_URGENT: Final = {
    "nobody serves it": 5,
    "overloaded": 4,
    "too few": 3,
    "too few at the peak": 2,
    "slower than modelled": 2,
    "enough": 1,
    "more than enough": 0,
}


def rows(demands: Mapping[str, Mapping[str, Demand]], crews: Mapping[str, Sequence[Crew]], target: Target) -> list[Row]:
    """A row for each class in which anything arrives, the most urgent first."""
    found = []
    for queue, classes in demands.items():
        model = Model(crews.get(queue, []))
        now = model.needs({key: demand.rate for key, demand in classes.items()}, target)
        peak = model.needs({key: demand.peak for key, demand in classes.items()}, target)
        found += [_row(queue, key, classes[key], now[key], peak[key], target) for key in classes if classes[key].peak]
    return sorted(found, key=lambda row: (-_URGENT[row["verdict"]], -row["utilisation"], row["queue"], row["class"]))


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
        "verdict": _verdict(demand, now, peak, target),
    }


def _verdict(demand: Demand, now: Need, peak: Need, target: Target) -> str:
    """In a word or two."""
    if not now.servers:
        return "nobody serves it"
    if now.utilisation >= 1:
        return "overloaded"
    if now.needed is None or now.needed > now.servers:
        return "too few"
    if peak.needed is None or peak.needed > now.servers:
        return "too few at the peak"
    if target.wait is not None and demand.p95 is not None and demand.p95 > target.wait:
        return "slower than modelled"
    return "more than enough" if demand.rate and max(now.needed, peak.needed) < now.servers else "enough"


def plan(demands: Mapping[str, Mapping[str, Demand]], crews: Mapping[str, Sequence[Crew]], target: Target) -> list[Row]:
    """A row for each kind of consumers: how many more meet the target of every class, now and in the busiest hour."""
    found = []
    for queue, classes in demands.items():
        there = crews.get(queue, [])
        now = Model(there).plan({key: demand.rate for key, demand in classes.items()}, target)
        peak = Model(there).plan({key: demand.peak for key, demand in classes.items()}, target)
        servers = {crew.classes: crew.servers for crew in there}
        found += [
            {"queue": queue, "serves": _kind(key), "servers": servers[key], "add": now[key], "add_at_peak": peak[key]}
            for key in now
        ]
    return sorted(found, key=lambda row: (-row["add"], -row["add_at_peak"], row["queue"], row["serves"]))


def _kind(classes: Iterable[str]) -> str:
    """The classes that consumers of a kind serve."""
    names = [page.name(key) for key in sorted(classes)]
    return ", ".join(names[:4]) + (f" and {page.several(len(names) - 4, 'more class')}" if len(names) > 4 else "")


def section(capacity: list[Row], added: list[Row], target: Target, stretches: Mapping[str, Stretch]) -> page.Section:
    """When more consumers are needed."""
    said = [
        f"Add to {row['queue']}: {row['add']:,} now, {row['add_at_peak']:,} for the busiest hour, to the "
        f"{row['servers']:,} that serve {row['serves']}."
        for row in added
        if row["add_at_peak"] or row["add"]
    ]
    said += [advice(row) for row in capacity if _URGENT[row["verdict"]] >= 2][:10]
    wanted = _wanted(target)
    if capacity and not said:
        said = [f"No class needs more consumers: {wanted}, now and in the busiest hour."]
    shown = [row for row in capacity if math.isfinite(row["utilisation"])][:20]
    plot = page.Plot(
        "bars",
        "How busy those are who serve a class, now",
        f"Bars: the part of what its consumers can do that is asked of them, for each class. {' '.join(said[:2])}",
        [label(row) for row in shown],
        [page.Series("busy", [row["utilisation"] for row in shown])],
        "share",
        limit=target.utilisation or 1.0,
    )
    together = "How many consumers to add, for all classes together"
    tables = [
        page.Table("capacity", f"Capacity; the target is that {wanted}", _COLUMNS, capacity, "nothing arrived"),
        page.Table("plan", together, _PLAN, added, "nobody served anything"),
    ]
    notes = []
    if capacity:
        spans = [
            f"{queue} from {page.moment(each.start)} for {page.span(each.seconds)}" for queue, each in stretches.items()
        ]
        more = f" and {page.several(len(spans) - 5, 'more queue')}" if len(spans) > 5 else ""
        notes += [f"Now is: {', '.join(spans[:5])}{more}. The peak is each queue's busiest hour."] if spans else []
        notes += [text for row in capacity for text in warnings(row)]
        notes += [f"Assumed: {' '.join(text.split())}" for text in ASSUMPTIONS.split("\n\n")]
    return page.Section("capacity", "Are there enough consumers", said, tables, notes, [plot] if shown else [])


def _wanted(target: Target) -> str:
    wait = None if target.wait is None else f"95 of 100 tasks wait no longer than {page.span(target.wait)}"
    busy = None if target.utilisation is None else f"consumers are busy no more than {target.utilisation:.0%}"
    return " and ".join(filter(None, (wait, busy))) or "no class piles up"


def advice(row: Row) -> str:
    """What is to be done about a class that is served too badly."""
    who = label(row)
    if not row["servers"]:
        return f"{who}: nobody serves it."
    if row["verdict"] == "slower than modelled":
        waited, busy = page.span(row["measured_p95"]), f"{row['utilisation']:.0%}"
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
        known.append(f"only {page.several(row['arrivals'], 'task')} arrived, so that the rate is uncertain")
    if row["servers"] and not VARIED[0] <= row["squared"] <= VARIED[1]:
        known.append(
            f"run times are far from exponential (C² = {row['squared']:.2g}; 1 is), and so the correction is large"
        )
    if row["burst"] is not None and row["burst"] > BURSTS:
        known.append(
            f"tasks arrive in bursts (C² = {row['burst']:.2g} between arrivals), and wait longer than the model says"
        )
    model, measured = row["model_mean"], row["measured_mean"]
    if measured is not None and math.isfinite(model):
        short, long = sorted((model, measured))
        if long > 1 and long > APART * short:
            spans = f"{page.span(measured)}, not {page.span(model)}"
            known.append(f"measured are {spans}: rather believe what was measured")
    return [f"{label(row)}: {'; '.join(known)}."] if known else []
