"""Clients beside that of a test: more of ours, and one of kazoo's, which looks at the servers or meddles with them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from socket import create_connection
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Connect

from airflow_provider_zkmq.engine import Zkmq

#: The request that closes a session, and the length of the reply to the handshake before it.
CLOSE: Final = struct.pack(">ii", 1, -11)
HANDSHAKE: Final = 4 + 37


@contextmanager
def clients(hosts: str, root: str, count: int, **options: Any) -> Iterator[list[Zkmq]]:
    """So many connections, each a session of its own."""
    with ExitStack() as stack:
        yield [stack.enter_context(Zkmq.connect(hosts, root=root, gc=False, **options)) for _ in range(count)]


@contextmanager
def kazoo(hosts: str, **options: Any) -> Iterator[KazooClient]:
    """A client of nobody's but kazoo's, closed at the end."""
    client = KazooClient(hosts, **options)
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run each in a thread of its own; their results, or the first one's exception."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


def end_session(client: Zkmq) -> None:
    """Close a client's session on the server; the client gets a new one.

    Its connection is taken over and closed in one packet: the client comes back at once, and would keep its session. So
    this is done until the server knows the session no more.
    """
    session, password = client._session.client.client_id
    taking = b"".join(
        _framed(packet) for packet in (Connect(0, 0, 10_000, session, password, False).serialize(), CLOSE)
    )
    for host, _, port in cycle(server.rpartition(":") for server in client.config.hosts.split(",")):
        with suppress(OSError), create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(taking)
            told = connection.makefile("rb").read(HANDSHAKE)
            if len(told) == HANDSHAKE and Connect.deserialize(told, 4)[0].session_id == 0:
                return


def _framed(packet: bytes) -> bytes:
    return len(packet).to_bytes(4, "big") + packet


def spent(client: Zkmq, call: Callable[[], Any]) -> dict[str, int]:
    """The requests that a call sends, by kind."""
    before = client.requests
    call()
    return {kind: n - before.get(kind, 0) for kind, n in client.requests.items() if n != before.get(kind, 0)}
