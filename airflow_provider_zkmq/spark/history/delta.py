"""Silver and gold as Delta tables, too, below ``<directory>/<queue>/delta``, by the Python writer of `deltalake`.

A table's log says up to which zxid it has come (its application's transaction): what a run that was cut off has
committed is not written again. New parts of silver are appended; days of gold that were computed again are replaced.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.spark.history.manifest import GOLD, SILVER, Manifest, Part, read_manifest
from airflow_provider_zkmq.spark.history.parts import folders

DELTA: Final = "delta"
_APP: Final = "airflow-provider-zkmq"
_TABLES: Final = ((SILVER, "runs"), (SILVER, "deliveries"), (GOLD, "hourly"), (GOLD, "consumers"))


def need_deltalake() -> None:
    """Raise `ConfigError` where `deltalake` is not installed."""
    if importlib.util.find_spec("deltalake") is None:
        raise ConfigError(
            "Delta tables need `deltalake`: pip install 'airflow-provider-zkmq[delta]', or leave delta out"
        )


def export(home: Path, *, after: Callable[[str], None] = lambda _step: None) -> dict[str, int]:
    """Bring the Delta tables of the queue's folder `home` up to silver and gold. Returns the rows that were written."""
    need_deltalake()
    written = {}
    for table, kind in _TABLES:
        written[kind] = _Target(home / table, home / DELTA / kind, read_manifest(home / table), kind).update()
        after(kind)
    return written


@dataclass(frozen=True, slots=True)
class _Target:
    """One Delta table, and the table that it is to equal."""

    home: Path
    path: Path
    manifest: Manifest
    kind: str

    def update(self) -> int:
        """Commit what is new, at most once, and say up to where. Returns the rows."""
        done = self._done()
        parts = [part for part in self.manifest.of(self.kind) if part.last > done]
        if self.manifest.watermark <= done or not parts:
            return 0
        merged, new = done > 0 and any(part.first < done for part in parts), None
        if merged and self.home.name == SILVER:  # with what the table has, which may be more than silver still keeps
            new = ds.field("version") > done
        elif merged:
            done, parts = 0, list(self.manifest.of(self.kind))
        return self._write(parts, new, **self._mode(parts, done))

    def _done(self) -> int:
        """The zxid up to which the table has come; 0 where there is none."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self.path)):
            return 0
        return DeltaTable(str(self.path)).transaction_version(_APP) or 0

    def _mode(self, parts: list[Part], done: int) -> dict[str, Any]:
        if not done:
            return {"mode": "overwrite"}
        if self.home.name == SILVER:
            return {"mode": "append", "schema_mode": "merge"}
        days = sorted({f"'{day}'" for part in parts for day in part.days})
        return {"mode": "overwrite", "predicate": f"day IN ({', '.join(days)})"}

    def _write(self, parts: list[Part], wanted: ds.Expression | None, **mode: Any) -> int:
        """Commit these parts' rows, those that are `wanted` (None: all). Returns how many."""
        from deltalake import CommitProperties, Transaction, write_deltalake

        files = [str(file) for folder in folders(self.home, parts) for file in sorted(Path(folder).glob("*.parquet"))]
        data = ds.dataset(files, format="parquet", partitioning="hive", partition_base_dir=str(self.home))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_deltalake(
            str(self.path),
            pa.RecordBatchReader.from_batches(_schema(data.schema), _batches(data, wanted)),
            partition_by=["day"],
            commit_properties=CommitProperties(app_transactions=[Transaction(_APP, self.manifest.watermark)]),
            **mode,
        )
        return int(data.count_rows(filter=wanted))


def _schema(schema: pa.Schema) -> pa.Schema:
    """Delta's times are microseconds in UTC, and its folders' names text."""
    return pa.schema([field.with_type(_type(field.name, field.type)) for field in schema])


def _type(name: str, kind: pa.DataType) -> pa.DataType:
    if name == "day":
        return pa.string()
    return pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(kind) else kind


def _batches(data: ds.Dataset, wanted: ds.Expression | None) -> Iterator[pa.RecordBatch]:
    """A few thousand rows at a time: the driver holds no table."""
    schema = _schema(data.schema)
    for batch in data.to_batches(filter=wanted, batch_size=8_192, batch_readahead=1, fragment_readahead=1):
        yield pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
        )
