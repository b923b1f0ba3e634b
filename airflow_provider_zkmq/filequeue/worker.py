"""`FileWorker`: the worker of `engine.worker` over a file."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_zkmq.engine.errors import ZkmqError
from airflow_provider_zkmq.engine.handling import Handler
from airflow_provider_zkmq.engine.worker import KEEPER_SECONDS, Worker
from airflow_provider_zkmq.engine.zk.session import log
from airflow_provider_zkmq.filequeue.refusals import TRANSACTIONS, refuse

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.queue import Claim, Queue
    from airflow_provider_zkmq.filequeue.claims import FileClaim
    from airflow_provider_zkmq.filequeue.queue import FileQueue


class FileWorker(Worker):
    """Claims tasks of one file and runs a handler on each; see `Worker`.

    Every claim has an end here: while its handler runs, it is extended each time a third of its span has passed,
    unless ``heartbeat`` is False. Raises `ConfigError` for ``transactional``.
    """

    def __init__(self, queue: FileQueue, handler: Handler, *, transactional: bool = False, **options: Any) -> None:
        refuse({TRANSACTIONS: transactional})
        self._file = queue
        super().__init__(cast("Queue", queue), handler, **options)

    def stop(self) -> bool:
        """Claim nothing more; callable from a signal handler. False if it was stopping already."""
        if self._stopping.is_set():
            return False
        self._stopping.set()
        threading.Thread(target=self._file.folder.alarms.fire, daemon=True).start()
        return True

    def _check_selector(self) -> None:
        self._file.check_wanted(self._asked)

    def _keep(self) -> None:
        """Extend and monitor while there are threads at work."""
        monitored = time.monotonic()
        while not self._stopping.is_set() and (not self._threads or self._alive() is not None):
            self._wake.clear()
            try:
                self._look_after()
                if self._monitor is not None and time.monotonic() - monitored >= KEEPER_SECONDS:
                    monitored = time.monotonic()
                    self._tell(self._monitor)
            except ZkmqError as error:
                log.warning("looking after %r: %s", self._file, error)
            self._wake.wait(self._until_next_beat())

    def _look_after(self) -> None:
        for claim, due, span in self._beats():
            if due <= time.monotonic():
                self._beat(claim, span)

    def _beats(self) -> list[tuple[Claim, float, float]]:
        if not self._heartbeat:
            return []
        spans = [(claim, beaten, cast("FileClaim", claim).span) for claim, beaten in list(self._beaten.items())]
        return [(claim, beaten + span / 3, span) for claim, beaten, span in spans if not claim.settled]
