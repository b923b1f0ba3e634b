"""What goes on on an event loop whatever becomes of who asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from airflow_provider_zkmq.engine.log import log

T = TypeVar("T")


class Background:
    """Keeps its tasks alive until they are done: an event loop itself does not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def do(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something and wait for it; a cancellation ends the waiting only, and what goes wrong then is logged."""
        task = self.do(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log)
            raise

    async def wait(self, timeout: float) -> None:
        """Wait for everything; what takes longer goes on."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)


def _log(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("after a call was cancelled: %s", error)


#: For calls that belong to no worker.
OF_CALLS: Final = Background()
