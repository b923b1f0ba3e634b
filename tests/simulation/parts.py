"""The parts of a simulated world: calls, fibers, requests, and the client that they belong to."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.runtime import Runtime
from airflow_provider_zkmq.engine.core.model.paths import Paths
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Get, GetMany, Node, Watch
from airflow_provider_zkmq.engine.core.protocol.writes import Multi, Outcome

if TYPE_CHECKING:
    from tests.simulation.world import World


ROOT: Final = "/zkmq/"


class Violation(AssertionError):
    """An oracle does not hold. ``oracle`` names it, so that a shorter schedule can be told to break the same one."""

    def __init__(self, oracle: str, detail: str) -> None:
        super().__init__(f"{oracle}: {detail}")
        self.oracle = oracle


class Signal:
    """The engine's signal, without threads."""

    __slots__ = ("__weakref__", "count")

    def __init__(self) -> None:
        self.count = 0

    def fire(self) -> None:
        """It happened."""
        self.count += 1


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
    idle_requests: int = 0
    priority: float = 0.0
    background: bool = False
    """Whether the world may end while it still runs."""


class Client:
    """A connection: its session, its memory of each queue, its fibers, what is on its way."""

    def __init__(self, world: World, name: str, server: int = 0) -> None:
        self.world, self.name, self.server = world, name, server
        self.session = world.zk.connect(server)
        self.zxid = 0
        """The latest transaction that a reply has told of; events of earlier ones have come before it."""
        self.connected = True
        self.alive = True
        self.back_at: float | None = None
        self.expires_at: float | None = None
        self.paused_until = 0.0
        self.stalled_until = 0.0
        self.outbox: deque[Request] = deque()
        self.events: deque[Watch] = deque()
        self.armed: set[Watch] = set()
        self.contexts: dict[str, Context] = {}
        self.hands: dict[tuple[str, int], Any] = {}
        """What its callers have in hand, by task and token."""
        self.kept: dict[tuple[str, int], float] = {}
        """Since when a keeper extends it."""
        self.troubled_at = 0.0
        self.random = random.Random(f"{world.seed}{name}")

    def context(self, queue: str = "q") -> Context:
        """This client's memory of a queue."""
        if queue not in self.contexts:
            zk = self.world.zk
            run = Runtime(
                monotonic=lambda: zk.ms / 1000,
                wall_ms=lambda: zk.ms,
                random=self.random.random,
                new_signal=Signal,
                session=lambda: self.session,
                report=lambda path, why: self.world.reports.append((path, why)),
                zxid=lambda: self.zxid,
                unwatch=self._unwatch,
                pay=lambda: self.world.pay(self, self.contexts[queue]),
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
