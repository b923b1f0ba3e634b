"""The faulty door itself: each fault is what it says, on a real server, and closing it leaves nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError

from tests.faulty import CutAfter, CutBefore, Faulty, Hold, Late, Once, Request, Tell
from tests.support import eventually, fresh_root


@pytest.fixture
def door(zookeeper: str) -> Iterator[Faulty]:
    with Faulty(zookeeper) as made:
        yield made


@pytest.fixture
def clients(zookeeper: str, door: Faulty) -> Iterator[list[KazooClient]]:
    """One through the door, and one past it."""
    with ExitStack() as stack:
        yield [_client(stack, hosts) for hosts in (door.hosts, zookeeper)]


def _client(stack: ExitStack, hosts: str) -> KazooClient:
    made = KazooClient(hosts, timeout=10)
    made.start()
    stack.callback(made.close)
    stack.callback(made.stop)
    return made


def _creation(request: Request) -> bool:
    return request.kind == "create"


def _exists(client: KazooClient, path: str) -> bool:
    client.sync("/")
    return client.exists(path) is not None


def test_what_no_plan_touches_passes(clients: list[KazooClient], door: Faulty) -> None:
    path = fresh_root()
    clients[0].create(path, b"x" * 500_000)
    assert len(clients[0].get(path)[0]) == 500_000
    assert (door.cuts, door.faults.total()) == (0, 0)


def test_a_request_is_cut_before_after_or_comes_late(clients: list[KazooClient], door: Faulty) -> None:
    """Carried out or not as the fault says, which the caller cannot tell; the same session goes on each time."""
    client, direct = clients
    session = client.client_id
    for number, (fault, carried_out) in enumerate([(CutBefore(), False), (CutAfter(), True), (Late(0.5), False)], 1):
        path = fresh_root()
        door.plan = Once(_creation, fault, skip=1)
        client.create(f"{path}-first")
        with pytest.raises(ConnectionLoss):
            client.create(path)
        assert _exists(direct, path) is carried_out
        if fault == Late(0.5):
            eventually(lambda path=path: _exists(direct, path))
        eventually(lambda: client.connected)
        assert _exists(client, path) is _exists(direct, path)
        assert (door.cuts, door.faults.total(), client.client_id) == (number, number, session)


def test_nobody_is_let_in_while_the_door_is_down(clients: list[KazooClient], door: Faulty) -> None:
    """From a request or a reply on, or from the call on: for a time, or until it is up; clients come back then."""
    client, direct = clients
    for fault in (CutBefore(0.3), CutAfter(60)):
        path = fresh_root()
        door.plan = Once(_creation, fault)
        with pytest.raises(ConnectionLoss):
            client.create(path)
        assert _exists(direct, path) is (fault == CutAfter(60))
        if fault == CutAfter(60):
            assert door.connections == 0
            door.up()
        eventually(lambda: client.connected)
        assert _exists(client, path) is _exists(direct, path)
    door.down()
    eventually(lambda: not client.connected)
    assert door.connections == 0
    door.up()
    eventually(lambda: client.connected)


def test_packets_are_held_back_and_nothing_is_cut(clients: list[KazooClient], door: Faulty) -> None:
    """A request held back is not carried out, one whose reply is held back is; then they come, in their order."""
    client, direct = clients
    for ways, carried_out in (("requests",), False), (("replies",), True), ((), False):
        path = fresh_root()
        door.plan = seen = Once(_creation)
        door.hold(*ways)
        made, read = client.create_async(path), client.get_async(path)
        if carried_out:
            assert seen.met.wait(20)
            eventually(lambda path=path: _exists(direct, path))
        assert (_exists(direct, path), seen.met.is_set(), made.ready()) == (carried_out, carried_out, False)
        door.flow()
        assert (made.get(timeout=20), read.get(timeout=20)[0]) == (path, b"")
    door.hold(seconds=0.1)
    assert client.exists("/") is not None
    assert door.cuts == 0


def test_a_reply_that_is_held_back_is_not_overtaken(clients: list[KazooClient], door: Faulty) -> None:
    """It is told before it is passed on; what follows it on its connection comes after it."""
    client, path = clients[0], fresh_root()
    told: list[bool] = []
    sent = threading.Event()

    def look() -> None:
        sent.wait(10)
        told.append(pending.ready())

    door.plan = Once(_creation, Tell(look))
    pending = client.create_async(path)
    sent.set()
    assert (pending.get(timeout=10), told) == (path, [False])
    door.plan = Once(_creation, Hold(0.3))
    made, read = client.create_async(f"{path}-late"), client.get_async(f"{path}-late")
    assert read.get(timeout=10)[0] == b""
    assert made.get(timeout=10) == f"{path}-late"  # kazoo may tell of it a little later than of what came after it
    assert door.faults == {"Tell": 1, "Hold": 1}


def test_a_transaction_is_read_operation_by_operation(clients: list[KazooClient], door: Faulty) -> None:
    """Kinds and paths of what a transaction holds, whatever data stands between them."""
    seen: list[Request] = []
    door.plan = lambda request: seen.append(request) if request.kind == "multi" else None
    base = fresh_root()
    clients[0].create(base)
    work = clients[0].transaction()
    work.create(f"{base}/a", b"\x00\x01" * 50)
    work.set_data(f"{base}/a", b"data")
    work.check(f"{base}/a", 1)
    work.create(f"{base}/claim")
    work.delete(f"{base}/a")
    work.commit()
    kinds = [("create", "a"), ("setData", "a"), ("check", "a"), ("create", "claim"), ("delete", "a")]
    assert seen[0].operations == [(kind, f"{base}/{name}") for kind, name in kinds]
    assert seen[0].claims


def test_closing_leaves_no_thread_and_no_listener(zookeeper: str) -> None:
    """Closed in the middle of everything: a client, a request held back, a refusal under way."""
    before = set(threading.enumerate())
    door = Faulty(zookeeper, Once(_creation, Late(60)))
    with ExitStack() as stack:
        pending = _client(stack, door.hosts).create_async(fresh_root())
        eventually(lambda: door.faults["Late"] == 1)
        door.close()
        door.close()
        with pytest.raises((ConnectionLoss, NoNodeError)):
            pending.get(timeout=10)
    eventually(lambda: not {one.name for one in threading.enumerate() if one not in before} & {"faulty"})
    assert door.connections == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(door.hosts.partition(":")[2])), timeout=1)
