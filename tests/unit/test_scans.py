"""Scans: columns of many tasks, of which only what was asked for is read."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, GetMany, Op, Pipeline, Sync
from airflow_provider_zkmq.engine.core.protocol.writes import Delete, SetData
from airflow_provider_zkmq.engine.core.reading import scanning
from airflow_provider_zkmq.engine.core.reading.columns import COLUMNS
from airflow_provider_zkmq.engine.core.reading.inspect import Task, read_task
from airflow_provider_zkmq.engine.core.tasks import operate
from airflow_provider_zkmq.engine.errors import ConfigError
from tests.stepping import Stepper
from tests.unit.world import Client, new_queue

ALL = tuple(COLUMNS)


def scan(client: Client, ids: list[str], columns: Any = ALL, **options: Any) -> scanning.Scanned:
    return client.do(scanning.scan(client.context, ids, columns, **options))


class Requests:
    """What was asked for, by the last part of the paths."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def __call__(self, op: Op) -> None:
        self.ops.append(op)

    def many(self) -> list[GetMany]:
        return [op for op in self.ops if isinstance(op, GetMany)]

    def znodes(self) -> set[str]:
        return {path.rpartition("/")[2] for op in self.many() for path in op.paths}


def one_in_each_state() -> Client:
    """A queue with a task in each state; that which died has a history, that which finished a dedupe window."""
    client = new_queue(filters={"size": OrderedEnum("small", "large")})
    for name in ("finished", "dead", "claimed"):
        client.put(b"data of " + name.encode(), task_id=name, metadata={"of": name}, filters={"size": "small"})
    client.complete(client.claimed(), result=b"done", dedupe=60)
    client.fail(client.claimed(), error="broken", retry=False)
    client.claimed()
    client.put(task_id="queued", filters={"size": "large"})
    client.put(task_id="delayed", delay=60)
    client.put(task_id="cancelled")
    client.do(operate.cancel(client.context, "cancelled"))
    return client


NAMES = ["finished", "dead", "claimed", "queued", "delayed", "cancelled"]


def test_the_columns_are_what_the_tasks_say() -> None:
    """Every field of a task but what its claim tells, by the same name and with the same value."""
    client = one_in_each_state()
    tasks = [client.do(read_task(client.context, name)) for name in NAMES]
    scanned = scan(client, NAMES)
    assert set(ALL) == {each.name for each in fields(Task)} - {"progress", "note"}
    assert scanned.columns == {name: [getattr(task, name) for task in tasks] for name in ALL}
    assert (scanned.vanished, scanned.corrupt) == ((), ())


@pytest.mark.parametrize(
    ("columns", "znodes"),
    [
        (("id", "state", "error", "history", "version"), {"state"}),
        (("enqueued_ms",), {"state", "metadata"}),
        (("enqueued_ms", "data"), {"state", "data"}),
        (("result",), {"state", "result"}),
        (("metadata",), {"state", "metadata"}),
    ],
)
def test_only_what_is_asked_for_is_read(columns: tuple[str, ...], znodes: set[str]) -> None:
    """No payload is read for a column that does not tell of it."""
    client, requests = one_in_each_state(), Requests()
    client.do(scanning.scan(client.context, NAMES, columns), requests)
    assert requests.znodes() == znodes
    assert not any(isinstance(op, Exists) for op in requests.ops)


def test_only_what_is_asked_for_is_decoded() -> None:
    """A record whose history is damaged is corrupt to whoever asks for that."""
    client = one_in_each_state()
    path = "/zkmq/q/tasks/dead/state"
    data = client.zk.nodes[path].data.replace(b'"outcome"', b'"outcame"').replace(b'"number":1', b'"number":"x"')
    client.zk.multi(0, (SetData(path, data, -1),))
    assert scan(client, NAMES, ["id", "state"]).columns["id"] == NAMES
    scanned = scan(client, NAMES, ["id", "history"])
    assert (scanned.columns["id"], scanned.corrupt) == ([name for name in NAMES if name != "dead"], ("dead",))


def test_a_run_of_an_id_that_ran_before_has_its_own_time() -> None:
    """Its metadata were written again, so that the payload is asked when it came, but for its bytes."""
    client = new_queue()
    client.put(task_id="again", metadata={"run": 1})
    client.put(task_id="once")
    for _ in range(2):
        client.complete(client.claimed())
    client.zk.advance(10)
    client.put(task_id="again")
    requests = Requests()
    scanned = client.do(scanning.scan(client.context, ["again", "once"], ["enqueued_ms"]), requests)
    tasks = [client.do(read_task(client.context, name)) for name in ("again", "once")]
    assert scanned.columns["enqueued_ms"] == [task.enqueued_ms for task in tasks]
    assert [op.path for op in requests.ops if isinstance(op, Exists)] == ["/zkmq/q/tasks/again/data"]


def test_what_vanished_is_told_and_what_is_corrupt_is_told_and_reported() -> None:
    """Neither ends the scan; before something counts as vanished, the server is asked to catch up."""
    client, requests = one_in_each_state(), Requests()
    client.zk.multi(0, (SetData("/zkmq/q/tasks/queued/state", b"{", -1),))
    asked = ["never", *NAMES, "finished"]
    scanned = client.do(scanning.scan(client.context, asked, ["id"]), requests)
    assert scanned.columns["id"] == [name for name in NAMES if name != "queued"]
    assert (scanned.vanished, scanned.corrupt) == (("never",), ("queued",))
    assert [path for path, _ in client.reports] == ["/zkmq/q/tasks/queued/state"]
    assert sum(isinstance(op, Sync) for op in requests.ops) == 1
    assert scan(client, NAMES, ["id"]).columns["id"], "and everybody goes on"


