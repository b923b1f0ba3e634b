"""A shared session that a trigger keeps while it works, and takes anew after trouble."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine import TransportError, Unavailable
from airflow_provider_zkmq.hooks.quiet import keep_kazoo_quiet
from airflow_provider_zkmq.triggers.backoff import Backoff
from airflow_provider_zkmq.triggers.sessions import SESSIONS, Lease

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AsyncQueue


class HeldSession:
    """One trigger's use of the session of an Airflow connection. `longest`: that of its pauses, in seconds."""

    def __init__(self, conn_id: str, log: Any, longest: float) -> None:
        keep_kazoo_quiet()
        self._conn_id = conn_id
        self._backoff = Backoff(log, what="Keeping the claims", longest=longest)
        self._session = contextlib.AsyncExitStack()
        self._lease: Lease | None = None
        self._stale = False

    async def queue(self, name: str) -> AsyncQueue:
        """Return a queue. Raises what `SharedSessions.lease` does."""
        if self._stale:
            await self.leave()
        if self._lease is None:
            self._lease = await self._session.enter_async_context(SESSIONS.lease(self._conn_id))
        return self._lease.client.queue(name)

    async def after(self, error: Exception) -> None:
        """Pause; go on with a connection looked up anew, unless this session only waits for its servers."""
        if not isinstance(error, Unavailable):
            self._stale = True
            if self._lease is not None and isinstance(error, TransportError):
                self._lease.forget()
        await self._backoff.after(error)

    async def leave(self) -> None:
        """Give the session back. Idempotent."""
        session, self._session = self._session, contextlib.AsyncExitStack()
        self._lease, self._stale = None, False
        await session.aclose()
