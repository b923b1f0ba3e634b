"""Batch reads: ids are listed once, where the query is planned, and each partition reads its share of the tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_zkmq.engine import AnyClient, AnyQueue, QueueNotFound, Scanned
from airflow_provider_zkmq.spark.source import access
from airflow_provider_zkmq.spark.source.columns import batch, parts
from airflow_provider_zkmq.spark.source.counting import Tally, begin_report
from airflow_provider_zkmq.spark.source.errors import plainly
from airflow_provider_zkmq.spark.source.listing import list_ids, list_states
from airflow_provider_zkmq.spark.source.options import READ, STREAM, Options
from airflow_provider_zkmq.spark.source.query import Query, columns_of, queues_of

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


def check_loadable(options: Options) -> Sequence[str]:
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


def _check_stream(options: Options, query: Query) -> None:
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

    def __init__(self, schema: StructType, options: Options) -> None:
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
        tally.tell(self.options.text("report"))

    def _scans(self, share: Share) -> Iterator[Scanned]:
        if share.states is not None:
            return iter([Scanned({"id": list(share.ids), "state": list(share.states)}, (), ())])
        return _ahead(access.cached(self.options).queue(share.queue), share.ids, self.query)


def shares(listed: Sequence[Share], wanted: int) -> list[InputPartition]:
    """The tasks of each queue in partitions; `wanted`: how many about, 0 for as many as seem good."""
    total = sum(len(whole.ids) for whole in listed)
    many = wanted or max(-(-total // MOST), min(os.cpu_count() or 1, -(-total // LEAST)))
    size = max(1, -(-total // max(1, many)))
    parts = [whole.part(at, size) for whole in listed for at in range(0, len(whole.ids), size)]
    return [replace(part, number=number) for number, part in enumerate(parts)] or [Share("", ())]


def _ahead(queue: AnyQueue, ids: Sequence[str], query: Query) -> Iterator[Scanned]:
    """Scans of so many tasks at a time as make a bearable batch; the next one is under way while one is used."""
    with ThreadPoolExecutor(1) as pool:
        begin, size = 0, FIRST
        ahead: Future[Scanned] | None = pool.submit(_scan, queue, ids[:size], query)
        while ahead is not None:
            scanned, begin = ahead.result(), begin + size
            size = _next_size(size, scanned)
            ahead = pool.submit(_scan, queue, ids[begin : begin + size], query) if begin < len(ids) else None
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
