"""The parts of a simulated world: calls, fibers, requests, and the client that they belong to."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.engine.core.client_state import Context, Runtime
from airflow_provider_zkmq.engine.core.model.znode_names import Paths
from airflow_provider_zkmq.engine.core.zk_operations import (
    Children,
    Exists,
    Get,
    GetMany,
    Multi,
    Node,
    Outcome,
    Wait,
    WaitQueue,
    Watch,
)

if TYPE_CHECKING:
    from tests.simulation.world import World


ROOT: Final = "/zkmq/"
#: In milliseconds: the clocks of some machines are off by so much.
AN_HOUR: Final = 3_600_000


class Violation(AssertionError):
    """An oracle does not hold. ``oracle`` names it, so that a shorter schedule can be told to break the same one."""

    def __init__(self, oracle: str, detail: str) -> None:
        super().__init__(f"{oracle}: {detail}")
        self.oracle = oracle


class Signal:
    """The engine's signal, without threads."""

    __slots__ = ("__weakref__", "count", "wait_queue")

    def __init__(self) -> None:
        self.count = 0
        self.wait_queue: WaitQueue[Fiber] = WaitQueue()

    def fire(self) -> None:
        """It happened; who sits in no seat compares counts."""
        self.count += 1
        self._wake(self.wait_queue.everybody())

    def notify(self) -> None:
        """It happened, and one of each kind is told."""
        self.count += 1
        self._wake(self.wait_queue.one_of_each())

    def notify_one(self, kind: Hashable) -> None:
        """One more of a kind is told."""
        self._wake(self.wait_queue.next_of(kind))

    def _wake(self, fibers: list[Fiber]) -> None:
        for fiber in fibers:
            fiber.woken = True


@dataclass(slots=True, eq=False)
class Call:
    """One call of an actor: a verb, the procedure, and what became of it."""

    verb: str
    procedure: Generator[Any, Any, Any]
    about: dict[str, Any] = field(default_factory=dict)
    limit: float = 0.0
    """Seconds that it may wait by itself."""
    began: float = 0.0
    value: Any = None
    error: BaseException | None = None
    cancelled: bool = False
    wrote: int = 0
    """How many of its transactions changed a task."""
    requests: int = 0

    @property
    def ok(self) -> bool:
        """Whether it returned."""
        return self.error is None and not self.cancelled


@dataclass(frozen=True, slots=True)
class Pause:
    """An actor does something else for so many seconds."""

    seconds: float


@dataclass(slots=True, eq=False)
class Request:
    """An operation on its way: the fiber that waits for the reply (None: nobody any more), and where it belongs."""

    op: Any
    fiber: Fiber | None
    at: int
    deadline: float
    sent: float
    lost: Callable[[], None] | None = None
    """Of a post: to be called where it was not carried out, or perhaps not."""
    call: Call | None = None
    """Whose it is, also where nobody waits for it any more."""


@dataclass(slots=True, eq=False)
class Fiber:
    """A thread or an asynchronous task of a client: an actor's program and the call it is in."""

    name: str
    client: Client
    program: Generator[Call | Pause, Call | None, None]
    call: Call | None = None
    state: str = "program"
    inbox: Any = None
    thrown: BaseException | None = None
    op: Any = None
    replies: list[Any] = field(default_factory=list)
    missing: int = 0
    until: float = 0.0
    woken: bool = False
    """Whether it was told while it sat in a seat."""
    idle_requests: int = 0
    priority: float = 0.0
    background: bool = False
    """Whether the world may end while it still runs."""

    def sit_down(self) -> None:
        """It begins to wait: in a seat, unless what it waits for has happened already."""
        self.woken = self.op.signal.count > self.op.seen
        if self.op.place is not None and not self.woken:
            self.op.signal.wait_queue.take(self, self.op.place)

    @property
    def in_call(self) -> bool:
        """Whether it is somewhere in a call, which can be interrupted there."""
        return self.call is not None and self.state not in {"program", "sleeping", "done"}

    @property
    def is_woken(self) -> bool:
        """Whether what it waits for has happened, as far as it was told."""
        return self.woken or (self.op.place is None and self.op.signal.count > self.op.seen)

    def get_up(self) -> None:
        """It waits no more."""
        if isinstance(self.op, Wait) and self.op.place is not None:
            self.op.signal.wait_queue.leave(self, self.op.place)


