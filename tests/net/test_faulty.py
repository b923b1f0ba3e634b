"""The faulty door itself: each fault is what it says, on a real server, and closing it leaves nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError

from tests.faulty import CutAfter, CutBefore, Delay, Drop, Faulty, Late, Once, Request, Tell
from tests.support import eventually, fresh_root


@pytest.fixture
def door(zookeeper: str) -> Iterator[Faulty]:
    with Faulty(zookeeper.split(",", maxsplit=1)[0]) as made:
        yield made


@pytest.fixture
def direct(zookeeper: str) -> Iterator[KazooClient]:
    yield from _client(zookeeper)


@pytest.fixture
def client(door: Faulty) -> Iterator[KazooClient]:
    yield from _client(door.hosts)


def _client(hosts: str) -> Iterator[KazooClient]:
    made = KazooClient(hosts, timeout=10)
    made.start()
    yield made
    made.stop()
    made.close()


def _creation(request: Request) -> bool:
    return request.kind == "create"


def _exists(client: KazooClient, path: str) -> bool:
    client.sync("/")
    return client.exists(path) is not None


def test_what_no_plan_touches_passes(client: KazooClient, door: Faulty) -> None:
    path = fresh_root()
    client.create(path, b"x" * 500_000)
    assert len(client.get(path)[0]) == 500_000
    assert door.requests >= 2
    assert (door.cuts, door.faults.total()) == (0, 0)


def test_a_request_cut_before_is_not_carried_out(client: KazooClient, direct: KazooClient, door: Faulty) -> None:
    path = fresh_root()
    door.plan = Once(_creation, CutBefore())
    with pytest.raises(ConnectionLoss):
        client.create(path)
    assert not _exists(direct, path)
    assert door.faults == {"CutBefore": 1}


def test_a_request_cut_after_is_carried_out(client: KazooClient, direct: KazooClient, door: Faulty) -> None:
    path = fresh_root()
    door.plan = Once(_creation, CutAfter())
    with pytest.raises(ConnectionLoss):
        client.create(path)
    assert _exists(direct, path)
    assert door.cuts == 1


def test_a_late_request_arrives_after_its_client_was_cut_off(
    client: KazooClient, direct: KazooClient, door: Faulty
) -> None:
    """The caller hears of the loss first, the write is carried out later; then the same session goes on."""
    path, session = fresh_root(), client.client_id
    door.plan = Once(_creation, Late(0.5))
    with pytest.raises(ConnectionLoss):
        client.create(path)
    assert not _exists(direct, path)
    eventually(lambda: _exists(direct, path))
    eventually(lambda: client.connected)
    assert _exists(client, path)
    assert client.client_id == session


def test_a_dropped_door_lets_nobody_in_for_its_time(client: KazooClient, direct: KazooClient, door: Faulty) -> None:
    path = fresh_root()
    door.plan = Once(_creation, Drop(0.5))
    begun = time.monotonic()
    with pytest.raises(ConnectionLoss):
        client.create(path)
    assert not _exists(direct, path)
    eventually(lambda: client.connected)
    assert time.monotonic() - begun >= 0.5


def test_a_delayed_reply_comes_late_and_nothing_overtakes_it(client: KazooClient, door: Faulty) -> None:
    path = fresh_root()
    door.plan = Once(_creation, Delay(0.3))
    begun = time.monotonic()
    made, read = client.create_async(path), client.get_async(path)
    assert read.get(timeout=10)[0] == b""
    assert time.monotonic() - begun >= 0.3
    assert made.get(timeout=10) == path  # kazoo may tell of it a little later than of what came after it


def test_silence_cuts_nothing(client: KazooClient, door: Faulty) -> None:
    begun = time.monotonic()
    door.silence(0.3)
    assert client.exists("/") is not None
    assert time.monotonic() - begun >= 0.3
    assert door.cuts == 0


def test_a_reply_is_told_before_it_is_passed_on(client: KazooClient, door: Faulty) -> None:
    told: list[bool] = []
    sent = threading.Event()

    def look() -> None:
        sent.wait(10)
        told.append(pending.ready())

    door.plan = Once(_creation, Tell(look))
    pending = client.create_async(fresh_root())
    sent.set()
    pending.get(timeout=10)
    assert told == [False]


def test_a_transaction_is_read_operation_by_operation(client: KazooClient, door: Faulty) -> None:
    """Kinds and paths of what a transaction holds, whatever data stands between them."""
    seen: list[Request] = []
    door.plan = lambda request: seen.append(request) if request.kind == "multi" else None
    base = fresh_root()
    client.create(base)
    work = client.transaction()
    work.create(f"{base}/a", b"\x00\x01" * 50)
    work.set_data(f"{base}/a", b"data")
    work.check(f"{base}/a", 1)
    work.create(f"{base}/claim")
    work.delete(f"{base}/a")
    work.commit()
    assert seen[0].operations == [
        ("create", f"{base}/a"),
        ("setData", f"{base}/a"),
        ("check", f"{base}/a"),
        ("create", f"{base}/claim"),
        ("delete", f"{base}/a"),
    ]
    assert seen[0].write
    assert seen[0].claims


def test_closing_leaves_no_thread_and_no_listener(zookeeper: str) -> None:
    """Closed in the middle of everything: a client, a request held back, a refusal under way."""
    before = set(threading.enumerate())
    door = Faulty(zookeeper.split(",", maxsplit=1)[0], Once(_creation, Late(60)))
    client = KazooClient(door.hosts)
    client.start()
    pending = client.create_async(fresh_root())
    eventually(lambda: door.faults["Late"] == 1)
    door.close()
    door.close()
    with pytest.raises((ConnectionLoss, NoNodeError)):
        pending.get(timeout=10)
    client.stop()
    client.close()
    eventually(lambda: not {one.name for one in threading.enumerate() if one not in before} & {"faulty"})
    assert door.connections == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(door.hosts.partition(":")[2])), timeout=1)
