"""How many consumers a class needs: the capacity model, what it needs to know, and its advice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.reporting.frames import Frames

# --- How many consumers a class needs: what arrives for those who serve it against what they can do.
#
# The wait is that of the M/M/c queue, times (1 + C²) / 2 of Allen and Cunneen for how run times vary. Sources: A.
# K. Erlang, "Solution of some problems in the theory of probabilities" (1917), by the recursion of Erlang B; A. O.
# Allen, "Probability, Statistics, and Queueing Theory" (1978). It assumes that tasks arrive independently of each
# other at a steady rate, that whoever becomes free takes the oldest task, and that the queue is in balance.
# Consumers that serve several classes are busy with all of them: of each class they take the share that they have
# taken so far.

#: More consumers than this are never suggested.
MOST: Final = 100_000
#: How unlikely it must be that a consumer accepts a class and has not met it by chance.
CHANCE: Final = 0.01
POINT: Final = 0.95


@dataclass(frozen=True, slots=True)
class Wait:
    """How long tasks wait in the long run: the `chance` of waiting at all, and the `mean` of all tasks, in seconds.

    Both are of a queue in balance; in one that is not, everybody waits and the mean has no end.
    """

    chance: float
    mean: float

    @property
    def endless(self) -> bool:
        """More arrives than can be served."""
        return math.isinf(self.mean)

    def quantile(self, point: float) -> float:
        """The wait in seconds that `point` of the tasks stay below: who waits at all does so exponentially."""
        if self.endless or self.chance <= 1 - point:
            return math.inf if self.endless else 0.0
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
        soon = not wait.endless if self.wait is None else wait.quantile(POINT) <= self.wait
        return soon and (self.utilisation is None or utilisation <= self.utilisation)


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
        """Whether these have not met what `other` serves besides by mere chance: each of them had few tasks."""
        if not self.classes < other.classes:
            return False
        share = sum(other.seen[name] for name in self.classes) / other.deliveries
        return math.pow(share, self.deliveries / self.consumers) > CHANCE

    def joined(self, other: Crew) -> Crew:
        """Both as one crew."""
        seen = {name: self.seen.get(name, 0) + other.seen.get(name, 0) for name in self.classes | other.classes}
        mine, total = self.deliveries, self.deliveries + other.deliveries
        mean = (mine * self.service + other.deliveries * other.service) / total
        moments = [(crew.deliveries, crew.service**2 * (1 + crew.squared)) for crew in (self, other)]
        squared = sum(count * moment for count, moment in moments) / total / mean**2 - 1 if mean else 0.0
        return Crew(seen, self.consumers + other.consumers, self.servers + other.servers, mean, max(0.0, squared))


def crews(seen: Iterable[Crew]) -> list[Crew]:
    """The crews, those that served too few tasks to tell counted with the one that they resemble."""
    whole = list[Crew]()
    for crew in sorted(seen, key=lambda crew: (-len(crew.classes), -crew.deliveries)):
        alike = [other for other in whole if crew.resembles(other)]
        same = [other for other in whole if other.classes == crew.classes]
        near = min(same or alike, key=lambda other: len(other.classes), default=None)
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
    """The crews of a queue."""

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
            none = (NONE, 0.0) if not rates[name] else (ENDLESS, math.inf)
            return Need(*none, 0, math.nan, math.nan, None)
        whole = serving[0]
        for crew in serving[1:]:
            whole = whole.joined(crew)
        arrivals = sum(rates.get(each, 0.0) * self._share(each, whole) for each in whole.classes)

        def wait(servers: int) -> Wait:
            return expected_wait(arrivals, whole.service, whole.squared, servers)

        def busy(servers: int) -> float:
            return arrivals * whole.service / servers

        there = whole.servers
        needed = _least(lambda servers: busy(servers) < 1 and target.met(wait(servers), busy(servers)), there)
        return Need(wait(there), busy(there), there, whole.service, whole.squared, needed)

    def _share(self, name: str, whole: Crew) -> float:
        """The part of a class's deliveries that these consumers had."""
        return whole.seen[name] / sum(crew.seen[name] for crew in self._serving(name))


def _least(enough: Callable[[int], bool], first: int) -> int | None:
    """The least number from 1 that is enough, tried from `first` outwards; None beyond `MOST`."""
    low, high = 0, max(1, first)
    while not enough(high):
        low, high = high, high * 2
        if low > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# --- What the capacity model needs to know of a history: how much arrives in each class lately, and who serves what.

