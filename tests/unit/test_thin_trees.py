"""A task has no znode for what it does not have; those of older versions have all of them, and are dealt with alike."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import pytest

from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Op
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Multi
from airflow_provider_zkmq.engine.core.reading import scanning
from airflow_provider_zkmq.engine.core.reading.inspect import Task, read_task
from airflow_provider_zkmq.engine.core.tasks import operate
from airflow_provider_zkmq.engine.core.upkeep.collect import collect_garbage
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


def as_older_versions(client: Client) -> None:
    """Make the task's tree what a version wrote that knew no thin ones."""
    missing = [f"{TREE}/{name}" for name in ("metadata", "filters") if f"{TREE}/{name}" not in client.zk.nodes]
    for path in missing:
        client.zk.multi(0, (Create(path, b"{}" if path.endswith("metadata") else b""),))


def as_written(_client: Client) -> None:
    """Leave the tree as it is."""


def told(client: Client) -> Task:
    """The task, of which a scan tells the same."""
    task: Task = client.do(read_task(client.context, "a"))
    columns = client.do(scanning.scan(client.context, ["a"], ["enqueued_ms", "metadata", "filters"])).columns
    assert columns == {"enqueued_ms": [task.enqueued_ms], "metadata": [task.metadata], "filters": [task.filters]}
    return task


def holds(client: Client, data: bytes, asked: dict[str, Any]) -> Task:
    """The task, which is what a message asked for; the tree is whole, and everybody can go on."""
    client.check()
    task = told(client)
    assert (task.data, task.metadata, task.filters) == (data, asked.get("metadata", {}), asked.get("filters", {}))
    assert not client.reports
    return task


either_form = pytest.mark.parametrize("form", [as_written, as_older_versions])
from_one_to_another = pytest.mark.parametrize(("before", "after"), list(product(PARTS, PARTS)))


@pytest.mark.parametrize(
    ("asked", "standing"),
    [
        ("nothing", set()),
        ("metadata", {"metadata"}),
        ("filters", {"filters", "filters/size"}),
        ("both", {"metadata", "filters", "filters/size"}),
    ],
)
def test_what_is_empty_is_not_written(asked: str, standing: set[str]) -> None:
    """Neither of a task that says nothing about it, nor of one with an empty mapping."""
    client = queue()
    client.put(task_id="a", **{"metadata": {}, "filters": {}} | PARTS[asked])
    assert znodes(client) == {"data", "state"} | standing
    holds(client, b"x", PARTS[asked])


@either_form
@from_one_to_another
def test_an_update_puts_anything_in_the_place_of_anything(
    form: Callable[[Client], None], before: str, after: str
) -> None:
    """The task is what the update says, came when it came, is claimed as such, and goes whole."""
    client = queue()
    client.put(b"old", task_id="a", **PARTS[before])
    form(client)
    came = told(client).enqueued_ms
    client.zk.advance(5)
    client.put(b"new", task_id="a", update=True, **PARTS[after])
    assert holds(client, b"new", PARTS[after]).enqueued_ms == came
    claimed = client.claimed()
    assert (claimed.data, claimed.metadata) == (b"new", PARTS[after].get("metadata", {}))
    client.complete(claimed)
    client.do(operate.drop(client.context, "a"))
    assert TREE not in client.zk.nodes
    assert client.check() == {}


@either_form
@from_one_to_another
def test_an_id_runs_anew_with_anything(form: Callable[[Client], None], before: str, after: str) -> None:
    """The new run has its own content and its own time of enqueue, for scans, too."""
    client = queue()
    client.put(b"old", task_id="a", **PARTS[before])
    form(client)
    client.complete(client.claimed())
    came = told(client).enqueued_ms
    client.zk.advance(5)
    client.put(b"new", task_id="a", **PARTS[after])
    assert holds(client, b"new", PARTS[after]).enqueued_ms == came + 5_000
    assert client.work() == ["a"]
    client.check()


