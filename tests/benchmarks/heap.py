"""What a pending task takes of the server's memory: the working tree and a revision, each on a server of its own.

``python -m tests.benchmarks.heap [--against HEAD~1] [--tasks 30000]``

What the server holds is counted after a collection of its garbage, by ``jcmd``, which a JDK brings along: before and
after so many tasks are enqueued. Arrays of int are left out: ZooKeeper keeps none to speak of, and Java's collectors
fill with them what they have not moved together. A server keeps its last 500 transactions besides, so that it is filled
with as many before the first count. Tasks have 100 bytes, and neither metadata nor filters.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.embedded import EmbeddedServer
from tests.benchmarks.trees import TOP, Agent, BenchmarkError, describe, tree_of
from tests.support import fresh_root

#: More than 500 transactions of as many trees as any revision puts into one.
FILLED_BEFORE: Final = 12_000
HEAP_MB: Final = 1_024


def live_bytes(pid: int) -> int:
    """What a Java process holds after a full collection. Raises `BenchmarkError` where no ``jcmd`` tells."""
    try:
        done = subprocess.run(
            ["jcmd", str(pid), "GC.class_histogram"], capture_output=True, text=True, check=True, timeout=120
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchmarkError(f"jcmd, which comes with a JDK, does not tell: {error}") from error
    return counted(done.stdout)


def counted(histogram: str) -> int:
    """The bytes of a histogram of classes, but for arrays of int."""
    rows = [line.split() for line in histogram.splitlines()]
    return sum(int(row[2]) for row in rows if len(row) > 3 and row[0][:-1].isdigit() and row[3] != "[I")


def bytes_a_task(tree: Path, tasks: int) -> float:
    """What each of so many pending tasks takes, written with the package of a tree."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder, force_sync=False, heap_mb=HEAP_MB) as server:
        with Agent(tree, server.hosts, fresh_root()) as agent:
            agent.check()
            _fill(agent, FILLED_BEFORE)
            before = live_bytes(server.pids[0])
            _fill(agent, tasks)
            return (live_bytes(server.pids[0]) - before) / tasks


def _fill(agent: Agent, tasks: int) -> None:
    agent.ask("fill", "heap", tasks)
    agent.answer()


def main() -> int:
    """Read the command line, measure both and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="HEAD~1", metavar="REVISION")
    parser.add_argument("--tasks", type=int, default=30_000)
    requested = parser.parse_args()
    try:
        with tree_of(requested.against) as tree:
            old, new = (bytes_a_task(each, requested.tasks) for each in (tree, TOP))
        named = describe(requested.against)
    except BenchmarkError as error:
        sys.stderr.write(f"benchmark: {error}\n")
        return 1
    sys.stdout.write(f"old: {named}\nbytes of the server's heap for a pending task, of {requested.tasks}:\n")
    sys.stdout.write(f"old {old:.0f}  new {new:.0f}  new/old {new / old:.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
