"""Gold: numbers for each class and consumer in each hour, of the days that new silver rows touch.

Whole days are computed anew from silver, from the first that was touched to the last, and replaced; those of consumers
are committed first, and are read as far as the hours of classes have come. Days that silver's retention has passed stay
as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from ...delta_tables import Staged, Table
from ...location import Location
from ..session import spark_session
from .plain_rows import Row, first_known, plain, table_of
from .queue_reader import DAY_MS
from .silver import DELIVERIES, REVOKED, RUNS, check_behind
from .stage_and_load import Counts, are_few, columns, day_of, load, load_here, milliseconds, stage, stage_here, with_day

# --- Silver rows as numbers for each hour: of classes and of consumers. Columns only: nothing is read or written here.
#
# Hours are whole ones since 1970.

HOUR_MS: Final = 3_600_000
_TIMES: Final = ", ".join(f"{span}_{of} double" for span in ("wait", "run") for of in ("p50", "p95", "p99", "mean"))
HOURLY: Final = columns(
    "queue string, class string, hour timestamp, arrivals bigint, deliveries bigint, ended bigint, finished bigint, "
    "dead bigint, cancelled bigint, retries bigint, throughput_per_s double, depth_start bigint, depth_end bigint, "
    f"depth_max bigint, depth_mean double, {_TIMES}, busy_ms bigint"
)
CONSUMERS: Final = columns(
    "queue string, consumer string, hour timestamp, deliveries bigint, finished bigint, failed bigint, busy_ms bigint, "
    "utilisation double"
)
#: What becomes of deliveries that have not failed: one that an operator took away (``revoked``) counts as no attempt.
NOT_FAILED: Final = ("finished", "cancelled", REVOKED)


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
    failed = ~f.col("outcome").isin(*NOT_FAILED)
    hours = deliveries.groupBy("consumer", "hour").agg(
        f.count_if(ended).alias("deliveries"),
        f.count_if(ended & (f.col("outcome") == "finished")).alias("finished"),
        f.count_if(ended & failed).alias("failed"),
        f.sum("busy").alias("busy_ms"),
    )
    return hours.withColumn("utilisation", f.col("busy_ms") / HOUR_MS)


# --- The same of few rows, in this process.

_STATES: Final = ("finished", "dead", "cancelled")
_POINTS: Final = (50, 95, 99)


def moments_here(runs: pa.Table, deliveries: pa.Table) -> tuple[list[Row], list[Row]]:
    """What `moments_of_runs` and `moments_of_deliveries` make; of a delivery a row for all of its hours, ``hours``."""
    timed_runs, timed_deliveries = plain(runs), plain(deliveries)
    for run in timed_runs:
        ended, came = run["ended_at"] // 1000, run["enqueued_at"] // 1000
        claimed = ended if run["claimed_at"] is None else run["claimed_at"] // 1000
        run["ended"], run["came"] = ended, min(came, ended)
        run["gone"] = max(run["came"], min(claimed, ended))
    for delivery in timed_deliveries:
        ended = delivery["ended_at"] // 1000
        began = (first_known(delivery["started_at"], delivery["claimed_at"]) or 0) // 1000
        delivery["ended"], delivery["began"] = ended, began if 0 < began < ended else ended
        delivery["hours"] = range(delivery["began"] // HOUR_MS, ended // HOUR_MS + 1)
    return timed_runs, timed_deliveries


def hours_in_all(runs: list[Row], deliveries: list[Row]) -> int:
    """In how many hours they were in the queue or worked at, summed over all: so many rows gold may have."""
    alike = {(run["class"], run["came"] // HOUR_MS, run["gone"] // HOUR_MS) for run in runs}
    waited, worked = (gone - came + 1 for _, came, gone in alike), (len(each["hours"]) for each in deliveries)
    return int(sum(waited) + sum(worked))


def _busy(delivery: Row, hour: int) -> int:
    """For how many milliseconds of an hour somebody worked at it."""
    begin, end = hour * HOUR_MS, (hour + 1) * HOUR_MS
    return int(min(delivery["ended"], end) - max(delivery["began"], begin))


def class_hours_here(runs: list[Row], deliveries: list[Row], begin: int, end: int) -> list[Row]:
    """What `class_hours` makes."""
    counts = ("arrivals", "departures", "deliveries", "ended", *_STATES, "retries", "depth_start", "busy_ms")
    hours = defaultdict[tuple[str, int], Row](lambda: dict.fromkeys(counts, 0))
    spans = defaultdict[tuple[str, int, str], list[int]](list)
    moves = defaultdict[tuple[str, int], Counter[int]](Counter)
    for run in runs:
        name, last = run["class"], run["ended"] // HOUR_MS
        hours[name, last]["ended"] += 1
        hours[name, last][run["state"]] += 1
        for span in ("wait", "run"):
            if run[f"{span}_ms"] is not None:
                spans[name, last, span].append(run[f"{span}_ms"])
        for at, what, by in ((run["came"], "arrivals", 1), (run["gone"], "departures", -1)):
            hours[name, at // HOUR_MS][what] += 1
            moves[name, at // HOUR_MS][at] += by
    for delivery in deliveries:
        for hour in delivery["hours"]:
            hours[delivery["class"], hour]["busy_ms"] += _busy(delivery, hour)
        ends = hours[delivery["class"], delivery["hours"][-1]]
        ends["deliveries"] += 1
        ends["retries"] += delivery["number"] > 1
    alike = Counter((run["class"], run["came"] // HOUR_MS, run["gone"] // HOUR_MS) for run in runs)
    for (name, came, gone), many in alike.items():
        for hour in range(max(came + 1, begin), min(gone, end - 1) + 1):
            hours[name, hour]["depth_start"] += many
    made = []
    for (name, hour), row in hours.items():
        if begin <= hour < end:
            row |= {"class": name, "hour": hour, "throughput_per_s": row["finished"] / (HOUR_MS / 1000)}
            row |= _depth(row, sorted(moves.get((name, hour), {}).items()))
            row |= _measured("wait", spans.get((name, hour, "wait"), []))
            made.append(row | _measured("run", spans.get((name, hour, "run"), [])))
    return made


def _depth(row: Row, moves: list[tuple[int, int]]) -> Row:
    """What became of the depth in an hour: see `_flow`."""
    levels = [0, *accumulate(by for _, by in moves)]
    area = sum(by * ((row["hour"] + 1) * HOUR_MS - at) for at, by in moves)
    return {
        "depth_end": row["depth_start"] + levels[-1],
        "depth_max": row["depth_start"] + max(levels),
        "depth_mean": row["depth_start"] + area / HOUR_MS,
    }


def _measured(span: str, values: list[int]) -> Row:
    """The percentiles and the mean; None for each where nothing was measured."""
    points = np.percentile(values, _POINTS).tolist() if values else [None] * len(_POINTS)
    named = {f"{span}_p{point}": value for point, value in zip(_POINTS, points, strict=True)}
    return named | {f"{span}_mean": float(np.mean(values)) if values else None}


def consumer_hours_here(deliveries: list[Row], begin: int, end: int) -> list[Row]:
    """What `consumer_hours` makes."""
    counts = ("deliveries", "finished", "failed", "busy_ms")
    hours = defaultdict[tuple[str, int], Row](lambda: dict.fromkeys(counts, 0))
    for delivery in deliveries:
        for hour in delivery["hours"]:
            hours[delivery["consumer"], hour]["busy_ms"] += _busy(delivery, hour)
        ends = hours[delivery["consumer"], delivery["hours"][-1]]
        ends["deliveries"] += 1
        ends["finished"] += delivery["outcome"] == "finished"
        ends["failed"] += delivery["outcome"] not in NOT_FAILED
    return [
        row | {"consumer": name, "hour": hour, "utilisation": row["busy_ms"] / HOUR_MS}
        for (name, hour), row in hours.items()
        if begin <= hour < end
    ]


# --- Gold's step: the days that new silver rows touch are computed anew.

_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_HOURS: Final = DAY_MS // HOUR_MS


def summarise(
    home: Location, spark: SparkSession | None = None, *, after: Callable[[str], None] = lambda _step: None
) -> Counts:
    """Bring gold up to silver, in the queue's folder `home`; returns the days that it wrote, and the rows that it has.

    `spark`: for more than `FEW` rows of those days; default: `spark_session()`. Raises `ConfigError` where gold was
    made of another silver, and where another run is at work.
    """
    hourly, consumers, runs = (Table.open(home, kind) for kind in ("hourly", "consumers", "runs"))
    deliveries = Table.open(home, "deliveries", until=runs.mark.watermark)
    check_behind(consumers, runs)
    check_behind(hourly, runs)
    mark, until = hourly.mark, runs.mark.watermark
    newer = min(mark.watermark, consumers.mark.watermark)  # either may have been removed, to be made anew
    if newer == until:
        after("published")
        return {"days written": 0, "hours of classes": mark.rows, "hours of consumers": consumers.mark.rows}
    silver = Silver(runs, deliveries, spark)
    first, last = silver.touched(newer)
    days = range(0)  # as ordinals: those whose numbers change, but for what silver or gold have forgotten
    if first is not None and last is not None:
        kept = max(runs.mark.horizon, mark.horizon)
        days = range(max(_EPOCH + first // _DAY_HOURS, kept), _EPOCH + last // _DAY_HOURS + 1)
    replaced = (date.fromordinal(days[0]).isoformat(), date.fromordinal(days[-1]).isoformat()) if days else None
    staged_hours, staged_consumers = silver.staged(hourly, consumers, days)
    after("staged")
    of_consumers = consumers.commit(staged_consumers, replace(consumers.mark, watermark=until), replaced)
    after("committed consumers")
    of_classes = hourly.commit(staged_hours, replace(mark, watermark=until), replaced)
    after("published")
    return {"days written": len(days), "hours of classes": of_classes, "hours of consumers": of_consumers}


@dataclass(frozen=True, slots=True)
class Silver:
    """Both tables of silver, and what is made of their rows: in this process where they are few, by Spark else."""

    runs: Table
    deliveries: Table
    spark: SparkSession | None

    def touched(self, newer: int) -> tuple[int | None, int | None]:
        """The first and the last hour in which rows that are newer than a watermark count."""
        if self._few(newer=newer):
            runs, deliveries = self._here(newer=newer)
            hours = [hour for each in deliveries for hour in (each["hours"][0], each["hours"][-1])]
            hours += [each[at] // HOUR_MS for each in runs for at in ("came", "ended")]
            return min(hours, default=None), max(hours, default=None)
        frames = self._frames(newer=newer)
        spans = frames[0].select(hour_of("came").alias("first"), hour_of("ended_ms").alias("last"))
        spans = spans.union(frames[1].select("hour", "hour"))
        ((first, last),) = spans.agg(f.min("first"), f.max("last")).collect()
        return first, last

    def staged(self, hourly: Table, consumers: Table, days: range) -> tuple[Staged, Staged]:
        """The numbers of these days, given as ordinals, staged for both tables of gold."""
        # Whoever waited when the first day began has ended since, and so silver has it, however early it came.
        since, (begin, end) = "9999", ((day - _EPOCH) * _DAY_HOURS for day in (days.start, days.stop))
        if days:
            since = date.fromordinal(days[0]).isoformat()
        if self._few(since):
            runs, deliveries = self._here(since)
            if are_few(hours_in_all(runs, deliveries)):
                hours = class_hours_here(runs, deliveries, begin, end)
                worked = consumer_hours_here(deliveries, begin, end)
                return _staged_here(hourly, HOURLY, hours), _staged_here(consumers, CONSUMERS, worked)
        frames = self._frames(since)
        numbers = consumer_hours(frames[1]).where(f.col("hour").between(begin, end - 1))
        return _staged(hourly, HOURLY, class_hours(*frames, begin, end)), _staged(consumers, CONSUMERS, numbers)

    def _since(self, table: Table, since: str) -> str:
        """The first day that is looked at: silver has forgotten those before its horizon, and may have rows of them."""
        return max(since, date.fromordinal(table.mark.horizon).isoformat()) if table.mark.horizon else since

    def _few(self, since: str = "", newer: int = 0) -> bool:
        """Whether the rows that ended since a day and are newer than a watermark are few."""
        tables = (self.runs, self.deliveries)
        return are_few(sum(each.count(self._since(each, since), newer=newer) for each in tables))

    def _here(self, since: str = "", newer: int = 0) -> tuple[list[Row], list[Row]]:
        """Those rows, with their moments."""
        runs, deliveries = (
            load_here(table.location, some, self._files(table, since, newer), newer)
            for table, some in ((self.runs, _OF_RUNS), (self.deliveries, _OF_DELIVERIES))
        )
        return moments_here(runs, deliveries)

    def _frames(self, since: str = "", newer: int = 0) -> tuple[DataFrame, DataFrame]:
        """The same as DataFrames."""
        session = self.spark or spark_session()
        runs, deliveries = (
            load(session, table.location, some, self._files(table, since, newer), "ended_at", newer)
            for table, some in ((self.runs, _OF_RUNS), (self.deliveries, _OF_DELIVERIES))
        )
        return moments_of_runs(runs), moments_of_deliveries(deliveries)

    def _files(self, table: Table, since: str, newer: int) -> list[str]:
        return table.files(self._since(table, since), newer=newer)


#: What gold is made of.
_OF_RUNS: Final = pa.schema(
    [RUNS.field(name) for name in ("class", "state", "enqueued_at", "claimed_at", "ended_at", "wait_ms", "run_ms")]
)
_OF_DELIVERIES: Final = pa.schema(
    [
        DELIVERIES.field(name)
        for name in ("class", "consumer", "number", "outcome", "started_at", "claimed_at", "ended_at")
    ]
)


def _staged(table: Table, schema: pa.Schema, rows: DataFrame) -> Staged:
    """Stage rows as they are stored, a file for each day."""
    timed = rows.withColumn("hour", f.timestamp_millis(f.col("hour") * HOUR_MS))
    timed = timed.withColumn("queue", f.lit(table.queue)).withColumn("day", day_of("hour"))
    return stage(table, schema, timed.repartition("day"))


def _staged_here(table: Table, schema: pa.Schema, rows: list[Row]) -> Staged:
    """The same of rows."""
    for row in rows:
        row |= {"queue": table.queue, "day": row["hour"] // _DAY_HOURS, "hour": row["hour"] * HOUR_MS * 1000}
    return stage_here(table, schema, [table_of(rows, with_day(schema))])
