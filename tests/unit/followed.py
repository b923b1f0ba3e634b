"""Queues whose runs end, in memory, as streams see them; and what Spark does with a stream, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from pyspark.sql.types import StructType

from airflow_provider_zkmq.engine import Ended, QueueNotFound, State, Status, Task, Truncation, Unreadable
from airflow_provider_zkmq.spark.source import connecting as access
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.options import SourceOptions
from airflow_provider_zkmq.spark.source.streaming import TaskStream


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
    mark: Truncation | None = None
    changed: int = 0
    runs: list[Kept] = field(default_factory=list)

    def __internals__(self) -> Any:
        return self

    def conf(self) -> Any:
        self._there()
        return SimpleNamespace(follow=self.mark is not None, filters={})

    def configure(self, *, follow: bool) -> None:
        self.world.writes += 1
        self.mark = Truncation(0, self.world.tick()) if follow else None

    def truncated_at(self) -> Truncation | None:
        self._there()
        return self.mark

    def latest_end(self) -> int:
        self._there()
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

    def trim(self, last_zxid: int) -> None:
        """Clean up: what ended until then is deleted."""
        deleted = [run.version for run in self.runs if run.version <= last_zxid]
        self.runs = [run for run in self.runs if run.version > last_zxid]
        self.changed = self.world.tick()
        if self.mark is not None:
            self.mark = self.mark._replace(last_zxid=max([self.mark.last_zxid, *deleted]))

    def _there(self) -> None:
        if self.world.there.get(self.name) is not self:
            raise QueueNotFound(f"queue {self.name!r} does not exist")


class FakeQueues:
    """An ensemble's queues: the client of them, and what happens there."""

    def __init__(self, *names: str) -> None:
        self.zxid = 100
        self.there: dict[str, FakeQueue] = {}
        self.listings = self.writes = 0
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


#: The third column tells the order.
_SCHEMA = StructType().add("queue", "string").add("task_id", "string").add("version", "long")


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
    sink: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    stream: TaskStream | None = None
    schema: StructType = _SCHEMA

    def start(self) -> TaskStream:
        """The process starts, with nothing but the checkpoint."""
        self.patch(access, "connect", lambda _options: self.world)
        self.patch(access, "cached", lambda _options: self.world)
        self.stream = TaskStream(self.schema, SourceOptions.of(self.options))
        self.patch(self.stream, "_rest", lambda: None)
        return self.stream

    def kill(self, **options: str) -> None:
        """The process ends; the next one is told these options, too."""
        self.stream = None
        self.options |= options

    def available_now(self) -> None:
        """A process starts, which is to end with what has ended by now."""
        self.start().prepareForTriggerAvailableNow()

    def plan(self) -> bool:
        """Store the end of the next batch; False where there is none, or one is to be done first."""
        stream = self.stream or self.start()
        if self.uncommitted():
            return False
        start = self.offsets[-1] if self.offsets else json.dumps(stream.initialOffset())
        end = json.dumps(stream.latestOffset(json.loads(start), stream.getDefaultReadLimit()))
        stream.reportLatestOffset()
        if end == start:
            return False
        self.offsets.append(end)
        return True

    def write(self) -> list[tuple[Any, ...]]:
        """Read the batch that was stored last, elsewhere, and write it, which has no effect the second time."""
        stream = self.stream or self.start()
        number = len(self.offsets) - 1
        start = json.loads(self.offsets[number - 1]) if number else stream.initialOffset()
        sent = pickle.dumps(stream.partitions(start, json.loads(self.offsets[-1])))
        elsewhere = pickle.loads(pickle.dumps(TaskStream(self.schema, SourceOptions.of(self.options))))  # noqa: S301  our own
        batches = [batch for partition in pickle.loads(sent) for batch in elsewhere.read(partition)]  # noqa: S301
        rows = [tuple(row[name] for name in self.schema.fieldNames()) for it in batches for row in it.to_pylist()]
        rows = sorted(rows, key=lambda row: (row[2], *row))
        assert self.sink.setdefault(number, rows) == rows, "a batch that is repeated has other rows"
        return rows

    def finish(self) -> None:
        """What was stored and not committed is done."""
        if self.uncommitted():
            self.write()
            self.commits = len(self.offsets)

    def uncommitted(self) -> bool:
        return len(self.offsets) > self.commits

    def run(self) -> list[tuple[Any, ...]]:
        """Batches until there is nothing new; what they hold."""
        self.finish()
        before = len(self.sink)
        for _ in range(1_000):
            if not self.plan():
                return self.rows(before)
            self.finish()
        raise AssertionError("the stream does not come to rest")

    def refuses(self, why: str) -> None:
        """It ends with this error, and is started again."""
        with pytest.raises(SourceError, match=why):
            self.run()
        self.kill()

    def rows(self, first: int = 0) -> list[tuple[Any, ...]]:
        """What the sink has, from a batch on."""
        return [row for number in sorted(self.sink)[first:] for row in self.sink[number]]


class Interrupted(RuleBasedStateMachine):
    """A query that is killed and started again anywhere."""

    patch: Any = None
    query: Query

    @rule(most=st.sampled_from(["1", "2", "5", ""]))
    def restart(self, most: str) -> None:
        self.query.kill(maxTasksPerTrigger=most)

    @rule()
    def plan(self) -> None:
        self.query.plan()

    @precondition(lambda self: self.query.uncommitted())
    @rule()
    def write(self) -> None:
        self.query.write()

    @precondition(lambda self: self.query.uncommitted())
    @rule()
    def batch(self) -> None:
        self.query.finish()
