"""`Queue` and `AsyncQueue`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import working
from ..working.worker import Worker
from .claims import AsyncClaim, Claim
from .internal_methods import AsyncQueueInternals, QueueInternals
from .queue_methods import AsyncQueueMethods, QueueMethods

__all__ = ["AsyncClaim", "AsyncQueue", "Claim", "Queue"]


class Queue(QueueMethods):
    """A queue, each call blocking until ZooKeeper has answered. Usable from several threads."""

    def __internals__(self) -> QueueInternals:
        return QueueInternals(self._session, self._context, self._used)

    def worker(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """A worker that claims, runs `handler` and settles; the options are `Worker`'s."""
        return Worker(self, handler, **options)


class AsyncQueue(AsyncQueueMethods):
    """A queue on an event loop; its methods are `Queue`'s."""

    def __internals__(self) -> AsyncQueueInternals:
        return AsyncQueueInternals(self._session, self._context, self._used)

    def worker(self, handler: Callable[..., Any], **options: Any) -> working.AsyncWorker:
        """A worker that claims, awaits `handler` and settles; the options are `AsyncWorker`'s."""
        return working.AsyncWorker(self, handler, **options)
