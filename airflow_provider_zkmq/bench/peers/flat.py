"""The algorithm that this queue began as: a znode for each part of a task, one flat list, a lock for each claim.

Each step is a request of its own, as published; a consumer lists all that is pending for each claim, and one that dies
between two steps leaves a task that nobody finds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from kazoo.exceptions import NodeExistsError, NoNodeError

from airflow_provider_zkmq.bench.jobs import PAYLOAD, Asked, Verb, drained, simple, times

if TYPE_CHECKING:
    from kazoo.client import KazooClient

_PARTS: Final = (("", b""), ("/filters", b""), ("/state", b"inserted"), ("/metadata", b"{}"), ("/data", PAYLOAD))


def _lists(asked: Asked) -> None:
    for name in ("tasks", "queue"):
        asked.clients.kazoo.ensure_path(f"{asked.path}/{name}")


def _enqueue(kazoo: KazooClient, path: str) -> None:
    task = uuid4().hex
    for part, data in _PARTS:
        kazoo.create(f"{path}/tasks/{task}{part}", data)
    kazoo.create(f"{path}/queue/{task}")


def _fill(asked: Asked) -> None:
    """The same znodes, twenty tasks in a transaction: how they came there is not measured."""
    _lists(asked)
    for start in range(0, asked.tasks, 20):
        transaction = asked.clients.kazoo.transaction()
        for _ in range(min(20, asked.tasks - start)):
            task = uuid4().hex
            for part, data in _PARTS:
                transaction.create(f"{asked.path}/tasks/{task}{part}", data)
            transaction.create(f"{asked.path}/queue/{task}")
        transaction.commit()


def _consume(kazoo: KazooClient, path: str) -> bool | None:
    """Claim one of those that are listed and finish it; None: there is none."""
    for task in sorted(kazoo.get_children(f"{path}/queue")):
        try:
            kazoo.create(f"{path}/tasks/{task}/claim", b"bench", ephemeral=True)
            kazoo.delete(f"{path}/queue/{task}")
        except (NodeExistsError, NoNodeError):
            continue
        _finish(kazoo, f"{path}/tasks/{task}")
        return True
    return None


def _finish(kazoo: KazooClient, task: str) -> None:
    kazoo.set(f"{task}/state", b"claimed")
    kazoo.get(f"{task}/data")
    kazoo.set(f"{task}/state", b"finished")
    kazoo.delete(f"{task}/claim")


VERBS: Final[dict[str, Verb]] = {
    "flat-enqueue": simple(
        lambda asked: times(asked.tasks, partial(_enqueue, asked.clients.kazoo, asked.path)), _lists
    ),
    "flat-claim": simple(lambda asked: drained(partial(_consume, asked.clients.kazoo, asked.path)), _fill),
}
