"""The connections of an agent: one of ours and one of kazoo's, each opened when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

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

    def delete_all(self) -> None:
        """Delete every queue of ours, and all of the peers' znodes."""
        for path in (self.root, self.peers):
            if self.kazoo.exists(path):
                self.kazoo.delete(path, recursive=True)

    @cached_property
    def kazoo(self) -> KazooClient:
        """A client of kazoo's."""
        client = KazooClient(self.hosts)
        client.start()
        self._stack.callback(client.close)
        self._stack.callback(client.stop)
        return client


@contextmanager
def tidied(hosts: str, root: str, say: Callable[[str], object]) -> Iterator[None]:
    """What agents write meanwhile, our queues and the peers' znodes, is deleted afterwards; `say` where it cannot be.

    Raises `Unavailable` where the servers do not answer, before anything is written.
    """
    with Clients(hosts, root) as clients:
        clients.zk.queues()
        try:
            yield
        finally:
            try:
                clients.delete_all()
            except (KazooException, KazooTimeoutError) as error:
                say(f"{clients.root} and {clients.peers} could not be deleted, delete them yourself: {error!r}")
