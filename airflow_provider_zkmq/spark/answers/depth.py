"""The depth of the queues over time, and what came and went meanwhile."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.answers.frames import Frames
from airflow_provider_zkmq.spark.answers.tables import Column, Plot, Row, Section, Series, Table
from airflow_provider_zkmq.spark.answers.words import moment, printable, several

#: At most so many places on the axis of time.
PLACES: Final = 96
_HOUR: Final = 3600
_SUMS: Final = ("arrivals", "ended", "retries", "dead")
_HOURS: Final = (
    Column("queue", "queue"),
    Column("hour", "from", "moment"),
    Column("depth_mean", "waiting, mean", "real"),
    Column("depth_max", "waiting, most", "count"),
    *(Column(name, name, "count") for name in _SUMS),
)
_TRENDS: Final = (
    Column("queue", "queue"),
    Column("trend", "waiting, from then to now", "trend"),
    Column("depth_max", "most", "count"),
    Column("worst", "at", "moment"),
    Column("depth_end", "at the end", "count"),
)

_NOTE: Final = (
    "Waiting are tasks that were enqueued and not yet claimed the last time. The archive knows a task when it has "
    "ended: what waits or runs now is not in it, so that the last hours look emptier than they were."
)


def rows(frames: Frames, top: int) -> list[Row]:
    """A row for each queue and span of some hours, in order of time."""
    ends = frames.hourly.agg(f.min("hour").alias("first"), f.max("hour").alias("last")).collect()[0]
    if ends.first is None:
        return []
    hours = int((ends.last - ends.first) // _HOUR) + 1
    wide = -(-hours // PLACES) * _HOUR
    per_hour = frames.hourly.groupBy("queue", "hour").agg(
        *(f.sum(name).alias(name) for name in (*_SUMS, "depth_mean", "depth_max", "depth_end"))
    )
    start: Expression = ends.first + f.floor((f.col("hour") - ends.first) / wide) * wide
    spans = (
        per_hour.withColumn("span", start)
        .groupBy("queue", "span")
        .agg(
            *(f.sum(name).alias(name) for name in _SUMS),
            (f.sum("depth_mean") * _HOUR / wide).alias("depth_mean"),
            f.max("depth_max").alias("depth_max"),
            f.max_by("depth_end", "hour").alias("depth_end"),
        )
    )
    found = [row.asDict() for row in spans.withColumnRenamed("span", "hour").orderBy("queue", "hour").collect()]
    deep = sorted({row["queue"] for row in found}, key=lambda queue: (-_deepest(found, queue), queue))[:top]
    return [row for row in found if row["queue"] in deep]


def _deepest(found: list[Row], queue: str) -> int:
    return max(row["depth_max"] or 0 for row in found if row["queue"] == queue)


def section(hour_rows: list[Row]) -> Section:
    """The depth over time."""
    places = sorted({row["hour"] for row in hour_rows})
    by_queue = {queue: _line(hour_rows, queue, places) for queue in dict.fromkeys(row["queue"] for row in hour_rows)}
    trends = [_trend(hour_rows, queue, line) for queue, line in by_queue.items()]
    trends.sort(key=lambda row: (-row["depth_max"], row["queue"]))
    said = [_said(trends[0])] if trends and trends[0]["depth_max"] else []
    shown = [row["queue"] for row in trends[:6]]
    alt = f"Lines: how many tasks of each queue were waiting over time. {' '.join(said)}"
    lines = [Series(printable(queue), by_queue[queue]) for queue in shown]
    flow = [Series(name, _sums(hour_rows, name, places), beside=True) for name in _SUMS]
    plots = (
        [Plot("lines", "Tasks waiting, and below what came and went meanwhile", alt, places, [*lines, *flow], "real")]
        if len(places) > 1
        else []
    )
    tables = [
        Table("trends", "Depth of each queue", _TRENDS, trends),
        Table("hours", "Depth and flow over time", _HOURS, hour_rows, folded=True),
    ]
    return Section("depth", "Depth over time", said, tables, [_NOTE], plots)


def _line(hour_rows: list[Row], queue: str, places: list[float]) -> list[float | None]:
    known = {row["hour"]: row["depth_mean"] for row in hour_rows if row["queue"] == queue}
    return [known.get(place, 0.0) for place in places]


def _sums(hour_rows: list[Row], name: str, places: list[float]) -> list[float | None]:
    return [sum(row[name] or 0 for row in hour_rows if row["hour"] == place) for place in places]


def _trend(hour_rows: list[Row], queue: str, line: list[float | None]) -> Row:
    own = [row for row in hour_rows if row["queue"] == queue]
    worst = max(own, key=lambda row: row["depth_max"] or 0)
    ends = {"depth_max": worst["depth_max"] or 0, "worst": worst["hour"], "depth_end": own[-1]["depth_end"]}
    return {"queue": queue, "trend": line[-48:], **ends}


def _said(deepest: Row) -> str:
    waited = several(deepest["depth_max"], "task")
    return f"{deepest['queue']} was deepest: {waited} waited after {moment(deepest['worst'])} UTC."
