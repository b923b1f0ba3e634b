"""What strict order costs: claims per second in the default order and in strict order, side by side.

``python -m tests.benchmarks.order [--tasks 1000] [--rounds 5] [--hosts …]``: without hosts, on an embedded server of
its own. Each consumer is a process; the two orders take turns, so that what else the machine does hits both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import ExitStack

from tests.benchmarks.throughput import crew_of, rate, say, some_server, together
from tests.benchmarks.trees import TOP, BenchmarkError

#: What fills a queue of each order.
ORDERS = {"default": "fill", "fifo": "fill strict"}
CONSUMERS = (1, 4)


def measure(hosts: str | None, tasks: int, rounds: int) -> None:
    """Print the medians and their ratio."""
    with ExitStack() as stack:
        crew = crew_of(stack, TOP, stack.enter_context(some_server(hosts)))
        for consumers in CONSUMERS:
            rates: dict[str, list[float]] = {order: [] for order in ORDERS}
            for at in range(rounds):
                for order in list(ORDERS)[:: 1 if at % 2 else -1]:
                    rates[order].append(rate(together(ORDERS[order])(crew[:consumers], tasks)))
            default, fifo = (statistics.median(rates[order]) for order in ORDERS)
            spread = ", ".join(f"{order} {min(rates[order]):.0f} to {max(rates[order]):.0f}" for order in ORDERS)
            say(
                f"{consumers} consumer(s), {tasks} tasks, median of {rounds}: default {default:.0f}/s, "
                f"fifo {fifo:.0f}/s, ratio {fifo / default:.2f} ({spread})"
            )


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts")
    requested = parser.parse_args()
    try:
        measure(requested.hosts, requested.tasks, requested.rounds)
    except BenchmarkError as error:
        say(f"benchmark: {error}", sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
