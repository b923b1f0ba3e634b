"""A worker's numbers and health over HTTP: ``/metrics`` for Prometheus, ``/livez`` and ``/readyz`` for probes.

Numbers of deliveries are the worker's own. Those of the queue are read by the worker's monitor every few seconds, as
long as somebody scrapes; no page waits for ZooKeeper. Needs the extra ``[metrics]``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric

from .engine import AnyQueue, ConfigError, Error, Poll, Retry, Snooze, Success, Task, Worker, ZkmqError

#: The queue's numbers are read so often, in seconds, and no more when nobody has scraped for so long.
READ_EVERY, SCRAPED = 5.0, 120.0
#: A monitor that is silent for so long, in seconds, waits for ZooKeeper.
SILENT: Final = 10.0
_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0)
_OUTCOMES: Final = {Success: "finished", Error: "failed", Retry: "failed", Snooze: "snoozed"}
_OK: Final = ("200 OK", b"ok\n")
_STUCK: Final = ("503 Service Unavailable", b"every thread is with a handler that was timed out\n")
_NOT_READY: Final = ("503 Service Unavailable", b"not ready\n")


class WorkerMetrics:
    """What a worker of one queue shows. Give it `handler`, `on_settled` and `monitor`, and `serve` it.

    ``zkmq_deliveries_total`` (by outcome: finished, failed, snoozed, lost), ``zkmq_handler_seconds``,
    ``zkmq_wait_seconds`` (from enqueue to start), ``zkmq_in_hand``, ``zkmq_stuck``, ``zkmq_ready``; of the queue
    ``zkmq_tasks`` (by state) and ``zkmq_paused``. Each has the label ``queue``.
    """

    def __init__(self, queue: AnyQueue) -> None:
        self._queue = queue
        self._families: list[Metric] = []
        self._scraped_at, self._read_at, self._answered_at = time.monotonic(), float("-inf"), float("-inf")
        self._stopped = False
        self._registry = CollectorRegistry()
        named: dict[str, Any] = {"labelnames": ["queue"], "registry": self._registry}
        outcomes = {**named, "labelnames": ["queue", "outcome"]}
        self._deliveries = Counter("zkmq_deliveries", "Deliveries that were settled, or lost", **outcomes)
        for outcome in {*_OUTCOMES.values(), "lost"}:
            self._deliveries.labels(queue.name, outcome)
        ran, waited = "How long handlers ran", "How long tasks waited from their enqueue to the start of a handler"
        self._ran = Histogram("zkmq_handler_seconds", ran, buckets=_SECONDS, **named).labels(queue.name)
        self._waited = Histogram("zkmq_wait_seconds", waited, buckets=_SECONDS, **named).labels(queue.name)
        self._in_hand = Gauge("zkmq_in_hand", "Tasks whose handler runs", **named).labels(queue.name)
        self._worker: Worker | None = None
        stuck = Gauge("zkmq_stuck", "Handlers that go on although their tasks were timed out", **named)
        stuck.labels(queue.name).set_function(lambda: 0.0 if self._worker is None else float(self._worker.stuck))
        ready = Gauge("zkmq_ready", "Whether the worker takes tasks and ZooKeeper answers it", **named)
        ready.labels(queue.name).set_function(lambda: float(self.ready))
        self._registry.register(self)

    def handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same handler, measured."""

        def measured(task: Task, *more: object) -> Any:
            if task.started_ms is not None:
                self._waited.observe(max(0, task.started_ms - task.enqueued_ms) / 1000)
            with self._in_hand.track_inprogress(), self._ran.time():
                return function(task, *more)

        return measured

    def on_settled(self, _task: Task, outcome: object) -> None:
        """What the worker calls with each delivery."""
        self._deliveries.labels(self._queue.name, _OUTCOMES.get(type(outcome), "lost")).inc()

    def monitor(self, poll: Poll) -> None:
        """What the worker calls about once a second."""
        now = time.monotonic()
        self._answered_at = float("-inf") if poll.last == "unavailable" else now
        if now - self._read_at >= READ_EVERY and now - self._scraped_at < SCRAPED:
            self._families = self._read()
            self._read_at = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether the worker takes tasks, and ZooKeeper has answered it just now."""
        return not self._stopped and self._answers()

    def _answers(self) -> bool:
        return time.monotonic() - self._answered_at < SILENT

    def stop(self) -> None:
        """Be ready no more: the worker has been told to stop."""
        self._stopped = True

    def collect(self) -> list[Metric]:
        """The queue's numbers, for Prometheus's client; none while ZooKeeper does not answer."""
        self._scraped_at = time.monotonic()
        return self._families if self._answers() else []

    def _read(self) -> list[Metric]:
        tasks = GaugeMetricFamily("zkmq_tasks", "Tasks of the queue by state", labels=["queue", "state"])
        paused = GaugeMetricFamily("zkmq_paused", "Whether the queue hands out nothing", labels=["queue"])
        try:
            counts, conf = self._queue.counts(), self._queue.conf()
        except ZkmqError:
            return []
        for state, count in counts.items():
            tasks.add_metric([self._queue.name, state], count)
        paused.add_metric([self._queue.name], conf.paused)
        return [tasks, paused]

    def describe(self) -> list[Metric]:
        """Nothing: to register asks ZooKeeper nothing."""
        return []

    @property
    def alive(self) -> bool:
        """Whether a thread of the worker is free, or will be; if not, only a new process helps."""
        return self._worker is None or not 0 < self._worker.threads <= self._worker.stuck

    @contextmanager
    def serve(self, address: str, worker: Worker) -> Iterator[str]:
        """Listen at ``HOST:PORT`` while the block runs; gives the address, whose port may have been 0.

        Raises `ConfigError` where that cannot be.
        """
        self._worker = worker
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal():
            raise ConfigError(f"{address!r} is no address to listen at: write HOST:PORT, such as 0.0.0.0:9100")
        try:
            server = make_server(host, int(port), self._answer, _Server, _Quiet)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"nobody can listen at {address}: {error}") from None
        thread = threading.Thread(target=server.serve_forever, name="zkmq-metrics", daemon=True)
        thread.start()
        try:
            yield f"{host}:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _answer(self, environ: dict[str, Any], start: Any) -> Any:
        match environ["PATH_INFO"]:
            case "/metrics":
                return make_wsgi_app(self._registry)(environ, start)
            case "/livez":
                status, body = _OK if self.alive else _STUCK
            case "/readyz":
                status, body = _OK if self.ready else _NOT_READY
            case _:
                status, body = "404 Not Found", b"there are /metrics, /livez and /readyz\n"
        start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]


class _Server(ThreadingMixIn, WSGIServer):
    """One slow scrape holds up no probe."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Requests are not logged."""

    timeout = 30

    def log_message(self, *_: object) -> None:
        """Log nothing."""
