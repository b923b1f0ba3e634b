"""Gold: numbers for each class and consumer in each hour, of the days that new silver rows touch.

Whole days are computed anew from silver, from the first that was touched to the last, and replaced; those of consumers
are committed first, and are read as far as the hours of classes have come. Days that silver's retention has passed stay
as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from ...delta_tables import Staged, Table
from .queue_reader import DAY_MS
from .silver import DELIVERIES, RUNS, check_behind
from .stage_and_load import Counts, day_of, load, milliseconds, stage

# --- Silver rows as numbers for each hour: of classes and of consumers. Columns only: nothing is read or written here.
#
# Hours are whole ones since 1970.

HOUR_MS: Final = 3_600_000
_TIMES: Final = ", ".join(f"{span}_{of} double" for span in ("wait", "run") for of in ("p50", "p95", "p99", "mean"))
HOURLY: Final = (
    "queue string, class string, hour timestamp, arrivals bigint, deliveries bigint, ended bigint, finished bigint, "
    "dead bigint, cancelled bigint, retries bigint, throughput_per_s double, depth_start bigint, depth_end bigint, "
    f"depth_max bigint, depth_mean double, {_TIMES}, busy_ms bigint"
)
CONSUMERS: Final = (
    "queue string, consumer string, hour timestamp, deliveries bigint, finished bigint, failed bigint, busy_ms bigint, "
    "utilisation double"
)


def hour_of(moment: str) -> Column:
    """The hour of a number of milliseconds, counted since 1970."""
    return f.floor(f.col(moment) / HOUR_MS)


def moments_of_runs(runs: DataFrame) -> DataFrame:
    """Runs with when they came, left the queue (claimed the last time, or ended unclaimed) and ended, in this order."""
    # Clocks of servers may disagree: what they tell is brought into order.
    ended, came = milliseconds("ended_at"), milliseconds("enqueued_at")
    claimed = f.coalesce(milliseconds("claimed_at"), ended)
    ordered = runs.withColumn("ended_ms", ended).withColumn("came", f.least(came, ended))
    return ordered.withColumn("gone", f.greatest("came", f.least(claimed, ended)))


def moments_of_deliveries(deliveries: DataFrame) -> DataFrame:
    """Deliveries with when they began and ended, and a row for each hour that they touch."""
    ended, began = milliseconds("ended_at"), f.coalesce(milliseconds("started_at"), milliseconds("claimed_at"))
    known = f.when((began > 0) & (began < ended), began).otherwise(ended)
    timed = deliveries.withColumn("ended_ms", ended).withColumn("began", known)
    spread = timed.withColumn("hour", f.explode(f.sequence(hour_of("began"), hour_of("ended_ms"))))
    start = f.col("hour") * HOUR_MS
    busy = f.least("ended_ms", start + HOUR_MS) - f.greatest("began", start)
    return spread.withColumn("busy", busy).withColumn("ends_here", f.col("hour") == hour_of("ended_ms"))


def class_hours(runs: DataFrame, deliveries: DataFrame, begin: int, end: int) -> DataFrame:
    """The numbers of each class in the hours from `begin` to before `end`, in which anything happened or waited."""
    inside = f.col("hour").between(begin, end - 1)
    states = [f.count_if(f.col("state") == state).alias(state) for state in ("finished", "dead", "cancelled")]
    spans = []
    for span in ("wait", "run"):
        spans += [f.percentile(f"{span}_ms", f.lit(point / 100)).alias(f"{span}_p{point}") for point in (50, 95, 99)]
        spans.append(f.avg(f"{span}_ms").alias(f"{span}_mean"))
    ended = runs.withColumn("hour", hour_of("ended_ms")).groupBy("class", "hour")
    again = f.col("ends_here") & (f.col("number") > 1)
    worked = deliveries.groupBy("class", "hour").agg(
        f.count_if("ends_here").alias("deliveries"), f.count_if(again).alias("retries"), f.sum("busy").alias("busy_ms")
    )
    ends = ended.agg(f.count("*").alias("ended"), *states, *spans)
    frames = [each.where(inside) for each in (ends, _flow(runs), worked)]
    frames.append(_waiting(runs, begin, end))  # each number is in one of them
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    numbers = [name for name in together.columns if name not in {"class", "hour"}]
    rows = together.groupBy("class", "hour").agg(*(f.max(name).alias(name) for name in numbers))
    rows = rows.fillna(0, [name for name in numbers if not name.startswith(("wait_", "run_"))])  # counts
    derived = {
        "throughput_per_s": f.col("finished") / (HOUR_MS / 1000),
        "depth_end": f.col("depth_start") + f.col("arrivals") - f.col("departures"),
        "depth_max": f.col("depth_start") + f.col("rise"),
        "depth_mean": f.col("depth_start") + f.col("area_ms") / HOUR_MS,
    }
    return rows.withColumns(derived)


def _flow(runs: DataFrame) -> DataFrame:
    """Who came and who left, and what became of the depth: all that happens at a moment happens at once.

    ``rise``: the most by which it exceeds that of the hour's beginning; ``area_ms``: the sum of what it differs by,
    times milliseconds.
    """
    steps = [f.struct(f.col(at).alias("at"), f.lit(by).alias("by")) for at, by in (("came", 1), ("gone", -1))]
    moves = runs.select("class", f.explode(f.array(*steps)).alias("move")).select("class", "move.at", "move.by")
    moments = moves.withColumn("hour", hour_of("at")).groupBy("class", "hour", "at")
    moments = moments.agg(
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


def _waiting(runs: DataFrame, begin: int, end: int) -> DataFrame:
    """How many waited when each hour began: those that had come before it, and left in it or later."""
    alike = runs.groupBy("class", hour_of("came").alias("came"), hour_of("gone").alias("gone")).count()
    first, last = f.greatest(f.col("came") + 1, f.lit(begin)), f.least("gone", f.lit(end - 1))
    hours = alike.where(first <= last).withColumn("hour", f.explode(f.sequence(first, last)))
    return hours.groupBy("class", "hour").agg(f.sum("count").alias("depth_start"))


def consumer_hours(deliveries: DataFrame) -> DataFrame:
    """What each consumer did in each hour."""
    ended = f.col("ends_here")
    failed = ~f.col("outcome").isin("finished", "cancelled")
    hours = deliveries.groupBy("consumer", "hour").agg(
        f.count_if(ended).alias("deliveries"),
        f.count_if(ended & (f.col("outcome") == "finished")).alias("finished"),
        f.count_if(ended & failed).alias("failed"),
        f.sum("busy").alias("busy_ms"),
    )
    return hours.withColumn("utilisation", f.col("busy_ms") / HOUR_MS)


# --- Gold's step: the days that new silver rows touch are computed anew.

_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_HOURS: Final = DAY_MS // HOUR_MS


def summarise(home: Path, spark: SparkSession, *, after: Callable[[str], None] = lambda _step: None) -> Counts:
    """Bring gold up to silver, in the queue's folder `home`; returns the days that it wrote, and the rows that it has.

    Raises `ConfigError` where gold was made of another silver, and where another run is at work.
    """
    hourly, consumers, runs = (Table.open(home, kind) for kind in ("hourly", "consumers", "runs"))
    deliveries = Table.open(home, "deliveries", until=runs.mark.watermark)
    check_behind(consumers, runs)
    check_behind(hourly, runs)
    mark, until = hourly.mark, runs.mark.watermark
    if mark.watermark == until:
        after("published")
        return {"days written": 0, "hours of classes": mark.rows, "hours of consumers": consumers.mark.rows}

    def rows(since: str = "", newer: int = 0) -> tuple[DataFrame, DataFrame]:
        """Silver's rows that ended since a day and are newer than a watermark, with their moments."""
        found = []
        for table, schema in ((runs, RUNS), (deliveries, DELIVERIES)):
            kept = date.fromordinal(table.mark.horizon).isoformat() if table.mark.horizon else ""
            found.append(load(spark, schema, table.files(max(since, kept), newer=newer), "ended_at", newer))
        return moments_of_runs(found[0]), moments_of_deliveries(found[1])

    new_runs, new_deliveries = rows(newer=mark.watermark)
    spans = new_runs.select(hour_of("came").alias("first"), hour_of("ended_ms").alias("last"))
    spans = spans.union(new_deliveries.select("hour", "hour"))
    ((first, last),) = spans.agg(f.min("first"), f.max("last")).collect()
    days = range(0)  # as ordinals: those whose numbers change, but for what silver or gold have forgotten
    if first is not None:
        kept = max(runs.mark.horizon, mark.horizon)
        days = range(max(_EPOCH + first // _DAY_HOURS, kept), _EPOCH + last // _DAY_HOURS + 1)
    new_hours, new_consumers, replaced = None, None, None
    if days:
        replaced = date.fromordinal(days[0]).isoformat(), date.fromordinal(days[-1]).isoformat()
        begin, end = ((day - _EPOCH) * _DAY_HOURS for day in (days.start, days.stop))
        # Whoever waited when the first day began has ended since, and so silver has it, however early it came.
        all_runs, all_deliveries = rows(replaced[0])
        new_hours = class_hours(all_runs, all_deliveries, begin, end)
        new_consumers = consumer_hours(all_deliveries).where(f.col("hour").between(begin, end - 1))
    staged_consumers = _staged(consumers, CONSUMERS, new_consumers, spark)
    after("staged consumers")
    staged_hours = _staged(hourly, HOURLY, new_hours, spark)
    after("staged hours")
    of_consumers = consumers.commit(staged_consumers, replace(consumers.mark, watermark=until), replaced)
    after("committed consumers")
    of_classes = hourly.commit(staged_hours, replace(mark, watermark=until), replaced)
    after("published")
    return {"days written": len(days), "hours of classes": of_classes, "hours of consumers": of_consumers}


def _staged(table: Table, schema: str, rows: DataFrame | None, spark: SparkSession) -> Staged:
    """Stage rows as they are stored, a file for each day; None: none."""
    if rows is None:
        return stage(table, schema, load(spark, schema, [], "hour"))
    timed = rows.withColumn("hour", f.timestamp_millis(f.col("hour") * HOUR_MS))
    timed = timed.withColumn("queue", f.lit(table.queue)).withColumn("day", day_of("hour"))
    return stage(table, schema, timed.repartition("day"))
