"""The pipeline: what ended, from ZooKeeper into bronze, silver and gold; each step may be cut off and repeated.

A queue says first that it is archived, so that nobody deletes what bronze does not hold. Garbage collection comes after
bronze and deletes exactly what that holds. One queue's trouble is reported, and raised when all queues had their turn.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from airflow_provider_zkmq.engine import AnyClient, ConfigError, ZkmqError, check_name
from airflow_provider_zkmq.spark.history.bronze import Connect, archive_queue, open_client
from airflow_provider_zkmq.spark.history.gold import summarise
from airflow_provider_zkmq.spark.history.silver import compact, refine
from airflow_provider_zkmq.spark.history.tables import (
    GOLD,
    SILVER,
    Manifest,
    Part,
    Retention,
    check_writable,
    exclusive,
    folders,
    read_manifest,
    retain,
)

# --- Silver and gold as Delta tables, too, below ``<directory>/<queue>/delta``, by the Python writer of `deltalake`.
#
# A table's log says up to which zxid it has come (its application's transaction): what a run that was cut off has
# committed is not written again. New parts of silver are appended; days of gold that were computed again are
# replaced.

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


# --- The pipeline: what ended, from ZooKeeper into bronze, silver and gold; each step may be cut off and repeated.
#
# A queue says first that it is archived, so that nobody deletes what bronze does not hold. Garbage collection comes
# after bronze and deletes exactly what that holds. One queue's trouble is reported, and raised when all queues had
# their turn.

#: How lines begin that say what is wrong, in what Spark tells of a worker that failed, or of itself.
_OWN_ERRORS: Final = "airflow_provider_zkmq.engine.errors."
_CAUSED: Final = "Caused by: "
#: Steps that were done, with what they counted.
Counts: TypeAlias = dict[str, int]


@dataclass(frozen=True, slots=True)
class QueueReport:
    """What was done for one queue: for each step in order what it counted, and how many seconds it took.

    ``error``: what ended its turn, None where nothing did.
    """

    queue: str
    steps: dict[str, Counts] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """What a run of the pipeline did, queue by queue."""

    queues: tuple[QueueReport, ...]

    @property
    def failed(self) -> tuple[QueueReport, ...]:
        """The queues whose turn ended early."""
        return tuple(queue for queue in self.queues if queue.error is not None)


class PipelineFailed(ZkmqError):
    """Some queues had trouble; the others are done. ``report`` tells of all. Run it again."""

    def __init__(self, report: PipelineReport) -> None:
        each = "; ".join(f"queue {queue.queue!r}: {queue.error}" for queue in report.failed)
        super().__init__(f"{len(report.failed)} of {len(report.queues)} queues had trouble: {each}")
        self.report = report


@dataclass(frozen=True, slots=True)
class _Turn:
    """One queue's turn: where it is kept, and how its steps are told of."""

    client: AnyClient
    connect: Connect
    report: QueueReport
    directory: Path
    spark: SparkSession
    progress: Callable[[str], None]
    after: Callable[[str], None]

    @property
    def home(self) -> Path:
        return self.directory / self.report.queue

    def step(self, name: str, work: Callable[[], Counts]) -> None:
        """Do a step, note what it counted and how long it took, and tell of it."""
        began = time.monotonic()
        counts = work()
        self.report.steps[name] = counts
        self.report.seconds[name] = round(time.monotonic() - began, 3)
        counted = ", ".join(f"{number} {what}" for what, number in counts.items()) or "done"
        self.progress(f"queue {self.report.queue}: {name}: {counted}, {self.report.seconds[name]:.1f} s")

    def hook(self, name: str) -> Callable[[str], None]:
        """What is called after each part of a step."""
        return lambda part: self.after(f"{name}: {part}")

    @contextmanager
    def held(self) -> Iterator[Path]:
        """The queue's folder, which nobody else changes meanwhile."""
        with exclusive(self.home):
            yield self.home


