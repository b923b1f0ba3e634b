"""Bronze, the archive: runs of tasks that ended, to a Delta table, each exactly once, whatever crashes in between.

A queue that is archived says so (``configure(archive=True)``): its clean-up keeps what no archive holds, and runs that
leave before are kept for the archive. An archive run covers the zxids after the last one's watermark up to that of a
write of its own, and costs by what ended in between. It is staged and counted; then it is committed, with its
watermark; then that is published in ZooKeeper, and only up to there does garbage collection delete. The table is thus
never behind ZooKeeper. What a crashed run staged is in no commit: nobody reads it, and it is deleted in time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from ... import engine
from ...delta_tables import Mark, Staged, Table
from ...engine import AnyQueue, Archive, ConfigError, Ended, Unreadable
from ...engine.queue_internals import internals
from ...location import Location
from ..session import spark_session
from ..source.connecting import Connect, open_client
from .queue_reader import ENDED, SCHEMA, read_runs, reader
from .stage_and_load import are_few, stage_by, stage_here

ROWS_PER_PARTITION: Final = 2_000
#: The steps after which a run may be interrupted, in order; see `archive_queue`'s `after`.
STEPS: Final = ("begun", "marked", "listed", "staged", "published", "finished")


class ArchiveIncomplete(engine.ZkmqError):
    """Not every task that was listed could be read; nothing was published. Run it again."""


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What a run did. ``archived``: its rows; ``total``: those of the whole archive; ``watermark``: how far that came.

    ``path``: the table's folder or address, None where there was nothing to archive.
    ``unreadable``: tasks that ended since the last run and whose records are damaged: they cannot be archived. Clean-up
    keeps them, and the first run after they were put right archives them.
    """

    queue: str
    archived: int
    total: int
    watermark: int
    path: str | None
    unreadable: tuple[str, ...] = ()


def _begin(queue: AnyQueue, home: Location) -> tuple[Table, Archive]:
    """Open the table and bring the archive's pointer up to it, which stops clean-up from deleting what is newer.

    Clean-up deletes up to the pointer from then on. A table of others, which may have come further by number so that
    what ended here would be passed over, is refused before. A queue that was made after all that the archive has goes
    on with it: it was deleted and made again.
    """
    # The pointer comes first: what another run publishes meanwhile does not put the table behind, and refuses this one.
    before = internals(queue).archive()
    table = Table.open(home, "bronze")
    mark = table.mark
    if mark.born not in {0, before.born} and before.born <= mark.watermark:
        raise ConfigError(
            f"{home} is the archive of another queue {queue.name!r}, of another root or ensemble, or of one that was "
            "deleted since: use another directory"
        )
    if mark.watermark and (now := internals(queue).zxid()) <= mark.watermark:
        raise ConfigError(
            f"the archive of queue {queue.name!r} is at zxid {mark.watermark} and ZooKeeper only at {now}: "
            "it is the archive of another ensemble; use another directory"
        )
    if before.watermark > mark.watermark:
        raise ConfigError(
            f"queue {queue.name!r} is archived up to {before.watermark} in {before.directory!r}, "
            f"but {home} only up to {mark.watermark}: give that directory, or bring its table back"
        )
    claim = replace(before, watermark=mark.watermark, directory=str(home.parent), run=os.urandom(8).hex())
    internals(queue).publish_archive(claim)
    pointer = internals(queue).archive()
    if replace(pointer, version=before.version) != claim:
        raise _overtaken(queue)
    return table, pointer


def _overtaken(queue: AnyQueue) -> ConfigError:
    return ConfigError(f"another archive run of queue {queue.name!r} began meanwhile; this one published nothing")


def archive_queue(
    connect: Connect,
    queue: str,
    directory: str | os.PathLike[str] | Location,
    spark: SparkSession | None = None,
    *,
    after: Callable[[str], None] = lambda _step: None,
) -> ArchiveReport:
    """Archive each run that ended since the last time: finished, cancelled or dead, also where its task has left since.

    The archive is under ``<directory>/<queue>``. The queue counts as archived from now on.
    `connect`: the arguments of `Zkmq.connect`, a picklable function that connects, or `SourceOptions`, whose
    credentials are looked up where Spark's workers run. `directory`: a folder of a file system with hard links that
    Spark's executors see too, or an address in S3; see `Location`. `spark` reads more than `FEW` runs; default:
    `spark_session()`, which is started then. `after` is called with the name of each step that was done (`STEPS`). A
    run that is interrupted anywhere may be repeated: no row is lost or doubled.
    Raises `ConfigError` where another run is at work or `directory` is not the queue's archive, and
    `ArchiveIncomplete` where tasks vanished while they were read.
    """
    home = Location.of(directory) / engine.check_name("queue", queue)
    with open_client(connect) as client:
        source = client.queue(queue)
        if not source.conf().archive:
            source.configure(archive=True)
        table, pointer = _begin(source, home)
        after("begun")
        watermark = internals(source).zxid()
        after("marked")
        mark, ended, unreadable = _listed(source, table.mark, watermark)
        after("listed")
        total = table.mark.rows
        if ended or unreadable or mark.damaged != table.mark.damaged or table.delta is None:
            if are_few(len(ended)):
                batches = (pa.Table.from_batches([batch]) for batch in read_runs(source, ended))
                staged = stage_here(table, SCHEMA, batches, watermark)
            else:
                staged = _staged_by_spark(table, ended, connect, spark or spark_session(), watermark)
            if staged.rows != len(ended):
                raise ArchiveIncomplete(
                    f"of {len(ended)} tasks of queue {queue!r} {staged.rows} were read; run it again"
                )
            after("staged")
            if internals(source).archive() != pointer:
                raise _overtaken(source)
            mark = replace(mark, watermark=watermark, born=pointer.born)
            total = table.commit(staged, mark)
            after("published")
            internals(source).publish_archive(replace(pointer, watermark=watermark))  # raises if overtaken
        after("finished")
    path = str(table.location) if ended else None
    return ArchiveReport(queue, len(ended), total, mark.watermark, path, unreadable)


def _staged_by_spark(table: Table, ended: list[Ended], connect: Connect, spark: SparkSession, watermark: int) -> Staged:
    """Have Spark's Python workers read the whole rows, several at a time, and write them."""
    partitions = max(1, min(spark.sparkContext.defaultParallelism, -(-len(ended) // ROWS_PER_PARTITION)))
    pairs = spark.sparkContext.parallelize([tuple(each) for each in ended], partitions)
    return stage_by(table, SCHEMA, spark.createDataFrame(pairs, ENDED), watermark, reader(connect, table.queue))


def _listed(queue: AnyQueue, mark: Mark, until: int) -> tuple[Mark, list[Ended], tuple[str, ...]]:
    """What ended since the mark or was put right since, the damaged among it, and a mark that names all the damaged."""
    listed = internals(queue).ended_between(mark.watermark, until)
    readable = {task.id for task in queue.tasks(ids=mark.damaged, parts=[])} if mark.damaged else set()
    ended = [each for each in internals(queue).ended_between(0, until) if each.place is None] if readable else []
    mended = [each for each in ended if each.id in readable and not isinstance(each, Unreadable)]
    runs = {(each.id, each.version): each for each in (*listed, *mended) if not isinstance(each, Unreadable)}
    unreadable = tuple(each.id for each in listed if isinstance(each, Unreadable))
    left = {*mark.damaged, *unreadable} - {each.id for each in mended}
    return replace(mark, damaged=tuple(sorted(left))), list(runs.values()), unreadable
