"""Workers of either front on a real server: their handlers are plain functions, which an event loop has in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.integration.fronts import Awaited


def work(client: Any, handler: Callable[..., Any], name: str = "census", **options: Any) -> Any:
    """A worker of a client's queue."""
    if not isinstance(client, Awaited):
        return client.queue(name).worker(handler, **options)

    async def handle(*given: Any) -> Any:
        return await asyncio.to_thread(handler, *(Awaited(each, client.loop) for each in given))

    return client.queue(name).worker(handle, **options)


def handled(client: Any, handler: Callable[..., Any], **options: Any) -> Any:
    """The worker that has handled what is there."""
    it = work(client, handler, **options)
    in_time(lambda: it.run(until_empty=True))
    return it


def in_time(call: Callable[[], Any], within: float = 60) -> Any:
    """The result of a call that must end."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(within)


def claimed(queue: Any) -> int:
    """How many of its tasks are claimed."""
    count: int = queue.counts()["claimed"]
    return count
