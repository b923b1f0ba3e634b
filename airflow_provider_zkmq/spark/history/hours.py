"""Silver rows as numbers for each hour: of classes and of consumers. Columns only: nothing is read or written here.

Times are whole milliseconds and hours since 1970, so that neither time zones nor rounding come in.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.history.refining import milliseconds

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
    ended, began = milliseconds("ended_at"), f.coalesce(milliseconds("started_at"), milliseconds("claimed_at"))
    known = f.when((began > 0) & (began < ended), began).otherwise(ended)
    timed = deliveries.withColumn("ended_ms", ended).withColumn("began", known)
    spread = timed.withColumn("hour", f.explode(f.sequence(hour_of("began"), hour_of("ended_ms"))))
    start = f.col("hour") * HOUR_MS
    busy = f.least("ended_ms", start + HOUR_MS) - f.greatest("began", start)
    return spread.withColumn("busy", busy).withColumn("ends_here", f.col("hour") == hour_of("ended_ms"))


def touched(runs: DataFrame, deliveries: DataFrame) -> DataFrame:
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
