"""The tables that a report is made from: those of the history, cut to the time and the queues that are asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.history.reading import read_consumers, read_deliveries, read_hourly, read_runs

#: What stands for all that is too small for a row of its own. No name of a queue, a class or a consumer has blanks.
OTHERS: Final = "all others"
POINTS: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Frames:
    """Silver's runs and deliveries, and gold's hours and consumers. Times are seconds since 1970 from here on."""

    runs: DataFrame
    deliveries: DataFrame
    hourly: DataFrame
    consumers: DataFrame

    def between(self, since: datetime | None, until: datetime | None) -> Frames:
        """What ended, or happened in an hour that began, from `since` and before `until`."""
        return Frames(
            *(_between(frame, "ended_at", since, until) for frame in (self.runs, self.deliveries)),
            *(_between(frame, "hour", since, until) for frame in (self.hourly, self.consumers)),
        )

    def of(self, queues: Sequence[str]) -> Frames:
        """Those of some queues."""
        wanted = f.col("queue").isin(list(queues))
        return Frames(*(frame.where(wanted) for frame in (self.runs, self.deliveries, self.hourly, self.consumers)))

    def with_seconds(self) -> Frames:
        """The same with its times as numbers, which have no zone that anybody could mistake."""
        return Frames(
            _seconds(self.runs, "enqueued_at", "claimed_at", "ended_at"),
            _seconds(self.deliveries, "claimed_at", "started_at", "ended_at"),
            _seconds(self.hourly, "hour"),
            _seconds(self.consumers, "hour"),
        )

    def with_classes(self, known: Sequence[tuple[str, str]]) -> Frames:
        """The same with every class that is not one of these pairs of queue and class called `OTHERS`."""
        runs, deliveries, hourly = (_classed(frame, known) for frame in (self.runs, self.deliveries, self.hourly))
        return replace(self, runs=runs, deliveries=deliveries, hourly=hourly)


def read(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    queues: Sequence[str],
    since: datetime | None,
    until: datetime | None,
) -> Frames:
    """The tables of these queues below a directory; days that are not asked for are not read."""
    only = queues[0] if len(queues) == 1 else None
    first, last = (None if when is None else when.astimezone(UTC).date() for when in (since, until))
    readers = (read_runs, read_deliveries, read_hourly, read_consumers)
    frames = Frames(*(each(spark, directory, only, since=first, until=last) for each in readers))
    return (frames if only else frames.of(queues)).between(since, until)


def _between(frame: DataFrame, column: str, since: datetime | None, until: datetime | None) -> DataFrame:
    frame = frame if since is None else frame.where(f.col(column) >= f.lit(since))
    return frame if until is None else frame.where(f.col(column) < f.lit(until))


def _seconds(frame: DataFrame, *columns: str) -> DataFrame:
    return frame.withColumns({name: f.unix_micros(name) / f.lit(1e6) for name in columns})


def _classed(frame: DataFrame, known: Sequence[tuple[str, str]]) -> DataFrame:
    pair = f.concat_ws("\n", "queue", "class")  # names of queues have no line ends
    wanted = pair.isin([f"{queue}\n{name}" for queue, name in known])
    return frame.withColumn("class", f.when(wanted, f.col("class")).otherwise(f.lit(OTHERS)))


def percentiles(column: str, name: str) -> list[Column]:
    """The exact percentiles of a column of milliseconds, in seconds: ``<name>_p50`` and so on."""
    return [(f.percentile(column, f.lit(point)) / 1000).alias(f"{name}_p{point * 100:.0f}") for point in POINTS]


def count_if(condition: Column) -> Column:
    """How many rows are so."""
    return f.coalesce(f.sum(condition.cast("bigint")), f.lit(0))
