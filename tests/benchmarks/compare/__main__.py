"""The engine and its peers side by side on one server: ``make bench``, with ``ARGS="--rows claim --rounds 11"``.

Without `--hosts` a ZooKeeper of its own is started. What the benchmark writes is deleted afterwards.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.embedded import EmbeddedServer
from tests.benchmarks.compare.jobs import Clients
from tests.benchmarks.compare.measuring import Agents, Gauge, Row, measure
from tests.benchmarks.compare.rows import DEPTH, rows
from tests.benchmarks.compare.tables import markdown, text, write_page, write_plots

_ALL: Final = "all"


def chosen(known: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """The rows of these keys; without keys all but those that take long."""
    return [row for row in known if _ALL in keys or row.key in keys or (not keys and not row.heavy)]


@contextmanager
def _server(given: argparse.Namespace, folder: str) -> Iterator[tuple[str, list[int]]]:
    """The hosts that are given, else those of a server of our own, and its processes."""
    if given.hosts:
        yield given.hosts, []
        return
    options = {"ensemble": given.ensemble, "force_sync": not given.no_sync, "heap_mb": 2_048}
    with EmbeddedServer(Path(folder, "zookeeper"), **options) as server:
        yield server.hosts, server.pids


@contextmanager
def _tidied(hosts: str, root: str) -> Iterator[None]:
    """What agents write meanwhile is deleted afterwards. Raises `Unavailable` before anything is written."""
    with Clients(hosts, root) as clients:
        clients.zk.queues()
        try:
            yield
        finally:
            clients.delete_all()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    keys = [row.key for row in rows()]
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rows", nargs="+", default=[], choices=[*keys, _ALL], metavar="ROW", help=", ".join(keys))
    parser.add_argument("--rounds", type=int, default=5, help="each way is measured so often (%(default)s)")
    parser.add_argument("--tasks", type=int, default=300, help="tasks of a round (%(default)s)")
    parser.add_argument("--depth", type=int, default=DEPTH, help="pending tasks of rows about depth (%(default)s)")
    parser.add_argument("--hosts", help="a ZooKeeper that lets in anyone; default: one of its own")
    parser.add_argument("--ensemble", type=int, default=1, metavar="N", help="nodes of that one (%(default)s)")
    parser.add_argument("--no-sync", action="store_true", help="that one does not wait for its disk")
    parser.add_argument("--plots", metavar="DIR", type=Path, help="draw each row, as PNG and SVG")
    parser.add_argument("--page", metavar="FILE", type=Path, help="replace the table of this page")
    return parser.parse_args(words)


def main() -> None:
    """Measure, and say what came out."""
    given = parsed()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    root = f"/zkmq-bench-{os.getpid()}-{time.time_ns():x}"
    with tempfile.TemporaryDirectory(prefix="zkmq-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # agents that run as somebody else pass through it
        with (
            _server(given, folder) as (hosts, pids),
            _tidied(hosts, root),
            Agents(hosts, root, folder) as agents,
        ):
            wanted = chosen(rows(given.depth), given.rows)
            measured = measure(wanted, agents, Gauge(hosts, pids), given.tasks, given.rounds, _say)
    server = "a server that was there" if given.hosts else f"{given.ensemble} ZooKeeper node(s)"
    synced = "" if given.hosts else ", nothing synced" if given.no_sync else ", each write synced"
    about = (
        f"{given.rounds} rounds of {given.tasks} tasks, medians; {server}{synced} on {os.cpu_count()} cores, Python "
        f"{platform.python_version()}; the load at the end was {os.getloadavg()[0]:.1f}."
    )
    sys.stdout.write(f"{about}\n\n{text(measured)}\n")
    if given.plots:
        write_plots(measured, given.plots)
    if given.page:
        write_page(given.page, f"{about}\n\n{markdown(measured)}")


if __name__ == "__main__":
    main()
