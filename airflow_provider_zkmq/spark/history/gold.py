"""Gold: numbers for each class and consumer in each hour, computed anew for exactly those that new silver rows touch.

How many waited is the one number that reaches over hours: it is summed up again from the first hour that was touched
to the last, over the numbers that gold has. Whole days are replaced; those of consumers are committed first, and are
read as far as the hours of classes have come. Hours that silver's retention has passed stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from ...history import Staged, Table
from .rows import DAY_MS
from .silver import DELIVERIES, RUNS, check_behind
from .tables import day_of, load, milliseconds, stage

# --- Silver rows as numbers for each hour: of classes and of consumers. Columns only: nothing is read or written here.
#
# Hours are whole ones since 1970.

HOUR_MS: Final = 3_600_000
_TIMES: Final = ", ".join(f"{span}_{of} double" for span in ("wait", "run") for of in ("p50", "p95", "p99", "mean"))
#: A class's hour. The last three are what corrections need, and are not shown: who left, and see `class_hours`.
HOURLY: Final = (
    "queue string, class string, hour timestamp, arrivals bigint, deliveries bigint, ended bigint, finished bigint, "
    "dead bigint, cancelled bigint, retries bigint, throughput_per_s double, depth_start bigint, depth_end bigint, "
    f"depth_max bigint, depth_mean double, {_TIMES}, busy_ms bigint, departures bigint, rise bigint, area_ms bigint"
)
CONSUMERS: Final = (
    "queue string, consumer string, hour timestamp, deliveries bigint, finished bigint, failed bigint, busy_ms bigint, "
    "utilisation double"
)
POINTS: Final = (50, 95, 99)
#: How a delivery ended that did not fail.
_NO_FAILURE: Final = ("finished", "cancelled")


def hour_of(moment: str | Column) -> Column:
    """The hour of a number of milliseconds, counted since 1970."""
    return f.floor((f.col(moment) if isinstance(moment, str) else moment) / HOUR_MS)


def moments_of_runs(runs: DataFrame) -> DataFrame:
    """Runs with when they came, left the queue (claimed the last time, or ended unclaimed) and ended, in this order.

    Clocks of servers may disagree: what they tell is brought into order, so that no run leaves before it came.
    """
    ended, came = milliseconds("ended_at"), milliseconds("enqueued_at")
    claimed = f.coalesce(milliseconds("claimed_at"), ended)
    ordered = runs.withColumn("ended_ms", ended).withColumn("came", f.least(came, ended))
    return ordered.withColumn("gone", f.greatest("came", f.least(claimed, ended)))


def moments_of_deliveries(deliveries: DataFrame) -> DataFrame:
    """Deliveries with when they began and ended, and a row for each hour that they touch."""
    ended, began = (
        milliseconds("ended_at"),
        f.coalesce(milliseconds("started_at"), milliseconds("claimed_at")),
    )
    known = f.when((began > 0) & (began < ended), began).otherwise(ended)
    timed = deliveries.withColumn("ended_ms", ended).withColumn("began", known)
    spread = timed.withColumn("hour", f.explode(f.sequence(hour_of("began"), hour_of("ended_ms"))))
    start = f.col("hour") * HOUR_MS
    busy = f.least("ended_ms", start + HOUR_MS) - f.greatest("began", start)
    return spread.withColumn("busy", busy).withColumn("ends_here", f.col("hour") == hour_of("ended_ms"))


def touched_hours(runs: DataFrame, deliveries: DataFrame) -> DataFrame:
    """The classes and hours whose numbers these rows change, but for the depth in between."""
    each = f.explode(f.array(hour_of("came"), hour_of("gone"), hour_of("ended_ms")))
    return runs.select("class", each.alias("hour")).union(deliveries.select("class", "hour")).distinct()


def class_hours(runs: DataFrame, deliveries: DataFrame, wanted: DataFrame) -> list[DataFrame]:
    """All numbers of the wanted classes and hours but for the depth at their beginning, each in one of these frames.

    ``rise``: the most by which the depth exceeds that; ``area_ms``: the sum of what it differs by, times milliseconds.
    """
    return [_ends(runs, wanted), _flow(runs, wanted), _work(deliveries, wanted)]


def _ends(runs: DataFrame, wanted: DataFrame) -> DataFrame:
    ended = runs.withColumn("hour", hour_of("ended_ms")).join(wanted, ["class", "hour"], "left_semi")
    states = [f.count_if(f.col("state") == state).alias(state) for state in ("finished", "dead", "cancelled")]
    return ended.groupBy("class", "hour").agg(f.count("*").alias("ended"), *states, *_spans("wait"), *_spans("run"))


def _spans(span: str) -> list[Column]:
    exact = [f.percentile(f"{span}_ms", f.lit(point / 100)).alias(f"{span}_p{point}") for point in POINTS]
    return [*exact, f.avg(f"{span}_ms").alias(f"{span}_mean")]


def _flow(runs: DataFrame, wanted: DataFrame) -> DataFrame:
    """Who came and who left, and what became of the depth: all that happens at a moment happens at once."""
    steps = [f.struct(f.col(at).alias("at"), f.lit(by).alias("by")) for at, by in (("came", 1), ("gone", -1))]
    moves = runs.select("class", f.explode(f.array(*steps)).alias("move")).select("class", "move.at", "move.by")
    moves = moves.withColumn("hour", hour_of("at")).join(wanted, ["class", "hour"], "left_semi")
    moments = moves.groupBy("class", "hour", "at").agg(
        f.sum("by").alias("by"), f.count_if(f.col("by") > 0).alias("came"), f.count_if(f.col("by") < 0).alias("gone")
    )
    running = f.sum("by").over(Window.partitionBy("class", "hour").orderBy("at"))
    rest = f.col("by") * ((f.col("hour") + 1) * HOUR_MS - f.col("at"))
    return (
        moments.withColumn("running", running)
        .groupBy("class", "hour")
        .agg(
            f.sum("came").alias("arrivals"),
            f.sum("gone").alias("departures"),
            f.greatest(f.max("running"), f.lit(0)).alias("rise"),
            f.sum(rest).alias("area_ms"),
        )
    )


def _work(deliveries: DataFrame, wanted: DataFrame) -> DataFrame:
    again = f.col("ends_here") & (f.col("number") > 1)
    return (
        deliveries.join(wanted, ["class", "hour"], "left_semi")
        .groupBy("class", "hour")
        .agg(
            f.count_if("ends_here").alias("deliveries"),
            f.count_if(again).alias("retries"),
            f.sum("busy").alias("busy_ms"),
        )
    )


def consumer_hours(deliveries: DataFrame, wanted: DataFrame) -> DataFrame:
    """What each of the wanted consumers did in each of the wanted hours."""
    ended = f.col("ends_here")
    failed = ~f.col("outcome").isin(*_NO_FAILURE)
    return (
        deliveries.join(wanted, ["consumer", "hour"], "left_semi")
        .groupBy("consumer", "hour")
        .agg(
            f.count_if(ended).alias("deliveries"),
            f.count_if(ended & (f.col("outcome") == "finished")).alias("finished"),
            f.count_if(ended & failed).alias("failed"),
            f.sum("busy").alias("busy_ms"),
        )
        .withColumn("utilisation", f.col("busy_ms") / HOUR_MS)
    )


# --- How many tasks waited, hour by hour: the sum of who came and who left, over rows that tell both.
#
# The depth at the end of an hour is that at its beginning, and arrivals, less departures; so a run that waited for
# a month changes two hours' own numbers, and those between only by addition. An hour in which nothing happened has
# a row where somebody waited.

#: What tells a class's hour, and the depth that is known of its beginning.
_KEY: Final = ("class", "hour")
_BASE: Final = "base"
#: What is no count: null where there was none, as is not the number of rows.
_SPANS: Final = ("wait_", "run_")


def joined(frames: list[DataFrame]) -> DataFrame:
    """One row for each class and hour of the frames, with the numbers of all; each number is in one of them."""
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    numbers = [f.max(name).alias(name) for name in together.columns if name not in {*_KEY, _BASE}]
    return together.groupBy(*_KEY).agg(*numbers, f.sum(_BASE).alias(_BASE))


def with_depth(rows: DataFrame, until: int) -> DataFrame:
    """The rows of classes and hours with their depths, and those between where somebody waited, up to hour `until`.

    The column ``base`` of a class's first row: the depth at its beginning, where somebody waited by then.
    """
    order = Window.partitionBy("class").orderBy("hour")
    net = f.coalesce("arrivals", f.lit(0)) - f.coalesce("departures", f.lit(0))
    end = f.sum(f.coalesce(_BASE, f.lit(0)) + net).over(order)
    following = f.coalesce(f.lead("hour").over(order), f.lit(until))
    summed = rows.withColumn("depth_end", end).withColumn("following", following).drop(_BASE)
    return _numbered(summed.withColumn("depth_start", f.col("depth_end") - net))


def _numbered(summed: DataFrame) -> DataFrame:
    """With the hours of waiting alone: each row stands for itself and for those up to the following one."""
    gap = (f.col("depth_end") > 0) & (f.col("following") > f.col("hour") + 1)
    last = f.when(gap, f.col("following") - 1).otherwise(f.col("hour"))
    spread = summed.withColumn("at", f.explode(f.sequence("hour", last))).drop("following")
    own = f.col("at") == f.col("hour")
    kept = {name: f.when(own, f.col(name)) for name in spread.columns if name not in {*_KEY, "at", "depth_end"}}
    counted = [name for name in kept if not name.startswith(_SPANS) and name != "depth_start"]
    start = f.when(own, f.col("depth_start")).otherwise(f.col("depth_end"))
    rows = spread.select(
        "class",
        f.col("at").alias("hour"),
        "depth_end",
        start.alias("depth_start"),
        *(column.alias(name) for name, column in kept.items() if name != "depth_start"),
    )
    happened = f.greatest(*activity(), "depth_start", "depth_end") > 0
    derived = {
        "throughput_per_s": f.col("finished") / (HOUR_MS / 1000),
        "depth_max": f.col("depth_start") + f.col("rise"),
        "depth_mean": f.col("depth_start") + f.col("area_ms") / HOUR_MS,
    }
    return rows.fillna(0, counted).where(happened).withColumns(derived)


def activity() -> list[Column]:
    """The numbers of which one is positive in an hour in which something happened."""
    return [f.col(name) for name in ("arrivals", "departures", "ended", "deliveries", "busy_ms")]


# --- Gold's step: the hours that new silver rows touch are computed anew.

#: The steps after which this may be interrupted, in order.
STEPS: Final = ("staged consumers", "staged hours", "committed consumers", "published")
_EPOCH: Final = date(1970, 1, 1)
_DAY_HOURS: Final = DAY_MS // HOUR_MS


@dataclass(frozen=True, slots=True)
class Summed:
    """What gold did: the days that were written anew, and the rows of both kinds that the table has now."""

    days: int
    hourly: int
    consumers: int


@dataclass(frozen=True, slots=True)
class _Span:
    """The days that are written anew, from `first` to `last`, both included, and their hours."""

    first: date
    last: date

    @property
    def days(self) -> int:
        return (self.last - self.first).days + 1

    @property
    def iso(self) -> tuple[str, str]:
        return self.first.isoformat(), self.last.isoformat()

    @property
    def hours(self) -> tuple[int, int]:
        """The first hour, and the first that comes after."""
        return (self.first - _EPOCH).days * _DAY_HOURS, ((self.last - _EPOCH).days + 1) * _DAY_HOURS


@dataclass(frozen=True, slots=True)
class _Silver:
    """Silver's rows with their moments: those that are newer than gold, and all since a day."""

    runs_table: Table
    deliveries_table: Table
    spark: SparkSession
    watermark: int
    kept: int  # the first day whose hours may be computed: before it, silver's rows or gold's hours are forgotten

    def runs(self, since: str | None) -> DataFrame:
        """Runs that ended since a day, or since retention's; None: those that gold has not seen."""
        return moments_of_runs(self._load(self.runs_table, RUNS, since))

    def deliveries(self, since: str | None) -> DataFrame:
        """Deliveries that ended since a day, or that gold has not seen, for each hour that they touch."""
        return moments_of_deliveries(self._load(self.deliveries_table, DELIVERIES, since))

    def _load(self, table: Table, schema: str, since: str | None) -> DataFrame:
        newer = self.watermark if since is None else 0
        files = table.files(max(since or "", table.mark.first_day), newer=newer)
        return load(self.spark, schema, files, "ended_at", newer)

    def span(self, touched: DataFrame) -> _Span | None:
        """The days of these hours that are kept; None where there are none."""
        ((first, last),) = touched.agg(f.min("hour"), f.max("hour")).collect()
        if first is None:
            return None
        days = [_EPOCH + timedelta(days=hour // _DAY_HOURS) for hour in (first, last)]
        kept = date.fromordinal(self.kept) if self.kept else days[0]
        return _Span(max(days[0], kept), days[1]) if days[1] >= kept else None


@dataclass(frozen=True, slots=True)
class _Gold:
    """Gold's tables as they are before the step. Both are computed anew from how far the hours of classes came."""

    hourly: Table
    consumers: Table


def summarise(home: Path, spark: SparkSession, *, after: Callable[[str], None] = lambda _step: None) -> Summed:
    """Bring gold up to silver, in the queue's folder `home`.

    Raises `ConfigError` where gold was made of another silver, and where another run is at work.
    """
    gold = _Gold(Table.open(home, "hourly"), Table.open(home, "consumers"))
    runs = Table.open(home, "runs")
    deliveries = Table.open(home, "deliveries", until=runs.mark.watermark)
    check_behind(gold.consumers, runs)
    check_behind(gold.hourly, runs)
    mark, until = gold.hourly.mark, runs.mark.watermark
    if mark.watermark == until:
        after("published")
        return Summed(0, mark.rows, gold.consumers.mark.rows)
    silver = _Silver(runs, deliveries, spark, mark.watermark, max(runs.mark.horizon, mark.horizon))
    days, hours, consumers = _stage(gold, silver, after)
    replaced = days.iso if days else None
    rows = gold.consumers.commit(consumers, replace(gold.consumers.mark, watermark=until), replaced)
    after("committed consumers")
    total = gold.hourly.commit(hours, replace(mark, watermark=until), replaced)
    after("published")
    return Summed(days.days if days else 0, total, rows)


def _stage(gold: _Gold, silver: _Silver, after: Callable[[str], None]) -> tuple[_Span | None, Staged, Staged]:
    """The days that are written anew, and what they have of classes and of consumers."""
    touched = touched_hours(silver.runs(None), silver.deliveries(None)).persist()
    try:
        span = silver.span(touched)
        consumers = _stored(gold.consumers, CONSUMERS, _consumers(gold, silver, span) if span else None, silver.spark)
        after("staged consumers")
        hours = _stored(gold.hourly, HOURLY, _hourly(gold, silver, span, touched) if span else None, silver.spark)
        after("staged hours")
        return span, hours, consumers
    finally:
        touched.unpersist()


def _hourly(gold: _Gold, silver: _Silver, span: _Span, touched: DataFrame) -> DataFrame:
    (start, end), since = span.hours, span.iso[0]
    computed = class_hours(silver.runs(since), silver.deliveries(since), touched.where(f.col("hour") >= start))
    old = _old(gold.hourly, HOURLY, span, silver.spark)
    happened = old.where(f.greatest(*activity()) > 0).join(touched, ["class", "hour"], "left_anti")
    numbers = [name for frame in computed for name in frame.columns]
    kept = happened.select(*dict.fromkeys(numbers))
    # How many waited when the first hour began: as far as gold knows, and of new runs those that came in an hour that
    # stays as it is.
    waiting = old.where((f.col("hour") == start) & (f.col("depth_start") > 0))
    base = [waiting.select("class", "hour", f.col("depth_start").alias("base"))]
    if silver.kept:
        begin = start * HOUR_MS
        carried = silver.runs(None).where((f.col("came") < begin) & (f.col("gone") >= begin))
        hour, one = f.lit(start).cast("bigint").alias("hour"), f.lit(1).cast("bigint").alias("base")
        base.append(carried.select("class", hour, one))
    return with_depth(joined([*computed, kept, *base]), end)


def _consumers(gold: _Gold, silver: _Silver, span: _Span) -> DataFrame:
    touched = silver.deliveries(None).select("consumer", "hour").distinct().where(f.col("hour") >= span.hours[0])
    computed = consumer_hours(silver.deliveries(span.iso[0]), touched)
    old = _old(gold.consumers, CONSUMERS, span, silver.spark).join(touched, ["consumer", "hour"], "left_anti")
    return computed.unionByName(old.select(computed.columns))


def _old(table: Table, schema: str, span: _Span, spark: SparkSession) -> DataFrame:
    """What gold has of these days, its hours being numbers."""
    frame = load(spark, schema, table.files(*span.iso), "hour")
    return frame.withColumn("hour", hour_of(milliseconds("hour"))).drop("queue", "day")


def _stored(table: Table, schema: str, rows: DataFrame | None, spark: SparkSession) -> Staged:
    """Stage rows as they are stored, a file for each day; None: none."""
    if rows is None:
        return stage(table, schema, load(spark, schema, [], "hour"))
    timed = rows.withColumn("hour", f.timestamp_millis(f.col("hour") * HOUR_MS))
    timed = timed.withColumn("queue", f.lit(table.queue)).withColumn("day", day_of("hour"))
    return stage(table, schema, timed.repartition("day"))
