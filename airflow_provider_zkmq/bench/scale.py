"""A small model of one ensemble under load: what it predicts for 10, 100 and 1 000 times as much, beside what is so.

``python -m airflow_provider_zkmq.bench.scale [--hosts …] [--largest 100] [--no-sync]``. The model is fitted at
little load, and is then held against measurements at more. `docs/scale.md` says what it is for.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from airflow_provider_zkmq.bench.scaling import Row, Scaling
from airflow_provider_zkmq.embedded import EmbeddedServer

#: With so many calls at once the model is fitted, and it is held against so many times the smallest of these.
FITTED: Final = (1, 8, 64)
TIMES: Final = (10, 100, 1_000)
#: No more of an ensemble's time and of its heap is planned for: a queue of requests grows without bound near 1.
BUSY: Final = 0.5
HEAP_USED: Final = 0.5
#: Heap for each znode and each watch, beside the data itself, in bytes: see the page.
ZNODE_BYTES: Final = 430
WATCH_BYTES: Final = 120


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


@dataclass(frozen=True)
class Demand:
    """What is asked of a plant: tasks a second, tasks that are pending or kept, idle threads and processes."""

    tasks_s: float
    kept: int
    watched: int = 0


@dataclass(frozen=True)
class Ensemble:
    """What one ensemble offers: calls a second, heap for znodes; what a task takes of both."""

    calls_s: float
    heap: float
    calls: float = 3.0
    znodes: float = 7.0
    data: float = 600.0

    def needed(self, demand: Demand) -> dict[str, int]:
        """How many ensembles it takes, by what runs out."""
        bytes_kept = demand.kept * (self.znodes * ZNODE_BYTES + self.data) + demand.watched * WATCH_BYTES
        return {
            "calls": max(1, math.ceil(demand.tasks_s * self.calls / (self.calls_s * BUSY))),
            "heap": max(1, math.ceil(bytes_kept / (self.heap * HEAP_USED))),
        }


HEAD: Final = f"{'what':36} {'size':>7} {'predicted':>12} {'measured':>12} {'ratio':>6}"


def held(costs: Costs, rate: Callable[[int], float], sizes: Sequence[int]) -> Iterator[Row]:
    """What the model predicts for more calls at once, beside what `rate` measures."""
    for size in sizes:
        yield Row("enqueues/s, so many at once", size, simulate(costs, size), rate(size))


def plans(costs: Costs, base: Demand, heap: float, sizes: Sequence[int]) -> list[str]:
    """How many ensembles such a demand takes, and 10, 100 and 1 000 times as much."""
    ensemble = Ensemble(costs.most, heap)
    lines = []
    for size in (1, *sizes):
        more = Demand(base.tasks_s * size, base.kept * size, base.watched * size)
        needed = ensemble.needed(more)
        by = max(needed, key=needed.__getitem__)
        lines.append(
            f"{more.tasks_s:>10,.0f} tasks/s, {more.kept:>13,} kept: {max(needed.values()):>6} ensemble(s), for {by}"
        )
    return lines


def report(hosts: str, largest: int, heap: float, out: Callable[[str], object]) -> list[Row]:
    """Measure, and print what the model makes of it."""
    sizes = [size for size in TIMES if size <= largest]
    rows: list[Row] = []
    out(HEAD)
    with Scaling(hosts) as scaling:
        costs = fit({at_once: scaling.rate(at_once) for at_once in FITTED})
        for row in chain(held(costs, scaling.rate, sizes), scaling.waiters(sizes), scaling.depths(sizes)):
            rows.append(row)
            out(row.text)
    out(
        f"\na call takes {costs.each * 1e6:,.0f} µs by itself, {costs.together * 1e6:,.0f} µs once for all that are "
        f"served together, {costs.between * 1e6:,.0f} µs between calls: at most {costs.most:,.0f}/s"
    )
    for line in plans(costs, Demand(10, 10_000, 100), heap, TIMES):
        out(line)
    return rows


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", help="without, a server of its own is started")
    parser.add_argument("--largest", type=int, default=100, help="how many times as much is measured (%(default)s)")
    parser.add_argument("--heap-mb", type=int, default=1_024, help="the heap of each server (%(default)s)")
    parser.add_argument("--no-sync", action="store_true", help="that server does not wait for its disk")
    asked = parser.parse_args()
    heap = asked.heap_mb * 1024.0 * 1024
    if asked.hosts:
        report(asked.hosts, asked.largest, heap, _say)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(folder, heap_mb=asked.heap_mb, force_sync=not asked.no_sync) as server,
    ):
        report(server.hosts, asked.largest, heap, _say)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
