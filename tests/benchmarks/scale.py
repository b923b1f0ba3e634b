"""A small model of one ensemble under load: what it predicts for 10, 100 and 1 000 times as much, beside what is so.

``python -m tests.benchmarks.scale [--hosts …] [--largest 100] [--no-sync]``. The model is fitted at little load, and is
then held against measurements at more. `docs/scale.md` says what it is for.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from airflow_provider_zkmq.embedded import EmbeddedServer, read_metrics
from airflow_provider_zkmq.engine import AsyncQueue
from tests.benchmarks.compare.jobs import PAYLOAD, Clients
from tests.benchmarks.compare.ours import fill_queue

#: With so many calls at once the model is fitted, and it is held against so many times the smallest of these.
FITTED: Final = (1, 8, 64)
TIMES: Final = (10, 100, 1_000)
#: No more of an ensemble's time and of its heap is planned for: a queue of requests grows without bound near 1.
USED: Final = 0.5
#: Heap for each znode, beside the data itself, in bytes.
ZNODE_BYTES: Final = 430
#: What a task costs: calls, znodes, bytes of data.
CALLS, ZNODES, DATA = 3, 7, 600
#: Calls of a measurement, at the least, and tasks of the smallest depth; each caller makes some calls.
_CALLS: Final = 150
_DEPTH: Final = 100
_EACH: Final = 3


@dataclass(frozen=True)
class Costs:
    """What a call costs, in seconds: once for all that are served together, for each by itself, and between calls.

    Calls that arrive while others are served wait, and are then served together: one flush of the log, one wake-up.
    """

    together: float
    each: float
    between: float

    @property
    def most(self) -> float:
        """So many calls a second cannot be exceeded, however many are made at once."""
        return 1 / self.each


def fit(rates: Mapping[int, float]) -> Costs:
    """The costs that explain the calls per second with 1, 8 and 64 calls at once.

    With `n` of them, half are served while the other half is on its way: each then takes `each + 2 * together / n`.
    """
    few, some, many = (1 / rates[at_once] for at_once in FITTED)
    together = max(0.0, (some - many) / (2 / FITTED[1] - 2 / FITTED[2]))
    each = max(many - 2 * together / FITTED[2], many / 10)
    return Costs(together, each, max(0.0, few - together - each))


def simulate(costs: Costs, at_once: int, calls: int = 20_000) -> float:
    """Calls per second of so many callers, each of which makes the next call when the one before was answered."""
    arrivals = [costs.between * at / at_once for at in range(at_once)]  # they do not begin all at the same moment
    now, done = 0.0, 0
    while done < calls:
        now = max(now, arrivals[0])
        served = 0
        while arrivals and arrivals[0] <= now:
            heapq.heappop(arrivals)
            served += 1
        now += costs.together + costs.each * served
        for _ in range(served):
            heapq.heappush(arrivals, now + costs.between)
        done += served
    return done / now


def ensembles(calls_s: float, heap: float, tasks_s: float, kept: int) -> dict[str, int]:
    """How many ensembles so many tasks a second and so many kept ones take, by what runs out.

    An ensemble serves `calls_s` calls a second, and has a `heap` of so many bytes.
    """
    kept_bytes = kept * (ZNODES * ZNODE_BYTES + DATA)
    return {
        "calls": max(1, math.ceil(tasks_s * CALLS / (calls_s * USED))),
        "heap": max(1, math.ceil(kept_bytes / (heap * USED))),
    }


# --- what it is held against


@dataclass(frozen=True)
class Line:
    """One quantity at one size: what the model says, what was measured."""

    what: str
    size: int
    predicted: float
    measured: float

    def __str__(self) -> str:
        off = self.measured / self.predicted if self.predicted else 1.0
        return f"{self.what:36} {self.size:>7} {self.predicted:>12,.1f} {self.measured:>12,.1f} {off:>6.2f}"


def rate(clients: Clients, at_once: int) -> float:
    """Enqueues a second of so many coroutines of one client: of a few runs that which was disturbed least."""
    calls = max(_CALLS, at_once * _EACH)

    async def enqueues(queue: AsyncQueue, left: Iterator[int]) -> None:
        for _ in left:
            await queue.enqueue(PAYLOAD)

    async def main() -> float:
        async with clients.awaited() as client:
            queue = client.queue("rates")
            await queue.enqueue(PAYLOAD)
            left, begun = iter(range(calls)), time.perf_counter()
            await asyncio.gather(*(enqueues(queue, left) for _ in range(at_once)))
            return calls / (time.perf_counter() - begun)

    return max(asyncio.run(main()) for _ in range(_EACH))


def _metric(clients: Clients, name: str) -> float:
    """A count of the first server's."""
    host, _, port = clients.hosts.partition("/")[0].split(",")[0].rpartition(":")
    return float(read_metrics(host, int(port))[name])


