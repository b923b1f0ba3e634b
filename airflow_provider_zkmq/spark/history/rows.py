"""Archive rows: their schema, and how Spark's Python workers read them from ZooKeeper."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa

from airflow_provider_zkmq.engine import AnyClient, AnyQueue, Attempt, Ended, Task, Zkmq
from airflow_provider_zkmq.spark.source import access
from airflow_provider_zkmq.spark.source.columns import ATTEMPT, HISTORY, TIME, json_text
from airflow_provider_zkmq.spark.source.options import Options

#: How to reach ZooKeeper: the arguments of `Zkmq.connect`, a function that can be pickled and connects, or the options
#: of the data source, by which credentials are looked up where the code runs.
Connect: TypeAlias = Mapping[str, Any] | Callable[[], AnyClient] | Options

#: So many whole tasks are in memory together.
AT_ONCE: Final = 128
SCHEMA: Final = (
    "queue string, id string, state string, attempt int, priority int, filters map<string,string>, "
    "metadata string, data binary, result binary, error string, consumer string, "
    "enqueued_at timestamp, claimed_at timestamp, ended_at timestamp, wait_ms bigint, run_ms bigint, "
    "day date, version bigint, "
    f"history {HISTORY}, batch string, started_at timestamp"
)
#: What the workers are given: an engine's `Ended`.
ENDED: Final = "id string, version bigint, place string"
#: The columns that hold what a task says, by the same name.
_AS_IT_IS: Final = ("id", "attempt", "priority", "data", "result", "error", "consumer", "version", "batch")
_ARROW: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("id", pa.string()),
        ("state", pa.string()),
        ("attempt", pa.int32()),
        ("priority", pa.int32()),
        ("filters", pa.map_(pa.string(), pa.string())),
        ("metadata", pa.string()),
        ("data", pa.binary()),
        ("result", pa.binary()),
        ("error", pa.string()),
        ("consumer", pa.string()),
        ("enqueued_at", TIME),
        ("claimed_at", TIME),
        ("ended_at", TIME),
        ("wait_ms", pa.int64()),
        ("run_ms", pa.int64()),
        ("day", pa.date32()),
        ("version", pa.int64()),
        ("history", pa.list_(ATTEMPT)),
        ("batch", pa.string()),
        ("started_at", TIME),
    ]
)


def open_client(connect: Connect) -> AnyClient:
    """Open a connection of its own that takes no part in clean-up. Raises what `Zkmq.connect` raises."""
    if isinstance(connect, Options):
        return access.connect(connect)
    return connect() if callable(connect) else Zkmq.connect(**{**connect, "gc": False})


def reader(connect: Connect, name: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function for ``mapInArrow``, for Spark's Python workers: what ended in, whole rows out.

    A run that is gone gives no row: the caller counts.
    """

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with contextlib.ExitStack() as stack:
            queue: AnyQueue | None = None
            for batch in batches:
                if queue is None and batch.num_rows:
                    client = open_client(connect)
                    stack.callback(client.close)
                    queue = client.queue(name)
                if queue is not None:
                    yield from _read_batch(queue, batch)

    return read


def _read_batch(queue: AnyQueue, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    ended = [Ended(*values) for values in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    for start in range(0, len(ended), AT_ONCE):
        tasks = queue.read_ended(ended[start : start + AT_ONCE], parts=["data", "metadata", "result"])
        yield pa.RecordBatch.from_pylist([row(queue.name, task) for task in tasks], schema=_ARROW)


def row(queue: str, task: Task) -> dict[str, object]:
    """Return a task as an archive row: times in UTC, spans in milliseconds of the server's clock."""
    as_it_is = {name: getattr(task, name) for name in _AS_IT_IS}
    return {
        "queue": queue,
        "state": str(task.state),
        "filters": list(task.filters.items()),
        "metadata": json_text(task.metadata),
        **as_it_is,
        **_times(task),
        "history": [_attempt(attempt) for attempt in task.history],
    }


def _attempt(attempt: Attempt) -> dict[str, object]:
    """A delivery that ended, of this run of the id or of an earlier one."""
    started = None if attempt.started is None else _moment(attempt.started)
    times = {"claimed_at": _moment(attempt.claimed), "started_at": started, "ended_at": _moment(attempt.ended)}
    return {name: getattr(attempt, name) for name in ("number", "consumer", "outcome", "error")} | times


def _times(task: Task) -> dict[str, object]:
    """When a task was enqueued, claimed, begun and ended, and how long it waited and ran."""
    ended, claimed, started = task.ended_ms or 0, task.claimed_ms, task.started_ms
    return {
        "enqueued_at": _moment(task.enqueued_ms),
        "claimed_at": None if claimed is None else _moment(claimed),
        "started_at": None if started is None else _moment(started),
        "ended_at": _moment(ended),
        "wait_ms": None if started is None else started - task.enqueued_ms,
        "run_ms": None if started is None else ended - started,
        "day": _moment(ended).date(),
    }


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
