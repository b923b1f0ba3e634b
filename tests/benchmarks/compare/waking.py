"""From an enqueue to the claim of a consumer that waits, and from a completion to the one that waits for it.

The floor is a bare write, and the event of a watch that reaches another client's thread; what a claim needs besides is
measured as kazoo alone does it. Each wake-up comes after the same pause: threads, processors and the server are slower
to answer when they have had nothing to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from kazoo.client import KazooClient

from airflow_provider_zkmq.engine import AnyClient, AnyQueue, AsyncZkmq, Message, ZkmqError
from tests.benchmarks.compare.jobs import PAYLOAD, TIMEOUT_S, Asked, Run, Verb, started_kazoo, wake_ups

#: A client is idle again when it has done nothing for so many looks, so many seconds apart.
_LOOKS: Final = 4
_LOOK_S: Final = 0.02
#: A process that was at work for a larger part of a look has something to do.
_BUSY: Final = 0.25


def await_idle(client: AnyClient | AsyncZkmq) -> None:
    """Return when a client has sent nothing for a while, and this process has had nothing to do either."""
    quiet, last = 0, client.requests
    while quiet < _LOOKS:
        spent = time.process_time()
        time.sleep(_LOOK_S)
        idle = client.requests == last and time.process_time() - spent < _LOOK_S * _BUSY
        quiet, last = (quiet + 1, last) if idle else (0, client.requests)


def _fill(requested: Asked) -> None:
    """The lane and its segment are there: only the first enqueue of all makes them."""
    requested.queue.enqueue(PAYLOAD)
    claim = requested.queue.claim()
    assert claim is not None
    claim.complete()


def _consume(queue: AnyQueue, claimed: SimpleQueue[float]) -> None:
    """A thread that waits for tasks until its client is closed."""
    with contextlib.suppress(ZkmqError):
        while (claim := queue.claim(timeout=TIMEOUT_S)) is not None:
            claimed.put(time.perf_counter())
            claim.complete()


@contextmanager
def _idle_threads(requested: Asked) -> Iterator[Run]:
    """`number` threads of a client of their own wait."""
    claimed = SimpleQueue[float]()
    with requested.clients.new() as client:
        queue = client.queue(requested.name)
        threads = [Thread(target=_consume, args=(queue, claimed), daemon=True) for _ in range(requested.number)]
        for thread in threads:
            thread.start()
        await_idle(client)
        yield lambda: wake_ups(
            requested.tasks, lambda: requested.queue.enqueue(PAYLOAD), claimed, lambda: await_idle(client)
        )
    for thread in threads:
        thread.join(TIMEOUT_S)


@contextmanager
def _bare(requested: Asked, act: Callable[[KazooClient, str], object]) -> Iterator[Run]:
    """A thread of another client waits for the event of a znode that is created, and then acts."""
    writer, events, heard = requested.clients.kazoo, SimpleQueue[bool](), SimpleQueue[float]()
    writer.ensure_path(requested.path)
    with started_kazoo(requested.clients.hosts) as watcher:

        def listen() -> None:
            while events.get():
                act(watcher, requested.path)
                heard.put(time.perf_counter())

        def arm() -> None:
            watcher.get_children(requested.path, watch=lambda _event: events.put(True))
            time.sleep(_LOOKS * _LOOK_S)  # as long as one of ours is seen to be idle

        def write() -> None:
            writer.create(f"{requested.path}/e-", PAYLOAD, sequence=True)

        listener = Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield lambda: wake_ups(requested.tasks, write, heard, arm)
        finally:
            events.put(False)
            listener.join(TIMEOUT_S)


def _claim_barely(kazoo: KazooClient, path: str) -> None:
    """The requests of a claim, with nothing of what makes it safe: a listing, a read, a transaction."""
    first = f"{path}/{min(kazoo.get_children(path))}"
    data, stat = kazoo.get(first)
    transaction = kazoo.transaction()
    transaction.set_data(first, data, stat.version)
    transaction.delete(first)
    for result in transaction.commit():
        if isinstance(result, Exception):
            raise result


class _Waiters:
    """Coroutines of one client, each of which waits for a task; their event loop has a thread of its own."""

    def __init__(self, requested: Asked) -> None:
        self.woken: SimpleQueue[float] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client: AsyncZkmq = self._do(requested.clients.awaited().__aenter__())
        self._queue = self._client.queue(requested.name)
        self._waits: set[asyncio.Task[None]] = set()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(TIMEOUT_S)

    def add(self, ids: list[str]) -> None:
        """Somebody waits for each of these tasks, and is idle."""
        self._do(self._begin(ids))
        await_idle(self._client)

    async def _begin(self, ids: list[str]) -> None:
        for task_id in ids:
            wait = asyncio.create_task(self._wait(task_id))
            self._waits.add(wait)
            wait.add_done_callback(self._waits.discard)

    async def _wait(self, task_id: str) -> None:
        await self._queue.wait([task_id])
        self.woken.put(time.perf_counter())

    def close(self) -> None:
        """Nobody waits any more."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    async def _end(self) -> None:
        waits = [*self._waits]
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await self._client.close()


@contextmanager
def _waiting(requested: Asked) -> Iterator[Run]:
    """`number` waiters: all but one wait for tasks that nobody takes, and one for a task that is about to be done.

    Whoever got what it waited for is replaced, so that they stay as many.
    """
    queue = requested.queue
    queue.enqueue_many([Message(PAYLOAD)] * requested.tasks)
    claims = [claim for _ in range(requested.tasks) if (claim := queue.claim()) is not None]
    others = queue.enqueue_many([Message(PAYLOAD)] * (requested.number - 1))
    with ExitStack() as stack:
        waiters = _Waiters(requested)
        stack.callback(waiters.close)
        waiters.add(list(others))
        left = list(claims)

        def settle() -> None:
            if left:
                waiters.add([left[-1].task.id])

        yield lambda: wake_ups(len(claims), lambda: left.pop().complete(), waiters.woken, settle)


VERBS: Final[dict[str, Verb]] = {
    "wake": Verb(_idle_threads, _fill),
    "wake-barely": Verb(lambda requested: _bare(requested, lambda _kazoo, _path: None)),
    "wake-and-claim-barely": Verb(lambda requested: _bare(requested, _claim_barely)),
    "waiters": Verb(_waiting),
}
