"""A worker whose queue is not there: it says so once, and waits for the queue to come."""

from __future__ import annotations

import threading

from airflow_provider_zkmq.engine.errors import QueueNotFound
from airflow_provider_zkmq.engine.log import log


class Absence:
    """What a worker has told of its queue's absence. One lock guards it: each of its threads may be the first."""

    def __init__(self, queue: str) -> None:
        self.told = False
        self.ended = 0
        """How often the queue has come."""
        self._queue = queue
        self._lock = threading.Lock()

    def tell(self, error: QueueNotFound, since: int) -> None:
        """The queue is not there: a warning, for all threads and for as long as that is so.

        `since`: what ``ended`` was when the queue was asked. It may have come meanwhile, as another thread has told.
        """
        with self._lock:
            news = not self.told and since == self.ended
            self.told = self.told or news
        if news:
            log.warning("worker on queue %r: %s; it waits for the queue", self._queue, error)

    def end(self) -> None:
        """The queue has come."""
        with self._lock:
            told, self.told = self.told, False
            self.ended += told
        if told:
            log.info("worker on queue %r: the queue is there", self._queue)
