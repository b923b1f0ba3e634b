"""The connections of an agent: one of ours and one of kazoo's, each opened when it is first asked for."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Self

from kazoo.client import KazooClient

from airflow_provider_zkmq.engine import AsyncZkmq, Zkmq

if TYPE_CHECKING:
    from types import TracebackType

    from airflow_provider_zkmq.engine import AnyClient


class Clients:
    """What is open is closed with the block. `root` is that of our queues; what peers write is under `peers`."""

    def __init__(self, hosts: str, root: str) -> None:
        self.hosts = hosts
        self.root = root
        self.peers = f"{root}-peers"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Open nothing yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened."""
        self._stack.close()

    @cached_property
    def zk(self) -> AnyClient:
        """A blocking client of ours."""
        client = self.new()
        self._stack.callback(client.close)
        return client

    def new(self) -> AnyClient:
        """Another blocking client of ours, which its caller closes."""
        return Zkmq.connect(self.hosts, self.root, gc=False)

    def awaited(self) -> AsyncZkmq:
        """An awaited client of ours, not yet connected."""
        client = AsyncZkmq.connect(self.hosts, root=self.root, gc=False)
        assert isinstance(client, AsyncZkmq)  # noqa: S101  these are hosts, not files
        return client

    @cached_property
    def kazoo(self) -> KazooClient:
        """A client of kazoo's."""
        client = KazooClient(self.hosts)
        client.start()
        self._stack.callback(client.close)
        self._stack.callback(client.stop)
        return client


def tidy(hosts: str, root: str) -> None:
    """Delete what agents have written: our queues, and the peers' znodes."""
    with Clients(hosts, root) as clients:
        for path in (root, clients.peers):
            if clients.kazoo.exists(path):
                clients.kazoo.delete(path, recursive=True)
