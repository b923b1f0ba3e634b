"""What an agent can be asked for: a verb fills a queue, opens it, and does the work that is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Self

from kazoo.client import KazooClient

from airflow_provider_zkmq.engine import AnyClient, AnyQueue, AsyncZkmq, Zkmq

#: What each task carries, tasks of one call, and how many calls are under way at once, where a row says nothing else.
PAYLOAD: Final = b"x" * 100
GROUP: Final = 100
AT_ONCE: Final = 64
TIMEOUT_S: Final = 300.0


class BenchError(Exception):
    """A measurement is not possible; the text says why."""


class SkippedError(BenchError):
    """One way of a row cannot be measured here, because something is not installed; the text says what."""


class Clients:
    """The connections of an agent, each opened when it is first asked for, and closed with the block.

    `root` is that of our queues; what peers write is under `peers`.
    """

    def __init__(self, hosts: str, root: str) -> None:
        self.hosts = hosts
        self.root = root
        self.peers = f"{root}-peers"
        self._stack = ExitStack()
        self._opened: dict[Hashable, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def once(self, key: Hashable, opening: Callable[[], AbstractContextManager[Any]]) -> Any:
        """What this opens, the first time that the key is asked for; later the same."""
        if key not in self._opened:
            self._opened[key] = self._stack.enter_context(opening())
        return self._opened[key]

    @property
    def zk(self) -> AnyClient:
        """A blocking client of ours."""
        client: AnyClient = self.once("zk", self.new)
        return client

    @property
    def kazoo(self) -> KazooClient:
        """A client of kazoo's."""
        return self.once("kazoo", lambda: started_kazoo(self.hosts))

    def new(self) -> AnyClient:
        """Another blocking client of ours, which its caller closes."""
        return Zkmq.connect(self.hosts, self.root, gc=False)

    def awaited(self) -> AsyncZkmq:
        """An asyncio client of ours, not yet connected."""
        client = AsyncZkmq.connect(self.hosts, root=self.root, gc=False)
        assert isinstance(client, AsyncZkmq)
        return client

    def delete_all(self) -> None:
        """Delete every queue of ours, and all of the peers' znodes."""
        for path in (self.root, self.peers):
            if self.kazoo.exists(path):
                self.kazoo.delete(path, recursive=True)


@contextmanager
def started_kazoo(hosts: str) -> Iterator[KazooClient]:
    """A client of kazoo's."""
    client = KazooClient(hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@dataclass(frozen=True)
class Done:
    """How many tasks were done; in how many seconds, and with how much processor time, where the caller cannot tell."""

    tasks: int
    seconds: float | None = None
    cpu: float | None = None


@dataclass(frozen=True)
class Asked:
    """What a measurement is about: `name` is new each time; `number` means what the verb says."""

    clients: Clients
    name: str
    tasks: int
    number: int = 0

    @property
    def path(self) -> str:
        """A znode of the measurement's own, for peers."""
        return f"{self.clients.peers}/{self.name}"

    @property
    def queue(self) -> AnyQueue:
        """A queue of ours of the measurement's own."""
        return self.clients.zk.queue(self.name)


Run = Callable[[], Done]
Fill = Callable[[Asked], object]


@dataclass(frozen=True)
class Verb:
    """`fill` is called in one process, then `open` in each that takes part; what that yields is measured."""

    open: Callable[[Asked], AbstractContextManager[Run]]
    fill: Fill = lambda _asked: None


def simple(work: Callable[[Asked], int | Done], fill: Fill = lambda _asked: None) -> Verb:
    """A verb that has nothing to open: `work` returns how many tasks it did."""

    @contextmanager
    def opened(requested: Asked) -> Iterator[Run]:
        def run() -> Done:
            done = work(requested)
            return done if isinstance(done, Done) else Done(done)

        yield run

    return Verb(opened, fill)


def drained(step: Callable[[], object]) -> int:
    """How often `step` found something, until it finds nothing."""
    count = 0
    while step() is not None:
        count += 1
    return count


def times(count: int, step: Callable[[], object]) -> int:
    """Take a step so often."""
    for _ in range(count):
        step()
    return count


def groups(tasks: int, payload: bytes = PAYLOAD) -> Iterator[list[bytes]]:
    """Payloads for so many tasks, a group at a time."""
    for start in range(0, tasks, GROUP):
        yield [payload] * min(GROUP, tasks - start)


def wake_ups(count: int, tell: Callable[[], object], heard: SimpleQueue[float], settle: Callable[[], object]) -> Done:
    """So many times, from telling to hearing; what is done to be ready again is not counted."""
    seconds = 0.0
    for _ in range(count):
        settle()
        begun = time.perf_counter()
        tell()
        seconds += heard.get(timeout=TIMEOUT_S) - begun
    settle()
    return Done(count, seconds)
