"""The engine's verbs on an event loop, many coroutines of one client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.bench.jobs import AT_ONCE, PAYLOAD, Asked, Done, Verb, simple
from airflow_provider_zkmq.bench.ours import fill

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AsyncQueue

Life = Callable[["AsyncQueue", Any], Awaitable[object]]


async def _enqueues(queue: AsyncQueue, left: Any) -> None:
    for _ in left:
        await queue.enqueue(PAYLOAD)


async def _claims(queue: AsyncQueue, _left: Any) -> None:
    while (claim := await queue.claim()) is not None:
        await claim.complete()


def _at_once(life: Life) -> Callable[[Asked], Done]:
    """64 coroutines lead such a life; connecting is not measured."""

    async def main(asked: Asked) -> Done:
        async with asked.clients.awaited() as client:
            queue, left = client.queue(asked.name), iter(range(asked.tasks))
            await queue.counts()
            begun = time.perf_counter()
            await asyncio.gather(*(life(queue, left) for _ in range(asked.number or AT_ONCE)))
            return Done(asked.tasks, time.perf_counter() - begun)

    return lambda asked: asyncio.run(main(asked))


VERBS: Final[dict[str, Verb]] = {
    "asyncio-enqueue": simple(_at_once(_enqueues), lambda asked: asked.queue.enqueue(PAYLOAD)),
    "asyncio-claim": simple(_at_once(_claims), fill),
}
