"""The pipeline: what ended, from ZooKeeper into bronze, silver and gold; each step may be cut off and repeated.

A queue says first that it is archived, so that nobody deletes what bronze does not hold. Garbage collection comes after
bronze and deletes exactly what that holds. One queue's trouble is reported, and raised when all queues had their turn.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import SparkSession

from ...delta_tables import FOLDERS, Table
from ...engine import AnyClient, ConfigError, ZkmqError, check_name
from ...location import Location
from ..session import ending_what_starts
from ..source.connecting import Connect, all_queues, open_client
from .bronze import archive_queue
from .gold import summarise
from .retention import Retention, retain
from .silver import refine
from .stage_and_load import Counts

#: How lines begin that say what is wrong, in what Spark tells of a worker that failed, or of itself.
_OWN_ERRORS: Final = re.compile(r"airflow_provider_zkmq\.(engine\.errors|location)\.")
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


def run_pipeline(
    connect: Connect,
    queues: Sequence[str] | None,
    directory: str | os.PathLike[str] | Location,
    spark: SparkSession | None = None,
    *,
    lifetime: float | None = None,
    keep: Retention | None = None,
    progress: Callable[[str], None] = lambda _line: None,
    after: Callable[[str], None] = lambda _step: None,
) -> PipelineReport:
    """Mark, archive, collect, then bring silver and gold up to date and compact them, for each queue (None: for all).

    `connect`, `directory`: as in `archive_queue`. `spark` works where a step has more than `FEW` rows; default:
    `spark_session()`, which is started then. `lifetime`: seconds after which an archived task is collected, None:
    the queue's own. `keep`: for how long the tables keep what ended, default: for ever. `progress` is called with a
    line after each step, `after` with the name of each part of one. A run that was cut off anywhere may be repeated: no
    row is lost or doubled. Of two runs at once one goes on; the other says so, and changes nothing from then on.
    Raises `PipelineFailed` where a queue's turn ended early, when all have had theirs.
    """
    with ending_what_starts(), open_client(connect) as client:
        names = _names(client, queues)
        location = Location.of(directory)
        reports = {name: QueueReport(check_name("queue", name)) for name in names}

        @contextmanager
        def step(name: str, label: str) -> Iterator[Counts]:
            """A step, which is to note what it counted: how long it took is noted, and told."""
            began, counts = time.monotonic(), Counts()
            yield counts
            seconds = round(time.monotonic() - began, 3)
            reports[name].steps[label], reports[name].seconds[label] = counts, seconds
            counted = ", ".join(f"{number} {what}" for what, number in counts.items()) or "done"
            progress(f"queue {name}: {label}: {counted}, {seconds:.1f} s")

        def mark(name: str) -> None:
            """Have clean-up keep what is not archived; not where nothing can be archived: it would keep all."""
            with step(name, "mark"):
                location.check_writable()
                queue = client.queue(name)
                if not queue.conf().archive:
                    queue.configure(archive=True)

        def work(name: str) -> None:
            home = location / name
            with step(name, "bronze") as counts:
                archived = archive_queue(connect, name, location, spark, after=lambda part: after(f"bronze: {part}"))
                counts |= {"rows": archived.archived, "in all": archived.total}
                counts |= {"unreadable": len(archived.unreadable)} if archived.unreadable else {}
            with step(name, "gc") as counts:
                collected = client.queue(name).collect_garbage(lifetime=lifetime)
                counts |= {"deleted": collected.collected, "kept": collected.kept_unarchived + collected.kept_changed}
            with step(name, "silver") as counts:
                counts |= refine(home, spark, after=lambda part: after(f"silver: {part}"))
            with step(name, "gold") as counts:
                counts |= summarise(home, spark, after=lambda part: after(f"gold: {part}"))
            with step(name, "compaction") as counts:
                for table in [Table.open(home, kind) for kind in FOLDERS]:
                    counts["files merged"] = counts.get("files merged", 0) + table.merge()
                    counts["files deleted"] = counts.get("files deleted", 0) + table.sweep()
            if keep is not None and keep != Retention():
                with step(name, "retention") as counts:
                    counts["rows left bronze"] = retain(home, keep)

        for turn in (mark, work):
            for name in names:
                if reports[name].error is None:
                    try:
                        turn(name)
                    except Exception as error:  # noqa: BLE001  Spark's, Java's, the file system's: the others go on
                        text = f"{type(error).__name__}: {said(error)}"
                        progress(f"queue {name}: {text}")
                        reports[name] = replace(reports[name], error=text)
    report = PipelineReport(tuple(reports.values()))
    if report.failed:
        raise PipelineFailed(report)
    return report


def _names(client: AnyClient, queues: Sequence[str] | None) -> list[str]:
    """The queues that are asked for; None: all. Raises `ConfigError` where that is none."""
    names = list(dict.fromkeys(all_queues(client) if queues is None else queues))
    if not names:
        raise ConfigError("no queue is named: name some, or None for all")
    return names


def said(error: BaseException) -> str:
    """The line of an error that says what is wrong: of Spark's, not the walk through Java but what it was caused by."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _OWN_ERRORS.match(line)]
    caused = [line.removeprefix(_CAUSED) for line in lines if line.startswith(_CAUSED)]
    return _OWN_ERRORS.sub("", (raised[-1:] or caused[-1:] or lines[:1] or [""])[0], count=1)
