"""Triggers of deferred tasks: what they have in common, such as waiting on while ZooKeeper is away."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_zkmq.engine import TransportError, Unavailable, WaitTimeout, ZkmqError
from airflow_provider_zkmq.hooks.deferring import hold_back, seconds_left
from airflow_provider_zkmq.hooks.quiet import keep_kazoo_quiet
from airflow_provider_zkmq.triggers.backoff import LONGEST_OF_A_WAIT, Backoff
from airflow_provider_zkmq.triggers.sessions import SESSIONS, Lease

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AsyncQueue

#: The engine's own time-out names what it waited for; this much later, in seconds, the wait ends whatever it does.
_GRACE = 1.0


class WaitingTrigger(BaseTrigger):
    """Waits once for something in one queue, until a deadline, and fires once.

    The event is ``{"status": "done", …}``, else ``{"status": "timeout" | "error", "message": …}``; it comes some
    seconds after the deferral at the earliest. ZooKeeper being away ends nothing: the trigger waits for it, too.

    `name`: the queue's name; None: the connection's. `deadline`: when to give up, and `deferred_at`: when the Airflow
    task deferred, both in seconds since 1970.
    """

    def __init__(self, name: str | None, zkmq_conn_id: str, deadline: float | None, deferred_at: float | None) -> None:
        super().__init__()
        self.zkmq_conn_id = zkmq_conn_id
        self.deadline = deadline
        self.deferred_at = deferred_at
        self._name = name

    @abstractmethod
    async def _wait_for(self, queue: AsyncQueue) -> dict[str, Any]:
        """Wait; return what the event says besides its status."""

    def _event(self, outcome: dict[str, Any]) -> TriggerEvent:
        """Return the event for what came of the wait."""
        return TriggerEvent(outcome)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield exactly one event; by then the shared session is given back."""
        keep_kazoo_quiet()
        event = self._event(await self._outcome())
        if type(event) is TriggerEvent:  # what ends the task by itself meets no race
            await asyncio.sleep(hold_back(self.deferred_at, time.time()))
        yield event

    async def _outcome(self) -> dict[str, Any]:
        left = self._left()
        try:
            async with asyncio.timeout(None if left is None else left + _GRACE):
                return {"status": "done", **await self._wait()}
        except TimeoutError as error:  # `WaitTimeout` is one; it names the tasks
            message = str(error) or f"ZooKeeper did not answer within timeout ({left or 0:g} s)"
            return {"status": "timeout", "message": message}
        except (ZkmqError, AirflowNotFoundException) as error:
            return {"status": "error", "message": str(error)}

    def _left(self) -> float | None:
        return seconds_left(self.deadline)

    async def _wait(self) -> dict[str, Any]:
        """Wait, and again after each failure of the transport; return what the event names."""
        backoff = Backoff(self.log, what="Waiting", longest=LONGEST_OF_A_WAIT)
        while True:
            try:
                async with SESSIONS.lease(self.zkmq_conn_id) as lease:
                    return await self._wait_in(lease, backoff)
            except TransportError as error:
                await backoff.after(error)

    async def _wait_in(self, lease: Lease, backoff: Backoff) -> dict[str, Any]:
        """Wait within one session, for as long as it lives.

        Raises `TransportError` when it has ended, or its servers are away and the connection names others by now.
        """
        queue = lease.client.queue(self._name or lease.default_queue)
        while True:
            try:
                return await self._wait_for(queue)
            except Unavailable as error:
                if await lease.outdated():
                    raise
                await backoff.after(error)
            except WaitTimeout:
                raise
            except TransportError:
                lease.forget()
                raise
