"""From an order to its report: the server, the rows, the files that are asked for."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from airflow_provider_zkmq import __version__
from airflow_provider_zkmq.bench.catalogue import DEPTH, catalogue
from airflow_provider_zkmq.bench.clients import tidied
from airflow_provider_zkmq.bench.crew import Crews
from airflow_provider_zkmq.bench.gauge import Gauge
from airflow_provider_zkmq.bench.jobs import BenchError
from airflow_provider_zkmq.bench.measuring import Figures, Say, measure, profile, trace
from airflow_provider_zkmq.bench.page import check_page, write_page
from airflow_provider_zkmq.bench.plots import check_plots, write_plots
from airflow_provider_zkmq.bench.report import record
from airflow_provider_zkmq.bench.rows import Row
from airflow_provider_zkmq.bench.tables import markdown, text
from airflow_provider_zkmq.bench.tracing import check_tracing
from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import ConfigError, ZkmqError

_ALL = "all"


@dataclass(frozen=True)
class Order:
    """What is asked for. Without `hosts` a server of its own is started, of `ensemble` nodes."""

    hosts: str | None = None
    rows: tuple[str, ...] = ()
    rounds: int = 5
    tasks: int = 300
    depth: int = DEPTH
    ensemble: int = 1
    sync: bool = True
    syscalls: bool = False
    profile: bool = False
    plots: Path | None = None
    page: Path | None = None


@dataclass(frozen=True)
class Place:
    """Where it is measured: the servers, our queues' znode there, and the servers' processes, if they are ours."""

    hosts: str
    root: str
    pids: list[int]


@dataclass(frozen=True)
class Made:
    """The report, as JSON and for people."""

    record: dict[str, Any]
    text: str


class BenchFailedError(ZkmqError):
    """A benchmark could not be carried out; the text says which way of which row failed."""


def list_rows() -> dict[str, str]:
    """What can be measured, by the keys of the rows."""
    return {
        row.key: row.title + (" (long: only by its name, or with `all`)" if row.heavy else "") for row in catalogue()
    }


def carry_out(order: Order, say: Say) -> Made:
    """Measure and report. `say` is told of the progress.

    Raises `ConfigError` for what is asked for wrongly, before anything is started; `BenchFailedError`, `ServerError`,
    `Unavailable`.
    """
    rows = _checked(order)
    begun = time.time()
    with _folder() as folder, _server(order, folder, say) as place:
        measured = _measure(order, rows, folder, place, say)
    return _report(order, measured, begun)


def _measure(order: Order, rows: list[Row], folder: str, place: Place, say: Say) -> list[Figures]:
    try:
        with Crews(place.hosts, place.root, folder) as crews:
            measured = measure(rows, crews, Gauge(place.hosts, place.pids), order.tasks, order.rounds, say)
            if order.syscalls:
                trace(measured, crews, order.tasks, say)
            if order.profile:
                profile(measured, crews, order.tasks, say)
    except BenchError as error:
        raise BenchFailedError(str(error)) from error
    return measured


def _checked(order: Order) -> list[Row]:
    """The rows; what else can be refused is refused as well."""
    if min(order.rounds, order.ensemble, order.depth) < 1 or order.tasks < 2:
        raise ConfigError("a benchmark has at least one round, two tasks, one node and a depth of one")
    if order.plots is not None:
        check_plots()
    if order.page is not None:
        check_page(order.page)
    if order.syscalls:
        check_tracing()
    return chosen(catalogue(order.depth), order.rows)


def chosen(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """The rows of these keys, in the order of the catalogue; without keys all but those that take long."""
    known = {row.key: row for row in rows}
    for key in keys:
        if key not in known and key != _ALL:
            close = get_close_matches(key, known, 3) or known
            raise ConfigError(f"there is no row {key!r} to measure: is it one of {', '.join(close)}?")
    return [row for row in rows if _ALL in keys or row.key in keys or (not keys and not row.heavy)]


@contextmanager
def _folder() -> Iterator[str]:
    """A folder for all that is made on the way, which agents that run as somebody else may pass through."""
    with tempfile.TemporaryDirectory(prefix="zkmq-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield folder


@contextmanager
def _server(order: Order, folder: str, say: Say) -> Iterator[Place]:
    """The servers that were asked for, else one of our own."""
    root = f"/zkmq-bench-{os.getpid()}-{time.time_ns():x}"
    if order.hosts is not None:
        with tidied(order.hosts, root, say):
            yield Place(order.hosts, root, [])
        return
    data = Path(folder, "zookeeper")
    with EmbeddedServer(data, ensemble=order.ensemble, force_sync=order.sync, heap_mb=2_048) as server:
        yield Place(server.hosts, root, server.pids)


def _report(order: Order, measured: list[Figures], begun: float) -> Made:
    about = _about(order, begun)
    if order.plots is not None:
        write_plots(measured, order.plots)
    if order.page is not None:
        link = None if order.plots is None else os.path.relpath(order.plots, order.page.parent)
        write_page(order.page, f"{_sentence(about)}\n\n{markdown(measured, link)}")
    return Made(record(measured, about), f"{_sentence(about)}\n\n{text(measured)}")


def _about(order: Order, begun: float) -> dict[str, Any]:
    """Under what circumstances it was measured."""
    return {
        "version": __version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "nodes": order.ensemble if order.hosts is None else None,
        "sync": order.sync if order.hosts is None else None,
        "rounds": order.rounds,
        "tasks": order.tasks,
        "load": round(os.getloadavg()[0], 1),
        "seconds": round(time.time() - begun, 1),
    }


def _sentence(about: dict[str, Any]) -> str:
    """The circumstances, in words."""
    server = "a server of the caller's" if about["nodes"] is None else f"{about['nodes']} ZooKeeper node(s)"
    disk = {True: ", each write synced", False: ", nothing synced", None: ""}[about["sync"]]
    return (
        f"{about['rounds']} rounds of {about['tasks']} tasks, medians; {server}{disk} on {about['cores']} cores, "
        f"Python {about['python']}; the load at the end was {about['load']}."
    )
