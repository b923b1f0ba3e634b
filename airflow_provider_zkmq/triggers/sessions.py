"""One ZooKeeper session for all triggers of a process that use the same Airflow connection."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import weakref
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..engine import TransportError, Unavailable
from ..hooks.connection_options import async_connection_options, limit_kazoo_logging
from ..hooks.outages import Backoff

if TYPE_CHECKING:
    from ..engine import AsyncQueue, AsyncZkmq

#: An event loop itself keeps no task alive.
_GOING_ON: Final[set[asyncio.Task[None]]] = set()


def going_on(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begin work that goes on although whoever waits for it, shielded, is cancelled."""
    task = asyncio.create_task(work)
    _GOING_ON.add(task)
    task.add_done_callback(_GOING_ON.discard)
    return task


_Key: TypeAlias = tuple[str, str]
#: Of this process alone: nobody can try passwords until one gives the digest that he has seen.
_PEPPER: Final = os.urandom(32)
#: A connection is looked up again for a trigger that comes so many seconds after the last look.
_FRESH: Final = 60.0


def load_client() -> type[AsyncZkmq]:
    """Import what opens sessions, kazoo among it: in a thread, as an event loop would stand still meanwhile."""
    from ..engine import AsyncZkmq

    return AsyncZkmq


@dataclass(eq=False, slots=True)
class _Lookup:
    """An Airflow connection's options, from the first who asked; good until a moment of the loop's clock."""

    until: float
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    options: dict[str, Any] | None = field(default=None, repr=False)


@dataclass(eq=False, slots=True)
class _Entry:
    """A session, being opened or open, and how many use it."""

    key: _Key
    connecting: asyncio.Task[AsyncZkmq] = field(repr=False)
    users: int = 0


@dataclass(eq=False, slots=True)
class _OfLoop:
    """What the triggers of one event loop share: sessions, and what was looked up of their connections."""

    entries: dict[_Key, _Entry] = field(default_factory=dict, repr=False)
    lookups: dict[str, _Lookup] = field(default_factory=dict, repr=False)

    async def look_up(self, conn_id: str) -> tuple[_Key, dict[str, Any], str]:
        """Return what tells a connection from others, its options, and its queue; those who ask together look once."""
        now = asyncio.get_running_loop().time()
        lookup = self.lookups.get(conn_id)
        if lookup is None or now >= lookup.until:
            lookup = self.lookups[conn_id] = _Lookup(now + _FRESH)
        async with lookup.turn:  # where the first is cancelled or fails, the next one looks
            if lookup.options is None:
                lookup.options = await async_connection_options(conn_id)
        options = dict(lookup.options)
        queue = options.pop("queue")
        text = json.dumps(options, sort_keys=True, default=repr)
        return (conn_id, hashlib.blake2b(text.encode(), key=_PEPPER, digest_size=16).hexdigest()), options, queue


@dataclass(frozen=True, eq=False, slots=True)
class Lease:
    """The use of a shared session: the connection, and the queue's name where a trigger names none."""

    client: AsyncZkmq
    default_queue: str
    entry: _Entry = field(repr=False)
    of_loop: _OfLoop = field(repr=False)

    def queue(self, name: str | None) -> AsyncQueue:
        """Return a queue; None: the connection's."""
        return self.client.queue(name or self.default_queue)

    def forget(self) -> None:
        """Give this session to no further user: it has ended. Those who use it now close it when they leave."""
        if self.of_loop.entries.get(self.entry.key) is self.entry:  # else another one is there, and its look-up is new
            del self.of_loop.entries[self.entry.key]
            self.of_loop.lookups.pop(self.entry.key[0], None)


class SharedSessions:
    """Sessions by event loop and connection, counted: the first user opens one, the last one closes it.

    An Airflow connection is looked up once for all triggers that come within a minute; one that was changed in between
    is another connection. No representation shows its password, of which only a digest is kept.
    """

    def __init__(self) -> None:
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = weakref.WeakKeyDictionary()
        self.opened = 0

    @contextlib.asynccontextmanager
    async def lease(self, conn_id: str) -> AsyncIterator[Lease]:
        """Use the session of an Airflow connection. Raises as looking it up does, and `Unavailable`."""
        of_loop = self._loops.setdefault(asyncio.get_running_loop(), _OfLoop())
        key, options, queue = await of_loop.look_up(conn_id)
        entries = of_loop.entries
        # It is found or made without a pause in between, so that two first users open one session.
        entry = entries.get(key)
        if entry is None or (
            entry.connecting.done() and (entry.connecting.cancelled() or entry.connecting.exception())
        ):
            entry = entries[key] = _Entry(key, asyncio.create_task(self._open(options)))
        entry.users += 1
        try:
            yield Lease(await asyncio.shield(entry.connecting), queue, entry, of_loop)
        finally:
            entry.users -= 1
            if not entry.users:
                if entries.get(key) is entry:
                    del entries[key]
                # A task of its own: a user that is cancelled while it leaves still leaves the session closed.
                closing = going_on(_close(entry))
                if entry.connecting.done():
                    await asyncio.shield(closing)

    async def _open(self, options: dict[str, Any]) -> AsyncZkmq:
        client = await (await asyncio.to_thread(load_client)).connect(gc=False, **options)
        self.opened += 1
        return client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._loops)} loop(s)>"


async def _close(entry: _Entry) -> None:
    """Close a session, after its opening; one that could not be opened has nothing to close."""
    await asyncio.wait([entry.connecting])
    if not entry.connecting.cancelled() and entry.connecting.exception() is None:
        await entry.connecting.result().close()


#: The sessions of this process.
SESSIONS = SharedSessions()


class HeldSession:
    """One trigger's use of the session of an Airflow connection. `backoff`: what tells of trouble, and pauses."""

    def __init__(self, conn_id: str, backoff: Backoff) -> None:
        limit_kazoo_logging()
        self._conn_id = conn_id
        self.backoff = backoff
        self._session = contextlib.AsyncExitStack()
        self._lease: Lease | None = None
        self._stale = False

    async def queue(self, name: str | None) -> AsyncQueue:
        """Return a queue; None: the connection's. Raises what `SharedSessions.lease` does."""
        if self._stale:
            await self.leave()
        if self._lease is None:
            self._lease = await self._session.enter_async_context(SESSIONS.lease(self._conn_id))
        return self._lease.queue(name)

    async def after(self, error: Exception) -> None:
        """Pause; go on with a connection looked up anew, unless this session only waits for the same servers."""
        lease = self._lease
        if not isinstance(error, Unavailable):
            self._stale = True
            if lease is not None and isinstance(error, TransportError):
                lease.forget()
        elif lease is not None and not self._stale:
            with contextlib.suppress(Exception):  # what cannot be looked up is taken to be as it was
                now, _, _ = await lease.of_loop.look_up(lease.entry.key[0])
                self._stale = now != lease.entry.key
        await self.backoff.after(error)

    async def leave(self) -> None:
        """Give the session back. Idempotent."""
        session, self._session = self._session, contextlib.AsyncExitStack()
        self._lease, self._stale = None, False
        await session.aclose()
