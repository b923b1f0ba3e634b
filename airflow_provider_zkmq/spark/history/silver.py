"""Silver: a row for each run and for each delivery, each once, made of the bronze rows that silver has not seen.

Deliveries are committed first, and are read as far as the runs have come. A delivery is told of by its run's row, and
by the rows of later runs of the same id: each is looked up in silver, from the day of the first claim on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date, timedelta
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...delta_tables import Staged, Table
from ...engine import ConfigError
from ...location import Location
from ..session import spark_session
from .plain_rows import DAY_US, first_known, milliseconds_between, plain, table_of
from .queue_reader import SCHEMA
from .stage_and_load import Counts, are_few, columns, day_of, load, load_here, milliseconds, stage, stage_here, with_day

# --- Bronze rows as silver rows: one for each run, one for each delivery. Only columns: nothing is read or written.

RUNS: Final = columns(
    "queue string, task_id string, version bigint, state string, class string, filters map<string,string>, "
    "priority int, attempt int, consumer string, batch string, enqueued_at timestamp, claimed_at timestamp, "
    "ended_at timestamp, wait_ms bigint, run_ms bigint, error string, started_at timestamp"
)
DELIVERIES: Final = columns(
    "queue string, task_id string, version bigint, number int, class string, consumer string, "
    "claimed_at timestamp, ended_at timestamp, run_ms bigint, outcome string, error string, "
    "started_at timestamp"
)
#: What tells deliveries apart. When one ended is not of it: a record's time and the server's differ by milliseconds.
KEY: Final = ("task_id", "number", "claimed_at")
#: The outcome of a delivery that an operator took away.
REVOKED: Final = "revoked"
_DAY: Final = timedelta(days=1)
_KEYS: Final = pa.schema([DELIVERIES.field(name) for name in KEY])


#: What silver's rows are made of.
_SOURCE: Final = pa.schema([column for column in SCHEMA if column.name not in {"data", "result", "metadata", "day"}])


def class_of(filters: str) -> Column:
    """The filter class: ``name=value`` in the order of names, joined by ``;``; signs that part them are escaped."""

    def escaped(text: Column) -> Column:
        for sign in "%;=":
            text = f.replace(text, f.lit(sign), f.lit(f"%{ord(sign):02X}"))
        return text

    pairs = f.array_sort(f.map_entries(filters))
    spelt = f.transform(pairs, lambda pair: f.concat_ws("=", escaped(pair["key"]), escaped(pair["value"])))
    return f.coalesce(f.array_join(spelt, ";"), f.lit(""))


def at_least_none(span: Column) -> Column:
    """A span, where clocks of servers that disagree make it less than none: 0."""
    return f.when(span < 0, f.lit(0)).otherwise(span)


def runs_of(bronze: DataFrame) -> DataFrame:
    """A row for each bronze row. What a dead or cancelled run's record does not say, its last delivery does.

    Those that were taken away (``revoked``) count as no attempts and are left out.
    """
    counted = f.filter("history", lambda delivery: delivery["outcome"] != REVOKED)
    latest = f.try_element_at(counted, f.lit(-1))
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
        "wait_ms": at_least_none(f.coalesce("wait_ms", waited)),
        "run_ms": at_least_none(f.coalesce("run_ms", ran)),
        "day": day_of("ended_at"),
    }
    return known.select(*(computed.get(name, f.col(name)).alias(name) for name in (*RUNS.names, "day")))


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
    rows = rows.withColumn("run_ms", at_least_none(milliseconds("ended_at") - milliseconds("started_at")))
    # Of the rows of a delivery the one with the lowest version.
    rest = ["version", *(name for name in DELIVERIES.names if name not in {*KEY, "version"})]
    first = rows.groupBy(*KEY).agg(f.min(f.struct(*rest)).alias("first")).select(*KEY, "first.*")
    return first.select(*DELIVERIES.names).withColumn("day", day_of("ended_at"))


# --- The same of few rows, in this process.


def spell_class(filters: Iterable[tuple[str, str]]) -> str:
    """The filter class, as `class_of` spells it."""

    def escaped(text: str) -> str:
        return "".join(f"%{ord(sign):02X}" if sign in "%;=" else sign for sign in text)

    return ";".join(f"{escaped(name)}={escaped(value)}" for name, value in sorted(filters))


def runs_here(bronze: pa.Table) -> pa.Table:
    """What `runs_of` makes."""
    made = []
    for row in plain(bronze):
        counted = [each for each in row["history"] or () if each["outcome"] != REVOKED]
        latest = counted[-1] if counted else {}
        own = latest if latest.get("number") == row["attempt"] else {}
        claimed = first_known(row["claimed_at"], own.get("claimed_at"))
        began = first_known(row["started_at"], row["claimed_at"], own.get("started_at"), own.get("claimed_at"))
        computed = {
            "task_id": row["id"],
            "class": spell_class(row["filters"] or ()),
            "consumer": first_known(row["consumer"], own.get("consumer")),
            "claimed_at": claimed,
            "started_at": began,
            "wait_ms": _known_span(row["wait_ms"], row["enqueued_at"], began),
            "run_ms": _known_span(row["run_ms"], began, own.get("ended_at")),
            "day": row["ended_at"] // DAY_US,
        }
        made.append(row | computed)
    return table_of(made, with_day(RUNS))


def _known_span(known: int | None, begin: int | None, end: int | None) -> int | None:
    """A span as it is known, else from one time to the other; not less than none."""
    return milliseconds_between(begin, end) if known is None else max(0, known)


def deliveries_here(bronze: pa.Table) -> pa.Table:
    """What `deliveries_of` makes."""
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(plain(bronze), key=itemgetter("version")):
        run = {"queue": row["queue"], "task_id": row["id"], "version": row["version"]}
        run["class"] = spell_class(row["filters"] or ())
        ended = list(row["history"] or ())
        if row["state"] == "finished" and row["claimed_at"] is not None:
            ended.append(row | {"number": row["attempt"], "outcome": row["state"], "error": None})
        for each in ended:
            delivery = {name: each[name] for name in DELIVERIES.names if name in each} | run
            began = first_known(each["started_at"], each["claimed_at"])
            delivery |= {"consumer": each["consumer"] or "", "started_at": began}
            delivery |= {"run_ms": milliseconds_between(began, each["ended_at"]), "day": each["ended_at"] // DAY_US}
            first.setdefault(tuple(delivery[name] for name in KEY), delivery)
    return table_of(first.values(), with_day(DELIVERIES))


# --- Silver's step.


def refine(
    home: Location, spark: SparkSession | None = None, *, after: Callable[[str], None] = lambda _step: None
) -> Counts:
    """Bring silver up to bronze, in the queue's folder `home`; returns what it gained, and the runs that it has.

    `spark`: for more than `FEW` rows; default: `spark_session()`. Raises `ConfigError` where silver was made of another
    bronze, and where another run is at work.
    """
    # Bronze comes last: what another run does meanwhile does not put it behind, and has this one's commits refused.
    deliveries, runs, bronze = (Table.open(home, kind) for kind in ("deliveries", "runs", "bronze"))
    check_behind(deliveries, bronze)
    check_behind(runs, bronze)
    until, total = bronze.mark.watermark, runs.mark.rows
    new_deliveries = new_runs = None
    if deliveries.mark.watermark < until:
        new_deliveries = _new_deliveries(bronze, deliveries, spark)
    after("staged deliveries")
    if runs.mark.watermark < until:
        new_runs = _new_runs(bronze, runs, spark)
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
            f"{table.location} is at zxid {table.mark.watermark}, and what it is made of only at "
            f"{before.mark.watermark}: it belongs to another archive, or an older copy of that was brought back; "
            "remove the folder to have it made anew"
        )


def _new_runs(bronze: Table, runs: Table, spark: SparkSession | None) -> Staged:
    """The runs of the bronze rows that the table has not seen."""
    newer, until = runs.mark.watermark, bronze.mark.watermark
    where, files = bronze.location, bronze.files(newer=newer)
    if are_few(bronze.count(newer=newer)):
        return stage_here(runs, RUNS, [runs_here(load_here(where, _SOURCE, files, newer))], until)
    rows = load(spark or spark_session(), where, _SOURCE, files, "ended_at", newer)
    return stage(runs, RUNS, runs_of(rows), until)


def _new_deliveries(bronze: Table, deliveries: Table, spark: SparkSession | None) -> Staged:
    """The deliveries that they tell of: those of days that the table still keeps, and that it does not hold."""
    newer, until, horizon = deliveries.mark.watermark, bronze.mark.watermark, deliveries.mark.horizon
    where, files = bronze.location, bronze.files(newer=newer)

    def held(first: date | None, last: date | None) -> list[str]:
        # Clocks differ: one may have ended a moment before its claim, and by another row a few milliseconds later.
        found = first and last and deliveries.files((first - _DAY).isoformat(), (last + _DAY).isoformat())
        return found or []

    known = load_here(where, _SOURCE, files, newer) if are_few(bronze.count(newer=newer)) else None
    if known is not None and are_few(known.num_rows + len(compute.list_flatten(known["history"]))):
        rows = deliveries_here(known)
        rows = rows.filter(compute.field("day") >= pa.scalar(date.fromordinal(horizon))) if horizon else rows
        days = [compute.min(rows["claimed_at"].cast(pa.date32())).as_py(), compute.max(rows["day"]).as_py()]
        same = compute.field("task_id").isin(rows["task_id"].unique())
        there = load_here(deliveries.location, _KEYS, held(*days), where=same)
        return stage_here(deliveries, DELIVERIES, [rows.join(there, list(KEY), join_type="left anti")], until)
    session = spark or spark_session()
    ended = deliveries_of(load(session, where, _SOURCE, files, "ended_at", newer))
    kept = ended.where(f.col("day") >= date.fromordinal(horizon)) if horizon else ended
    (days,) = kept.agg(f.min(day_of("claimed_at")), f.max("day")).collect()
    there = load(session, deliveries.location, _KEYS, held(*days), "claimed_at").select(*KEY)
    return stage(deliveries, DELIVERIES, kept.join(there, list(KEY), "left_anti"), until)
