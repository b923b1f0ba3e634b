"""The parts of tables: Parquet that is staged, counted, renamed, and only then named by a manifest; how it is read."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from airflow_provider_zkmq.spark.history.manifest import Manifest, Part, sync
from airflow_provider_zkmq.spark.history.refining import day_of

STAGING: Final = ".staging"
_DAY: Final = "day="
_PATTERN: Final = re.compile(r"[][{}*?\\]")
#: So long a folder that was replaced is left to those who read it, in seconds.
GRACE: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Staged:
    """A part that is whole and not read by anybody yet: where it will stand, and its rows."""

    home: Path
    part: Part

    @property
    def path(self) -> Path:
        """Where it is until then."""
        path = self.home / self.part.path
        return path.with_name(path.name + STAGING)

    def folders(self) -> list[str]:
        """Its folders of days, where they are until then."""
        return [str(self.path / f"{_DAY}{day}") for day in self.part.days]

    def adopt(self) -> Part:
        """Give it its name. What is not published next is removed by the next run."""
        self.path.rename(self.home / self.part.path)
        sync(self.path.parent)
        return self.part


def adopt(staged: Iterable[Staged]) -> list[Part]:
    """Give these their names; what has no rows is not to be read."""
    return [part for part in [each.adopt() for each in staged] if part.rows]


def stage(home: Path, kind: str, frame: DataFrame, first: int, last: int, *, per_file: int = 0) -> Staged:
    """Write a frame, which has a column ``day``, as a part, and count what was written.

    Its name is no other run's: of a run that was killed Spark's Java may write on for a moment.
    """
    name = f"{kind}/{first}-{last}-{os.urandom(4).hex()}"
    staging = home / f"{name}{STAGING}"
    writer = frame.write.partitionBy("day").option("compression", "zstd").option("maxRecordsPerFile", per_file)
    writer.parquet(str(staging))
    _sync_tree(staging)
    days = tuple(sorted(path.name.removeprefix(_DAY) for path in staging.glob(f"{_DAY}*")))
    return Staged(home, Part(name, sum(rows_in(staging / f"{_DAY}{day}") for day in days), first, last, days))


def rows_in(folder: Path) -> int:
    """How many rows the files of a folder have, as their footers say."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def _sync_tree(path: Path) -> None:
    for item in path.rglob("*"):
        sync(item)
    sync(path)


def folder_of(part: Part, day: str) -> str:
    """Where a part's rows of a day are, below the table's folder."""
    return f"{part.path}/{_DAY}{day}"


def folders(home: Path, parts: Iterable[Part], since: str = "", until: str = "9999") -> list[str]:
    """The folders with what these parts hold of the days from `since` to `until`, both included."""
    days = ((part, day) for part in parts for day in part.days if since <= day <= until)
    return [str(home / folder_of(part, day)) for part, day in days]


def load(spark: SparkSession, schema: str, paths: list[str], moment: str) -> DataFrame:
    """These folders' rows with the columns of `schema`, and their ``day``.

    The day is that of the column `moment`, in UTC.
    """
    columns = spark.createDataFrame([], schema).schema
    stored = StructType([column for column in columns if column.name != "day"])
    if not paths:
        nothing = spark.createDataFrame([], stored).where(
            f.lit(False)
        )  # Spark sees that it is empty, and leaves it out
        return nothing.withColumn("day", day_of(moment))
    frame = spark.read.schema(stored).option("recursiveFileLookup", "true").parquet(*map(_literal, paths))
    return frame.withColumn("day", day_of(moment))


def _literal(path: str) -> str:
    """A path as Spark takes it for itself: what it would take for a pattern is escaped."""
    return _PATTERN.sub(r"\\\g<0>", path)


def iso(day: date | None, default: str) -> str:
    """A day as the names of folders spell it."""
    return default if day is None else day.isoformat()


def retire(manifest: Manifest, paths: Iterable[str]) -> Manifest:
    """The manifest, which notes that these folders are read no more from now on."""
    now = int(time.time())
    return replace(manifest, retired=(*manifest.retired, *((path, now) for path in paths)))


def without(home: Path, manifest: Manifest, gone: Callable[[str], bool]) -> Manifest:
    """The manifest, which names no days of which `gone` holds; their folders are retired."""
    kept, left = [], []
    for part in manifest.runs:
        leave = [folder_of(part, day) for day in part.days if gone(day)]
        rows = part.rows - sum(rows_in(home / folder) for folder in leave)
        stay = tuple(day for day in part.days if not gone(day))
        kept += [replace(part, days=stay, rows=rows)] if stay else []
        left += leave
    return retire(replace(manifest, runs=tuple(kept)), left)


def sweep(home: Path, manifest: Manifest, grace: float = GRACE) -> tuple[list[str], Manifest]:
    """Delete what was never published, and what was replaced longer ago than `grace`.

    Returns the names of the former, and the manifest without what is gone, for whoever publishes next.
    """
    overdue = time.time() - grace
    for path, since in manifest.retired:
        if since <= overdue:
            shutil.rmtree(home / path, ignore_errors=True)
    left = tuple(each for each in manifest.retired if (home / each[0]).exists())
    known = {"/".join(path.split("/")[:2]) for path in (*(part.path for part in manifest.runs), *(r[0] for r in left))}
    orphans = [path for kind in kinds(home) for path in (home / kind).glob("*") if f"{kind}/{path.name}" not in known]
    for orphan in orphans:
        shutil.rmtree(orphan, ignore_errors=True)  # what a killed run's Java still writes goes the next time
    return sorted(orphan.name for orphan in orphans), replace(manifest, retired=left)


def kinds(home: Path) -> list[str]:
    """The folders of parts in a table's folder."""
    return [kind for kind in ("runs", "deliveries", "hourly", "consumers") if (home / kind).is_dir()]
