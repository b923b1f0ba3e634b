"""Running coroutines: in a thread that blocks where they wait, or in the background of an event loop."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from . import lazy_asyncio as asyncio
from .log import log

T = TypeVar("T")


def run_blocking(steps: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that blocks the thread where it waits, and never suspends."""
    try:
        steps.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("a coroutine that was to block has nobody to give way to")


class Background:
    """Keeps its tasks alive until they are done: an event loop itself does not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    def do(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def promise(self) -> asyncio.Future[None]:
        """Something that is done elsewhere: who waits for everything waits for that, too."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)
        return future

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something and wait for it; a cancellation ends the waiting only, and what goes wrong then is logged."""
        task = self.do(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log)
            raise

    async def wait(self, timeout: float) -> None:
        """Wait for everything, also for what begins meanwhile; what takes longer goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._tasks:
                    await asyncio.wait(set(self._tasks))


#: For calls that belong to no worker.
OF_CALLS: Final = Background()


def _log(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("after a call was cancelled: %s", error)
