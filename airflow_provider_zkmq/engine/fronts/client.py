"""The clients of both fronts: a connection to ZooKeeper and the queues on it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.core.memory.clock import Clock
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.reading.clock import now_below
from airflow_provider_zkmq.engine.core.reading.roots import queue_names
from airflow_provider_zkmq.engine.core.tasks.departing import settle_last
from airflow_provider_zkmq.engine.core.upkeep.consumers import unregister
from airflow_provider_zkmq.engine.errors import Unsupported, ZkmqError
from airflow_provider_zkmq.engine.fronts.aqueue import AsyncQueue
from airflow_provider_zkmq.engine.fronts.aside import aside
from airflow_provider_zkmq.engine.fronts.kinds import Awaited, Blocking, Front
from airflow_provider_zkmq.engine.fronts.methods import verb
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.engine.fronts.runtime import new_context
from airflow_provider_zkmq.engine.fronts.transaction import AsyncUnitOfWork, UnitOfWork
from airflow_provider_zkmq.engine.fronts.unit import Transaction
from airflow_provider_zkmq.engine.fronts.upkeep import Upkeep
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.limits import Patience, left
from airflow_provider_zkmq.engine.zk.opening import open_session
from airflow_provider_zkmq.engine.zk.session import Session
from airflow_provider_zkmq.environment import DEFAULT_HOSTS, DEFAULT_ROOT, FILES


class ClientVerbs(Front[str]):
    """What clients of both fronts are: one session, one memory for each queue."""

    def __init__(self, config: ConnectionConfig, *, gc: bool = True) -> None:
        super().__init__(Session(config), config.root)
        self.config = config
        self._contexts: dict[str, Context] = {}
        self._clock = Clock(time.monotonic)
        self._upkeep = Upkeep(self._session) if gc else None

    queues = verb(queue_names)
    now = verb(now_below)

    def _context(self, name: str) -> Context:
        context = self._contexts.get(name)
        if context is None:
            context = self._contexts.setdefault(name, new_context(self._session, name, clock=self._clock))
        return context

    def _used(self, context: Context) -> None:
        if self._upkeep is not None:
            self._upkeep.add(context)

    @property
    def session_id(self) -> int:
        """The ZooKeeper session's id."""
        return self._session.id

    @property
    def requests(self) -> dict[str, int]:
        """How many requests of each kind this client has sent so far; for measuring."""
        return dict(self._session.requests)

    @property
    def open_above(self) -> tuple[str, ...]:
        """The znodes above the root in which anyone may create or delete: another root could take the place of ours.

        Looked at when connecting, by an identity only: without one, everything is open anyway.
        """
        return self._session.access.open_above

    def _close(self) -> None:
        """Blocking: stop the upkeep, take the consumers off the register, end the session."""
        if self._session.closed:
            return
        patience = self._session.farewell()
        patience.begin()
        deadline = patience.deadline()
        try:
            if self._upkeep is not None:
                self._upkeep.stop(left(deadline))
            for context in list(self._contexts.values()):
                context.signal.fire()
                if os.getpid() == self._session.pid:
                    _leave(self._session, context, patience)
        finally:
            self._session.close(left(deadline))
            if self._upkeep is not None:
                self._upkeep.join(left(deadline))


def _leave(session: Session, context: Context, patience: Patience) -> None:
    """What was handled is settled, and the consumer taken off the register, if there is a connection."""
    try:
        if session.connected.is_set() and context.claims.leaving:
            run(session, settle_last(context), patience)
        if session.connected.is_set():
            run(session, unregister(context), patience)
    except ZkmqError as error:
        log.info("leaving queue %r: %s; the end of the session does the rest", context.queue, error)


class Client(ClientVerbs, Blocking[str]):
    """A connection to ZooKeeper, blocking; usable from several threads, and as a context manager."""

    def start(self) -> Self:
        """Connect, waiting at most ``connect_timeout``.

        Raises `Unavailable`, naming the hosts, `HostNotFound` and `TlsRefused` at once; `AccessDenied`, `NotSecured`;
        `ConfigError` where what stands under the root has another layout.
        """
        open_session(self._session)
        return self

    def queue(self, name: str) -> Queue:
        """A queue by its name; nothing is written. Raises `ConfigError` for a bad name."""
        return Queue(self._session, self._context(name), self._used, self.transaction)

    def delete_queue(self, name: str, *, confirm: bool = False, force: bool = False) -> int:
        """Delete a queue with everything in it; returns how many tasks that were. See `Queue.delete`."""
        return self.queue(name).delete(confirm=confirm, force=force)

    def transaction(self) -> UnitOfWork:
        """A unit of work over the queues of this connection."""
        return UnitOfWork(self._session, Transaction(self._session, self._context, self._used))

    def close(self) -> None:
        """End the session; what was claimed in it is given back at once. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncZkmq(ClientVerbs, Awaited[str]):
    """For event loops: ``async with AsyncZkmq.connect(…) as zk:`` or ``zk = await AsyncZkmq.connect(…)``."""

    @classmethod
    def connect(cls, hosts: str = DEFAULT_HOSTS, root: str = DEFAULT_ROOT, *, gc: bool = True, **options: Any) -> Self:
        """A connection to be awaited or entered; the arguments are `Zkmq.connect`'s, without files."""
        if isinstance(hosts, str) and hosts.startswith(FILES):
            msg = (
                f"refused: queue files ({hosts}) have no asynchronous use (nor deferrable operators). ZooKeeper has it"
            )
            raise Unsupported(msg)
        return cls(ConnectionConfig.of(hosts, root, **options), gc=gc)

    async def start(self) -> Self:
        """Connect, waiting at most ``connect_timeout``; awaiting or entering it does so, too. See `Zkmq.start`."""
        try:
            await aside(lambda: open_session(self._session))
        except asyncio.CancelledError:
            threading.Thread(target=self._session.close, name="zkmq-ending", daemon=True).start()
            raise
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def queue(self, name: str) -> AsyncQueue:
        """A queue by its name; nothing is written. Raises `ConfigError` for a bad name."""
        return AsyncQueue(self._session, self._context(name), self._used, self.transaction)

    async def delete_queue(self, name: str, *, confirm: bool = False, force: bool = False) -> int:
        """Delete a queue with everything in it; returns how many tasks that were. See `Queue.delete`."""
        return await self.queue(name).delete(confirm=confirm, force=force)

    def transaction(self) -> AsyncUnitOfWork:
        """A unit of work over the queues of this connection."""
        return AsyncUnitOfWork(self._session, Transaction(self._session, self._context, self._used))

    async def close(self) -> None:
        """End the session; what was claimed in it is given back at once. Idempotent."""
        await asyncio.shield(asyncio.ensure_future(aside(self._close)))
