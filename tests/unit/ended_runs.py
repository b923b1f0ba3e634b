"""Queues that are archived or followed: how runs end there, what is told of them, and how far each reader has come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_zkmq.engine.core.maintenance import collect
from airflow_provider_zkmq.engine.core.model.records import Ended
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.read import completion_log, configuration, inspect, server_clock
from airflow_provider_zkmq.engine.core.tasks import admin, interventions
from tests.unit.world import Client, FakeZooKeeper


class Reader(Client):
    """A client that works on a queue, and reads what ended there."""

    @classmethod
    def of(cls, **conf: Any) -> Reader:
        """The first client of a new queue."""
        client = cls(FakeZooKeeper())
        client.configured(**{"policy": RetryPolicy(attempts=20, factor=0)} | conf)
        return client

    def configured(self, **options: Any) -> None:
        self.do(admin.configure(self.context, **options))

    def finish(self, task_id: str, data: bytes = b"x", result: bytes = b"r", **options: Any) -> None:
        self.put(data, task_id=task_id, **options)
        self.complete(self.claimed(), result=result)

    def end_each_way(self) -> None:
        """One finished, one dead and one cancelled."""
        self.finish("f", b"f")
        self.put(b"d", task_id="d", metadata={"owner": "ann"})
        self.fail(self.claimed(), "first", backoff=0)
        self.fail(self.claimed(), "why", retry=False)
        self.put(b"c", task_id="c")
        self.cancel("c")

    def dead(self, task_id: str = "a") -> inspect.Task:
        """A dead letter, after two attempts."""
        self.put(b"payload", task_id=task_id, metadata={"owner": "ann"})
        self.fail(self.claimed(), "first", backoff=0)
        self.fail(self.claimed(), "last", retry=False)
        return self.do(inspect.read_task(self.context, task_id))

    def drop(self, *ids: str) -> None:
        for task_id in ids:
            self.do(interventions.drop(self.context, task_id))

    def redrive(self, task_id: str, data: bytes | None = None) -> None:
        self.do(interventions.redrive(self.context, task_id, data=data))

    def clean_up(self, lifetime: float = 0, later: float = 100) -> collect.Collected:
        self.zk.advance(later)
        return self.do(collect.collect_garbage(self.context, lifetime))

    def ended(self, after: int = 0, until: int | None = None) -> list[Ended]:
        return self.do(completion_log.ended_between(self.context, after, until))

    def ids(self, after: int = 0, until: int | None = None) -> list[str]:
        """Which tasks' runs are told, in the order of their ends."""
        return [each.id for each in self.ended(after, until)]

    def latest(self) -> int:
        return self.do(completion_log.latest_end(self.context))

    def read(self, which: list[Ended], **options: Any) -> list[inspect.Task]:
        return self.do(completion_log.read_ended(self.context, which, **options))

    def told(self) -> list[tuple[str, str, bytes, bytes | None]]:
        """Every run: its id, state, data and result."""
        return [(task.id, str(task.state), task.data, task.result) for task in self.read(self.ended())]

    def zxid(self) -> int:
        return self.do(server_clock.zxid(self.context))

    def departed(self, after: int = 0) -> list[Ended]:
        """The runs that have left, by the task."""
        return sorted(each for each in self.ended(after) if each.place is not None)

    def letters(self, after: int = 0) -> list[inspect.Task]:
        return self.read(self.departed(after))

    def letter_paths(self) -> list[str]:
        """Where the letters are, by the task."""
        return [self.context.paths.at("unarchived", each.place or "") for each in self.departed()]

    def archive(self) -> Any:
        return self.do(configuration.archive(self.context))

    def publish(self, watermark: int | None = None) -> None:
        """An archive run has come so far: to the present without a number."""
        known, reached = self.archive(), self.zxid() if watermark is None else watermark
        self.do(admin.publish_archive(self.context, replace(known, watermark=reached)))

    def trim(self) -> int | None:
        """Up to where clean-up says that it has deleted."""
        mark = self.do(completion_log.truncated_at(self.context))
        return None if mark is None else mark.last_zxid

    def since(self) -> int:
        """The transaction that made the queue a followed one."""
        return self.do(completion_log.truncated_at(self.context)).since
