"""Clients beside that of a test: more of ours, and one of kazoo's, which looks at the servers or meddles with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from kazoo.client import KazooClient

from airflow_provider_zkmq.engine import Zkmq


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
    """Take a client's session over and close it, which ends it at once on the server; the client gets a new one."""
    with kazoo(client.config.hosts, client_id=client._session.client.client_id):
        pass


def spent(client: Zkmq, call: Callable[[], Any]) -> dict[str, int]:
    """The requests that a call sends, by kind."""
    before = client.requests
    call()
    return {kind: n - before.get(kind, 0) for kind, n in client.requests.items() if n != before.get(kind, 0)}