#: More crews of a queue than these are not told apart: those with the fewest deliveries are left out.
MOST_CREWS: Final = 40
#: So many tasks at once must be held for this part of the time, or else it is by chance.
OVERLAP: Final = 0.01
#: Times are whole milliseconds: what took none took less, and yet somebody was busy with it.
SHORTEST: Final = 0.0005
_SPANS: Final = "queue string, start double, stop double"


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


def stretches(frames: Frames, recent: float) -> dict[str, Stretch]:
    """The last `recent` seconds of each queue's history.

    The archive knows a task when it has ended, and so not yet all that arrived lately: the stretch ends so long before
    the last end as 99 of 100 tasks take from their enqueue to their end, though not before half of the history.
    """
    first = f.col("attempt") == 1
    facts = frames.runs.groupBy("queue").agg(
        f.min("enqueued_at").alias("first"),
        f.max("ended_at").alias("last"),
        f.coalesce(
            f.percentile(f.when(first, f.col("ended_at") - f.col("enqueued_at")), f.lit(0.99)), f.lit(0.0)
        ).alias("stay"),
    )
    answer = {}
    for row in facts.collect():
        stop = row.last - min(row.stay, (row.last - row.first) / 2)
        answer[row.queue] = Stretch(max(row.first, stop - recent), stop)
    return answer


class Load:
    """The demand and the crews of each queue, read from its history by a few aggregations."""

    def __init__(self, frames: Frames, recent: float) -> None:
        self.stretches = stretches(frames, recent)
        self._frames = frames
        rows = [(queue, each.start, each.stop) for queue, each in self.stretches.items()]
        self._spans = f.broadcast(_local(frames.runs.sparkSession, rows)) if rows else None

    def demands(self) -> dict[str, dict[str, Demand]]:
        """The demand of each queue's classes."""
        if self._spans is None:
            return {}
        peaks, tries = self._peaks(), self._tries()
        answer = defaultdict[str, dict[str, Demand]](dict)
        arrived = {(row.queue, row["class"]): row for row in self._arrived().collect()}
        for key in arrived.keys() | peaks.keys():
            row, per_task = arrived.get(key), tries.get(key, 0.0)
            count = row.arrivals if row else 0
            rate = count / self.stretches[key[0]].seconds * per_task
            known = (row.burst, row.mean, row.p95) if row else (None, None, None)
            answer[key[0]][key[1]] = Demand(count, rate, max(rate, peaks.get(key, 0.0) * per_task), *known)
        return dict(answer)

    def _arrived(self) -> DataFrame:
        """What was enqueued in the stretch, by class."""
        spans = self._spans
        inside = (f.col("enqueued_at") >= f.col("start")) & (f.col("enqueued_at") <= f.col("stop"))
        runs = self._frames.runs.join(spans, "queue").where(inside)
        before = Window.partitionBy("queue", "class").orderBy("enqueued_at")
        first = f.when(f.col("attempt") == 1, f.col("wait_ms") / 1000)
        gap = f.col("enqueued_at") - f.lag("enqueued_at").over(before)
        mean = f.mean("gap")
        return (
            runs.withColumns({"gap": gap, "first": first})
            .groupBy("queue", "class")
            .agg(
                f.count("*").alias("arrivals"),
                f.when(mean > 0, f.var_pop("gap") / mean / mean).alias("burst"),
                f.mean("first").alias("mean"),
                f.percentile("first", f.lit(0.95)).alias("p95"),
            )
        )

    def _tries(self) -> dict[tuple[str, str], float]:
        """How often a task of each class is delivered, on the average."""
        tries = self._frames.runs.groupBy("queue", "class").agg(f.mean("attempt").alias("tries"))
        return {(row.queue, row["class"]): row.tries or 0.0 for row in tries.collect()}

    def _peaks(self) -> dict[tuple[str, str], float]:
        """The arrivals a second of each class in its queue's busiest hour."""
        of_queue = Window.partitionBy("queue", "hour")
        busiest = Window.partitionBy("queue").orderBy(f.desc("total"), "hour")
        hours = self._frames.hourly.groupBy("queue", "class", "hour").agg(f.sum("arrivals").alias("arrivals"))
        ranked = hours.withColumn("total", f.sum("arrivals").over(of_queue)).withColumn(
            "place", f.dense_rank().over(busiest)
        )
        rows = ranked.where((f.col("place") == 1) & (f.col("arrivals") > 0)).collect()
        return {(row.queue, row["class"]): row.arrivals / 3600 for row in rows if row.queue in self.stretches}

    def crews(self) -> dict[str, list[Crew]]:
        """Each queue's consumers by what they serve, from all deliveries; how many there are, from the stretch."""
        if self._spans is None:
            return {}
        cells = _cells(self._frames.deliveries)
        servers = {(row.queue, tuple(row.serves)): int(row.servers) for row in self._present(cells).collect()}
        rows = _by_crew(cells).collect()
        parts = defaultdict[tuple[str, tuple[str, ...]], list[Mapping[str, float]]](list)
        for row in rows:
            parts[row.queue, tuple(row.serves)].append(row.asDict())
        answer = defaultdict[str, list[Crew]](list)
        for (queue, serves), found in parts.items():
            answer[queue].append(_crew(found, servers.get((queue, serves), 0)))
        return {queue: crews(each) for queue, each in answer.items()}

    def _present(self, cells: DataFrame) -> DataFrame:
        """How many tasks each crew could hold at once: of consumers that were there together, each with its most."""
        serves = cells.select("queue", "consumer", "serves").distinct()
        lately = self._frames.deliveries.join(self._spans, "queue").where(f.col("ended_at") >= f.col("start"))
        since = f.greatest(f.coalesce("started_at", "claimed_at"), "start")
        lately = lately.withColumns({"since": since, "until": f.greatest("ended_at", since + SHORTEST)})
        at_once = _most_at_once(lately, ["queue", "consumer"], f.lit(1), "since", "until")
        there = lately.groupBy("queue", "consumer").agg(f.min("since").alias("since"), f.max("until").alias("until"))
        known = there.join(at_once, ["queue", "consumer"]).join(serves, ["queue", "consumer"])
        return _most_at_once(known, ["queue", "serves"], f.col("servers"), "since", "until")


