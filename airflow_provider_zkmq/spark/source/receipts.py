"""What a write did: for each partition and altogether, as an object and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pyspark.sql.datasource import WriterCommitMessage

from airflow_provider_zkmq.spark.source.errors import SourceError


@dataclass(frozen=True)
class PartitionReport(WriterCommitMessage):
    """What became of the rows of one partition, in the attempt that Spark took for good.

    ``written``: the tasks that this attempt wrote. ``existing``: rows whose tasks were there: from an earlier attempt
    or an earlier write, of another row with the same id, or of anybody else.
    """

    partition: int
    attempt: int
    rows: int
    written: int
    existing: int


@dataclass(frozen=True)
class WriteReport:
    """What a write did.

    ``complete`` is False for one that failed: what it wrote stays, and the same write made again completes it.
    ``epoch``: which micro-batch of a stream. Every row is counted once, as written or as existing.
    """

    queue: str
    complete: bool
    rows: int
    written: int
    existing: int
    partitions: tuple[PartitionReport, ...]
    batch: str | None = None
    epoch: int | None = None

    @classmethod
    def of(
        cls,
        queue: str,
        messages: Iterable[object],
        *,
        complete: bool,
        batch: str | None = None,
        epoch: int | None = None,
    ) -> Self:
        """The report of what the partitions told."""
        told = sorted((each for each in messages if isinstance(each, PartitionReport)), key=lambda each: each.partition)
        rows, written = sum(each.rows for each in told), sum(each.written for each in told)
        return cls(queue, complete, rows, written, rows - written, tuple(told), batch, epoch)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The report that a write left."""
        fields: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        fields["partitions"] = tuple(PartitionReport(**each) for each in fields["partitions"])
        return cls(**fields)

    def leave(self, path: str | None) -> None:
        """Write it to a file, whole or not at all; None: nobody wants it."""
        if path is None:
            return
        place = Path(path)
        draft = place.with_name(f".{place.name}.{os.getpid()}")
        draft.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        draft.replace(place)


def check_place(path: str | None) -> None:
    """Raise `SourceError` for a report that could not be left where it is wanted."""
    if path is not None and not (Path(path).parent.is_dir() and os.access(Path(path).parent, os.W_OK)):
        raise SourceError(f"option report: the folder of {path!r} is not there, or cannot be written to")
