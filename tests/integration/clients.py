"""Several clients of one server, for tests that need more than one."""

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


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run each in a thread of its own; their results, or the first one's exception."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


def end_session(client: Zkmq) -> None:
    """Take a client's session over and close it, which ends it at once on the server; the client gets a new one."""
    session, password = client._session.client.client_id
    thief = KazooClient(client.config.hosts, client_id=(session, password))
    thief.start()
    thief.stop()
    thief.close()


def spent(client: Zkmq, call: Callable[[], Any]) -> dict[str, int]:
    """The requests that a call sends, by kind."""
    before = client.requests
    call()
    return {kind: n - before.get(kind, 0) for kind, n in client.requests.items() if n != before.get(kind, 0)}
