"""Every way of damaging a queue: a tree with a task in each state, its znodes, and what may stand in them instead."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from airflow_provider_zkmq.engine.core import client_state
from airflow_provider_zkmq.engine.core.model.filters import Integer, String
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.read import configuration
from airflow_provider_zkmq.engine.core.tasks import admin, enqueue, interventions, settle
from airflow_provider_zkmq.engine.core.write import commit
from airflow_provider_zkmq.engine.core.zk_operations import Create, Delete, Exists, SetData
from airflow_provider_zkmq.engine.errors import Unavailable
from tests.unit.world import Client, FakeZooKeeper, new_queue

LONG: Final = "x" * 220
DEEP: Final = b"[" * 100_000
JSON: Final[dict[str, bytes]] = {
    "null": b"null",
    "negative": b"-7",
    "NaN": b"NaN",
    "infinity": b"1e999",
    "400 digits": b"9" * 400,  # more than a float holds
    "5000 digits": b"9" * 5_000,  # more than Python makes a number of
    "text": b'"text"',
    "a lone surrogate": b'"a\\ud800"',
    "an array": b"[1]",
}
#: What may stand in any znode instead of what belongs there.
CONTENTS: Final[dict[str, bytes]] = JSON | {
    "empty": b"",
    "garbage": b"\x00\x01 garbage",
    "invalid UTF-8": b"\xff\xfe",
    "a number": b"7",
    "deep arrays": DEEP,
    "deep objects": b'{"a":' * 100_000,
    "an empty object": b"{}",
    "a strange object": b'{"v":1}',
}
#: What may stand in any field of a record, as JSON.
VALUES: Final[dict[str, bytes]] = JSON | {
    "true": b"true",
    "zero": b"0",
    "a fraction": b"0.5",
    "large": b"1e300",
    "empty text": b'""',
    "a character that no path holds": b'"\\ufffe"',
    "a path": b'"a/b"',
    "two dots": b'".."',
    "two dots in a path": b'"finished/0028333333/.."',
    "an object": b'{"a":1}',
    "nested deeply": b"[" * 900 + b"]" * 900,
}
_HERE: Final = "@@here@@"
#: Names of znodes that do not belong where they stand.
STRANGERS: Final = (
    "foreign", "00000001", "0028333333", "000000000000001~x", "p00000;#abc", "000000000000001~..", "~x",
)  # fmt: skip


@dataclass(frozen=True)
class Damage:
    """One znode that is not as it should be; `data` None: it is missing, with all below; `new`: it is a stranger."""

    path: str
    what: str
    data: bytes | None
    new: bool = False

    @property
    def place(self) -> str:
        """The znode that is damaged, or has a strange child."""
        return self.path.rpartition("/")[0] if self.new else self.path

    @property
    def of_the_tree(self) -> bool:
        """Whether a znode is missing or strange, rather than its content."""
        return self.new or self.data is None

    def apply(self, zk: FakeZooKeeper) -> None:
        """Do it, as somebody with a client of ZooKeeper's would."""
        if self.data is None:
            delete(zk, self.path)
        elif self.new or self.path in zk.nodes:  # or it went with its session
            zk.multi(0, (Create(self.path, self.data) if self.new else SetData(self.path, self.data),))

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def delete(zk: FakeZooKeeper, path: str) -> None:
    """Delete a znode, if it is there, with all below."""
    for name in zk.names(path):
        delete(zk, f"{path}/{name}")
    zk.multi(0, (Delete(path),))


@dataclass(frozen=True)
class World:
    """A queue with a task in each state and place; ``tokens``: those of the claims that stand, by task."""

    zk: FakeZooKeeper
    client: Client
    tokens: dict[str, int]

    @property
    def base(self) -> str:
        return self.client.context.paths.base

    def copy(self) -> FakeZooKeeper:
        return self.zk.copy()


@cache
def world(order: str = "default") -> World:
    """Made once by the public verbs, and copied by each test; its ids and nonces are the same in every process."""
    with patch.object(client_state, "os", SimpleNamespace(urandom=Random(order).randbytes)):
        return _made(order)


def _made(order: str) -> World:
    client = new_queue(
        filters={"kind": String(), "size": Integer()}, order=order, policy=RetryPolicy(20, factor=0), follow=True
    )
    tokens: dict[str, int] = {}
    _ended(client)
    _claimed(client, tokens)
    _waiting(client)
    _batches(client)
    client.do(admin.publish_archive(client.context, configuration.Archive(1 << 40, "/archive", "run")))
    return World(client.zk, client, tokens)


def _ended(client: Client) -> None:
    client.put(task_id="finished", filters={"kind": "a"}, metadata={"who": "me"})
    client.complete(client.claimed(), result=b"done")
    client.put(task_id="dead", filters={"kind": "b"})
    client.fail(client.claimed(), "boom", retry=False)
    client.put(b"old", task_id="cancelled")
    client.complete(client.claimed(), result=b"left")
    client.put(task_id="cancelled")
    client.cancel("cancelled")
    client.put(task_id="window")
    client.complete(client.claimed(), dedupe=150)
    client.put(task_id="awaited")
    claimed = client.claimed()
    client.put(b"again", task_id="awaited", on_conflict="requeue")
    client.complete(claimed, dedupe=150)


