"""Malformed records are refused as such, wherever they are read."""

from __future__ import annotations

import json

import pytest

from airflow_provider_zkmq.engine import Zkmq
from airflow_provider_zkmq.engine.core.model.filters import decode_types
from airflow_provider_zkmq.engine.core.model.lanes import Lane
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord
from tests.support import fresh_root
from tests.unit.world import new_queue

GOOD = {"v": 1, "state": "inserted", "place": "l/s/e", "nonce": "n"}
DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "field",
    [
        {"policy": 3}, {"policy": {"x": 1}}, {"policy": {"attempts": 0}}, {"due": "x"}, {"index": 3}, {"lease": 5},
        {"attempt": True}, {"settled": [1]}, {"filters": {"a": 3}}, {"filters": []}, {"v": 2}, {"state": "odd"},
        {"history": [{"x": 1}]}, {"history": 3}, {"settled": 3}, {"lock": "x"}, {"requeue": 1}, {"dedupe": "x"},
        {"rank": "x"}, {"batch": 3}, {"bound": 1}, {"result": "x"}, {"requeue": None},
    ],
)  # fmt: skip
def test_a_state_record_with_a_wrong_field_is_corrupt(field: dict) -> None:
    """Whatever field is malformed, the record is CorruptRecord and names its path."""
    TaskState.decode("/path", json.dumps(GOOD).encode())
    with pytest.raises(CorruptRecord, match="/path"):
        TaskState.decode("/path", json.dumps(GOOD | field).encode())


@pytest.mark.parametrize(
    "data", [b'{"filters":3}', b'{"priority":"x"}', b'{"filters":["a"]}', b'{"filters":{"a":1}}', DEEP]
)
def test_a_malformed_lane_is_corrupt(data: bytes) -> None:
    """A lane's data are checked before they are used."""
    with pytest.raises(CorruptRecord, match="/lane"):
        Lane.decode("/lane", data)


def test_deeply_nested_json_is_corrupt() -> None:
    """Nesting beyond what the parser takes is a malformed record, not a crash."""
    for decode in (TaskState.decode, RetryPolicy.decode, decode_types):
        with pytest.raises(CorruptRecord):
            decode("/path", DEEP)


def test_foreign_znodes_stop_nobody(zookeeper: str) -> None:
    """Malformed lanes, entries and records beside good ones: they are stepped over and the good task is claimed."""
    root = fresh_root()
    with Zkmq.connect(zookeeper, root=root, gc=False) as zk:
        q = zk.queue("q")
        broken = q.enqueue(b"broken")
        good = q.enqueue(b"good")
        client, base = zk._session.client, f"{root}/q"
        client.create(f"{base}/queue/p00000;#abc", b'{"filters":3}')
        client.create(f"{base}/queue/strange", b"")
        client.create(f"{base}/scheduled/strange", b"")
        client.create(f"{base}/leases/strange", b"{}")
        lane = next(name for name in client.get_children(f"{base}/queue") if name == "p09999")
        client.create(f"{base}/queue/{lane}/00000001/not-an-entry", b"")
        client.create(f"{base}/queue/{lane}/00000001/0000~no-such-task", b"")
        client.set(f"{base}/tasks/{broken}/state", b"not json")
        claim = q.claim()
        assert claim is not None
        assert claim.task.id == good
        claim.complete()
        assert q.claim() is None
        assert q.collect_garbage(lifetime=0).collected == 1
        assert [task.id for task in q.tasks()] == []


def test_foreign_znodes_with_an_id_or_a_batch_s_name_are_named(zookeeper: str) -> None:
    """An enqueue that meets what is no task, and new fields that are malformed, are one error each, not a loop."""
    root = fresh_root()
    with Zkmq.connect(zookeeper, root=root, gc=False) as zk:
        q = zk.queue("q")
        q.enqueue(b"good", task_id="good")
        client, base = zk._session.client, f"{root}/q"
        client.create(f"{base}/tasks/torso", b"")
        with pytest.raises(CorruptRecord, match="tasks/torso"):
            q.enqueue(b"x", task_id="torso")
        for name, data in (("lock", b"soon"), ("order", b"lifo"), ("task_gc_interval", b"\xff")):
            client.set(f"{base}/conf/{name}", data)
        for name in ("locks", "requeued", "batches-done"):
            client.create(f"{base}/{name}/strange", b"{}")
        client.create(f"{base}/batches/strange", b"not json")
        claim = q.claim()
        assert claim is not None
        claim.complete()
        assert q.collect_garbage(lifetime=0).ran
        with pytest.raises(CorruptRecord, match="batches/strange"):
            q.batch("strange")


@pytest.mark.parametrize("depth", [99, 101, 5_000])
def test_metadata_that_could_not_be_read_again_are_refused(depth: int) -> None:
    """What an enqueue accepts is read by everybody: nesting has the same bound for both."""
    nested: dict = {}
    for _ in range(depth - 1):
        nested = {"a": nested}
    client = new_queue()
    if depth > 100:
        with pytest.raises(ConfigError, match="metadata"):
            client.put(metadata=nested)
        assert client.check() == {}
        return
    client.put(task_id="a", metadata=nested)
    assert client.claimed().metadata == nested


@pytest.mark.parametrize("field", ["consumer", "lease", "batch", "place", "index", "filters"])
@pytest.mark.parametrize("text", ["a\ud800", "..", "a/../b", "a\x00", "\ufffe", "", "\ue000"])
def test_no_text_that_is_no_part_of_a_path_becomes_one(field: str, text: str) -> None:
    """Such a path ends the thread of a connection, or is refused by the server in a way that looks like no refusal."""
    value = {"place": f"p09999/00000001/{text}", "index": f"dlq/{text}", "filters": {text: "x"}}.get(field, text)
    record = json.dumps(GOOD | {field: value}).encode()
    with pytest.raises(CorruptRecord, match="/path"):
        TaskState.decode("/path", record)
