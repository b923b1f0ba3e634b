"""The tables of a history as DataFrames."""

from __future__ import annotations

import os
from datetime import date, datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ...delta_tables import open_for_reading
from ...engine import ConfigError
from ...history import known
from ...location import Location
from .gold import CONSUMERS, HOURLY
from .queue_reader import SCHEMA
from .silver import DELIVERIES, RUNS
from .stage_and_load import load

#: The columns of each table, and whose day its rows are of.
TABLES: Final[dict[str, tuple[pa.Schema, str]]] = {
    "bronze": (SCHEMA, "ended_at"),
    "runs": (RUNS, "ended_at"),
    "deliveries": (DELIVERIES, "ended_at"),
    "hourly": (HOURLY, "hour"),
    "consumers": (CONSUMERS, "hour"),
}


def read(
    spark: SparkSession,
    directory: str | os.PathLike[str] | Location,
    table: str,
    queue: str | None = None,
    *,
    since: date | None = None,
    until: date | None = None,
) -> DataFrame:
    """Return a table of a queue's history, or of every queue's: ``bronze``, ``runs``, ``deliveries``, and so on.

    ``bronze``: each run that ended, once, with its payloads; ``history`` holds the deliveries that ended, also those of
    earlier runs of the same id; what became of a run that died, ``dead``, is another row. ``runs``: the same without
    payloads. ``deliveries``: each once; of a run with more than ten those that its history still had. ``hourly``,
    ``consumers``: numbers of each class, and of each consumer, in each hour.
    `since` and `until`, both included, leave out whole days (UTC, of the end or of the hour) without reading them.
    Raises `ConfigError` for what is not there, and `CorruptRecord` for a table that cannot be read.
    """
    if table not in TABLES:
        raise ConfigError(f"{table!r} is no table of a history: it has {', '.join(TABLES)}")
    if isinstance(since, datetime) or isinstance(until, datetime):
        raise ConfigError("since and until are days, such as datetime.date(2026, 1, 31)")
    names = known(directory, None if queue is None else [queue], [table])
    root = Location.of(directory)
    first, last = "" if since is None else since.isoformat(), "9999" if until is None else until.isoformat()
    files = [file for name in names for file in open_for_reading(root / name, table).files(first, last)]
    schema, moment = TABLES[table]
    return load(spark, root, schema, files, moment).select(*(name for name in schema.names if name != "day"), "day")