def test_a_server_that_lags_behind_is_asked_again() -> None:
    """What was there all the time is no vanished task."""
    client, late = new_queue(), []
    client.put(task_id="a")
    state = client.zk.nodes["/zkmq/q/tasks/a/state"]

    def lagging(op: Op) -> None:
        if isinstance(op, GetMany) and not late:
            late.append(client.zk.nodes.pop("/zkmq/q/tasks/a/state"))
        elif isinstance(op, Sync):
            client.zk.nodes["/zkmq/q/tasks/a/state"] = state

    scanned = client.do(scanning.scan(client.context, ["a"], ["id"]), lagging)
    assert (scanned.columns, scanned.vanished) == ({"id": ["a"]}, ())


def test_metadata_that_cannot_be_read_are_reported_and_nothing_is_known_of_them() -> None:
    """As in a task that is read by itself: the row is there."""
    client = one_in_each_state()
    client.zk.multi(0, (SetData("/zkmq/q/tasks/dead/metadata", b"[", -1),))
    assert scan(client, ["dead"], ["metadata"]).columns == {"metadata": [{}]}
    assert [path for path, _ in client.reports] == ["/zkmq/q/tasks/dead/metadata"]


def test_a_payload_that_is_gone_leaves_a_row() -> None:
    """It is empty, and the record tells the time."""
    client = one_in_each_state()
    client.zk.multi(0, (Delete("/zkmq/q/tasks/dead/data", -1), Delete("/zkmq/q/tasks/dead/metadata", -1)))
    task = client.do(read_task(client.context, "dead"))
    assert scan(client, ["dead"]).columns == {name: [getattr(task, name)] for name in ALL}


def test_tasks_are_left_out_by_what_is_read() -> None:
    """States, a selector, and a moment; all of them together; none of it is counted as vanished."""
    client = one_in_each_state()
    begin = datetime.fromtimestamp(client.zk.ms / 1000, UTC)
    client.zk.advance(5)
    client.put(task_id="late", filters={"size": "large"})
    asked = [*NAMES, "late"]
    assert scan(client, asked, ["id"], states=["dead", State.CLAIMED]).columns["id"] == ["dead", "claimed"]
    assert scan(client, asked, ["id"], selector="size>=large").columns["id"] == ["queued", "late"]
    later = datetime.fromtimestamp(begin.timestamp() + 1, UTC)
    assert scan(client, asked, ["id"], since=later).columns["id"] == ["late"]
    scanned = scan(client, asked, ["id"], states=["inserted"], selector="size==large", since=later)
    assert (scanned.columns["id"], scanned.vanished) == (["late"], ())


def test_requests_are_bounded_and_so_is_what_is_in_flight() -> None:
    """Many small znodes are one request; of payloads few are asked for at first, then more, while they are small."""
    client = new_queue()
    names = [client.put(task_id=f"t{number}") for number in range(700)]
    small, large = Requests(), Requests()
    client.do(scanning.scan(client.context, names, ["id"]), small)
    client.do(scanning.scan(client.context, names, ["data"]), large)
    assert [len(op.paths) for op in small.many()] == [256, 256, 188]
    assert [len(op.paths) // 2 for op in large.many()] == [32, 128, 128, 128, 128, 128, 28]
    stepper = Stepper(client.zk, client.session, scanning.scan(client.context, names, ["data"], in_flight=3))
    stepper.finish()
    assert max(len(op.ops) for op in stepper.done if isinstance(op, Pipeline)) == 3


def test_large_payloads_are_asked_for_a_few_at_a_time() -> None:
    """A server holds all the replies that are in flight in its memory."""
    client, requests = new_queue(), Requests()
    names = [client.put(b"x" * (1_000_000 if number else 1), task_id=f"t{number}") for number in range(80)]
    scanned = client.do(scanning.scan(client.context, names, ["data"]), requests)
    assert [len(each) for each in scanned.columns["data"]] == [1] + [1_000_000] * 79
    assert [len(op.paths) // 2 for op in requests.many()] == [32, 17, 16, 15]


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ([], {}, "columns"),
        ("id", {}, "columns"),
        (["id", "payload"], {}, "columns .* are not understood: .*enqueued_ms"),
        (["id"], {"in_flight": 0}, "in_flight"),
        (["id"], {"states": ["done"]}, "state 'done' is unknown"),
        (["id"], {"selector": "color==red"}, "'color' is not declared"),
        (["id"], {"since": datetime(2026, 1, 1)}, "zone"),  # noqa: DTZ001  that it has none is the point
    ],
)
def test_what_is_not_understood_is_refused(columns: Any, options: dict[str, Any], match: str) -> None:
    """Before anything is read."""
    client = new_queue()
    with pytest.raises(ConfigError, match=match):
        scan(client, ["a"], columns, **options)


def test_a_scan_of_nothing_reads_nothing() -> None:
    """Not even whether the server lags behind."""
    client, requests = new_queue(), Requests()
    scanned = client.do(scanning.scan(client.context, [], ["id", "data"]), requests)
    assert scanned == scanning.Scanned({"id": [], "data": []}, (), ())
    assert not requests.many()