class Client:
    """A connection: its session, its memory of each queue, its fibers, what is on its way."""

    def __init__(self, world: World, name: str, server: int = 0) -> None:
        self.world, self.name, self.server = world, name, server
        self.session = world.zk.connect(server)
        self.zxid = 0
        """The latest transaction that a reply has told of; events of earlier ones have come before it."""
        self.restored = 0
        """How often it has learnt that the servers had gone back."""
        self.connected = True
        self.alive = True
        self.back_at: float | None = None
        self.expires_at: float | None = None
        self.paused_until = 0.0
        self.stalled_until = 0.0
        self.send_queue: deque[Request] = deque()
        self.events: deque[Watch] = deque()
        self.armed: set[Watch] = set()
        self.contexts: dict[str, Context] = {}
        self.hands: dict[tuple[str, int], Any] = {}
        """What its callers have in hand, by task and token."""
        self.begun: set[tuple[str, int]] = set()
        """Claims prefetched whose handlers have begun, and are not given back as if they had not."""
        self.kept: dict[tuple[str, int], float] = {}
        """Since when a keeper extends it."""
        self.troubled_at = 0.0
        self.random = random.Random(f"{world.seed}{name}")
        self.ahead_ms = random.Random(f"{world.seed}{name}'s clock").choice((-AN_HOUR, 0, AN_HOUR))

    def context(self, queue: str = "q") -> Context:
        """This client's memory of a queue."""
        if queue not in self.contexts:
            zk = self.world.zk
            run = Runtime(
                monotonic=lambda: zk.ms / 1000,
                wall_ms=lambda: zk.ms + self.ahead_ms,
                random=self.random.random,
                new_signal=Signal,
                session=lambda: self.session,
                report=lambda path, why: self.world.reports.append((path, why)),
                zxid=lambda: self.zxid,
                restored=lambda: self.restored,
                unwatch=self._unwatch,
                finish_later=lambda: self.world.finish_later(self, self.contexts[queue]),
            )
            made = Context(queue, "/zkmq", Paths.of("/zkmq", queue), run, Signal(), {"name": self.name})
            self.contexts[queue] = made
        return self.contexts[queue]

    def _unwatch(self, path: str) -> None:
        if self.session in self.world.zk.at:
            self.world.zk.server(self.session).unwatch(self.session, path)

    def receive_events(self) -> None:
        """What the server has told of, before any later reply."""
        while self.events:
            self.events.popleft().fire()


def short(what: Any) -> str:
    """Something of the trace on one line, the same in every run."""
    match what:
        case Multi(ops):
            return f"Multi({' '.join(map(_write, ops))})"
        case Outcome(committed=True, zxid=zxid):
            return f"committed {zxid or ''}"
        case Outcome(unknown=True):
            return "unknown"
        case Outcome(failed=at, detail=detail):
            return f"refused at {at}: {detail}"
        case Node(data, stat):
            return f"version {stat.version} {data[:120]!r}"
        case GetMany(paths):
            return f"GetMany({' '.join(path.removeprefix(ROOT) for path in paths)})"
        case list():
            return f"[{', '.join(map(short, what))}]"
        case Get(path, watch) | Children(path, watch) | Exists(path, watch):
            return f"{type(what).__name__}({path.removeprefix(ROOT)}){' watched' if watch else ''}"
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(what))
    return text if len(text) < 300 else text[:300] + "…"


def told_of(call: Call) -> str:
    """What a call was asked for."""
    claimed = call.about.get("held")
    plain = {
        name: value for name, value in call.about.items() if name in {"selector", "ids", "batch", "lifetime"} and value
    }
    message = call.about.get("message")
    return " ".join([
        *(f"{name}={value}" for name, value in plain.items()),
        *([f"{claimed.task_id} (token {claimed.token})"] if claimed is not None else []),
        *([short(message)] if message is not None else []),
    ])  # fmt: skip


def _write(op: Any) -> str:
    sign = {"Create": "+", "Delete": "-", "SetData": "=", "Check": "?"}.get(type(op).__name__, "c")
    version = getattr(op, "version", -1)
    return f"{sign}{op.path.removeprefix(ROOT)}" + (f"@{version}" if version >= 0 else "")
