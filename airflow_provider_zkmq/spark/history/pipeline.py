"""The pipeline: what ended, from ZooKeeper into bronze, silver and gold; each step may be cut off and repeated.

A queue says first that it is archived, so that nobody deletes what bronze does not hold. Garbage collection comes after
bronze and deletes exactly what that holds. One queue's trouble is reported, and raised when all queues had their turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from ...engine import AnyClient, ZkmqError, check_name
from ...history import FOLDERS, Table
from .bronze import archive_queue
from .gold import summarise
from .rows import Connect, open_client
from .silver import refine
from .tables import Counts, Retention, check_writable, retain

#: How lines begin that say what is wrong, in what Spark tells of a worker that failed, or of itself.
_OWN_ERRORS: Final = "airflow_provider_zkmq.engine.errors."
_CAUSED: Final = "Caused by: "


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
    progress: Callable[[str], None] = lambda _line: None,
    after: Callable[[str], None] = lambda _step: None,
) -> PipelineReport:
    """Mark, archive, collect, then bring silver and gold up to date and compact them, for each queue (None: for all).

    `connect`, `directory`: as in `archive_queue`. `lifetime`: seconds after which an archived task is collected, None:
    the queue's own. `keep`: for how long the tables keep what ended, default: for ever. `progress` is called with a
    line after each step, `after` with the name of each part of one. A run that was cut off anywhere may be repeated: no
    row is lost or doubled. Of two runs at once one goes on; the other says so, and changes nothing from then on.
    Raises `PipelineFailed` where a queue's turn ended early, when all have had theirs.
    """
    with open_client(connect) as client:
        names = list(dict.fromkeys(queues or client.queues()))
        place = Path(directory).absolute()
        reports = [QueueReport(check_name("queue", name)) for name in names]
        turns = [_Turn(client, connect, report, place, spark, progress, after) for report in reports]
        reports = [_tried(turn, _mark) for turn in turns]
        for number, turn in enumerate(turns):
            if reports[number].error is None:
                reports[number] = _tried(turn, lambda turn: _steps(turn, lifetime, keep or Retention()))
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
        check_writable(turn.directory)
        queue = turn.client.queue(turn.report.queue)
        if not queue.conf().archive:
            queue.configure(archive=True)


def _steps(turn: _Turn, lifetime: float | None, keep: Retention) -> None:
    name, spark = turn.report.queue, turn.spark
    with turn.step("bronze") as counts:
        archived = archive_queue(turn.connect, name, turn.directory, spark, after=turn.hook("bronze"))
        counts |= {"rows": archived.archived, "in all": archived.total}
        counts |= {"unreadable": len(archived.unreadable)} if archived.unreadable else {}
    with turn.step("gc") as counts:
        collected = turn.client.queue(name).collect_garbage(lifetime=lifetime)
        counts |= {"deleted": collected.collected, "kept": collected.kept_unarchived + collected.kept_changed}
    home = turn.directory / name
    with turn.step("silver") as counts:
        counts |= refine(home, spark, after=turn.hook("silver"))
    with turn.step("gold") as counts:
        counts |= summarise(home, spark, after=turn.hook("gold"))
    with turn.step("compaction") as counts:
        counts["files merged"] = sum(Table.open(home, kind).merge() for kind in FOLDERS)
        counts["files deleted"] = sum(Table.open(home, kind).sweep() for kind in FOLDERS)
    if keep != Retention():
        with turn.step("retention") as counts:
            counts["rows left bronze"] = retain(home, keep)
