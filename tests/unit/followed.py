"""Queues whose runs end, in memory, as streams see them; and what Spark does with a stream, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeVar

from pyspark.sql.types import StructType

from airflow_provider_zkmq.engine import Ended, QueueNotFound, State, Status, Task, Trimmed, Unreadable
from airflow_provider_zkmq.spark.source import access
from airflow_provider_zkmq.spark.source.following import TaskStream
from airflow_provider_zkmq.spark.source.options import Options


@dataclass
class Kept:
    """A run that ended, and where it is: standing, departed to a place, gone, or damaged."""

    id: str
    version: int
    state: State = State.FINISHED
    place: str | None = None
    damaged: bool = False

    def task(self) -> Task:
        return Task(
            self.id, self.state, Status.DONE_WITH_BACKOFF, 1, 0, {"size": "small"}, {"n": 1}, b"d", b"r", None, "c",
            1_000, 2_000, 5_000, None, (), self.version,
        )  # fmt: skip


@dataclass
class FakeQueue:
    """One queue; what the engine's verbs for streams promise of it, and nothing else."""

    world: FakeQueues
    name: str
    mark: Trimmed | None = None
    changed: int = 0
    runs: list[Kept] = field(default_factory=list)

    def conf(self) -> Any:
        self._there()
        return SimpleNamespace(follow=self.mark is not None, filters={})

    def configure(self, *, follow: bool) -> None:
        self.world.writes += 1
        self.mark = Trimmed(0, self.world.tick()) if follow else None

    def trimmed(self) -> Trimmed | None:
        self._there()
        return self.mark

    def latest_end(self) -> int:
        self._there()
        self.world.looks += 1
        return self.changed

    def ended_between(self, after: int, until: int) -> list[Ended]:
        self._there()
        self.world.listings += 1
        runs = sorted((run for run in self.runs if after < run.version <= until), key=lambda run: run.version)
        return [(Unreadable if run.damaged else Ended)(run.id, run.version, run.place) for run in runs]

    def read_ended(self, ended: Iterable[Ended], *, parts: Sequence[str]) -> list[Task]:
        self._there()
        runs = {(run.id, run.version): run.task() for run in self.runs if not run.damaged}
        tasks = [runs[each.id, each.version] for each in ended if (each.id, each.version) in runs]
        return [replace(task, data=task.data if "data" in parts else b"") for task in tasks]

    def trim(self, upto: int) -> None:
        """Clean up: what ended until then is deleted."""
        deleted = [run.version for run in self.runs if run.version <= upto]
        self.runs = [run for run in self.runs if run.version > upto]
        self.changed = self.world.tick()
        if self.mark is not None:
            self.mark = self.mark._replace(upto=max([self.mark.upto, *deleted]))

    def _there(self) -> None:
        if self.world.there.get(self.name) is not self:
            raise QueueNotFound(f"queue {self.name!r} does not exist")


class FakeQueues:
    """An ensemble's queues: the client of them, and what happens there."""

    def __init__(self, *names: str) -> None:
        self.zxid = 100
        self.there: dict[str, FakeQueue] = {}
        self.looks = self.listings = self.writes = 0
        for name in names:
            self.make(name)

    def tick(self) -> int:
        self.zxid += 1
        return self.zxid

    def make(self, name: str) -> FakeQueue:
        self.there[name] = FakeQueue(self, name, changed=self.tick())
        return self.there[name]

    def delete(self, name: str) -> None:
        self.tick()
        del self.there[name]

    def end(self, *runs: tuple[str, str], state: State = State.FINISHED) -> int:
        """Runs (queue, id) end by one transaction; its number."""
        zxid = self.tick()
        for queue, task_id in runs:
            self.there[queue].runs.append(Kept(task_id, zxid, state))
            self.there[queue].changed = zxid
        return zxid

    def depart(self, queue: str, task_id: str) -> None:
        """The last run of an id leaves where it stands: redriven, dropped, or run anew."""
        run = [run for run in self.there[queue].runs if run.id == task_id][-1]
        run.place = f"kept/{self.tick()}"
        self.there[queue].changed = self.zxid

    def queues(self) -> list[str]:
        return sorted(self.there)

    def queue(self, name: str) -> FakeQueue:
        return self.there.get(name) or FakeQueue(self, name)

    def close(self) -> None:
        """Nothing to end."""


