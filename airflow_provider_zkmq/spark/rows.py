"""Archive rows: their schema, and how Spark's Python workers read them from ZooKeeper."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import GetMany, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.clock import tick
from airflow_provider_zkmq.engine.core.reading.inspect import Task, read_many, task_ids
from airflow_provider_zkmq.engine.fronts.client import Zkmq
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.engine.zk.drivers import run

#: How to reach ZooKeeper: the arguments of `Zkmq.connect`, or a function that can be pickled and connects.
Connect: TypeAlias = Mapping[str, Any] | Callable[[], Zkmq]
#: A task that ended, and the zxid at which it did.
Ended: TypeAlias = tuple[str, int]

BATCH: Final = 128
SCHEMA: Final = (
    "queue string, id string, state string, attempt int, priority int, filters map<string,string>, "
    "metadata string, data binary, result binary, error string, consumer string, "
    "enqueued_at timestamp, claimed_at timestamp, ended_at timestamp, wait_ms bigint, run_ms bigint, "
    "day date, version bigint"
)
_TIME: Final = pa.timestamp("us", tz="UTC")
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
        ("enqueued_at", _TIME),
        ("claimed_at", _TIME),
        ("ended_at", _TIME),
        ("wait_ms", pa.int64()),
        ("run_ms", pa.int64()),
        ("day", pa.date32()),
        ("version", pa.int64()),
    ]
)


def open_client(connect: Connect) -> Zkmq:
    """Open a connection of its own that takes no part in clean-up. Raises what `Zkmq.connect` raises."""
    return connect() if callable(connect) else Zkmq.connect(**{**connect, "gc": False})


def drive(queue: Queue, procedure: Callable[..., Procedure[Any]], *args: Any) -> Any:
    """Carry out a procedure of the engine that the queue has no method for."""
    return run(queue._session, procedure(queue._context, *args))  # noqa: SLF001  one package


def mark(queue: Queue) -> int:
    """Return the zxid of now: what ended at or before it is visible to every later read through this connection."""
    zxid = drive(queue, tick).zxid
    if zxid is None:
        raise RuntimeError("ZooKeeper did not say the number of a committed write")
    return int(zxid)


def ended_between(queue: Queue, after: int, until: int) -> list[Ended]:
    """List the finished and cancelled tasks whose record was written after zxid `after`, up to `until`."""
    found: list[Ended] = drive(queue, _ended, after, until)
    return found


def _ended(context: Context, after: int, until: int) -> Procedure[list[Ended]]:
    ids: list[str] = []
    for state in (State.FINISHED, State.CANCELLED):
        ids += yield from task_ids(context, state)
    found: list[Ended] = []
    for start in range(0, len(ids), BATCH):
        chunk = ids[start : start + BATCH]
        nodes: list[Node | None] = yield GetMany(tuple(context.paths.task(task, "state") for task in chunk))
        found += [
            (task, node.stat.mzxid)
            for task, node in zip(chunk, nodes, strict=True)
            if node is not None and after < node.stat.mzxid <= until
        ]
    return found


def reader(connect: Connect, name: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function for ``mapInArrow``: ids and versions in, whole rows out. It runs in Spark's Python workers.

    A task that is no longer there, or no longer in the version asked for, gives no row: the caller counts.
    """

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with contextlib.ExitStack() as stack:
            queue: Queue | None = None
            for batch in batches:
                if queue is None and batch.num_rows:
                    queue = stack.enter_context(open_client(connect)).queue(name)
                if queue is not None:
                    yield from _read_batch(queue, batch)

    return read


def _read_batch(queue: Queue, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    wanted = dict(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    ids = list(wanted)
    for start in range(0, len(ids), BATCH):
        tasks: Sequence[Task] = drive(queue, read_many, ids[start : start + BATCH])
        rows = [row(queue.name, task) for task in tasks if task.version == wanted[task.id]]
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)


def row(queue: str, task: Task) -> dict[str, Any]:
    """Return a task as an archive row: times in UTC, spans in milliseconds of the server's clock."""
    ended = task.ended_ms or 0
    claimed = task.claimed_ms
    return {
        "queue": queue,
        "id": task.id,
        "state": str(task.state),
        "attempt": task.attempt,
        "priority": task.priority,
        "filters": list(task.filters.items()),
        "metadata": json.dumps(task.metadata, ensure_ascii=False),
        "data": task.data,
        "result": task.result,
        "error": task.error,
        "consumer": task.consumer,
        "enqueued_at": _moment(task.enqueued_ms),
        "claimed_at": None if claimed is None else _moment(claimed),
        "ended_at": _moment(ended),
        "wait_ms": None if claimed is None else claimed - task.enqueued_ms,
        "run_ms": None if claimed is None else ended - claimed,
        "day": _moment(ended).date(),
        "version": task.version,
    }


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
