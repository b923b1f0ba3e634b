"""A task has no znode for what it does not have; its record tells which stand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, product
from typing import Any, Final

import pytest

from airflow_provider_zkmq.engine.core.maintenance.collect import collect_garbage
from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum
from airflow_provider_zkmq.engine.core.read import columnar_read
from airflow_provider_zkmq.engine.core.read.inspect import read_task
from airflow_provider_zkmq.engine.core.tasks import interventions
from airflow_provider_zkmq.engine.core.zk_operations import Multi, Op
from tests.unit.world import Client, new_queue

TREE: Final = "/zkmq/q/tasks/a"
PARTS: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "metadata": {"metadata": {"of": 1}},
    "filters": {"filters": {"size": "small"}},
    "both": {"metadata": {"of": 2}, "filters": {"size": "large"}},
}


def queue() -> Client:
    return new_queue(filters={"size": OrderedEnum("small", "large")})


def znodes(client: Client) -> set[str]:
    """What stands below the task, by its path there."""
    return {path.removeprefix(TREE + "/") for path in client.zk.nodes if path.startswith(TREE + "/")}


def holds(client: Client, data: bytes, parts: str, came: int) -> None:
    """The task is what a message asked for, and when; a scan tells the same; the tree is what its record says."""
    client.check()
    task, requested = client.do(read_task(client.context, "a")), {"metadata": {}, "filters": {}} | PARTS[parts]
    columns = client.do(columnar_read.scan(client.context, ["a"], ["enqueued_ms", "metadata", "filters"])).columns
    assert columns == {"enqueued_ms": [came]} | {name: [value] for name, value in requested.items()}
    told = (task.data, task.metadata, task.filters, task.enqueued_ms)
    assert (told, client.reports) == ((data, requested["metadata"], requested["filters"], came), [])


def test_what_is_empty_is_not_written() -> None:
    """Neither of a task that says nothing about it, nor of one with an empty mapping."""
    for parts, message in PARTS.items():
        client = queue()
        client.put(task_id="a", **{"metadata": {}, "filters": {}} | message)
        assert znodes(client) == {
            "data",
            "state",
            *message,
            *(f"filters/{name}" for name in message.get("filters", ())),
        }
        holds(client, b"x", parts, client.zk.ms)


def ended(client: Client) -> Any:
    """A clean-up that deletes the task, which is finished before."""
    client.complete(client.claimed())
    client.zk.advance(10)
    return collect_garbage(client.context, 5)


DELETIONS: Final[dict[str, Callable[[Client], Any]]] = {
    "drop": lambda client: interventions.drop(client.context, "a"),
    "clear": lambda client: interventions.clear(client.context),
    "clean-up": ended,
}


def test_anything_may_take_the_place_of_anything(subtests: pytest.Subtests) -> None:
    """An update keeps the time of the enqueue, a run in escrow and one anew have their own; each is deleted whole."""
    for (before, after), deletion in zip(product(PARTS, PARTS), cycle(DELETIONS)):
        with subtests.test(before=before, after=after, deletion=deletion):
            client = queue()
            began = client.zk.ms
            client.put(b"old", task_id="a", **PARTS[before])
            client.zk.advance(5)
            client.put(b"updated", task_id="a", on_conflict="replace", **PARTS[after])
            holds(client, b"updated", after, began)
            claimed = client.claimed()
            assert (claimed.data, claimed.metadata) == (b"updated", PARTS[after].get("metadata", {}))
            client.put(b"waits", task_id="a", on_conflict="requeue", **PARTS[before])
            holds(client, b"updated", after, began)
            client.zk.advance(5)
            client.complete(claimed)
            holds(client, b"waits", before, began + 10_000)
            assert client.work() == ["a"]
            client.zk.advance(5)
            client.put(b"anew", task_id="a", **PARTS[after])
            holds(client, b"anew", after, began + 15_000)
            client.do(DELETIONS[deletion](client))
            assert TREE not in client.zk.nodes
            assert (client.check(), client.reports) == ({}, [])


@pytest.mark.parametrize("by", DELETIONS)
def test_a_tree_that_grows_under_a_deletion_is_read_again(by: str) -> None:
    """An update meanwhile is deleted with the rest; a run that began anew under a clean-up is there, whole."""
    client, grown = queue(), list[str]()
    client.put(task_id="a")
    other = Client(client.zk, "other")

    def between(op: Op) -> None:
        if isinstance(op, Multi) and any(each.path == TREE for each in op.ops) and not grown:
            grown.append(
                other.put(b"new", task_id="a", on_conflict="raise" if by == "clean-up" else "replace", **PARTS["both"])
            )

    report = client.do(DELETIONS[by](client), between)
    assert grown == ["a"]
    if by == "clean-up":
        assert report.kept_changed == 1
        holds(client, b"new", "both", client.zk.ms)
        assert other.work() == ["a"]
    else:
        assert TREE not in client.zk.nodes
        assert client.check() == {}
