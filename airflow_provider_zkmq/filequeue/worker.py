"""The worker over a file, which is `Worker` itself: a file's queue and claims have what it needs."""

from __future__ import annotations

from typing import Any

from airflow_provider_zkmq.engine.protocols import Queue
from airflow_provider_zkmq.engine.working.options import Handler
from airflow_provider_zkmq.engine.working.worker import Worker
from airflow_provider_zkmq.filequeue.refusals import TRANSACTIONS, refuse


def worker(queue: Queue, handler: Handler, *, transactional: bool = False, **options: Any) -> Worker:
    """A worker on a file's queue; the options are `Worker`'s. Raises `ConfigError` for ``transactional``.

    Every claim has an end here: while its handler runs, it is extended each time a third of its span has passed,
    unless ``heartbeat`` is False. Nothing is claimed ahead: in a file, each claim counts as a delivery.
    """
    refuse({TRANSACTIONS: transactional})
    return Worker(queue, handler, **options | {"prefetch": 0})
