"""A watch over a queue that outlives ZooKeeper's absences: what `ZkmqEventTrigger` waits by."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.engine import QueueNotFound, TransportError, Unavailable
from airflow_provider_zkmq.hooks.quiet import keep_kazoo_quiet
from airflow_provider_zkmq.triggers.backoff import Backoff
from airflow_provider_zkmq.triggers.sessions import SESSIONS, Lease

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AsyncQueue

#: After an event the queue is looked at so often, in seconds: where the work is gone, what comes next is told at once.
_LOOK: Final = 2.0


class Watch:
    """Waits for work in a queue, event by event, through a shared session that it keeps in between. One coroutine's."""

    def __init__(self, conn_id: str, queue: str | None, selector: str | None, refire: float, log: Any) -> None:
        keep_kazoo_quiet()
        self._conn_id = conn_id
        self._name = queue
        self._selector = selector
        self._refire = refire
        self._backoff = Backoff(log)
        self._session = contextlib.AsyncExitStack()
        self._lease: Lease | None = None
        self._stale = False
        self._quiet_until: float | None = None

    async def next_event(self) -> dict[str, Any]:
        """Wait until there is work to tell of, whatever fails meanwhile; return the event. Raises nothing."""
        while True:
            try:
                if event := await self._attempt(await self._queue()):
                    return event
            except Exception as error:  # noqa: BLE001  a watch that ended would be missed by nobody
                self._look_after(error)
                await self._backoff.after(error)

    async def leave(self) -> None:
        """Give the session back. Idempotent."""
        session, self._session = self._session, contextlib.AsyncExitStack()
        self._lease, self._stale = None, False
        await session.aclose()

    def _look_after(self, error: Exception) -> None:
        """Make the next attempt begin with a connection looked up anew, unless this session only waits for servers."""
        if isinstance(error, Unavailable):
            return
        self._stale = True
        if self._lease is not None and isinstance(error, TransportError):
            self._lease.forget()

    async def _queue(self) -> AsyncQueue:
        if self._stale:
            await self.leave()
        if self._lease is None:
            self._lease = await self._session.enter_async_context(SESSIONS.lease(self._conn_id))
        return self._lease.client.queue(self._name or self._lease.default_queue)

    async def _attempt(self, queue: AsyncQueue) -> dict[str, Any] | None:
        """Wait for something to tell; None: the queue was not there, and now it is."""
        try:
            return await self._next(queue)
        except QueueNotFound as error:
            await self._backoff.after(error)
            await queue.exists(timeout=None)
            return None

    async def _next(self, queue: AsyncQueue) -> dict[str, Any]:
        """Wait for work that is to be told of; return the event."""
        await self._hold_back(queue)
        await queue.ready(selector=self._selector, timeout=None)
        counts = await queue.counts()
        self._quiet_until = asyncio.get_running_loop().time() + self._refire
        return {"queue": queue.name, "selector": self._selector, "counts": counts}

    async def _hold_back(self, queue: AsyncQueue) -> None:
        """After an event, wait until its work is gone, at most for `refire` seconds from it on."""
        clock = asyncio.get_running_loop().time
        while self._quiet_until is not None:
            left = self._quiet_until - clock()
            await asyncio.sleep(max(0.0, min(left, _LOOK)))
            if left <= 0 or not await queue.ready(selector=self._selector, timeout=0):
                self._quiet_until = None
