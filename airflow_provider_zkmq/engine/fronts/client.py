"""`Zkmq` and `AsyncZkmq`: a connection to ZooKeeper and the queues on it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from types import TracebackType
from typing import Any, Final, Self, cast

from airflow_provider_zkmq.engine.config import DEFAULT_HOSTS, DEFAULT_ROOT, ConnectionConfig
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.reading.roots import queue_names
from airflow_provider_zkmq.engine.core.upkeep.consumers import unregister
from airflow_provider_zkmq.engine.errors import ConfigError, ZkmqError
from airflow_provider_zkmq.engine.fronts.aqueue import AsyncQueue
from airflow_provider_zkmq.engine.fronts.methods import new_context
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.engine.fronts.transaction import AsyncUnitOfWork, UnitOfWork
from airflow_provider_zkmq.engine.fronts.upkeep import Upkeep
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session, log

#: Hosts that begin so are a folder of queue files on this machine; see `airflow_provider_zkmq.filequeue`.
FILES: Final = "textqueue://"


class _Client:
    """What both fronts share: one session, one memory for each queue."""

    def __init__(self, config: ConnectionConfig, *, gc: bool = True) -> None:
        self.config = config
        self._session = Session(config)
        self._contexts: dict[str, Context] = {}
        self._upkeep = Upkeep(self._session) if gc else None

    def _context(self, name: str) -> Context:
        context = self._contexts.get(name)
        if context is None:
            context = self._contexts.setdefault(name, new_context(self._session, name))
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

    def _close(self) -> None:
        """Blocking: stop the upkeep, take the consumers off the register, end the session."""
        if self._session.closed:
            return
        try:
            if self._upkeep is not None:
                self._upkeep.stop()
            for context in list(self._contexts.values()):
                context.signal.fire()
                if self._session.connected.is_set() and os.getpid() == self._session.pid:
                    _leave(self._session, context)
        finally:
            self._session.close()


def _leave(session: Session, context: Context) -> None:
    try:
        run(session, unregister(context))
    except ZkmqError as error:
        log.info("leaving queue %r: %s; the end of the session does the rest", context.queue, error)


class Zkmq(_Client):
    """A connection, blocking; usable from several threads, and as a context manager.

    One is enough for a process: every queue, claim, wait and transaction shares its session.
    """

    @classmethod
    def connect(cls, hosts: str = DEFAULT_HOSTS, root: str = DEFAULT_ROOT, *, gc: bool = True, **options: Any) -> Self:
        """Connect to ZooKeeper, waiting at most ``connect_timeout``.

        `hosts`: ``host:port,host:port``; `root`: the znode under which the queues live. Options: ``auth``
        (``"user:password"``: what is created then belongs to that user), ``tls`` (`Tls` or a mapping),
        ``session_timeout``, ``connect_timeout``, ``request_timeout`` (seconds). `gc`: take part in clean-up.
        Raises `ConfigError`, `Unavailable` (naming the hosts), `AccessDenied`.

        ``textqueue:///path/dir`` instead of hosts: a `FileClient`, which has the same methods over files.
        """
        if isinstance(hosts, str) and hosts.startswith(FILES):
            from airflow_provider_zkmq.filequeue.client import FileClient

            return cast("Self", FileClient.connect(hosts, root, gc=gc, **options))
        client = cls(ConnectionConfig.of(hosts, root, **options), gc=gc)
        client._session.start()
        return client

    def queue(self, name: str) -> Queue:
        """A queue by its name; nothing is written. Raises `ConfigError` for a bad name."""
        return Queue(self._session, self._context(name), self._used, self.transaction)

    def queues(self) -> list[str]:
        """The names of the queues under the root."""
        return run(self._session, queue_names(self.config.root))

    def transaction(self) -> UnitOfWork:
        """A unit of work over the queues of this connection."""
        return UnitOfWork(self._session, self._context)

    def close(self) -> None:
        """End the session; what was claimed in it is given back at once. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncZkmq(_Client):
    """For event loops: ``async with AsyncZkmq.connect(…) as zk:`` or ``zk = await AsyncZkmq.connect(…)``."""

    @classmethod
    def connect(cls, hosts: str = DEFAULT_HOSTS, root: str = DEFAULT_ROOT, *, gc: bool = True, **options: Any) -> Self:
        """A connection to be awaited or entered; the arguments are `Zkmq.connect`'s, without files."""
        if isinstance(hosts, str) and hosts.startswith(FILES):
            msg = (
                f"refused: queue files ({hosts}) have no asynchronous use (nor deferrable operators). ZooKeeper has it"
            )
            raise ConfigError(msg)
        return cls(ConnectionConfig.of(hosts, root, **options), gc=gc)

    async def _start(self) -> Self:
        await asyncio.to_thread(self._session.start)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._start().__await__()

    async def __aenter__(self) -> Self:
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def queue(self, name: str) -> AsyncQueue:
        """A queue by its name; nothing is written. Raises `ConfigError` for a bad name."""
        return AsyncQueue(self._session, self._context(name), self._used, self.transaction)

    def transaction(self) -> AsyncUnitOfWork:
        """A unit of work over the queues of this connection."""
        return AsyncUnitOfWork(self._session, self._context)

    async def queues(self) -> list[str]:
        """The names of the queues under the root."""
        return await arun(self._session, queue_names(self.config.root))

    async def close(self) -> None:
        """End the session; what was claimed in it is given back at once. Idempotent."""
        await asyncio.shield(asyncio.to_thread(self._close))
