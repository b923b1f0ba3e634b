"""What the model of `scale` is held against: calls at once, tasks that are kept, waiters, measured on one server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

from airflow_provider_zkmq.bench.clients import Clients
from airflow_provider_zkmq.bench.jobs import PAYLOAD
from airflow_provider_zkmq.bench.ours import fill_queue
from airflow_provider_zkmq.embedded import ask_metrics
from airflow_provider_zkmq.engine import Message

if TYPE_CHECKING:
    from types import TracebackType

    from airflow_provider_zkmq.engine import AsyncQueue

#: Calls of a measurement, at the least, and tasks of the smallest depth; each caller makes some calls.
_CALLS: Final = 150
_DEPTH: Final = 100
_EACH: Final = 3


@dataclass(frozen=True)
class Row:
    """One quantity at one size: what the model says, what was measured."""

    what: str
    size: int
    predicted: float
    measured: float

    @property
    def text(self) -> str:
        """A line of the table."""
        off = self.measured / self.predicted if self.predicted else 1.0
        return f"{self.what:36} {self.size:>7} {self.predicted:>12,.1f} {self.measured:>12,.1f} {off:>6.2f}"


class Scaling:
    """A server under more and more load; what was written is deleted with the block."""

    def __init__(self, hosts: str) -> None:
        self._root = f"/zkmq-scale-{time.time_ns():x}"
        self._hosts = hosts
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Connect at the first measurement."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close and tidy up."""
        self._stack.close()
        with Clients(self._hosts, self._root) as clients:
            clients.delete_all()

    @cached_property
    def _clients(self) -> Clients:
        return self._stack.enter_context(Clients(self._hosts, self._root))

    def rate(self, at_once: int) -> float:
        """Enqueues a second of so many coroutines of one client: of a few runs that which was disturbed least."""
        return max(self._rate(at_once) for _ in range(_EACH))

    def _rate(self, at_once: int) -> float:
        calls = max(_CALLS, at_once * _EACH)

        async def enqueues(queue: AsyncQueue, left: list[None]) -> None:
            while left:
                left.pop()
                await queue.enqueue(PAYLOAD)

        async def main() -> float:
            async with self._clients.awaited() as client:
                queue = client.queue("rates")
                await queue.enqueue(PAYLOAD)
                left, begun = [None] * calls, time.perf_counter()
                await asyncio.gather(*(enqueues(queue, left) for _ in range(at_once)))
                return calls / (time.perf_counter() - begun)

        return asyncio.run(main())

    def _metric(self, name: str) -> float:
        """A count of the first server's, which may not have seen yet what was acknowledged by others."""
        host, _, port = self._hosts.partition("/")[0].split(",")[0].rpartition(":")
        return float(ask_metrics(host, int(port))[name])

    def depths(self, sizes: list[int]) -> Iterator[Row]:
        """Znodes and bytes of 10, 100, … times as many pending tasks, and the requests of a first claim."""
        queue = self._clients.zk.queue("deep")
        queue.enqueue(PAYLOAD)
        names = ("zk_znode_count", "zk_approximate_data_size")
        before = [self._metric(name) for name in names]
        fill_queue(queue, _DEPTH)
        each = [(self._metric(name) - old) / _DEPTH for name, old in zip(names, before, strict=True)]
        there, requests = _DEPTH, self._first_claim()
        for size in sizes:
            fill_queue(queue, _DEPTH * size - there)
            there = _DEPTH * size
            for name, old, one in zip(names, before, each, strict=True):
                yield Row(f"{name}, tasks", there, one * there, self._metric(name) - old)
            yield Row("requests of a first claim, tasks", there, requests, self._first_claim())

    def _first_claim(self) -> float:
        """The requests of a client that has just come; what it takes it gives back."""
        with self._clients.new() as client:
            claim = client.queue("deep").claim()
            requests = sum(client.requests.values())
            if claim is not None:
                claim.release()
        return float(requests)

    def waiters(self, sizes: list[int]) -> Iterator[Row]:
        """Watches of 10, 100, … coroutines of one client, each of which waits for a task of its own."""
        ids = self._clients.zk.queue("waited").enqueue_many([Message(PAYLOAD) for _ in range(max(sizes, default=0))])
        for size in sizes:
            yield Row("watches, waiters", size, size, asyncio.run(self._watches(ids[:size])))

    async def _watches(self, ids: list[str]) -> float:
        async with self._clients.awaited() as client:
            queue, before = client.queue("waited"), self._metric("zk_watch_count")
            waits = [asyncio.create_task(queue.wait([task_id], timeout=600)) for task_id in ids]
            quiet, last = 0, client.requests
            while quiet < _EACH:
                await asyncio.sleep(0.1)
                quiet, last = (quiet + 1, last) if client.requests == last else (0, client.requests)
            watches = self._metric("zk_watch_count") - before
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            return watches
