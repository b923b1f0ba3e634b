"""What a limit that does not bind costs: a worker's tasks a second with it, as a share of those without.

``python -m tests.benchmarks.limits [--tasks 4000] [--rounds 7]``: each round measures all kinds side by side, in turn,
on an embedded server; printed are the medians of the rounds' ratios. ``single`` claims and completes one by one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Final

from airflow_provider_zkmq.engine import Limit, Message, Queue, String, Zkmq
from tests.benchmarks.throughput import some_server
from tests.support import fresh_root

LIMITS: Final = {
    "none": Limit(),
    "concurrency": Limit(concurrency=1_000),
    "concurrency by customer": Limit(concurrency=200, by="customer"),
    "rate": Limit(rate=1_000_000, per=1),
    "both by customer": Limit(concurrency=200, rate=100_000, by="customer"),
}
CUSTOMERS: Final = 20


def _worker(queue: Queue) -> None:
    queue.worker(lambda _: None, threads=4).run(until_empty=True)


def _single(queue: Queue) -> None:
    while (claim := queue.claim()) is not None:
        claim.complete()


def _seconds(zk: Zkmq, name: str, limit: Limit, tasks: int, kind: str) -> float:
    queue = zk.queue(name)
    queue.configure(filters={"customer": String()}, limit=limit)
    queue.enqueue_many([Message(b"x" * 100, {"customer": f"c{n % CUSTOMERS}"}) for n in range(tasks)])
    began = time.perf_counter()
    (_worker if kind == "worker" else _single)(queue)
    spent = time.perf_counter() - began
    queue.delete(confirm=True, force=True)
    return spent


def main() -> None:
    """Print a row for each kind and limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.limits", description=__doc__)
    parser.add_argument("--tasks", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hosts")
    given = parser.parse_args()
    ratios: dict[tuple[str, str], list[float]] = {}
    with some_server(given.hosts) as hosts, Zkmq.connect(hosts, root=fresh_root(), gc=False) as zk:
        for kind in ("worker", "single"):
            for number in range(given.rounds + 1):
                spent = {
                    name: _seconds(zk, f"{kind}{number}-{at}", limit, given.tasks, kind)
                    for at, (name, limit) in enumerate(LIMITS.items())
                }
                for name in LIMITS if number else ():  # the first round warms up
                    ratios.setdefault((kind, name), []).append(spent["none"] / spent[name])
    for (kind, name), found in ratios.items():
        sys.stdout.write(f"{kind:8} {name:28} {statistics.median(found):.2f}\n")


if __name__ == "__main__":
    main()
