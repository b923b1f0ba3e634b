"""Waiting on an event loop: for an event or a while, for many tasks, and for tasks that are to end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

#: How long a cancelled task is waited for, and how often it is told again to end.
CANCEL_SECONDS: Final = 1.0
MOST_CANCELLATIONS: Final = 3


async def until(event: asyncio.Event, span: float) -> None:
    """Wait for the event, `span` seconds at the most; a cancellation is never swallowed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(span):
            await event.wait()


async def all_of(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for all of the tasks, however they end."""
    await asyncio.wait(tasks)


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended; one that swallows a cancellation gets another, and is then left alone."""
    for _ in range(MOST_CANCELLATIONS):
        pending = {task for task in tasks if not task.done()}
        if not pending:
            return
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_SECONDS)


def is_cancelled() -> bool:
    """Whether the running task was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