def _claimed(client: Client, tokens: dict[str, int]) -> None:
    claims: dict[str, tuple[dict[str, Any], float | None]] = {
        "held": ({"metadata": {"a": 1}}, None), "leased": ({}, 100), "locked": ({"lock": 100}, None),
        "escrow": ({}, None), "rerun": ({}, None),
    }  # fmt: skip
    for task_id, (options, lease) in claims.items():
        client.put(task_id=task_id, **options)
        claimed = client.claimed(lease=lease)
        if task_id in {"escrow", "rerun"}:
            client.put(b"again", task_id=task_id, on_conflict="requeue")
        if task_id == "rerun":
            client.complete(claimed, result=b"first")
            claimed = client.claimed()
        tokens[task_id] = claimed.token


def _batches(client: Client) -> None:
    batches: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
        ("open", ("m1", "m2", "m3"), "then"), ("done", ("d1",), None), ("ended", ("e1",), "then2"),
    )  # fmt: skip
    for name, members, then in batches:
        following = None if then is None else Message(b"x", task_id=then, delay=3)
        messages = [Message(b"x", task_id=member, priority=9) for member in members]
        client.do(enqueue.enqueue_batch(client.context, messages, name, following))
    client.cancel("m2")
    client.cancel("d1")
    left = client.context.paths.batch("ended", "open")
    unseen = lambda op: Unavailable("cut") if isinstance(op, Exists) and op.path == left else None
    client.do(interventions.cancel(client.context, "e1"), unseen)


def _waiting(client: Client) -> None:
    client.put(task_id="delayed", delay=5)
    client.put(task_id="backoff", priority=10)
    client.do(settle.fail(client.context, client.claimed(), "e", backoff=5))
    client.put(task_id="pending", filters={"kind": "a", "size": 3}, metadata={"who": "me"})
    client.put(task_id="shortened", filters={"kind": LONG}, policy=RetryPolicy(3))
    with patch.object(commit, "MAX_LANES", 1):
        client.put(task_id="mixed", filters={"kind": "seldom"})
    client.put(task_id="released", priority=10)
    client.do(settle.release(client.context, client.claimed()))


def kinds(order: str = "default") -> list[str]:
    """The znodes to damage: all of the tasks and lanes, and of the rest a few of each kind."""
    made, seen, chosen = world(order), Counter[tuple[str, int]](), []
    for path in sorted(made.zk.nodes):
        top, _, below = path.removeprefix(f"{made.base}/").partition("/")
        kind = top, below.count("/") if below else -1
        seen[kind] += 1
        if path.startswith(f"{made.base}/") and (top in {"tasks", "queue", "conf", "batches"} or seen[kind] <= 2):
            chosen.append(path)
    return chosen


def damages(path: str, order: str = "default") -> Iterator[Damage]:
    """Each way of damaging one znode as a whole."""
    node = world(order).zk.nodes[path]
    yield Damage(path, "missing", None)
    if not node.owner:
        strangers = STRANGERS if path.rpartition("/")[0] == world(order).base else STRANGERS[:1]
        names = (name for name in strangers if name not in node.children)
        yield from (Damage(f"{path}/{name}", "a stranger", b"strange", new=True) for name in names)
    read = json_in(node.data) or "/conf/" in path  # of the others nobody reads more than a rank
    brief = ("empty", "garbage", "400 digits", "5000 digits")
    contents = CONTENTS if read else {what: CONTENTS[what] for what in brief}
    yield from (Damage(path, what, data) for what, data in contents.items() if data != node.data)


def json_in(data: bytes) -> dict[str, Any] | None:
    """The record that a znode holds; None where it holds none."""
    try:
        record = json.loads(data.partition(b"\n")[0])
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def fields(path: str, order: str = "default") -> Iterator[Damage]:
    """Each way of damaging one field of a record, also of what it nests, and each field gone."""
    data = world(order).zk.nodes[path].data
    head, line, payload = data.partition(b"\n")
    record = json_in(head)
    if not record:
        return
    for where, spliced in _spliced(record):
        text = json.dumps(spliced).encode()
        for what, value in VALUES.items():
            put = text.replace(json.dumps(_HERE).encode(), value)
            yield Damage(path, f"{where} is {what}", put + line + payload)
    for name in record:
        bare = {key: value for key, value in record.items() if key != name}
        yield Damage(path, f"{name} is missing", json.dumps(bare).encode() + line + payload)


def _spliced(value: Any) -> Iterator[tuple[str, Any]]:
    """The value with a mark in the place of each name and each part of it, one after the other."""
    if isinstance(value, dict):
        yield "a name", {_HERE: "x"}
        for name, part in value.items():
            yield name, value | {name: _HERE}
            yield from ((f"{name}: {where}", value | {name: spliced}) for where, spliced in _spliced(part))
    elif isinstance(value, list) and value:
        yield "[0]", [_HERE, *value[1:]]
        yield from ((f"[0]: {where}", [spliced, *value[1:]]) for where, spliced in _spliced(value[0]))