def _local(spark: SparkSession, rows: Sequence[tuple[str, float, float]]) -> DataFrame:
    return spark.createDataFrame(rows, _SPANS)


def _cells(deliveries: DataFrame) -> DataFrame:
    """A row for each consumer and class, with all the classes that the consumer serves."""
    seconds = f.col("run_ms") / 1000
    cells = (
        deliveries.where(f.col("run_ms").isNotNull())
        .groupBy("queue", "consumer", "class")
        .agg(f.count("*").alias("deliveries"), f.sum(seconds).alias("busy"), f.sum(seconds * seconds).alias("squares"))
    )
    own = Window.partitionBy("queue", "consumer")
    return cells.withColumn("serves", f.sort_array(f.collect_set("class").over(own)))


def _by_crew(cells: DataFrame) -> DataFrame:
    """The cells of the crews with the most deliveries, summed over their consumers."""
    sums = [f.sum(name).alias(name) for name in ("deliveries", "busy", "squares")]
    grouped = cells.groupBy("queue", "serves", "class").agg(f.count("*").alias("consumers"), *sums)
    total = f.sum("deliveries").over(Window.partitionBy("queue", "serves"))
    largest = Window.partitionBy("queue").orderBy(f.desc("total"), "serves")
    return (
        grouped.withColumn("total", total)
        .withColumn("place", f.dense_rank().over(largest))
        .where(f.col("place") <= MOST_CREWS)
    )


def _crew(cells: Sequence[Mapping[str, float]], servers: int) -> Crew:
    seen = {str(cell["class"]): int(cell["deliveries"]) for cell in cells}
    count, busy, squares = (
        sum(seen.values()),
        sum(cell["busy"] for cell in cells),
        sum(cell["squares"] for cell in cells),
    )
    mean = busy / count or SHORTEST
    squared = squares / count / mean**2 - 1
    return Crew(seen, int(max(cell["consumers"] for cell in cells)), servers, mean, max(0.0, squared))


def _most_at_once(frame: DataFrame, keys: list[str], weight: Column, start: str, stop: str) -> DataFrame:
    """The largest sum of weights of what overlaps in time, for each key, that holds for `OVERLAP` of the time at least.

    A worker that claims its next task before the last is settled holds two for a moment, and works on one.
    """
    begun = frame.select(*keys, f.col(start).alias("at"), weight.alias("step"))
    ended = frame.select(*keys, f.col(stop).alias("at"), (-weight).alias("step"))
    own = Window.partitionBy(*keys)
    in_time = own.orderBy("at", "step")
    level = f.sum("step").over(in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    lasted = f.coalesce(f.lead("at").over(in_time) - f.col("at"), f.lit(0.0))
    levels = begun.unionAll(ended).withColumns({"level": level, "lasted": lasted}).where(f.col("level") > 0)
    summed = levels.groupBy(*keys, "level").agg(f.sum("lasted").alias("lasted"))
    above = f.sum("lasted").over(own.orderBy(f.desc("level")))
    enough = summed.withColumns({"above": above, "all": f.sum("lasted").over(own)}).where(
        f.col("above") >= OVERLAP * f.col("all")
    )
    return enough.groupBy(*keys).agg(f.max("level").alias("servers"))
