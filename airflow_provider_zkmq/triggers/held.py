"""A shared session that a trigger keeps while it works, and takes anew after trouble."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_provider_zkmq.engine import TransportError, Unavailable
from airflow_provider_zkmq.hooks.quiet import keep_kazoo_quiet
from airflow_provider_zkmq.triggers.backoff import Backoff
from airflow_provider_zkmq.triggers.sessions import SESSIONS, Lease

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AsyncQueue


class HeldSession:
    """One trigger's use of the session of an Airflow connection. `backoff`: what tells of trouble, and pauses."""

    def __init__(self, conn_id: str, backoff: Backoff) -> None:
        keep_kazoo_quiet()
        self._conn_id = conn_id
        self._backoff = backoff
        self._session = contextlib.AsyncExitStack()
        self._lease: Lease | None = None
        self._stale = False

    async def queue(self, name: str | None) -> AsyncQueue:
        """Return a queue; None: the connection's. Raises what `SharedSessions.lease` does."""
        if self._stale:
            await self.leave()
        if self._lease is None:
            self._lease = await self._session.enter_async_context(SESSIONS.lease(self._conn_id))
        return self._lease.client.queue(name or self._lease.default_queue)

    async def after(self, error: Exception) -> None:
        """Pause; go on with a connection looked up anew, unless this session only waits for its servers.

        It waits for them in vain where the connection names others by now.
        """
        if isinstance(error, Unavailable):
            self._stale = self._stale or (self._lease is not None and await self._lease.outdated())
        else:
            self._stale = True
            if self._lease is not None and isinstance(error, TransportError):
                self._lease.forget()
        await self._backoff.after(error)

    async def leave(self) -> None:
        """Give the session back. Idempotent."""
        session, self._session = self._session, contextlib.AsyncExitStack()
        self._lease, self._stale = None, False
        await session.aclose()
