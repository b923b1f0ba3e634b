"""What the capacity model needs to know of a history: how much arrives in each class lately, and who serves what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.answers.capacity import Crew, crews
from airflow_provider_zkmq.spark.answers.frames import Frames

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
