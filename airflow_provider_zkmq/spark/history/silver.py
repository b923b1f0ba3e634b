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

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from airflow_provider_zkmq.engine import ConfigError, ZkmqError
from airflow_provider_zkmq.spark.history.bronze import SCHEMA
from airflow_provider_zkmq.spark.history.refining import (
    DELIVERIES,
    KEY,
    RUNS,
    day_of,
    deliveries_of,
    milliseconds,
    runs_of,
)
from airflow_provider_zkmq.spark.history.tables import (
    GOLD,
    GRACE,
    SILVER,
    Manifest,
    Part,
    Staged,
    adopt,
    folders,
    load,
    publish,
    read_manifest,
    retire,
    stage,
    sweep,
)

# --- Silver: a row for each run and for each delivery, each once, made of the bronze parts that silver has not seen.
#
# Both kinds of a step's rows are published by one manifest. A delivery is told of by its run's row, and by the rows
# of later runs of the same id: those that were claimed no later than the latest that silver holds are looked up
# there.

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
    home: Path, spark: SparkSession, *, grace: float = GRACE, after: Callable[[str], None] = lambda _step: None
) -> Refined:
    """Bring silver up to bronze, in the queue's folder `home`, which the caller holds.

    Raises `ConfigError` where silver was made of another bronze, `TableIncomplete`.
    """
    bronze, silver = read_manifest(home), read_manifest(home / SILVER)
    check_behind(home / SILVER, silver, bronze)
    _, silver = sweep(home / SILVER, silver, grace)
    fresh = unseen(bronze, silver.watermark, "runs")
    grown = replace(silver, watermark=bronze.watermark)
    if fresh:
        grown = _grow(home, fresh, grown, silver, spark, after)
    if grown != silver:
        (home / SILVER).mkdir(exist_ok=True)
        publish(home / SILVER, grown)
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
    bronze = load(spark, SCHEMA, folders(home, fresh), "ended_at")
    span = silver.watermark, grown.watermark
    runs = stage(home / SILVER, "runs", runs_of(bronze), *span)
    expected = sum(part.rows for part in fresh)
    if runs.part.rows != expected:
        raise TableIncomplete(f"of {expected} rows of {home} {runs.part.rows} became runs; run it again")
    after("staged runs")
    with _new_deliveries(home / SILVER, silver, deliveries_of(bronze), spark) as new:
        deliveries = stage(home / SILVER, "deliveries", new, *span)
    after("staged deliveries")
    seen = max(silver.seen, _latest(deliveries, spark))
    parts = adopt((runs, deliveries))
    after("adopted")
    return replace(grown, runs=(*silver.runs, *parts), seen=seen)


@contextlib.contextmanager
def _new_deliveries(home: Path, silver: Manifest, ended: DataFrame, spark: SparkSession) -> Iterator[DataFrame]:
    """Those that silver does not hold, and of days that it still keeps."""
    kept = ended.where(f.col("day") >= date.fromisoformat(silver.horizon)) if silver.horizon else ended
    if not silver.seen:
        yield kept
        return
    kept = kept.persist()
    try:
        known = _known(home, silver, kept.where(milliseconds("claimed_at") <= silver.seen), spark)
        yield kept if known is None else kept.join(known, list(KEY), "left_anti")
    finally:
        kept.unpersist()


def _known(home: Path, silver: Manifest, suspects: DataFrame, spark: SparkSession) -> DataFrame | None:
    """What silver holds of the days in which these ended; None where there are none of them.

    When one ended may be told with another few milliseconds by another row: a day more is read.
    """
    (first, last), *_ = suspects.agg(f.min(day_of("claimed_at")), f.max("day")).collect()
    if first is None:
        return None
    days = first.isoformat(), (last + timedelta(days=1)).isoformat()
    return load(spark, DELIVERIES, folders(home, silver.of("deliveries"), *days), "ended_at").select(*KEY)


def _latest(staged: Staged, spark: SparkSession) -> int:
    """When the latest of these deliveries was claimed; 0 where there are none."""
    rows = load(spark, DELIVERIES, staged.folders(), "ended_at")
    ((latest,),) = rows.agg(f.max(milliseconds("claimed_at"))).collect()
    return int(latest or 0)


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
_TABLES: Final = (("", "runs", SCHEMA, SILVER), (SILVER, "runs", RUNS, GOLD), (SILVER, "deliveries", DELIVERIES, GOLD))


def compact(
    home: Path,
    spark: SparkSession,
    *,
    few: int = FEW,
    grace: float = GRACE,
    after: Callable[[str], None] = lambda _step: None,
) -> int:
    """Merge small parts of bronze and silver, in the queue's folder `home`, which the caller holds.

    Returns how many parts were merged. What they were stays on the disk for `grace` seconds, for those who read it.
    """
    merged = 0
    for table, kind, schema, following in _TABLES:
        limit = read_manifest(home / following).watermark
        merged += _merge(home / table, kind, schema, spark, limit, few, grace, after)
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


def _merge(
    home: Path,
    kind: str,
    schema: str,
    spark: SparkSession,
    limit: int,
    few: int,
    grace: float,
    after: Callable[[str], None],
) -> int:
    _, manifest = sweep(home, read_manifest(home), grace)
    group = chosen(tuple(part for part in manifest.of(kind) if part.last <= limit), few)
    if not group:
        return 0
    paths = folders(home, group)
    rows = sum(part.rows for part in group)
    frame = load(spark, schema, paths, "ended_at").repartition("day")
    staged = stage(home, kind, frame, group[0].first, group[-1].last, per_file=_per_file(paths, rows))
    if staged.part.rows != rows:
        raise TableIncomplete(f"of {rows} rows of {home / kind} {staged.part.rows} were merged; run it again")
    after("staged")
    new = adopt([staged])
    after("adopted")
    kept = replace(manifest, runs=(*(part for part in manifest.runs if part not in group), *new))
    publish(home, retire(kept, [part.path for part in group]))
    after("published")
    return len(group)


def _per_file(paths: list[str], rows: int) -> int:
    """How many rows make a file of a good size, going by what they take now."""
    size = sum(file.stat().st_size for path in paths for file in Path(path).glob("*.parquet"))
    return max(1, min(LARGE, rows * _FILE_BYTES // max(1, size)))
