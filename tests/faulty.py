"""A door to a ZooKeeper server that fails as told: packet by packet, by a plan.

Clients connect to the door, the door to the server. For each request of a client the plan says what becomes of it; what
is not about one request (`down`, `hold`) is done at once. All of it runs on one event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

KINDS: Final = {
    1: "create", 2: "delete", 3: "exists", 4: "getData", 5: "setData", 8: "getChildren", 9: "sync", 11: "ping",
    12: "getChildren2", 13: "check", 14: "multi", 18: "removeWatches", 19: "createContainer", 22: "multiRead",
    100: "auth", -11: "closeSession",
}  # fmt: skip
WRITES: Final = frozenset({"create", "delete", "setData", "multi", "createContainer"})
_CREATE: Final = 1
_WITH_DATA: Final = frozenset({_CREATE, 5})
PATIENCE_S: Final = 5.0


def is_write(request: Request) -> bool:
    """Whether it may change something."""
    return request.kind in WRITES


def is_multi(request: Request) -> bool:
    """Whether it is a transaction."""
    return request.kind == "multi"


@dataclass(frozen=True, slots=True)
class Request:
    """One request on its way to the server."""

    xid: int
    kind: str
    body: bytes = field(repr=False)

    @property
    def operations(self) -> list[tuple[str, str]]:
        """What a transaction consists of: kind and path of each operation."""
        return _operations(self.body[8:]) if self.kind == "multi" else []

    @property
    def claims(self) -> bool:
        """Whether it is the transaction that claims a task: it creates a claim's znode."""
        return any(kind == "create" and path.endswith("/claim") for kind, path in self.operations)


# --- what can become of a request


@dataclass(frozen=True, slots=True)
class CutBefore:
    """It never arrives: the connection is cut instead. `away`: so are all others, and nobody is let in for so long."""

    away: float = 0.0


@dataclass(frozen=True, slots=True)
class CutAfter:
    """It is carried out, and the connection cut in place of the reply; `away` as above."""

    away: float = 0.0


@dataclass(frozen=True, slots=True)
class Late:
    """The client's connection is cut; the request is held, and arrives after so many seconds on the old one.

    Until then nobody gets through this door: a session that came back to the same server would end the old connection.
    """

    seconds: float = 0.05


@dataclass(frozen=True, slots=True)
class Hold:
    """The reply, and all that follows it, is held back for so many seconds, or until `flow`."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """`call` is called, on the door's own thread, when the reply has come and before it is passed on."""

    call: Callable[[], object]


Fault = CutBefore | CutAfter | Late | Hold | Tell
Plan = Callable[[Request], Fault | None]


def faultless(_request: Request) -> Fault | None:
    """The plan of a door that only passes on."""
    return None


class Once:
    """Of the requests that `which` accepts one meets `fault`, if any: the next, or that after `skip` others."""

    def __init__(self, which: Callable[[Request], bool], fault: Fault | None = None, skip: int = 0) -> None:
        self._which, self._fault, self._skip = which, fault, skip
        self.met = threading.Event()

    def __call__(self, request: Request) -> Fault | None:
        if self.met.is_set() or not self._which(request):
            return None
        if self._skip:
            self._skip -= 1
            return None
        self.met.set()
        return self._fault


class Chance:
    """By seed: of the requests that `which` accepts, `share` meets one of `faults`."""

    def __init__(self, seed: int, share: float, faults: tuple[Fault, ...], which: Callable[[Request], bool]) -> None:
        self._rng, self._share, self._faults, self._which = random.Random(seed), share, faults, which

    def __call__(self, request: Request) -> Fault | None:
        if not self._which(request) or self._rng.random() >= self._share:
            return None
        return self._rng.choice(self._faults)


@dataclass(slots=True, eq=False)
class _Passage:
    """A client's connection and the server's that belongs to it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    waiting: deque[tuple[int, Fault]] = field(default_factory=deque)
    """The requests under way whose replies meet a fault."""
    held: bool = False
    """A late request keeps the server's side open after the client's has gone."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing more comes from the server: the late request's reply has come, or its connection has ended."""

    def cut(self) -> None:
        """End both sides at once; what was not sent yet is lost."""
        for side in (self.client, self.server):
            side.transport.abort()


