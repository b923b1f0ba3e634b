"""Which class waits longest, and how often tasks are tried again or end in the dead letters."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.answers.frames import OTHERS, Frames, count_if, percentiles
from airflow_provider_zkmq.spark.answers.tables import Column, Plot, Row, Section, Series, Table
from airflow_provider_zkmq.spark.answers.words import name, several, span

_QUEUES: Final = (
    Column("queue", "queue"),
    Column("runs", "tasks ended", "count"),
    *(Column(state, state, "count") for state in ("finished", "dead", "cancelled")),
    Column("retries", "retries", "count"),
    Column("wait_p95", "wait p95", "span"),
    Column("first", "first enqueued", "moment", rank=2),
    Column("last", "last end", "moment"),
)
_WAITS: Final = (
    Column("queue", "queue"),
    Column("class", "class", "name"),
    Column("runs", "tasks", "count"),
    Column("wait_mean", "wait mean", "span", rank=1),
    *(Column(f"wait_p{point}", f"p{point}", "span") for point in (50, 95, 99)),
    Column("wait_max", "longest", "span"),
    Column("run_p50", "run p50", "span", rank=2),
    Column("run_p95", "run p95", "span", rank=2),
)
_ENDS: Final = (
    Column("queue", "queue"),
    Column("class", "class", "name"),
    Column("runs", "tasks", "count"),
    Column("retried", "tried again", "count", rank=1),
    Column("retries", "retries", "count"),
    Column("most", "most tries", "count", rank=1),
    Column("dead", "dead", "count"),
    Column("dead_share", "dead of all", "share"),
    Column("cancelled", "cancelled", "count", rank=2),
)

_NOTE: Final = (
    "Waiting is from the enqueue to the beginning of the last try: delays that were asked for, and the pauses and "
    "earlier tries of a task that failed, count as waiting. Tasks that were never claimed have no wait."
)


def _counts() -> list[Expression]:
    states = [count_if(f.col("state") == state).alias(state) for state in ("finished", "dead", "cancelled")]
    tried = f.greatest(f.col("attempt") - 1, f.lit(0))
    return [
        f.count("*").alias("runs"),
        *states,
        f.coalesce(f.sum(tried), f.lit(0)).cast("bigint").alias("retries"),
        count_if(tried > 0).alias("retried"),
    ]


def queues(frames: Frames, top: int) -> list[Row]:
    """A row for each of the queues with the most tasks, and one for all others."""
    facts = [
        *_counts(),
        (f.percentile("wait_ms", f.lit(0.95)) / 1000).alias("wait_p95"),
        f.min("enqueued_at").alias("first"),
        f.max("ended_at").alias("last"),
    ]
    ranked = frames.runs.groupBy("queue").count().orderBy(f.desc("count"), "queue").limit(top).select("queue")
    largest = [row.queue for row in ranked.collect()]
    label = f.when(f.col("queue").isin(largest), f.col("queue")).otherwise(f.lit(OTHERS))
    rows = frames.runs.withColumn("queue", label).groupBy("queue").agg(*facts).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: (row["queue"] == OTHERS, -row["runs"], row["queue"]))


def classes(frames: Frames, top: int) -> list[tuple[str, str]]:
    """The classes with the most tasks, each with its queue."""
    counted = frames.runs.groupBy("queue", "class").count()
    return [
        (row.queue, row["class"]) for row in counted.orderBy(f.desc("count"), "queue", "class").limit(top).collect()
    ]


def rows(runs: DataFrame) -> list[Row]:
    """A row for each class, the longest wait first."""
    facts = [
        *_counts(),
        f.max("attempt").alias("most"),
        (f.mean("wait_ms") / 1000).alias("wait_mean"),
        (f.max("wait_ms") / 1000).alias("wait_max"),
        *percentiles("wait_ms", "wait"),
        *percentiles("run_ms", "run"),
    ]
    found = [row.asDict() for row in runs.groupBy("queue", "class").agg(*facts).collect()]
    for row in found:
        row["dead_share"] = row["dead"] / row["runs"]
    return sorted(found, key=lambda row: (-(row["wait_p95"] or 0), row["queue"], row["class"]))


def overview(queue_rows: list[Row]) -> Section:
    """What there was in all."""
    runs = sum(row["runs"] for row in queue_rows)
    said = [f"{several(runs, 'task')} ended."] if runs else ["No task ended in this time."]
    return Section("overview", "Queues", said, [Table("queues", "What ended", _QUEUES, queue_rows)])


def waiting(class_rows: list[Row]) -> Section:
    """Which class waits longest."""
    waited = [row for row in class_rows if row["wait_p95"] is not None]
    said = [_longest(waited[0])] if waited else []
    plot = Plot(
        "bars",
        "Wait of each class",
        f"Bars: how long half and 95 of 100 tasks of each class waited. {' '.join(said)}",
        [label(row) for row in waited],
        [Series(title, [row[key] for row in waited]) for title, key in (("p50", "wait_p50"), ("p95", "wait_p95"))],
        "span",
    )
    table = Table("classes", "Waiting and running times, longest wait first", _WAITS, class_rows)
    return Section("waiting", "Who waits longest", said, [table], [_NOTE], [plot] if waited else [])


def _longest(row: Row) -> str:
    return (
        f"{label(row)} waits longest: 95 of 100 tasks are begun within {span(row['wait_p95'])}, "
        f"half within {span(row['wait_p50'])}."
    )


def label(row: Row) -> str:
    """The queue and class of a row for people."""
    return f"{name(row['class'])} of {row['queue']}"


def ends(class_rows: list[Row]) -> Section:
    """How often tasks are tried again or die."""
    troubled = [row for row in class_rows if row["retries"] or row["dead"]]
    troubled.sort(key=lambda row: (-row["dead"], -row["retries"], row["queue"], row["class"]))
    dead, retries = (sum(row[key] for row in class_rows) for key in ("dead", "retries"))
    said = [f"{several(dead, 'task')} ended in the dead letters; there were {retries:,} retries."]
    table = Table("retries", "Tries and dead letters", _ENDS, troubled, "no task was tried again, and none died")
    return Section("retries", "Retries and dead letters", said, [table])
