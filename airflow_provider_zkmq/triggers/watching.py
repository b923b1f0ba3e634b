"""A watch over a queue that outlives ZooKeeper's absences: what `ZkmqEventTrigger` waits by."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.engine import QueueNotFound
from airflow_provider_zkmq.triggers.backoff import Backoff
from airflow_provider_zkmq.triggers.held import HeldSession

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AsyncQueue

#: After an event the queue is looked at so often, in seconds: where the work is gone, what comes next is told at once.
_LOOK: Final = 2.0


class Watch:
    """Waits for work in a queue, event by event, through a shared session that it keeps in between. One coroutine's."""

    def __init__(self, conn_id: str, queue: str | None, selector: str | None, refire: float, log: Any) -> None:
        self._name = queue
        self._selector = selector
        self._refire = refire
        self._backoff = Backoff(log)
        self._held = HeldSession(conn_id, self._backoff)
        self._quiet_until: float | None = None

    async def next_event(self) -> dict[str, Any]:
        """Wait until there is work to tell of, whatever fails meanwhile; return the event. Raises nothing."""
        while True:
            try:
                if event := await self._attempt(await self._held.queue(self._name)):
                    return event
            except Exception as error:  # noqa: BLE001  a watch that ended would be missed by nobody
                await self._held.after(error)

    async def leave(self) -> None:
        """Give the session back. Idempotent."""
        await self._held.leave()

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
