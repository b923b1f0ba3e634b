"""How many tasks waited, hour by hour: the sum of who came and who left, over rows that tell both.

The depth at the end of an hour is that at its beginning, and arrivals, less departures; so a run that waited for a
month changes two hours' own numbers, and those between only by addition. An hour in which nothing happened has a row
where somebody waited.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.history.hours import HOUR_MS

#: What tells a class's hour, and the depth that is known of its beginning.
_KEY: Final = ("class", "hour")
_BASE: Final = "base"
#: What is no count: null where there was none, as is not the number of rows.
_TIMES: Final = ("wait_", "run_")


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
    counted = [name for name in kept if not name.startswith(_TIMES) and name != "depth_start"]
    start = f.when(own, f.col("depth_start")).otherwise(f.col("depth_end"))
    rows = spread.select(
        "class",
        f.col("at").alias("hour"),
        "depth_end",
        start.alias("depth_start"),
        *(column.alias(name) for name, column in kept.items() if name != "depth_start"),
    )
    happened = f.greatest(*activity(), "depth_start", "depth_end") > 0
    return rows.fillna(0, counted).where(happened).withColumns(_derived())


def _derived() -> dict[str, Column]:
    return {
        "throughput_per_s": f.col("finished") / (HOUR_MS / 1000),
        "depth_max": f.col("depth_start") + f.col("rise"),
        "depth_mean": f.col("depth_start") + f.col("area_ms") / HOUR_MS,
    }


def activity() -> list[Column]:
    """The numbers of which one is positive in an hour in which something happened."""
    return [f.col(name) for name in ("arrivals", "departures", "ended", "deliveries", "busy_ms")]