def run_pipeline(
    connect: Connect,
    queues: Sequence[str] | None,
    directory: str | os.PathLike[str],
    spark: SparkSession,
    *,
    lifetime: float | None = None,
    keep: Retention | None = None,
    delta: bool = False,
    progress: Callable[[str], None] = lambda _line: None,
    after: Callable[[str], None] = lambda _step: None,
) -> PipelineReport:
    """Mark, archive, collect, then bring silver and gold up to date and compact them, for each queue (None: for all).

    `connect`, `directory`: as in `archive_queue`. `lifetime`: seconds after which an archived task is collected, None:
    the queue's own. `keep`: for how long the tables keep what ended, default: for ever. `delta`: silver and gold are
    kept as Delta tables, too (extra ``[delta]``). `progress` is called with a line after each step, `after` with the
    name of each part of one. A run that was cut off anywhere may be repeated: no row is lost or doubled.
    Raises `PipelineFailed` where a queue's turn ended early, when all have had theirs.
    """
    if delta:
        need_deltalake()
    with open_client(connect) as client:
        names = list(dict.fromkeys(queues or client.queues()))
        turns = [
            _Turn(
                client,
                connect,
                QueueReport(check_name("queue", name)),
                Path(directory).absolute(),
                spark,
                progress,
                after,
            )
            for name in names
        ]
        reports = [_tried(turn, lambda turn: turn.step("mark", lambda: _mark(turn))) for turn in turns]
        done = [
            _tried(turn, lambda turn: _steps(turn, lifetime, keep or Retention(), delta=delta))
            if marked.error is None
            else marked
            for turn, marked in zip(turns, reports, strict=True)
        ]
    report = PipelineReport(tuple(done))
    if report.failed:
        raise PipelineFailed(report)
    return report


def _tried(turn: _Turn, work: Callable[[_Turn], None]) -> QueueReport:
    """The report of a queue whose turn ended here, or goes on; whatever ended it is told of, and raised in the end."""
    try:
        work(turn)
    except Exception as error:  # noqa: BLE001  Spark's, Java's, the file system's: none of them ends the other queues
        text = f"{type(error).__name__}: {said(error)}"
        turn.progress(f"queue {turn.report.queue}: {text}")
        return replace(turn.report, error=text)
    return turn.report


def said(error: BaseException) -> str:
    """The line of an error that says what is wrong: of Spark's, not the walk through Java but what it was caused by."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if line.startswith(_OWN_ERRORS)]
    caused = [line.removeprefix(_CAUSED) for line in lines if line.startswith(_CAUSED)]
    return (raised[-1:] or caused[-1:] or lines[:1] or [""])[0].removeprefix(_OWN_ERRORS)


def _mark(turn: _Turn) -> Counts:
    """From now on clean-up keeps what is not archived.

    Raises `ConfigError` for a queue that does not exist, and where nothing can be archived: clean-up would keep all.
    """
    check_writable(turn.directory)
    queue = turn.client.queue(turn.report.queue)
    if not queue.conf().archive:
        queue.configure(archive=True)
    return {}


def _steps(turn: _Turn, lifetime: float | None, keep: Retention, *, delta: bool) -> None:
    turn.step("bronze", lambda: _bronze(turn))
    turn.step("gc", lambda: _collect(turn, lifetime))
    with turn.held() as home:
        turn.step("silver", lambda: _silver(turn, home))
        turn.step("gold", lambda: _gold(turn, home))
        if delta:
            turn.step("delta", lambda: export(home, after=turn.hook("delta")))
        turn.step("compaction", lambda: {"parts merged": compact(home, turn.spark, after=turn.hook("compaction"))})
        if keep != Retention():
            turn.step("retention", lambda: {"rows left bronze": retain(home, keep)})


def _bronze(turn: _Turn) -> Counts:
    done = archive_queue(turn.connect, turn.report.queue, turn.directory, turn.spark, after=turn.hook("bronze"))
    counts = {"rows": done.archived, "in all": done.total}
    return counts | ({"unreadable": len(done.unreadable)} if done.unreadable else {})


def _collect(turn: _Turn, lifetime: float | None) -> Counts:
    done = turn.client.queue(turn.report.queue).collect_garbage(lifetime=lifetime)
    return {"deleted": done.collected, "kept": done.kept_unarchived + done.kept_changed}


def _silver(turn: _Turn, home: Path) -> Counts:
    done = refine(home, turn.spark, after=turn.hook("silver"))
    return {"runs": done.runs, "deliveries": done.deliveries, "runs in all": done.total}


def _gold(turn: _Turn, home: Path) -> Counts:
    done = summarise(home, turn.spark, after=turn.hook("gold"))
    return {"days written": done.days, "hours of classes": done.hourly, "hours of consumers": done.consumers}
