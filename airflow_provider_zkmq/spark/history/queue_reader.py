"""Whole runs as rows: their schema, and how Spark's Python workers read them from ZooKeeper.

Executors import this: they need no more than `py_files` ships, and pyarrow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import types

from ...engine import AnyQueue, Ended
from ...engine.queue_internals import internals
from ..source.connecting import Connect, open_client
from ..source.reading import COLUMNS, Column, arrow_schema, parts
from ..source.reading import batch as rows
from .parquet_files import Batches

DAY_MS: Final = 86_400_000
#: So many tasks are read in one go.
AT_ONCE: Final = 128
_OWN: Final = {
    "id": COLUMNS["task_id"],
    "day": Column(types.DateType(), ("ended_ms",), lambda ends: [ended // DAY_MS for ended in ends]),
}
_STORED: Final = (
    *("queue", "id", "state", "attempt", "priority", "filters", "metadata", "data", "result", "error", "consumer"),
    *("enqueued_at", "claimed_at", "ended_at", "wait_ms", "run_ms", "day", "version", "history", "batch", "started_at"),
)
_COLUMNS: Final = {name: _OWN.get(name) or COLUMNS[name] for name in _STORED}
SCHEMA: Final = arrow_schema(_STORED, _COLUMNS)
#: What the workers are given: an engine's `Ended`.
ENDED: Final = "id string, version bigint, place string"


def read_runs(queue: AnyQueue, ended: Sequence[Ended]) -> Iterator[pa.RecordBatch]:
    """The rows of what ended, a few at a time; none for a run that is gone."""
    for start in range(0, len(ended), AT_ONCE):
        tasks = internals(queue).read_ended(ended[start : start + AT_ONCE], parts=["data", "metadata", "result"])
        lists = {part: [getattr(task, part) for task in tasks] for part in parts(_STORED, _COLUMNS)}
        yield rows(queue.name, _STORED, lists, _COLUMNS)


def reader(connect: Connect, name: str) -> Batches:
    """Make the function for ``mapInArrow`` in Spark's workers: what ended in, rows out."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with contextlib.ExitStack() as stack:
            queue: AnyQueue | None = None
            for batch in batches:
                if queue is None and batch.num_rows:
                    client = open_client(connect)
                    stack.callback(client.close)
                    queue = client.queue(name)
                if queue is not None:
                    yield from read_runs(queue, [Ended(**row) for row in batch.to_pylist()])

    return read