def depths(clients: Clients, sizes: Sequence[int]) -> Iterator[Line]:
    """Znodes and bytes of 10, 100, … times as many pending tasks, and the requests of a first claim."""
    queue = clients.zk.queue("deep")
    queue.enqueue(PAYLOAD)
    names = ("zk_znode_count", "zk_approximate_data_size")
    before = {name: _metric(clients, name) for name in names}
    fill_queue(queue, _DEPTH)
    each = {name: (_metric(clients, name) - before[name]) / _DEPTH for name in names}
    there, requests = _DEPTH, _first_claim(clients)
    for size in sizes:
        fill_queue(queue, _DEPTH * size - there)
        there = _DEPTH * size
        for name in names:
            yield Line(f"{name}, tasks", there, each[name] * there, _metric(clients, name) - before[name])
        yield Line("requests of a first claim, tasks", there, requests, _first_claim(clients))


def _first_claim(clients: Clients) -> int:
    """The requests of a client that has just come; what it takes it gives back."""
    with clients.new() as client:
        claim = client.queue("deep").claim()
        requests = sum(client.requests.values())
        if claim is not None:
            claim.release()
    return requests


def plans(costs: Costs, heap: float) -> Iterator[str]:
    """How many ensembles ten tasks a second and 10 000 kept ones take, and 10, 100 and 1 000 times as much."""
    for size in (1, *TIMES):
        needed = ensembles(costs.most, heap, 10 * size, 10_000 * size)
        by = max(needed, key=needed.__getitem__)
        yield f"{10 * size:>7,} tasks/s, {10_000 * size:>12,} kept: {needed[by]:>6} ensemble(s), for {by}"


def report(hosts: str, largest: int, heap: float, out: Callable[[str], object]) -> list[Line]:
    """Measure, and print what the model makes of it; what was written is deleted."""
    sizes = [size for size in TIMES if size <= largest]
    lines: list[Line] = []
    out(f"{'what':36} {'size':>7} {'predicted':>12} {'measured':>12} {'ratio':>6}")
    with Clients(hosts, f"/zkmq-scale-{time.time_ns():x}") as clients:
        try:
            costs = fit({at_once: rate(clients, at_once) for at_once in FITTED})
            more = (Line("enqueues/s, so many at once", at, simulate(costs, at), rate(clients, at)) for at in sizes)
            for line in chain(more, depths(clients, sizes)):
                lines.append(line)
                out(str(line))
        finally:
            clients.delete_all()
    out(
        f"\na call takes {costs.each * 1e6:,.0f} µs by itself, {costs.together * 1e6:,.0f} µs once for all that are "
        f"served together, {costs.between * 1e6:,.0f} µs between calls: at most {costs.most:,.0f}/s"
    )
    for plan in plans(costs, heap):
        out(plan)
    return lines


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", help="without, a server of its own is started")
    parser.add_argument("--largest", type=int, default=100, help="how many times as much is measured (%(default)s)")
    parser.add_argument("--no-sync", action="store_true", help="that server does not wait for its disk")
    given = parser.parse_args()
    say = lambda line: sys.stdout.write(f"{line}\n")
    if given.hosts:
        report(given.hosts, given.largest, 1 << 30, say)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(folder, heap_mb=1_024, force_sync=not given.no_sync) as server,
    ):
        report(server.hosts, given.largest, 1 << 30, say)


if __name__ == "__main__":
    main()
