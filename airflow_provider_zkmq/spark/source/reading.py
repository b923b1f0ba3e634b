"""Batch reads, and what they found gone or corrupt."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_zkmq.engine import AnyClient, AnyQueue, QueueNotFound, Scanned
from airflow_provider_zkmq.spark.source import options as access
from airflow_provider_zkmq.spark.source.options import READ, STREAM, SourceError, SourceOptions, plainly
from airflow_provider_zkmq.spark.source.query import Query, batch, columns_of, list_ids, list_states, parts, queues_of

# --- What a read found gone or corrupt: told in the log where it was read, and in files that a caller can sum up.

_LOG: Final = logging.getLogger(__name__)
#: So many ids are named in a line of the log.
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What a read came to: its rows, and the ids, by queue, of those that were listed and are none.

    ``vanished``: deleted between the listing and the reading. ``corrupt``: their records cannot be read.
    """

    rows: int
    vanished: dict[str, list[str]]
    corrupt: dict[str, list[str]]


@dataclass(slots=True)
class Tally:
    """What one partition comes to."""

    number: int
    queue: str
    rows: int = 0
    vanished: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)

    def add(self, rows: int, scanned: Scanned) -> None:
        """Count what was read."""
        self.rows += rows
        self.vanished += scanned.vanished
        self.corrupt += scanned.corrupt

    def log_report(self, folder: str | None) -> None:
        """Log what is missing, and write it all to a folder; a partition that is read again replaces its file."""
        for ids, why in ((self.vanished, "vanished before they were read"), (self.corrupt, "cannot be read")):
            if ids:
                named = ", ".join(ids[:_NAMED]) + (", …" if len(ids) > _NAMED else "")
                _LOG.warning("queue %s: %d task(s) %s and are no rows: %s", self.queue, len(ids), why, named)
        if folder is not None:
            with _written(folder) as home:
                temporary = home / f".{self.number}-{os.getpid()}"
                temporary.write_text(json.dumps(asdict(self)))
                temporary.replace(home / f"part-{self.number:05}.json")


@contextlib.contextmanager
def _written(folder: str) -> Iterator[Path]:
    """The folder, made if missing. Raises `SourceError` where nothing can be written there."""
    home = Path(folder)
    try:
        home.mkdir(parents=True, exist_ok=True)
        yield home
    except OSError as error:
        raise SourceError(f"option report: nothing can be written to {folder!r}: {error.strerror or error}") from None


def begin_report(folder: str | None) -> None:
    """A read was planned that will report here: what is left of the one before is deleted. Raises `SourceError`."""
    if folder is not None:
        with _written(folder) as home:
            for path in home.glob("part-*.json"):
                path.unlink(missing_ok=True)


def read_report(folder: str | os.PathLike[str]) -> ReadReport:
    """What the last read with the option ``report`` of this folder came to, as far as its partitions have been read."""
    parts = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("part-*.json"))]
    missing: dict[str, dict[str, list[str]]] = {"vanished": {}, "corrupt": {}}
    for part in parts:
        for kind, queues in missing.items():
            if part[kind]:
                queues.setdefault(part["queue"], []).extend(part[kind])
    return ReadReport(sum(part["rows"] for part in parts), **missing)


# --- Batch reads: ids are listed once, where the query is planned, and each partition reads its share of the tasks.

#: A partition has at most so many tasks, and not many fewer while there are not enough partitions for all processors.
MOST, LEAST = 25_000, 2_000
#: Tasks in a batch of rows: the first of a partition, where nobody knows yet how large tasks are, and the largest.
FIRST, LARGEST = 256, 4_096
#: What a batch of rows is to have at most, in bytes, if the next tasks are as large as the last.
BATCH_BYTES: Final = 8 << 20


@dataclass
class Share(InputPartition):
    """The tasks of one partition. ``states``: those that they are listed by, where nothing has to be read."""

    queue: str
    ids: Sequence[str]
    states: Sequence[str] | None = None
    number: int = 0

    def part(self, at: int, size: int) -> Share:
        """Some of the tasks."""
        states = None if self.states is None else self.states[at : at + size]
        return Share(self.queue, self.ids[at : at + size], states)


def check_loadable(options: SourceOptions) -> Sequence[str]:
    """The columns asked for. Raises `SourceError` for whatever neither a read nor a stream could do.

    ZooKeeper is asked whether the queues are there: ``load`` fails where there is nothing to load from.
    """
    options.check(tuple(dict.fromkeys((*READ, *STREAM))), "reads and streams")
    query = Query.of(options)
    if any(options.text(name) for name in STREAM if name not in READ):
        _check_stream(options, query)
    with access.opened(options) as client:
        _check(client, queues_of(options, client), query)
    return query.columns


