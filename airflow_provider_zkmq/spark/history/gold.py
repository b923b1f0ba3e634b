"""Gold: numbers for each class and consumer in each hour, computed anew for exactly those that new silver rows touch.

How many waited is the one number that reaches over hours: it is summed up again from the first hour that was touched
to the last, over the numbers that gold has. Whole days are replaced, by one manifest for both kinds of rows. Hours
that silver's retention has passed stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.history import refining
from airflow_provider_zkmq.spark.history.refining import (
    CONSUMERS,
    DAY_MS,
    DELIVERIES,
    HOUR_MS,
    HOURLY,
    RUNS,
    activity,
    day_of,
    joined,
    milliseconds,
    names,
    with_depth,
)
from airflow_provider_zkmq.spark.history.silver import check_behind, unseen
from airflow_provider_zkmq.spark.history.tables import (
    GOLD,
    GRACE,
    SILVER,
    Manifest,
    Part,
    adopt,
    folders,
    load,
    publish,
    queue_of,
    read_manifest,
    stage,
    sweep,
    without,
)

#: The steps after which this may be interrupted, in order.
STEPS: Final = ("staged hours", "staged consumers", "adopted", "published")
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
    def iso(self) -> tuple[str, str]:
        return self.first.isoformat(), self.last.isoformat()

    @property
    def hours(self) -> tuple[int, int]:
        """The first hour, and the first that comes after."""
        return (self.first - _EPOCH).days * _DAY_HOURS, ((self.last - _EPOCH).days + 1) * _DAY_HOURS


@dataclass(frozen=True, slots=True)
class _Silver:
    """Silver's rows with their moments: those that are newer than gold, and all since a day."""

    home: Path
    manifest: Manifest
    spark: SparkSession
    watermark: int
    kept: str  # the first day whose hours may be computed: before it, silver's rows or gold's hours are forgotten

    def runs(self, parts: list[Part] | tuple[Part, ...], since: str = "") -> DataFrame:
        """Runs that ended since a day, or since retention's."""
        paths = folders(self.home, parts, max(since, self.manifest.horizon))
        return refining.moments_of_runs(load(self.spark, RUNS, paths, "ended_at"))

    def deliveries(self, parts: list[Part] | tuple[Part, ...], since: str = "") -> DataFrame:
        """Deliveries that ended since a day, or since retention's, for each hour that they touch."""
        paths = folders(self.home, parts, max(since, self.manifest.horizon))
        return refining.moments_of_deliveries(load(self.spark, DELIVERIES, paths, "ended_at"))

    def new_runs(self) -> DataFrame:
        return self.runs(unseen(self.manifest, self.watermark, "runs"))

    def new_deliveries(self) -> DataFrame:
        return self.deliveries(unseen(self.manifest, self.watermark, "deliveries"))

    def touched(self) -> DataFrame:
        """The classes and hours whose numbers the new rows change."""
        return refining.touched(self.new_runs(), self.new_deliveries())

    def span(self, touched: DataFrame) -> _Span | None:
        """The days of these hours that are kept; None where there are none."""
        ((first, last),) = touched.agg(f.min("hour"), f.max("hour")).collect()
        if first is None:
            return None
        days = [_EPOCH + timedelta(days=hour // _DAY_HOURS) for hour in (first, last)]
        kept = date.fromisoformat(self.kept) if self.kept else days[0]
        return _Span(max(days[0], kept), days[1]) if days[1] >= kept else None


def summarise(
    home: Path, spark: SparkSession, *, grace: float = GRACE, after: Callable[[str], None] = lambda _step: None
) -> Summed:
    """Bring gold up to silver, in the queue's folder `home`, which the caller holds.

    Raises `ConfigError` where gold was made of another silver.
    """
    silver, gold = read_manifest(home / SILVER), read_manifest(home / GOLD)
    check_behind(home / GOLD, gold, silver)
    _, gold = sweep(home / GOLD, gold, grace)
    source = _Silver(home / SILVER, silver, spark, gold.watermark, max(silver.horizon, gold.horizon))
    days, grown = 0, replace(gold, watermark=silver.watermark)
    if unseen(silver, gold.watermark, "runs"):
        days, grown = _grow(home / GOLD, gold, source, after)
    if grown != gold:
        (home / GOLD).mkdir(exist_ok=True)
        publish(home / GOLD, grown)
    after("published")
    rows = {kind: sum(part.rows for part in grown.of(kind)) for kind in ("hourly", "consumers")}
    return Summed(days, rows["hourly"], rows["consumers"])


def _grow(home: Path, gold: Manifest, silver: _Silver, after: Callable[[str], None]) -> tuple[int, Manifest]:
    """How many days were written anew, and the manifest that names them."""
    grown = replace(gold, watermark=silver.manifest.watermark)
    touched = silver.touched().persist()
    try:
        span = silver.span(touched)
        if span is None:
            return 0, grown
        parts = _compute(home, gold, silver, span, touched, after)
        kept = without(home, grown, lambda day: span.iso[0] <= day <= span.iso[1])
        return (span.last - span.first).days + 1, replace(kept, runs=(*kept.runs, *parts))
    finally:
        touched.unpersist()


def _compute(
    home: Path, gold: Manifest, silver: _Silver, span: _Span, touched: DataFrame, after: Callable[[str], None]
) -> list[Part]:
    zxids = gold.watermark, silver.manifest.watermark
    rows = stage(home, "hourly", _spelt(_hourly(home, gold, silver, span, touched), home, HOURLY), *zxids)
    after("staged hours")
    each = stage(home, "consumers", _spelt(_consumers(home, gold, silver, span), home, CONSUMERS), *zxids)
    after("staged consumers")
    parts = adopt((rows, each))
    after("adopted")
    return parts


def _hourly(home: Path, gold: Manifest, silver: _Silver, span: _Span, touched: DataFrame) -> DataFrame:
    start, end = span.hours
    since = span.iso[0]
    runs = silver.runs(silver.manifest.of("runs"), since)
    deliveries = silver.deliveries(silver.manifest.of("deliveries"), since)
    computed = refining.class_hours(runs, deliveries, touched.where(f.col("hour") >= start))
    old = _old(home, gold, "hourly", HOURLY, span, silver.spark)
    happened = old.where(f.greatest(*activity()) > 0).join(touched, ["class", "hour"], "left_anti")
    numbers = [name for frame in computed for name in frame.columns]
    kept = happened.select(*dict.fromkeys(numbers))
    base = [_known(old, start), *([_carried(silver.new_runs(), start)] if silver.kept else [])]
    return with_depth(joined([*computed, kept, *base]), end)


def _known(old: DataFrame, start: int) -> DataFrame:
    """The classes of which somebody waited when hour `start` began, and how many, as far as gold knows."""
    waiting = old.where((f.col("hour") == start) & (f.col("depth_start") > 0))
    return waiting.select("class", "hour", f.col("depth_start").alias("base"))


def _carried(new: DataFrame, start: int) -> DataFrame:
    """A row for each new run that waited then and came in an hour that stays as it is."""
    begin, one = start * HOUR_MS, f.lit(1).cast("bigint")
    carried = new.where((f.col("came") < begin) & (f.col("gone") >= begin))
    return carried.select("class", f.lit(start).cast("bigint").alias("hour"), one.alias("base"))


def _consumers(home: Path, gold: Manifest, silver: _Silver, span: _Span) -> DataFrame:
    touched = silver.new_deliveries().select("consumer", "hour").distinct().where(f.col("hour") >= span.hours[0])
    deliveries = silver.deliveries(silver.manifest.of("deliveries"), span.iso[0])
    computed = refining.consumer_hours(deliveries, touched)
    old = _old(home, gold, "consumers", CONSUMERS, span, silver.spark).join(touched, ["consumer", "hour"], "left_anti")
    return computed.unionByName(old.select(computed.columns))


def _old(home: Path, gold: Manifest, kind: str, schema: str, span: _Span, spark: SparkSession) -> DataFrame:
    """What gold has of these days, its hours being numbers."""
    frame = load(spark, schema, folders(home, gold.of(kind), *span.iso), "hour")
    return frame.withColumn("hour", refining.hour_of(milliseconds("hour"))).drop("queue", "day")


def _spelt(rows: DataFrame, home: Path, schema: str) -> DataFrame:
    """Rows as they are stored, a file for each day."""
    timed = rows.withColumn("hour", f.timestamp_millis(f.col("hour") * HOUR_MS)).withColumn(
        "queue", f.lit(queue_of(home))
    )
    return timed.withColumn("day", day_of("hour")).select(*names(schema), "day").repartition("day")
