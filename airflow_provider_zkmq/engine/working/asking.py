"""What a worker's threads ask of its queue; one that is not there is waited for."""

from __future__ import annotations

import threading

from airflow_provider_zkmq.engine.errors import QueueNotFound
from airflow_provider_zkmq.engine.protocols import Claim, Queue, Transaction
from airflow_provider_zkmq.engine.working.options import Handler, Options
from airflow_provider_zkmq.engine.working.rules import Working


class Asking(Working[Claim, Transaction]):
    """A worker as far as it asks for tasks."""

    def __init__(self, queue: Queue, handler: Handler, options: Options) -> None:
        super().__init__(queue, handler, options)
        self.queue = queue
        self._stopping = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, or has ended."""
        return self._stopping.is_set()

    def _check_wanted(self) -> None:
        """Raise `ConfigError` for what the queue refuses. One that is not there can refuse nothing yet."""
        try:
            self.queue.check_wanted(**self._options.choice)
        except QueueNotFound as error:
            self._tell_of_absence(error)

    def _claim(self, *, idle: bool) -> Claim | None:
        """Claim; None: there was nothing, or no queue, and it was waited for."""
        patience, lease = self._patience(idle=idle), self._options.lease
        try:
            return self.queue.claim(
                **self._options.choice, lease=lease, timeout=patience, stopping=self._stopping.is_set
            )
        except QueueNotFound as error:
            self._await_queue(error)
            return None

    def _await_queue(self, error: QueueNotFound) -> None:
        """Wait for the queue to come, or the worker to be stopped."""
        self._tell_of_absence(error)
        if self.queue.exists(None, stopping=self._stopping.is_set):
            self._absence.end()

    def _size(self) -> int:
        """How many tasks are pending, once there is a queue. Raises `QueueNotFound` where none came before the end."""
        try:
            return self.queue.counts()["inserted"]
        except QueueNotFound as error:
            self._await_queue(error)
        return self.queue.counts()["inserted"]
