"""Reading a stream's runs where its partitions are: as they ended, however late they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from airflow_provider_zkmq.engine import (
    AnyQueue,
    ConfigError,
    Ended,
    Part,
    QueueNotFound,
    State,
    Status,
    Task,
    parse_selector,
)
from airflow_provider_zkmq.spark.source.columns import batch, parts
from airflow_provider_zkmq.spark.source.ends import Run
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.losses import Losses, log
from airflow_provider_zkmq.spark.source.offsets import Position
from airflow_provider_zkmq.spark.source.options import Options

#: So many whole runs are in memory together.
AT_ONCE: Final = 128
#: What is not read where its column is not asked for.
PARTS: Final[tuple[Part, ...]] = ("data", "metadata", "result")
ENDED: Final = (State.FINISHED, State.DEAD, State.CANCELLED)


@dataclass(frozen=True, slots=True)
class Taking:
    """Which runs are asked for, by state and selector, and which columns of them."""

    columns: list[str]
    states: frozenset[str]
    selector: str | None
    losses: Losses

    @classmethod
    def of(cls, columns: list[str], options: Options, losses: Losses) -> Self:
        """What the options ask for. Raises `SourceError` for a state in which no run ends, or a bad selector."""
        states, selector = options.names("states") or [str(state) for state in ENDED], options.text("selector")
        for state in states:
            if state not in ENDED:
                raise SourceError(f"a stream has runs that ended: states are {', '.join(ENDED)}, not {state!r}")
        try:
            parse_selector(selector or "all()")
        except ConfigError as error:
            raise SourceError(f"option selector: {error}") from None
        return cls(columns, frozenset(states), selector, losses)

    def rows(self, queue: AnyQueue, runs: Sequence[Run], position: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a queue's runs. What cannot be read any more is logged; what clean-up deleted is a loss."""
        try:
            yield from self._read(queue, runs, position)
        except QueueNotFound:
            self.losses.gone(queue.name)

    def _read(self, queue: AnyQueue, runs: Sequence[Run], position: Position) -> Iterator[pa.RecordBatch]:
        gone = list[Run]()
        for start in range(0, len(runs), AT_ONCE):
            chunk = runs[start : start + AT_ONCE]
            tasks = queue.read_ended([Ended(run.id, run.version, run.place) for run in chunk], parts=self._parts)
            read = {(task.id, task.version) for task in tasks}
            gone += [run for run in chunk if (run.id, run.version) not in read]
            yield self._batch(queue.name, self._wanted(queue, tasks))
        if gone:
            self.losses.check(queue.name, min(run.version for run in gone) - 1, position, queue.trimmed())
            log.warning("%d runs cannot be read any more and are left out, such as %s", len(gone), shown(gone))

    def _batch(self, queue: str, tasks: Sequence[Task]) -> pa.RecordBatch:
        lists = {part: [_told(task, part) for task in tasks] for part in parts(self.columns)}
        return batch(queue, self.columns, lists)

    @property
    def _parts(self) -> list[Part]:
        return [part for part in PARTS if part in self.columns]

    def _wanted(self, queue: AnyQueue, tasks: Sequence[Task]) -> list[Task]:
        ended = [task for task in tasks if task.state in self.states]
        if self.selector is None or not ended:
            return ended
        types = queue.conf().filters
        try:
            selector = parse_selector(self.selector).bind(types)
        except ConfigError as error:
            log.warning("no task of queue %r can be one that %s accepts: %s", queue.name, self.selector, error)
            return []
        return [task for task in ended if selector.matches(task.filters, types)]


def _told(task: Task, part: str) -> object:
    """What a run says of itself; what a dedupe window or a run in escrow make of its status later is no part of it."""
    if part == "status" and task.state is State.FINISHED:
        return Status.DONE_AWAITING_GC
    return getattr(task, part)


def shown(runs: Sequence[Run]) -> str:
    """Some runs by name, for people."""
    return ", ".join(f"{run.id} of queue {run.queue}" for run in runs[:5])
