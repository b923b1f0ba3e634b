"""Bronze rows as silver rows: one for each run, one for each delivery. Only columns: nothing is read or written."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

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
DAY_MS: Final = 86_400_000


def milliseconds(name: str) -> Column:
    """A column's moment as milliseconds since 1970, whatever the session's time zone."""
    return f.unix_millis(f.col(name))


def day_of(name: str) -> Column:
    """The day of a moment in UTC, whatever the session's time zone."""
    return f.date_from_unix_date(f.floor(milliseconds(name) / DAY_MS).cast("int"))


def class_of(filters: str) -> Column:
    """The filter class: ``name=value`` in the order of names, joined by ``;``; signs that part them are escaped."""
    pairs = f.transform(f.array_sort(f.map_entries(filters)), lambda pair: f.concat_ws("=", *_spelt(pair)))
    return f.coalesce(f.array_join(pairs, ";"), f.lit(""))


def _spelt(pair: Column) -> list[Column]:
    return [_escaped(pair[name]) for name in ("key", "value")]


def _escaped(text: Column) -> Column:
    for sign in "%;=":
        text = f.replace(text, f.lit(sign), f.lit(f"%{ord(sign):02X}"))
    return text


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
    told = bronze.select(
        "queue", f.col("id").alias("task_id"), "version", class_of("filters").alias("class"), f.explode(each).alias("e")
    )
    rows = told.select(
        "queue",
        "task_id",
        "version",
        "class",
        *(f.col(f"e.{name}").alias(name) for name in members),
    ).fillna("", ["consumer"])
    rows = rows.withColumn("started_at", f.coalesce("started_at", "claimed_at"))
    rows = rows.withColumn("run_ms", milliseconds("ended_at") - milliseconds("started_at"))
    return _first(rows).withColumn("day", day_of("ended_at"))


def _first(rows: DataFrame) -> DataFrame:
    """Of the rows of a delivery the one with the lowest version."""
    rest = [name for name in names(DELIVERIES) if name not in KEY]
    order = ["version", *(name for name in rest if name != "version")]
    first = rows.groupBy(*KEY).agg(f.min(f.struct(*order)).alias("first"))
    columns = [f.col(name) if name in KEY else f.col(f"first.{name}").alias(name) for name in names(DELIVERIES)]
    return first.select(*columns)


def names(schema: str) -> list[str]:
    """The names of the columns that a schema's text declares."""
    return [column.strip().split(" ")[0] for column in schema.replace("map<string,string>", "map").split(",")]