@either_form
@from_one_to_another
def test_a_run_in_escrow_may_be_anything(form: Callable[[Client], None], before: str, after: str) -> None:
    """While it waits the tree is whole, for clients of older versions that may end the run before it."""
    client = queue()
    client.put(b"old", task_id="a", **PARTS[before])
    form(client)
    claimed, came = client.claimed(), told(client).enqueued_ms
    client.zk.advance(5)
    client.put(b"new", task_id="a", requeue=True, **PARTS[after])
    assert znodes(client) >= {"metadata", "filters"}
    assert holds(client, b"old", PARTS[before]).enqueued_ms == came
    client.zk.advance(5)
    client.complete(claimed)
    assert holds(client, b"new", PARTS[after]).enqueued_ms == came + 10_000
    assert client.work() == ["a"]


@either_form
@pytest.mark.parametrize("parts", PARTS)
def test_any_tree_is_deleted_whole(form: Callable[[Client], None], parts: str) -> None:
    """By a drop, a clear and a clean-up; nothing of it is left, and the id is free."""
    client = queue()

    def clean_up() -> Any:
        client.complete(client.claimed())
        client.zk.advance(10)
        return collect_garbage(client.context, 5)

    for delete in (
        lambda: operate.drop(client.context, "a"),
        lambda: operate.clear(client.context),
        clean_up,
    ):
        client.put(task_id="a", **PARTS[parts])
        form(client)
        client.do(delete())
        assert TREE not in client.zk.nodes
        assert (client.check(), client.reports) == ({}, [])


def test_both_forms_are_cleaned_up_in_one_transaction() -> None:
    """A queue that was written by several versions costs a clean-up no more requests."""
    client, multis = queue(), list[Multi]()
    for number in range(4):
        client.put(task_id="a")
        as_older_versions(client)
        client.complete(client.claimed())
        client.put(task_id=f"thin{number}")
        client.complete(client.claimed())
    client.zk.advance(10)
    report = client.do(collect_garbage(client.context, 5), lambda op: _note(multis, op))
    assert report.collected == 5
    assert sum(any(op.path == TREE for op in multi.ops) for multi in multis) == 1
    assert any({f"{TREE}/state", "/zkmq/q/tasks/thin0/state"} <= {op.path for op in multi.ops} for multi in multis)
    assert client.check() == {}


def _note(multis: list[Multi], op: Op) -> None:
    if isinstance(op, Multi):
        multis.append(op)


@pytest.mark.parametrize("delete", ["drop", "clear"])
def test_a_tree_that_grows_under_a_deletion_is_read_again(delete: str) -> None:
    """The update between the reading and the deletion is committed; the deletion then takes all of it."""
    client = queue()
    client.put(task_id="a")
    other, grown = Client(client.zk, "other"), list[str]()

    def between(op: Op) -> None:
        if isinstance(op, Multi) and any(each.path == TREE for each in op.ops) and not grown:
            grown.append(other.put(b"new", task_id="a", update=True, **PARTS["both"]))

    procedure = operate.drop(client.context, "a") if delete == "drop" else operate.clear(client.context)
    client.do(procedure, between)
    assert grown == ["a"]
    assert TREE not in client.zk.nodes
    assert client.check() == {}


def test_a_tree_that_grows_under_a_clean_up_is_kept() -> None:
    """The run that began anew meanwhile is there, with what it was asked with."""
    client = queue()
    client.put(task_id="a")
    client.complete(client.claimed())
    client.zk.advance(10)
    other, grown = Client(client.zk, "other"), list[str]()

    def between(op: Op) -> None:
        if isinstance(op, Multi) and any(each.path == TREE for each in op.ops) and not grown:
            grown.append(other.put(b"new", task_id="a", **PARTS["both"]))

    assert client.do(collect_garbage(client.context, 5), between).kept_changed == 1
    holds(client, b"new", PARTS["both"])
    assert other.work() == ["a"]


def test_when_a_thin_task_came_is_told_without_asking_for_it() -> None:
    """A scan reads no znode more for a task without metadata, whether its id ran before or not."""
    client, asked = queue(), list[Op]()
    client.put(task_id="a")
    client.complete(client.claimed())
    client.put(task_id="b")
    client.zk.advance(5)
    client.put(task_id="a")
    scanned = client.do(scanning.scan(client.context, ["a", "b"], ["enqueued_ms"]), asked.append)
    tasks = [client.do(read_task(client.context, name)) for name in ("a", "b")]
    assert scanned.columns["enqueued_ms"] == [task.enqueued_ms for task in tasks]
    assert tasks[0].enqueued_ms == tasks[1].enqueued_ms + 5_000
    assert not any(isinstance(op, Exists) for op in asked)
