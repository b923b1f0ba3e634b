"""The clients of both APIs: a connection to ZooKeeper and the queues on it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Self

from ...environment import DEFAULT_HOSTS, DEFAULT_ROOT, FILES
from .. import lazy_asyncio as asyncio
from ..connection_config import ConnectionConfig
from ..core.client_state import Clock, Context
from ..core.maintenance.consumer_registry import unregister
from ..core.model.values import Moment, shown
from ..core.model.znode_names import Paths
from ..core.read import overview
from ..core.read.queue_existence import queue_names
from ..core.read.server_clock import now_below
from ..core.tasks.settle import settle_last
from ..errors import Unsupported, ZkmqError
from ..log import log
from ..zk.connection import CallDeadline, left
from ..zk.procedure_drivers import open_session, run
from ..zk.session import CLOSING_SECONDS, DISCONNECT_SECONDS, Session, ThreadSignal
from .background_maintenance import MaintenanceThread, finish_later
from .calls import Api, AsyncApi, SyncApi, in_thread, not_cleaned_up
from .queue import AsyncQueue, Queue
from .transaction_procedures import Transaction
from .transactions import AsyncUnitOfWork, UnitOfWork


def new_context(session: Session, queue: str, clock: Clock | None = None) -> Context:
    """A client's empty memory of one queue, and what it lends to procedures. Raises `ConfigError`.

    `clock`: the server's, as its queues know it.
    """
    config = session.config
    name = f"{socket.gethostname().split('.')[0][:40]}-{os.getpid()}"
    context = Context(
        queue=queue,
        root=config.root,
        paths=Paths.of(config.root, queue),
        run=session.runtime(lambda: finish_later(session, context)),
        signal=ThreadSignal(),
    )
    context.clock = clock or context.clock
    context.describe = {"name": name, "host": shown(socket.gethostname()), "pid": os.getpid()}
    return context


class ClientBase(Api):
    """What clients of both APIs are: one session, one memory for each queue."""

    def __init__(self, config: ConnectionConfig, *, gc: bool = True) -> None:
        super().__init__(Session(config))
        self.config = config
        self._contexts: dict[str, Context] = {}
        self._clock = Clock(time.monotonic)
        self._maintenance = MaintenanceThread(self._session) if gc else None
        self._used = not_cleaned_up if self._maintenance is None else self._maintenance.add

    def _context(self, name: str) -> Context:
        context = self._contexts.get(name)
        if context is None:
            context = self._contexts.setdefault(name, new_context(self._session, name, clock=self._clock))
        return context

    @property
    def closed(self) -> bool:
        """Whether the connection has been closed: nothing can be done with it any more."""
        return self._session.closed

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

    @property
    def server_version(self) -> str | None:
        """ZooKeeper's version, of the server that this client is connected to; None where that does not tell it."""
        return self._session.server_version()

    def _close(self) -> None:
        """Blocking: stop the upkeep, take the consumers off the register, end the session.

        What was handled has as long to be settled as any call has; the rest takes some seconds at the most.
        """
        session, most = self._session, self.config.request_timeout
        if session.closed:
            return
        moment = min(most, CLOSING_SECONDS if session.silent else DISCONNECT_SECONDS)
        settle_deadline, close_deadline = CallDeadline(moment if session.silent else most), CallDeadline(moment)
        try:
            if self._maintenance is not None:
                self._maintenance.stop(moment)
            for context in list(self._contexts.values()):
                context.signal.fire()
                if os.getpid() == session.pid:
                    _leave(session, context, settle_deadline, close_deadline)
        finally:
            session.close(max(left(close_deadline.deadline()), min(most, CLOSING_SECONDS)))
            if self._maintenance is not None:
                self._maintenance.join(moment)


def _leave(session: Session, context: Context, settle_deadline: CallDeadline, close_deadline: CallDeadline) -> None:
    """What was handled is settled, and the consumer taken off the register, if there is a connection."""
    try:
        if session.connected.is_set() and context.claims.deferred:
            run(session, settle_last(context), settle_deadline)
        if session.connected.is_set():
            run(session, unregister(context), close_deadline)
    except ZkmqError as error:
        log.info("leaving queue %r: %s; the end of the session does the rest", context.queue, error)


class ClientInternals(SyncApi):
    """What the package itself asks of all queues of a blocking client, and its users do not."""

    def __init__(self, session: Session, context: Callable[[str], Context]) -> None:
        super().__init__(session)
        self._context = context

    def changed(self) -> int:
        """A number that rises with each change of anything on the servers. Costs one read."""
        return self._carry_out(overview.changed(self._session.config.root, self._session.zxid))

    def overviews(self, names: Sequence[str]) -> list[tuple[overview.Overview, overview.Activity] | ZkmqError]:
        """How queues stand and what went on in the last minute, or what kept a queue from being read.

        All of them take the round trips of one. Raises `TransportError`.
        """
        return self._carry_out(overview.overviews([self._context(name) for name in names]))


class Client(ClientBase, SyncApi):
    """A connection to ZooKeeper, blocking; usable from several threads, and as a context manager."""

    def start(self) -> Self:
        """Connect, waiting at most ``connect_timeout``.

        Raises `Unavailable`, naming the hosts, `HostNotFound` and `TlsRefused` at once; `AccessDenied`, `NotSecured`;
        `ConfigError` where what stands under the root has another layout.
        """
        open_session(self._session)
        return self

    def queues(self) -> list[str]:
        """The names of the queues under the root, sorted; none without a root, nor one being deleted.

        Raises `TransportError`, and `AccessDenied`.
        """
        return self._carry_out(queue_names(self.config.root))

    def now(self) -> Moment:
        """The time by ZooKeeper's clock, in UTC, whatever queues there are.

        Costs one small write, which leaves nothing; where there is no root, that is created. Queues have no such name.
        Raises `TransportError`, and `AccessDenied`.
        """
        return self._carry_out(now_below(self.config.root))

    def queue(self, name: str) -> Queue:
        """A queue by its name; nothing is written. Raises `ConfigError` for a bad name."""
        return Queue(self._session, self._context(name), self._used, self.transaction)

    def delete_queue(self, name: str, *, confirm: bool = False, force: bool = False) -> int:
        """Delete a queue with everything in it; returns how many tasks that were. See `Queue.delete`."""
        return self.queue(name).delete(confirm=confirm, force=force)

    def __internals__(self) -> ClientInternals:
        return ClientInternals(self._session, self._context)

    def transaction(self) -> UnitOfWork:
        """A unit of work over the queues of this connection."""
        return UnitOfWork(self._session, Transaction(self._session, self._context, self._used))

    def close(self) -> None:
        """End the session; what was claimed in it is given back at once. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncZkmq(ClientBase, AsyncApi):
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
            await in_thread(lambda: open_session(self._session))
        except asyncio.CancelledError:
            threading.Thread(target=self._session.close, name="zkmq-ending", daemon=True).start()
            raise
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def queues(self) -> list[str]:
        """The names of the queues under the root, sorted; none without a root, nor one being deleted.

        Raises `TransportError`, and `AccessDenied`.
        """
        return await self._carry_out(queue_names(self.config.root))

    async def now(self) -> Moment:
        """The time by ZooKeeper's clock, in UTC, whatever queues there are.

        Costs one small write, which leaves nothing; where there is no root, that is created. Queues have no such name.
        Raises `TransportError`, and `AccessDenied`.
        """
        return await self._carry_out(now_below(self.config.root))

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
        await asyncio.shield(asyncio.ensure_future(in_thread(self._close)))