def _check_stream(options: SourceOptions, query: Query) -> None:
    """Raise `SourceError` for what a stream could not do: of what its reader would say Spark shows nothing."""
    from airflow_provider_zkmq.spark.source.following import Settings

    Settings.of(options, list(query.columns))


def _check(client: AnyClient, queues: Sequence[str], query: Query) -> None:
    """Raise `ConfigError` for a selector that one of the queues refuses."""
    if query.selector is not None:
        for name in queues:
            client.queue(name).check_wanted(selector=query.selector)


class TaskReader(DataSourceReader):
    """Reads tasks, a row for each. It is pickled into Spark's plan, and holds no credentials."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        options.check(READ, "reads")
        self.options = options
        self.query = Query.of(options, columns_of(schema))

    def partitions(self) -> Sequence[InputPartition]:
        """The ids of the tasks there are now, in shares."""
        with plainly(), access.opened(self.options) as client:
            queues = queues_of(self.options, client)
            _check(client, queues, self.query)
            listed = [self._listed(client.queue(name)) for name in queues]
        begin_report(self.options.text("report"))
        return shares(listed, self.query.partitions)

    def _listed(self, queue: AnyQueue) -> Share:
        if self.query.listed:
            states = list_states(queue, self.query.states)
            return Share(queue.name, list(states), list(states.values()))
        return Share(queue.name, list_ids(queue, self.query.states))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        if isinstance(partition, Share) and partition.ids:
            with plainly():
                yield from self._read(partition)

    def _read(self, share: Share) -> Iterator[pa.RecordBatch]:
        tally = Tally(share.number, share.queue)
        for scanned in self._scans(share):
            rows = batch(share.queue, self.query.columns, scanned.columns)
            tally.add(rows.num_rows, scanned)
            if rows.num_rows:
                yield rows
        tally.log_report(self.options.text("report"))

    def _scans(self, share: Share) -> Iterator[Scanned]:
        if share.states is not None:
            return iter([Scanned({"id": list(share.ids), "state": list(share.states)}, (), ())])
        return _scans_in_turn(access.cached(self.options).queue(share.queue), share.ids, self.query)


def shares(listed: Sequence[Share], wanted: int) -> list[InputPartition]:
    """The tasks of each queue in partitions; `wanted`: how many about, 0 for as many as seem good."""
    total = sum(len(whole.ids) for whole in listed)
    many = wanted or max(-(-total // MOST), min(os.cpu_count() or 1, -(-total // LEAST)))
    size = max(1, -(-total // max(1, many)))
    parts = [whole.part(at, size) for whole in listed for at in range(0, len(whole.ids), size)]
    return [replace(part, number=number) for number, part in enumerate(parts)] or [Share("", ())]


def _scans_in_turn(queue: AnyQueue, ids: Sequence[str], query: Query) -> Iterator[Scanned]:
    """Scans of so many tasks at a time as make a bearable batch; the next one is under way while one is used."""
    with ThreadPoolExecutor(1) as pool:
        begin, size = 0, FIRST
        next_scan: Future[Scanned] | None = pool.submit(_scan, queue, ids[:size], query)
        while next_scan is not None:
            scanned, begin = next_scan.result(), begin + size
            size = _next_size(size, scanned)
            next_scan = pool.submit(_scan, queue, ids[begin : begin + size], query) if begin < len(ids) else None
            yield scanned


def _scan(queue: AnyQueue, ids: Sequence[str], query: Query) -> Scanned:
    """What is there of these tasks; where the queue was deleted since they were listed, all have vanished."""
    try:
        return queue.scan(
            ids,
            parts(query.columns),
            states=query.states or None,
            selector=query.selector,
            since=query.since,
            in_flight=query.in_flight,
        )
    except QueueNotFound:
        return Scanned({part: [] for part in parts(query.columns)}, tuple(ids), ())


def _next_size(size: int, scanned: Scanned) -> int:
    """How many tasks to read next: twice as many, but no more than make a batch of the size that is wanted."""
    payloads = (scanned.columns.get(name, ()) for name in ("data", "result"))
    total = sum(len(payload) for values in payloads for payload in values if payload is not None)
    return max(1, min(LARGEST, size * 2, size * BATCH_BYTES // max(1, total)))
