"""Tables of a history that no Spark has written: a column, a day, and how far they have come."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_zkmq.delta_tables import Staged, Table, added
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.spark.history.parquet_files import statistics

DAY = "2026-01-01"
FIELDS = {"task_id": "string", "day": "date"}
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": name, "type": sort, "nullable": True, "metadata": {}} for name, sort in FIELDS.items()],
    }
)


def staged(table: Table, rows: int, watermark: int) -> Staged:
    """A file with so many rows that no commit names yet."""
    name = f"{os.urandom(4).hex()}/day={DAY}/rows.parquet"
    path = table.location.folder / name
    path.parent.mkdir(parents=True)
    written = pa.table({"task_id": [f"t{watermark}-{n}" for n in range(rows)]})
    pq.write_table(written, path)
    return Staged(SCHEMA, tuple(added([(name, DAY, path.stat().st_size, statistics(written))])), rows)


def commit(home: Path | Location, kind: str, rows: int, watermark: int) -> Table:
    """A table of the queue's folder `home` gains rows and comes to a watermark; returned as it was before."""
    table = Table.open(Location.of(home), kind)
    files = staged(table, rows, watermark) if rows else Staged(SCHEMA, (), 0)
    table.commit(files, replace(table.mark, watermark=watermark))
    return table
