"""Silver: a row for each run and for each delivery, each once, made of the bronze parts that silver has not seen.

Both kinds of a step's rows are published by one manifest. A delivery is told of by its run's row, and by the rows of
later runs of the same id: those that were claimed no later than the latest that silver holds are looked up there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...engine import ConfigError, ZkmqError
from . import tables
from .bronze import SCHEMA
from .tables import Manifest, Part

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
    waited = tables.milliseconds("began") - tables.milliseconds("enqueued_at")
    ran = tables.milliseconds("own.ended_at") - tables.milliseconds("began")
    computed = {
        "task_id": f.col("id"),
        "class": class_of("filters"),
        "consumer": f.coalesce("consumer", "own.consumer"),
        "claimed_at": f.col("claimed"),
        "started_at": f.col("began"),
        "wait_ms": f.coalesce("wait_ms", waited),
        "run_ms": f.coalesce("run_ms", ran),
        "day": tables.day_of("ended_at"),
    }
    return known.select(*(computed.get(name, f.col(name)).alias(name) for name in (*tables.names(RUNS), "day")))


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
    bronze_runs = bronze.select(
        "queue", f.col("id").alias("task_id"), "version", class_of("filters").alias("class"), f.explode(each).alias("e")
    )
    rows = bronze_runs.select(
        "queue",
        "task_id",
        "version",
        "class",
        *(f.col(f"e.{name}").alias(name) for name in members),
    ).fillna("", ["consumer"])
    rows = rows.withColumn("started_at", f.coalesce("started_at", "claimed_at"))
    rows = rows.withColumn("run_ms", tables.milliseconds("ended_at") - tables.milliseconds("started_at"))
    return _first(rows).withColumn("day", tables.day_of("ended_at"))


def _first(rows: DataFrame) -> DataFrame:
    """Of the rows of a delivery the one with the lowest version."""
    rest = [name for name in tables.names(DELIVERIES) if name not in KEY]
    order = ["version", *(name for name in rest if name != "version")]
    first = rows.groupBy(*KEY).agg(f.min(f.struct(*order)).alias("first"))
    columns = [f.col(name) if name in KEY else f.col(f"first.{name}").alias(name) for name in tables.names(DELIVERIES)]
    return first.select(*columns)


# --- Silver's step: what bronze has gained.

#: The steps after which this may be interrupted, in order.
STEPS: Final = ("staged runs", "staged deliveries", "adopted", "published")


class TableIncomplete(ZkmqError):
    """A table was not made whole of what it is made of; nothing was published. Run it again."""


@dataclass(frozen=True, slots=True)
class Refined:
    """What silver gained: rows of runs, and of deliveries; ``total``: the runs of the whole table."""

    runs: int
    deliveries: int
    total: int


def refine(
    home: Path, spark: SparkSession, *, grace: float = tables.GRACE, after: Callable[[str], None] = lambda _step: None
) -> Refined:
    """Bring silver up to bronze, in the queue's folder `home`, which the caller holds.

    Raises `ConfigError` where silver was made of another bronze, `TableIncomplete`.
    """
    bronze, silver = tables.read_manifest(home), tables.read_manifest(home / tables.SILVER)
    check_behind(home / tables.SILVER, silver, bronze)
    _, silver = tables.sweep(home / tables.SILVER, silver, grace)
    fresh = unseen(bronze, silver.watermark, "runs")
    grown = replace(silver, watermark=bronze.watermark)
    if fresh:
        grown = _grow(home, fresh, grown, silver, spark, after)
    if grown != silver:
        (home / tables.SILVER).mkdir(exist_ok=True)
        tables.publish(home / tables.SILVER, grown)
    after("published")
    new = {kind: sum(part.rows for part in unseen(grown, silver.watermark, kind)) for kind in ("runs", "deliveries")}
    return Refined(new["runs"], new["deliveries"], sum(part.rows for part in grown.of("runs")))


def check_behind(home: Path, manifest: Manifest, before: Manifest) -> None:
    """Raise `ConfigError` where a table is ahead of the one that it is made of."""
    if manifest.watermark > before.watermark:
        raise ConfigError(
            f"{home} is at zxid {manifest.watermark}, and what it is made of only at {before.watermark}: it belongs to "
            "another archive, or an older copy of that was brought back; remove the folder to have it made anew"
        )


def unseen(manifest: Manifest, watermark: int, kind: str) -> list[Part]:
    """The parts that are newer than a zxid."""
    return [part for part in manifest.of(kind) if part.last > watermark]


def _grow(
    home: Path,
    fresh: list[Part],
    grown: Manifest,
    silver: Manifest,
    spark: SparkSession,
    after: Callable[[str], None],
) -> Manifest:
    bronze = tables.load(spark, SCHEMA, tables.folders(home, fresh), "ended_at")
    span = silver.watermark, grown.watermark
    runs = tables.stage(home / tables.SILVER, "runs", runs_of(bronze), *span)
    expected = sum(part.rows for part in fresh)
    if runs.part.rows != expected:
        raise TableIncomplete(f"of {expected} rows of {home} {runs.part.rows} became runs; run it again")
    after("staged runs")
    with _new_deliveries(home / tables.SILVER, silver, deliveries_of(bronze), spark) as new:
        deliveries = tables.stage(home / tables.SILVER, "deliveries", new, *span)
    after("staged deliveries")
    rows = tables.load(spark, DELIVERIES, deliveries.folders(), "ended_at")
    ((latest,),) = rows.agg(f.max(tables.milliseconds("claimed_at"))).collect()
    seen = max(silver.seen, int(latest or 0))
    parts = tables.adopt((runs, deliveries))
    after("adopted")
    return replace(grown, runs=(*silver.runs, *parts), seen=seen)


@contextlib.contextmanager
def _new_deliveries(home: Path, silver: Manifest, ended: DataFrame, spark: SparkSession) -> Iterator[DataFrame]:
    """Those that silver does not hold, and of days that it still keeps.

    When one ended may be told with another few milliseconds by another row: a day more is looked through.
    """
    kept = ended.where(f.col("day") >= date.fromisoformat(silver.horizon)) if silver.horizon else ended
    if not silver.seen:
        yield kept
        return
    kept = kept.persist()
    try:
        suspects = kept.where(tables.milliseconds("claimed_at") <= silver.seen)
        (first, last), *_ = suspects.agg(f.min(tables.day_of("claimed_at")), f.max("day")).collect()
        if first is None:
            yield kept
        else:
            days = first.isoformat(), (last + timedelta(days=1)).isoformat()
            paths = tables.folders(home, silver.of("deliveries"), *days)
            yield kept.join(tables.load(spark, DELIVERIES, paths, "ended_at").select(*KEY), list(KEY), "left_anti")
    finally:
        kept.unpersist()


# --- Compaction: small parts that came one after the other become one, with a file for each day or so.
#
# The newest are merged, and an older one as long as it is no larger than twice what is merged with it: a row is
# written again only a few times, however many parts come. Only what the next table has taken is merged. Gold needs
# none: it has one file for each day.

#: So many parts are left as they are, and one with so many rows for good.
FEW: Final = 8
LARGE: Final = 1_000_000
_FILE_BYTES: Final = 256 << 20
#: The steps after which this may be interrupted, in order, for each table.
COMPACTING: Final = ("staged", "adopted", "published")
_TABLES: Final = (
    ("", "runs", SCHEMA, tables.SILVER),
    (tables.SILVER, "runs", RUNS, tables.GOLD),
    (tables.SILVER, "deliveries", DELIVERIES, tables.GOLD),
)


def compact(
    home: Path,
    spark: SparkSession,
    *,
    few: int = FEW,
    grace: float = tables.GRACE,
    after: Callable[[str], None] = lambda _step: None,
) -> int:
    """Merge small parts of bronze and silver, in the queue's folder `home`, which the caller holds.

    Returns how many parts were merged. What they were stays on the disk for `grace` seconds, for those who read it.
    """
    merged = 0
    for name, kind, schema, following in _TABLES:
        limit, table = tables.read_manifest(home / following).watermark, home / name
        _, manifest = tables.sweep(table, tables.read_manifest(table), grace)
        group = chosen(tuple(part for part in manifest.of(kind) if part.last <= limit), few)
        if not group:
            continue
        paths, rows = tables.folders(table, group), sum(part.rows for part in group)
        size = sum(file.stat().st_size for path in paths for file in Path(path).glob("*.parquet"))
        per_file = max(1, min(LARGE, rows * _FILE_BYTES // max(1, size)))
        frame = tables.load(spark, schema, paths, "ended_at").repartition("day")
        staged = tables.stage(table, kind, frame, group[0].first, group[-1].last, per_file=per_file)
        if staged.part.rows != rows:
            raise TableIncomplete(f"of {rows} rows of {table / kind} {staged.part.rows} were merged; run it again")
        after("staged")
        new = tables.adopt([staged])
        after("adopted")
        kept = replace(manifest, runs=(*(part for part in manifest.runs if part not in group), *new))
        tables.publish(table, tables.retire(kept, [part.path for part in group]))
        after("published")
        merged += len(group)
    return merged


def chosen(parts: tuple[Part, ...], few: int = FEW) -> list[Part]:
    """The newest parts that are worth merging, in their order; none where they are few."""
    group: list[Part] = []
    rows = 0
    for part in sorted(parts, key=lambda part: -part.last):
        if part.rows >= LARGE or (group and part.rows > 2 * rows):
            break
        group.append(part)
        rows += part.rows
    return group[::-1] if len(group) >= few else []
