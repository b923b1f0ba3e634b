"""Compaction: small parts that came one after the other become one, with a file for each day or so.

The newest are merged, and an older one as long as it is no larger than twice what is merged with it: a row is written
again only a few times, however many parts come. Only what the next table has taken is merged. Gold needs none: it has
one file for each day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from airflow_provider_zkmq.spark.history.manifest import GOLD, SILVER, Part, publish, read_manifest
from airflow_provider_zkmq.spark.history.parts import GRACE, adopt, folders, load, retire, stage, sweep
from airflow_provider_zkmq.spark.history.refining import DELIVERIES, RUNS
from airflow_provider_zkmq.spark.history.rows import SCHEMA
from airflow_provider_zkmq.spark.history.silver import TableIncomplete

#: So many parts are left as they are, and one with so many rows for good.
FEW: Final = 8
LARGE: Final = 1_000_000
_FILE_BYTES: Final = 256 << 20
#: The steps after which this may be interrupted, in order, for each table.
STEPS: Final = ("staged", "adopted", "published")
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
