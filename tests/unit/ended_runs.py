"""Queues that are archived or followed: how runs end there, what is told of them, and how far each reader has come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_zkmq.engine.core.model.letters import Ended
from airflow_provider_zkmq.engine.core.reading import archiving, inspect, letters, log, runs, trimmed
from airflow_provider_zkmq.engine.core.tasks import configure, operate
from airflow_provider_zkmq.engine.core.upkeep import collect
from tests.unit.world import Client


def configured(client: Client, **options: Any) -> None:
    client.do(configure.configure(client.context, **options))


def finish(client: Client, task_id: str, data: bytes = b"x", result: bytes = b"r", **options: Any) -> None:
    client.put(data, task_id=task_id, **options)
    client.complete(client.claimed(), result=result)


def end_each_way(client: Client) -> None:
    """One finished, one dead and one cancelled."""
    finish(client, "f", b"f")
    client.put(b"d", task_id="d")
    client.fail(client.claimed(), "why", retry=False)
    client.put(b"c", task_id="c")
    client.cancel("c")


def dead(client: Client, task_id: str = "a") -> inspect.Task:
    """A dead letter, after two attempts."""
    client.put(b"payload", task_id=task_id, metadata={"owner": "ann"})
    client.fail(client.claimed(), "first", backoff=0)
    client.fail(client.claimed(), "last", retry=False)
    return client.do(inspect.read_task(client.context, task_id))


def drop(client: Client, task_id: str) -> None:
    client.do(operate.drop(client.context, task_id))


def clean_up(client: Client, lifetime: float = 0, later: float = 100) -> collect.Collected:
    client.zk.advance(later)
    return client.do(collect.collect_garbage(client.context, lifetime))


def ended(client: Client, after: int = 0, until: int | None = None) -> list[Ended]:
    return client.do(log.ended_between(client.context, after, until))


def ids(client: Client, after: int = 0, until: int | None = None) -> list[str]:
    """Which tasks' runs are told, in the order of their ends."""
    return [each.id for each in ended(client, after, until)]


def latest(client: Client) -> int:
    return client.do(log.latest_end(client.context))


def read(client: Client, which: list[Ended], **options: Any) -> list[inspect.Task]:
    return client.do(runs.read_ended(client.context, which, **options))


def departed(client: Client, after: int = 0) -> list[letters.Departed]:
    """The letters of the runs that have left."""
    return client.do(letters.departed_between(client.context, after, client.do(archiving.zxid(client.context))))


def read_letters(client: Client, after: int = 0) -> list[inspect.Task]:
    return client.do(letters.read_departed(client.context, departed(client, after)))


def letter_paths(client: Client) -> list[str]:
    """Where the letters are, by the task."""
    return [client.context.paths.at("unarchived", each.place) for each in sorted(departed(client))]


def publish(client: Client, watermark: int | None = None, **more: Any) -> None:
    """An archive run has come so far: to the present without a number."""
    known = client.do(archiving.archive(client.context))
    reached = client.do(archiving.zxid(client.context)) if watermark is None else watermark
    client.do(configure.publish_archive(client.context, replace(known, watermark=reached, **more)))


def trim(client: Client) -> int | None:
    """Up to where clean-up says that it has deleted."""
    mark = client.do(trimmed.trimmed(client.context))
    return None if mark is None else mark.upto


def since(client: Client) -> int:
    """The transaction that made the queue a followed one."""
    return client.do(trimmed.trimmed(client.context)).since
