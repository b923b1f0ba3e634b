"""What strict order costs: claims per second in the default order and in strict order, side by side.

``python -m tests.benchmarks.order [--tasks 1000] [--rounds 5] [--hosts …]``: without hosts, on an embedded server of
its own. Each consumer is a process; the two orders take turns, so that what else the machine does hits both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import Message, Zkmq
from tests.support import fresh_root

ORDERS = ("default", "fifo")
CONSUMERS = (1, 4)
PATIENCE = 120.0
_numbers = count()


def _consume(hosts: str, root: str, jobs: Any, barrier: Any, done: Any) -> None:
    """A consumer's life: for each queue it is given, claim and complete until nothing is left."""
    with Zkmq.connect(hosts, root=root, gc=False) as zk:
        while (name := jobs.get()) is not None:
            queue = zk.queue(name)
            queue.counts()
            barrier.wait(PATIENCE)
            begun, claimed = time.time(), 0
            while (claim := queue.claim()) is not None:
                claim.complete()
                claimed += 1
            done.put((begun, time.time(), claimed))


@contextmanager
def _crew(hosts: str, root: str, size: int) -> Iterator[tuple[list[Any], Any]]:
    """So many consumers, each with a line of jobs of its own; ended afterwards."""
    context = multiprocessing.get_context("spawn")
    barrier, done = context.Barrier(size), context.Queue()
    lines = [context.Queue() for _ in range(size)]
    processes = [
        context.Process(target=_consume, args=(hosts, root, jobs, barrier, done), daemon=True) for jobs in lines
    ]
    for process in processes:
        process.start()
    try:
        yield lines, done
    finally:
        for jobs in lines:
            jobs.put(None)
        for process in processes:
            process.join(PATIENCE)


def _rate(zk: Zkmq, order: str, tasks: int, lines: list[Any], done: Any) -> float:
    """Claims (and completions) per second of a crew on a full queue."""
    name = f"{order}-{next(_numbers)}"
    queue = zk.queue(name)
    queue.configure(order=order)
    queue.enqueue_many([Message(b"x") for _ in range(tasks)])
    for jobs in lines:
        jobs.put(name)
    spans = [done.get(timeout=PATIENCE) for _ in lines]
    claimed = sum(span[2] for span in spans)
    if claimed != tasks:
        msg = f"{order}: {claimed} of {tasks} tasks were claimed"
        raise RuntimeError(msg)
    return tasks / (max(span[1] for span in spans) - min(span[0] for span in spans))


def measure(hosts: str, tasks: int, rounds: int) -> None:
    """Print the medians and their ratio."""
    root = fresh_root()
    with Zkmq.connect(hosts, root=root, gc=False) as zk:
        for consumers in CONSUMERS:
            rates: dict[str, list[float]] = {order: [] for order in ORDERS}
            with _crew(hosts, root, consumers) as (lines, done):
                for at in range(rounds):
                    for order in ORDERS[:: 1 if at % 2 else -1]:
                        rates[order].append(_rate(zk, order, tasks, lines, done))
            default, fifo = (statistics.median(rates[order]) for order in ORDERS)
            spread = ", ".join(f"{order} {min(rates[order]):.0f} to {max(rates[order]):.0f}" for order in ORDERS)
            sys.stdout.write(
                f"{consumers} consumer(s), {tasks} tasks, median of {rounds}: default {default:.0f}/s, "
                f"fifo {fifo:.0f}/s, ratio {fifo / default:.2f} ({spread})\n"
            )
            sys.stdout.flush()


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts")
    asked = parser.parse_args()
    if asked.hosts:
        measure(asked.hosts, asked.tasks, asked.rounds)
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder, force_sync=False) as server:
        measure(server.hosts, asked.tasks, asked.rounds)


if __name__ == "__main__":
    main()
