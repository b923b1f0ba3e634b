"""A client of nobody's but kazoo's, for tests that look at the servers, or meddle with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient


@contextmanager
def kazoo(hosts: str, **options: Any) -> Iterator[KazooClient]:
    """Connect, and close at the end."""
    client = KazooClient(hosts, **options)
    client.start(timeout=20)
    try:
        yield client
    finally:
        client.stop()
        client.close()
