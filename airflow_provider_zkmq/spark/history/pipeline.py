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
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from ...engine import AnyClient, ConfigError, ZkmqError, check_name
from . import tables
from .bronze import Connect, archive_queue, open_client
from .gold import summarise
from .silver import compact, refine
from .tables import Retention

# --- Silver and gold as Delta tables, too, below ``<directory>/<queue>/delta``, by the Python writer of `deltalake`.
#
# A table's log says up to which zxid it has come (its application's transaction): what a run that was cut off has
# committed is not written again. New parts of silver are appended; days of gold that were computed again are
# replaced.

DELTA: Final = "delta"
_APP: Final = "airflow-provider-zkmq"
_TABLES: Final = (
    (tables.SILVER, "runs"),
    (tables.SILVER, "deliveries"),
    (tables.GOLD, "hourly"),
    (tables.GOLD, "consumers"),
)


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
        written[kind] = _update(home / table, home / DELTA / kind, kind)
        after(kind)
    return written


def _update(home: Path, path: Path, kind: str) -> int:
    """Commit what a table has and its Delta table has not, at most once, and say up to where. Returns the rows."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    manifest, silver = tables.read_manifest(home), home.name == tables.SILVER
    done = (DeltaTable(str(path)).transaction_version(_APP) or 0) if DeltaTable.is_deltatable(str(path)) else 0
    parts = [part for part in manifest.of(kind) if part.last > done]
    if manifest.watermark <= done or not parts:
        return 0
    wanted, mode = None, {"mode": "overwrite"}
    merged = done > 0 and any(part.first < done for part in parts)
    if merged and not silver:
        parts = list(manifest.of(kind))
    elif done and silver:  # a part that was merged has rows that the table has, which may be more than silver keeps
        wanted, mode = ds.field("version") > done if merged else None, {"mode": "append", "schema_mode": "merge"}
    elif done:
        days = sorted({f"'{day}'" for part in parts for day in part.days})
        mode["predicate"] = f"day IN ({', '.join(days)})"
    folders = tables.folders(home, parts)
    files = [str(file) for folder in folders for file in sorted(Path(folder).glob("*.parquet"))]
    data = ds.dataset(files, format="parquet", partitioning="hive", partition_base_dir=str(home))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_deltalake(
        str(path),
        pa.RecordBatchReader.from_batches(_schema(data.schema), _batches(data, wanted)),
        partition_by=["day"],
        commit_properties=CommitProperties(app_transactions=[Transaction(_APP, manifest.watermark)]),
        **mode,
    )
    return int(data.count_rows(filter=wanted))


def _schema(schema: pa.Schema) -> pa.Schema:
    """Delta's times are microseconds in UTC, and its folders' names text."""
    moment = pa.timestamp("us", tz="UTC")
    types = {field.name: moment for field in schema if pa.types.is_timestamp(field.type)} | {"day": pa.string()}
    return pa.schema([field.with_type(types.get(field.name, field.type)) for field in schema])


def _batches(data: ds.Dataset, wanted: ds.Expression | None) -> Iterator[pa.RecordBatch]:
    """A few thousand rows at a time: the driver holds no table."""
    schema = _schema(data.schema)
    for batch in data.to_batches(filter=wanted, batch_size=8_192, batch_readahead=1, fragment_readahead=1):
        yield pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
        )


# --- The pipeline.

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

    @contextmanager
    def step(self, name: str) -> Iterator[Counts]:
        """A step, which is to note what it counted: how long it took is noted, and told."""
        began, counts = time.monotonic(), Counts()
        yield counts
        self.report.steps[name] = counts
        self.report.seconds[name] = round(time.monotonic() - began, 3)
        counted = ", ".join(f"{number} {what}" for what, number in counts.items()) or "done"
        self.progress(f"queue {self.report.queue}: {name}: {counted}, {self.report.seconds[name]:.1f} s")

    def hook(self, name: str) -> Callable[[str], None]:
        """What is called after each part of a step."""
        return lambda part: self.after(f"{name}: {part}")


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
        place = Path(directory).absolute()
        reports = [QueueReport(check_name("queue", name)) for name in names]
        turns = [_Turn(client, connect, report, place, spark, progress, after) for report in reports]
        reports = [_tried(turn, _mark) for turn in turns]
        for number, turn in enumerate(turns):
            if reports[number].error is None:
                reports[number] = _tried(turn, lambda turn: _steps(turn, lifetime, keep or Retention(), delta=delta))
    report = PipelineReport(tuple(reports))
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


def _mark(turn: _Turn) -> None:
    """From now on clean-up keeps what is not archived.

    Raises `ConfigError` for a queue that does not exist, and where nothing can be archived: clean-up would keep all.
    """
    with turn.step("mark"):
        tables.check_writable(turn.directory)
        queue = turn.client.queue(turn.report.queue)
        if not queue.conf().archive:
            queue.configure(archive=True)


def _steps(turn: _Turn, lifetime: float | None, keep: Retention, *, delta: bool) -> None:
    name, spark = turn.report.queue, turn.spark
    with turn.step("bronze") as counts:
        archived = archive_queue(turn.connect, name, turn.directory, spark, after=turn.hook("bronze"))
        counts |= {"rows": archived.archived, "in all": archived.total}
        counts |= {"unreadable": len(archived.unreadable)} if archived.unreadable else {}
    with turn.step("gc") as counts:
        collected = turn.client.queue(name).collect_garbage(lifetime=lifetime)
        counts |= {"deleted": collected.collected, "kept": collected.kept_unarchived + collected.kept_changed}
    home = turn.directory / name
    with tables.exclusive(home):
        with turn.step("silver") as counts:
            refined = refine(home, spark, after=turn.hook("silver"))
            counts |= {"runs": refined.runs, "deliveries": refined.deliveries, "runs in all": refined.total}
        with turn.step("gold") as counts:
            summed = summarise(home, spark, after=turn.hook("gold"))
            counts |= {"days written": summed.days}
            counts |= {"hours of classes": summed.hourly, "hours of consumers": summed.consumers}
        if delta:
            with turn.step("delta") as counts:
                counts |= export(home, after=turn.hook("delta"))
        with turn.step("compaction") as counts:
            counts["parts merged"] = compact(home, spark, after=turn.hook("compaction"))
        if keep != Retention():
            with turn.step("retention") as counts:
                counts["rows left bronze"] = tables.retain(home, keep)
