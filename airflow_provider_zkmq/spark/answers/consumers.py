"""The consumers side by side."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.answers.frames import OTHERS, Frames, count_if
from airflow_provider_zkmq.spark.answers.tables import Column, Plot, Row, Section, Series, Table
from airflow_provider_zkmq.spark.answers.words import printable, spell

_COLUMNS: Final = (
    Column("queue", "queue"),
    Column("consumer", "consumer"),
    Column("deliveries", "deliveries", "count"),
    Column("failed", "failed", "count"),
    Column("failed_share", "failed of all", "share", rank=1),
    Column("run_p50", "run p50", "span"),
    Column("run_p95", "run p95", "span"),
    Column("busy", "busy in all", "span", rank=1),
    Column("utilisation", "busy of its hours", "share"),
    Column("first", "first claim", "moment", rank=2),
    Column("last", "last end", "moment", rank=2),
)

_NOTE: Final = (
    "A consumer is a client that claims, one process or one of its connections; each start of a worker is a new one. "
    "One that works on several tasks at once can be busy for more than an hour in an hour."
)


def rows(frames: Frames, top: int) -> list[Row]:
    """A row for each of those with the most deliveries, and one for all others."""
    keys = ["queue", "consumer"]
    largest = frames.deliveries.groupBy(*keys).count().orderBy(f.desc("count"), *keys).limit(top).collect()
    known = [f"{row.queue}\n{row.consumer}" for row in largest]
    listed = f.concat_ws("\n", *keys).isin(known)
    count = {name: f.when(listed, f.col(name)).otherwise(f.lit(OTHERS)) for name in keys}
    facts = [
        f.count("*").alias("deliveries"),
        count_if(f.col("outcome").isin("failed", "rescued")).alias("failed"),
        *(
            (f.percentile("run_ms", f.lit(point)) / 1000).alias(name)
            for point, name in ((0.5, "run_p50"), (0.95, "run_p95"))
        ),
        (f.coalesce(f.sum("run_ms"), f.lit(0)) / 1000).alias("busy"),
        f.min("claimed_at").alias("first"),
        f.max("ended_at").alias("last"),
    ]
    found = [row.asDict() for row in frames.deliveries.withColumns(count).groupBy(*keys).agg(*facts).collect()]
    used = _utilisations(frames.consumers.withColumns(count))
    for row in found:
        row["failed_share"] = row["failed"] / row["deliveries"]
        row["utilisation"] = used.get((row["queue"], row["consumer"]))
    return sorted(found, key=lambda row: (row["queue"] == OTHERS, row["queue"], -row["deliveries"], row["consumer"]))


def _utilisations(hours: DataFrame) -> dict[tuple[str, str], float]:
    """How busy each was in the hours in which it did anything; more than 1 where it held several tasks at once."""
    used = hours.groupBy("queue", "consumer").agg(f.mean("utilisation").alias("utilisation"))
    return {(row.queue, row.consumer): row.utilisation for row in used.collect()}


def section(consumer_rows: list[Row]) -> Section:
    """The consumers side by side."""
    known = [row for row in consumer_rows if row["queue"] != OTHERS]
    busy = [row for row in known if row["utilisation"] is not None][:20]
    said = [_said(known)] if known else []
    plot = Plot(
        "bars",
        "How busy the consumers were",
        f"Bars: the part of its hours in which each consumer was busy. {' '.join(said)}",
        [f"{printable(row['consumer'])} of {row['queue']}" for row in busy],
        [Series("busy", [row["utilisation"] for row in busy])],
        "share",
    )
    table = Table("consumers", "Consumers, those with the most deliveries first", _COLUMNS, consumer_rows)
    return Section("consumers", "Consumers side by side", said, [table], [_NOTE], [plot] if busy else [])


def _said(known: list[Row]) -> str:
    often = max(known, key=lambda row: (row["failed_share"], row["failed"]))
    slow = max(known, key=lambda row: row["run_p50"] or 0)
    text = f"{printable(slow['consumer'])} is the slowest: half of its deliveries took {spell('span', slow['run_p50'])}"
    if not often["failed"]:
        return f"{text} or more."
    share = f"{often['failed']:,} of {often['deliveries']:,}"
    return f"{text} or more. {printable(often['consumer'])} fails most often: {share} deliveries."
