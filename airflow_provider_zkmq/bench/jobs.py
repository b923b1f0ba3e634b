"""What an agent can be asked for: a verb fills a queue, opens it, and does the work that is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_provider_zkmq.bench.clients import Clients
    from airflow_provider_zkmq.engine import AnyQueue

#: What each task carries, tasks of one call, and how many calls are under way at once, where a row says nothing else.
PAYLOAD: Final = b"x" * 100
GROUP: Final = 100
AT_ONCE: Final = 64
PATIENCE: Final = 300.0


class BenchError(Exception):
    """A measurement is not possible; the text says why."""


class SkippedError(BenchError):
    """One way of a row cannot be measured here, for lack of something that may be lacking; the text says of what."""


@dataclass(frozen=True)
class Done:
    """How many tasks were done, and in how many seconds where that is less than the whole of the call.

    ``memory``: bytes of this process that each of those who wait takes, where a row is about them.
    """

    tasks: int
    seconds: float | None = None
    memory: float | None = None


@dataclass(frozen=True)
class Asked:
    """What a measurement is about: `name` is new each time; `number` means what the verb says."""

    clients: Clients
    name: str
    tasks: int
    number: int = 0

    @property
    def path(self) -> str:
        """A znode of the measurement's own, for those that are no queues of ours."""
        return f"{self.clients.peers}/{self.name}"

    @property
    def queue(self) -> AnyQueue:
        """A queue of ours of the measurement's own."""
        return self.clients.zk.queue(self.name)


Run = Callable[[], Done]
Fill = Callable[[Asked], object]


def nothing(_asked: Asked) -> None:
    """Nothing has to be there before the measurement."""


@dataclass(frozen=True)
class Verb:
    """`fill` is called in one process, then `open` in each that takes part; what that yields is measured."""

    open: Callable[[Asked], AbstractContextManager[Run]]
    fill: Fill = nothing


def simple(work: Callable[[Asked], int | Done], fill: Fill = nothing) -> Verb:
    """A verb that has nothing to open: `work` returns how many tasks it did."""

    @contextmanager
    def opened(asked: Asked) -> Iterator[Run]:
        yield lambda: _done(work(asked))

    return Verb(opened, fill)


def _done(result: int | Done) -> Done:
    return result if isinstance(result, Done) else Done(result)


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