Row = tuple[Any, ...]
T = TypeVar("T")
#: The third column tells the order.
_SCHEMA = StructType().add("queue", "string").add("task_id", "string").add("version", "long")


def copied(sent: T) -> T:
    """What another process gets."""
    received: T = pickle.loads(pickle.dumps(sent))  # noqa: S301  our own bytes
    return received


@dataclass
class Query:
    """A streaming query: its checkpoint, its sink, and the process that runs it, which can be ended anywhere.

    What Spark does: the end of a batch is stored, then the batch is read and written, then its commit is stored; the
    sink takes a batch once. Its first step after a restart is the batch that was stored and not committed.
    """

    world: Any
    patch: Callable[..., None]
    options: dict[str, str] = field(default_factory=dict)
    offsets: list[str] = field(default_factory=list)
    commits: int = 0
    sink: dict[int, list[Row]] = field(default_factory=dict)
    stream: TaskStream | None = None
    schema: StructType = _SCHEMA

    def start(self) -> TaskStream:
        """The process starts, with nothing but the checkpoint."""
        self.patch(access, "connect", lambda _options: self.world)
        self.patch(access, "cached", lambda _options: self.world)
        self.stream = TaskStream(self.schema, Options.of(self.options))
        self.patch(self.stream, "_rest", lambda: None)
        return self.stream

    def kill(self) -> None:
        self.stream = None

    def plan(self) -> bool:
        """Store the end of the next batch; False where there is none, or one is to be done first."""
        stream = self.stream or self.start()
        if len(self.offsets) > self.commits:
            return False
        start = self._json(stream.initialOffset()) if not self.offsets else self.offsets[-1]
        end = self._json(stream.latestOffset(json.loads(start), stream.getDefaultReadLimit()))
        stream.reportLatestOffset()
        if end == start:
            return False
        self.offsets.append(end)
        return True

    def write(self) -> list[Row]:
        """Read the batch that was stored last, and write it, which is without effect the second time."""
        stream = self.stream or self.start()
        number = len(self.offsets) - 1
        start = self._json(stream.initialOffset()) if number == 0 else self.offsets[number - 1]
        partitions = stream.partitions(json.loads(start), json.loads(self.offsets[-1]))
        elsewhere = copied(TaskStream(self.schema, Options.of(self.options)))
        rows = [
            tuple(row[name] for name in self.schema.fieldNames())
            for partition in partitions
            for batch in elsewhere.read(copied(partition))
            for row in batch.to_pylist()
        ]
        rows = sorted(rows, key=lambda row: (row[2], *row))
        before = self.sink.setdefault(number, rows)
        assert before == rows, "a batch that is repeated has other rows"
        return rows

    def commit(self) -> None:
        self.commits = len(self.offsets)

    def finish(self) -> None:
        """What was stored and not committed is done."""
        if len(self.offsets) > self.commits:
            self.write()
            self.commit()

    def run(self) -> list[Row]:
        """Batches until there is nothing new; what they hold."""
        self.finish()
        before = len(self.sink)
        for _ in range(1_000):
            if not self.plan():
                return [row for number in sorted(self.sink)[before:] for row in self.sink[number]]
            self.finish()
        raise AssertionError("the stream does not come to rest")

    def rows(self) -> list[Row]:
        return [row for number in sorted(self.sink) for row in self.sink[number]]

    def _json(self, offset: dict[str, Any]) -> str:
        return json.dumps(offset)
