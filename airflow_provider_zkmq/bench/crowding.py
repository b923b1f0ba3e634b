"""From the completion of a task to the one that waits for it, in a crowd of others of whom each waits for a task, too.

All of them are coroutines of one client. Whoever got what it waited for is replaced, so that the crowd stays as large.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import tracemalloc
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.bench.jobs import PATIENCE, PAYLOAD, Asked, Done, Run, Verb
from airflow_provider_zkmq.bench.rows import Goal, Row, Way
from airflow_provider_zkmq.bench.waking import await_quiet, timed
from airflow_provider_zkmq.engine import Message

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyClaim, AsyncQueue, AsyncZkmq


class _Crowd:
    """A client on an event loop of its own, in a thread of its own, and what waits there."""

    def __init__(self, asked: Asked) -> None:
        self.woken: SimpleQueue[float] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client: AsyncZkmq = self._do(_opened(asked))
        self._queue = self._client.queue(asked.name)
        self._waits: set[asyncio.Task[None]] = set()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE)

    def grow(self, ids: list[str]) -> float:
        """Somebody waits for each of these tasks. Returns the bytes of this process that each of them takes."""
        tracemalloc.start()
        before = _allocated()
        self.join(ids)
        self._do(asyncio.sleep(0))  # a loop clears away what timers it was rid of when it wakes up next
        each = (_allocated() - before) / max(1, len(ids))
        tracemalloc.stop()
        return each

    def join(self, ids: list[str]) -> None:
        """Somebody waits for each of these tasks, and is idle."""
        self._do(self._begin(ids))
        await_quiet(self._client)

    async def _begin(self, ids: list[str]) -> None:
        for task_id in ids:
            wait = asyncio.create_task(self._wait(self._queue, task_id))
            self._waits.add(wait)
            wait.add_done_callback(self._waits.discard)

    async def _wait(self, queue: AsyncQueue, task_id: str) -> None:
        await queue.wait([task_id])
        self.woken.put(time.perf_counter())

    def close(self) -> None:
        """Nobody waits any more."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    async def _end(self) -> None:
        waits = [*self._waits]
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await self._client.close()


async def _opened(asked: Asked) -> AsyncZkmq:
    return await asked.clients.awaited().__aenter__()


def _allocated() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@contextmanager
def _waiting(asked: Asked) -> Iterator[Run]:
    """`number` waiters: all but one wait for tasks that nobody takes, and one for a task that is about to be done."""
    queue = asked.queue
    queue.enqueue_many([Message(PAYLOAD)] * asked.tasks)
    claims = [claim for _ in range(asked.tasks) if (claim := queue.claim()) is not None]
    others = queue.enqueue_many([Message(PAYLOAD)] * (asked.number - 1))
    with ExitStack() as stack:
        crowd = _Crowd(asked)
        stack.callback(crowd.close)
        each = crowd.grow(others) if others else None
        yield lambda: _complete(crowd, claims, each)


def _complete(crowd: _Crowd, claims: list[AnyClaim], each: float | None) -> Done:
    left = iter(claims)
    current: list[AnyClaim] = []

    def settle() -> None:
        with contextlib.suppress(StopIteration):
            current[:] = [next(left)]
            crowd.join([current[0].task.id])

    def tell() -> None:
        current[0].complete()

    done = timed(len(claims), tell, crowd.woken, settle)
    return Done(done.tasks, done.seconds, each)


VERBS: Final[dict[str, Verb]] = {"waiters": Verb(_waiting)}


def _way(number: int) -> Way:
    name = f"{number:,} waiter{'s' if number > 1 else ''}".replace(",", " ")
    return Way(name, "waiters", number, share=0.1, ours=True)


def _row(key: str, *numbers: int, heavy: bool = False) -> Row:
    """Each crowd beside a single waiter, whom it keeps waiting half as long again at the most, for no request more."""
    one, *crowds = map(_way, numbers)
    slower = (Goal(way.name, 1 / 1.5, one.name) for way in crowds)
    dearer = (Goal(way.name, 1.2, one.name, "requests") for way in crowds)
    return Row(key, "from a completion to the one that waits for it", (one, *crowds), (*slower, *dearer), heavy=heavy)


WAITERS: Final = _row("waiters", 1, 100, 1_000)


def many_waiters(number: int) -> Row:
    """The same with so many."""
    return _row("waiters-many", 1, number, heavy=True)
