"""Silver: a row for each run and for each delivery, each once, made of the bronze rows that silver has not seen.

Deliveries are committed first, and are read as far as the runs have come. A delivery is told of by its run's row, and
by the rows of later runs of the same id: each is looked up in silver, from the day of the first claim on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...delta_tables import Table
from ...engine import ConfigError
from .queue_reader import SCHEMA
from .stage_and_load import Counts, day_of, load, milliseconds, names, stage

# --- Bronze rows as silver rows: one for each run, one for each delivery. Only columns: nothing is read or written.

RUNS: Final = (
    "queue string, task_id string, version bigint, state string, class string, filters map<string,string>, "
    "priority int, attempt int, consumer string, batch string, enqueued_at timestamp, claimed_at timestamp, "
    "ended_at timestamp, wait_ms bigint, run_ms bigint, error string, started_at timestamp"
)
DELIVERIES: Final = (
    "queue string, task_id string, version bigint, number int, class string, consumer string, "
    "claimed_at timestamp, ended_at timestamp, run_ms bigint, outcome string, error string, "
    "started_at timestamp"
)
#: What tells deliveries apart. When one ended is not of it: a record's time and the server's differ by milliseconds.
KEY: Final = ("task_id", "number", "claimed_at")


def class_of(filters: str) -> Column:
    """The filter class: ``name=value`` in the order of names, joined by ``;``; signs that part them are escaped."""

    def escaped(text: Column) -> Column:
        for sign in "%;=":
            text = f.replace(text, f.lit(sign), f.lit(f"%{ord(sign):02X}"))
        return text

    pairs = f.array_sort(f.map_entries(filters))
    spelt = f.transform(pairs, lambda pair: f.concat_ws("=", escaped(pair["key"]), escaped(pair["value"])))
    return f.coalesce(f.array_join(spelt, ";"), f.lit(""))


def runs_of(bronze: DataFrame) -> DataFrame:
    """A row for each bronze row. What a dead or cancelled run's record does not say, its last delivery does."""
    latest = f.try_element_at("history", f.lit(-1))
    own = f.when(latest["number"] == f.col("attempt"), latest)
    known = bronze.withColumn("own", own).withColumn("claimed", f.coalesce("claimed_at", "own.claimed_at"))
    known = known.withColumn("began", f.coalesce("started_at", "claimed_at", "own.started_at", "own.claimed_at"))
    waited = milliseconds("began") - milliseconds("enqueued_at")
    ran = milliseconds("own.ended_at") - milliseconds("began")
    computed = {
        "task_id": f.col("id"),
        "class": class_of("filters"),
        "consumer": f.coalesce("consumer", "own.consumer"),
        "claimed_at": f.col("claimed"),
        "started_at": f.col("began"),
        "wait_ms": f.coalesce("wait_ms", waited),
        "run_ms": f.coalesce("run_ms", ran),
        "day": day_of("ended_at"),
    }
    return known.select(*(computed.get(name, f.col(name)).alias(name) for name in (*names(RUNS), "day")))


def deliveries_of(bronze: DataFrame) -> DataFrame:
    """A row for each delivery that these rows tell of, once, as the first of them tells it.

    A finished run's last delivery is in its row, those before in its history, and so are those of earlier runs of the
    same id, also where another row tells of them. A history has the last ten.
    """
    members = ("number", "consumer", "claimed_at", "ended_at", "outcome", "error", "started_at")
    last = {"number": f.col("attempt"), "outcome": f.col("state"), "error": f.lit(None)}
    own = f.struct(*(last.get(name, f.col(name)).alias(name) for name in members))
    finished = (f.col("state") == "finished") & f.col("claimed_at").isNotNull()
    past = f.coalesce("history", f.array())
    each = f.concat(past, f.when(finished, f.array(own)).otherwise(f.array()))
    known = ("queue", f.col("id").alias("task_id"), "version", class_of("filters").alias("class"))
    spread = bronze.select(*known, f.explode(each).alias("e"))
    rows = spread.select("queue", "task_id", "version", "class", "e.*").fillna("", ["consumer"])
    rows = rows.withColumn("started_at", f.coalesce("started_at", "claimed_at"))
    rows = rows.withColumn("run_ms", milliseconds("ended_at") - milliseconds("started_at"))
    # Of the rows of a delivery the one with the lowest version.
    rest = ["version", *(name for name in names(DELIVERIES) if name not in {*KEY, "version"})]
    first = rows.groupBy(*KEY).agg(f.min(f.struct(*rest)).alias("first")).select(*KEY, "first.*")
    return first.select(*names(DELIVERIES)).withColumn("day", day_of("ended_at"))


def refine(home: Path, spark: SparkSession, *, after: Callable[[str], None] = lambda _step: None) -> Counts:
    """Bring silver up to bronze, in the queue's folder `home`; returns what it gained, and the runs that it has.

    Raises `ConfigError` where silver was made of another bronze, and where another run is at work.
    """
    # Bronze comes last: what another run does meanwhile does not put it behind, and has this one's commits refused.
    deliveries, runs, bronze = (Table.open(home, kind) for kind in ("deliveries", "runs", "bronze"))
    until, total = bronze.mark.watermark, runs.mark.rows
    new_deliveries = new_runs = None
    if (rows := _newer(bronze, deliveries, spark)) is not None:
        ended, horizon = deliveries_of(rows), deliveries.mark.horizon
        # Those of days that silver still keeps, and that it does not hold. When one ended may be told with another few
        # milliseconds by another row: a day more is looked through.
        kept = ended.where(f.col("day") >= date.fromordinal(horizon)) if horizon else ended
        ((first, last),) = kept.agg(f.min(day_of("claimed_at")), f.max("day")).collect()
        files = deliveries.files(first.isoformat(), (last + timedelta(days=1)).isoformat()) if first else []
        held = load(spark, DELIVERIES, files, "ended_at").select(*KEY)
        new_deliveries = stage(deliveries, DELIVERIES, kept.join(held, list(KEY), "left_anti"), until)
    after("staged deliveries")
    if (rows := _newer(bronze, runs, spark)) is not None:
        new_runs = stage(runs, RUNS, runs_of(rows), until)
    after("staged runs")
    if new_deliveries:
        deliveries.commit(new_deliveries, replace(deliveries.mark, watermark=until))
    after("committed deliveries")
    if new_runs:
        total = runs.commit(new_runs, replace(runs.mark, watermark=until))
    after("published")
    gained = [new.rows if new else 0 for new in (new_runs, new_deliveries)]
    return {"runs": gained[0], "deliveries": gained[1], "runs in all": total}


def check_behind(table: Table, before: Table) -> None:
    """Raise `ConfigError` where a table is ahead of the one that it is made of."""
    if table.mark.watermark > before.mark.watermark:
        raise ConfigError(
            f"{table.path} is at zxid {table.mark.watermark}, and what it is made of only at {before.mark.watermark}: "
            "it belongs to another archive, or an older copy of that was brought back; remove the folder to have it "
            "made anew"
        )


def _newer(bronze: Table, table: Table, spark: SparkSession) -> DataFrame | None:
    """The rows of bronze that a table has not seen; None where it is as far as bronze."""
    check_behind(table, bronze)
    newer = table.mark.watermark
    if newer == bronze.mark.watermark:
        return None
    return load(spark, SCHEMA, bronze.files(newer=newer), "ended_at", newer)