class Faulty:
    """A door: ``hosts`` leads through it to `server`. Usable from any thread; to be closed."""

    def __init__(self, server: str, plan: Plan = faultless) -> None:
        host, _, port = server.partition(",")[0].rpartition(":")
        self._server = (host, int(port))
        self.plan = plan
        self.faults: Counter[str] = Counter()
        self.cuts = 0
        self._shut_until = 0.0
        self._flows = {"requests": asyncio.Event(), "replies": asyncio.Event()}
        self._late = 0
        self._opened = asyncio.Condition()
        self._passages: set[_Passage] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty", daemon=True)
        self._thread.start()
        self.flow()
        self._listener = self._do(asyncio.start_server(self._enter, "127.0.0.1", 0, limit=1 << 21))
        self.hosts = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- from any thread

    def down(self, seconds: float = math.inf) -> None:
        """Cut every connection, and let nobody in for so long, or until `up`."""
        self._do(self._shut(seconds))

    def up(self) -> None:
        """Let clients in again."""
        self._shut_until = 0.0

    def hold(self, *ways: str, seconds: float | None = None) -> None:
        """Pass no ``requests`` or ``replies`` on, or neither, for so long or until `flow`; no connection is cut."""
        self._do(self._hold_back(ways or tuple(self._flows), seconds))

    def flow(self) -> None:
        """Pass on what was held back, in its order, and all that follows it."""
        for way in self._flows.values():
            self._loop.call_soon_threadsafe(way.set)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._passages)

    def close(self) -> None:
        """End every connection, the listener and the thread. Idempotent."""
        if self._loop.is_closed():
            return
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * PATIENCE_S)

    # --- on the loop

    async def _shut(self, seconds: float) -> None:
        self._shut_until = max(self._shut_until, time.monotonic() + seconds)
        for passage in list(self._passages):
            self._cut(passage)

    async def _hold_back(self, ways: tuple[str, ...], seconds: float | None) -> None:
        for way in ways:
            self._flows[way].clear()
            if seconds is not None:
                self._loop.call_later(seconds, self._flows[way].set)

    async def _end(self) -> None:
        self._listener.close()
        for passage in list(self._passages):
            passage.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cut(self, passage: _Passage) -> None:
        if passage in self._passages:
            self._passages.discard(passage)
            self.cuts += 1
        passage.cut()

    async def _cut_for(self, passage: _Passage, away: float) -> None:
        self._cut(passage)
        if away:
            await self._shut(away)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._let_in(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._opened:
            await self._opened.wait_for(lambda: not self._late)
        server_reader, server_writer = await asyncio.open_connection(*self._server, limit=1 << 21)
        passage = _Passage(writer, server_writer)
        if time.monotonic() < self._shut_until:
            passage.cut()
            return
        self._passages.add(passage)
        both = self._requests(passage, reader), self._replies(passage, server_reader)
        ways = [asyncio.ensure_future(way) for way in both]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if passage.held:
                await asyncio.wait({ways[0]}, timeout=2 * PATIENCE_S)
        finally:
            self._passages.discard(passage)
            passage.cut()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self, passage: _Passage, reader: asyncio.StreamReader) -> None:
        passage.server.write(_framed(await _packet(reader)))  # the session's handshake is no request
        while True:
            packet = await _packet(reader)
            await self._flows["requests"].wait()
            xid, kind = struct.unpack_from(">ii", packet)
            request = Request(xid, KINDS.get(kind, str(kind)), packet)
            fault = self.plan(request)
            if fault is not None:
                self.faults[type(fault).__name__] += 1
            match fault:
                case CutBefore(away):
                    await self._cut_for(passage, away)
                    return
                case Late(seconds):
                    await self._delay(passage, packet, seconds)
                    return
                case Hold(seconds):
                    await self._hold_back(("replies",), seconds)
                case CutAfter() | Tell():
                    passage.waiting.append((xid, fault))
            passage.server.write(_framed(packet))
            await passage.server.drain()

    async def _delay(self, passage: _Passage, packet: bytes, seconds: float) -> None:
        """Cut the client off now, send its request later; the reply is read, so that it took place, and dropped."""
        self._late += 1
        passage.held = True
        passage.waiting.append((struct.unpack_from(">i", packet)[0], CutAfter()))
        self._passages.discard(passage)
        self.cuts += 1
        passage.client.transport.abort()
        try:
            await asyncio.sleep(seconds)
            passage.server.write(_framed(packet))
            await passage.server.drain()
            with contextlib.suppress(TimeoutError):  # a reply that does not come delays nobody for ever
                await asyncio.wait_for(passage.answered.wait(), PATIENCE_S)
        finally:
            self._late -= 1
            async with self._opened:
                self._opened.notify_all()

    async def _replies(self, passage: _Passage, reader: asyncio.StreamReader) -> None:
        try:
            await self._pass_replies(passage, reader)
        finally:
            passage.answered.set()

    async def _pass_replies(self, passage: _Passage, reader: asyncio.StreamReader) -> None:
        passage.client.write(_framed(await _packet(reader)))
        while True:
            packet = await _packet(reader)
            await self._flows["replies"].wait()
            if passage.waiting and struct.unpack_from(">i", packet)[0] == passage.waiting[0][0]:
                match passage.waiting.popleft()[1]:
                    case Tell(call):
                        call()
                    case CutAfter(away) if not passage.held:
                        await self._cut_for(passage, away)
                        return
                    case _:
                        return
            if not passage.held:
                passage.client.write(_framed(packet))
                await passage.client.drain()


def _operations(body: bytes) -> list[tuple[str, str]]:
    """The operations of a transaction's body: each a header (kind, end, error) and a record that begins with a path."""
    found: list[tuple[str, str]] = []
    at = 0
    while True:
        kind, over, _ = struct.unpack_from(">i?i", body, at)
        if over:
            return found
        path, at = _buffer(body, at + 9)
        found.append((KINDS.get(kind, str(kind)), path.decode(errors="replace")))
        if kind in _WITH_DATA:
            _, at = _buffer(body, at)
        if kind == _CREATE:
            (entries,) = struct.unpack_from(">i", body, at)
            at += 4
            for _ in range(entries):
                _, at = _buffer(body, at + 4)
                _, at = _buffer(body, at)
        at += 4  # flags of a create, else a version


def _buffer(body: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">i", body, at)
    end = at + 4 + max(0, length)
    return body[at + 4 : end], end


async def _packet(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def _framed(packet: bytes) -> bytes:
    return struct.pack(">i", len(packet)) + packet
