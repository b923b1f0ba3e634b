"""What a client remembers of one queue: its configuration, listings under a watch, and who it is there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from airflow_provider_zkmq.engine.core.model.filters import FilterType
from airflow_provider_zkmq.engine.core.model.lanes import Lane
from airflow_provider_zkmq.engine.core.model.paths import Paths
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Children,
    Get,
    Node,
    Outcome,
    Pipeline,
    Procedure,
    Signal,
    Wait,
    Watch,
    WriteOp,
)

#: The server's clock is carried on by our own for so long.
CLOCK_TRUSTED_SECONDS: Final = 300.0
#: A write whose reply took longer tells the time too loosely, unless nothing better is known.
CLOCK_SPAN_SECONDS: Final = 1.0
MAX_QUARANTINE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Conf:
    """A queue's configuration as last read; times in seconds."""

    types: dict[str, FilterType]
    policy: RetryPolicy
    gc_lifetime: float
    gc_interval: float
    paused: bool
    archive: int | None = None
    """Where an archive is configured: the zxid up to which finished tasks are archived."""
    lock: float | None = None
    order: str = "default"


@dataclass(slots=True, eq=False)
class OpenSegment:
    """A lane's segment that takes entries: ``ops`` go into the transaction that writes the next one.

    ``then`` takes their place once they are committed; ``ordered``: by the rules of a queue of strict order.
    """

    lane: Lane
    segment: str
    count: int
    ops: list[WriteOp]
    then: list[WriteOp]
    ordered: bool


@dataclass(slots=True, eq=False)
class Cached:
    """Something read under a watch, shared by every procedure of the process."""

    signal: Signal
    watch: Watch | None = None
    value: Any = None
    pending: bool = False
    read_at: float = 0.0
    subscribers: list[Signal] = field(default_factory=list)

    @property
    def fresh(self) -> bool:
        """Whether the value still stands."""
        return self.watch is not None and not self.watch.fired


@dataclass(slots=True)
class Consumer:
    """A registration under ``consumers``, good for one ZooKeeper session."""

    id: str
    session: int
    accepts: list[str] = field(default_factory=list)
    """The selectors it has announced."""


@dataclass(frozen=True, slots=True)
class ServerTime:
    """What a write told of the server's clock: it stood at `ms` some time between `sent` and `received`, both ours."""

    ms: int
    sent: float
    received: float


@dataclass(slots=True, eq=False)
class Agenda:
    """When one look at a queue is to be followed by another, by our monotonic clock. Each look has its own."""

    monotonic: Callable[[], float]
    due: float | None = None
    more: bool = False
    """There is more to look after than this look was allowed to do, and it got on: another one follows at once."""

    def within(self, seconds: float) -> None:
        """Look again in so many seconds at the latest."""
        at = self.monotonic() + max(0.0, seconds)
        self.due = at if self.due is None else min(at, self.due)

    def left(self, most: float) -> float:
        """Seconds until the next look, at most so many."""
        return most if self.due is None else max(0.0, min(most, self.due - self.monotonic()))


@dataclass(slots=True)
class Later:
    """Something that was refused, and is tried again at a time of our monotonic clock, each time after a longer pause."""

    at: float
    tries: int


#: The first pause before something refused is tried again, and the longest, in seconds.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 30.0
MAX_LATER: Final = 1_000
MAX_UNSURE: Final = 256


@dataclass(slots=True, eq=False)
class Runtime:
    """What a driver lends to procedures: time, chance, the session; all replaced in tests."""

    monotonic: Callable[[], float]
    wall_ms: Callable[[], int]
    random: Callable[[], float]
    new_signal: Callable[[], Signal]
    session: Callable[[], int]
    report: Callable[[str, str], None]
    zxid: Callable[[], int]
    """The latest transaction that the session has seen."""
    unwatch: Callable[[str], None]
    """Nobody waits for changes of this znode's data any more: its watch may go. Does not wait, does not raise."""
    pay: Callable[[], None]
    """Have what calls have left (`core.debts`) put right in the background. Does not wait, does not raise."""


@dataclass(slots=True, eq=False)
class Context:
    """One client's memory of one queue."""

    queue: str
    root: str
    paths: Paths
    run: Runtime
    signal: Signal
    describe: dict[str, Any] = field(default_factory=dict)
    conf: Conf | None = None
    conf_watch: Watch | None = None
    cache: dict[str, Cached] = field(default_factory=dict)
    open_segments: dict[str, OpenSegment] = field(default_factory=dict)
    ranks: dict[str, dict[str, int]] = field(default_factory=dict)
    """The ranks of the entries of each listed segment."""
    buckets: set[str] = field(default_factory=set)
    stock: dict[str, list[str]] = field(default_factory=dict)
    verdicts: dict[str, dict[str, dict[str, str] | None]] = field(default_factory=dict)
    """The filters of the entries of each segment of a mixed lane."""
    lane_filters: dict[str, dict[str, str] | None] = field(default_factory=dict)
    """What lanes with shortened names stand for."""
    quarantine: set[str] = field(default_factory=set)
    consumer: Consumer | None = None
    held: WeakValueDictionary[str, Any] = field(default_factory=WeakValueDictionary)
    """What is in the hands of this client's callers, by task; whoever lets go of a claim takes it off."""
    paying: bool = False
    """Somebody gives back in the background what callers left behind."""
    unsure: dict[tuple[str, int], Any] = field(default_factory=dict)
    """What was settled by token and ended in an unknown outcome, by task and token; the latest of them."""
    handovers: dict[str, Any] = field(default_factory=dict)
    """Claims on their way to their callers, by nonce; see `take.Handover`."""
    owed: dict[int, Any] = field(default_factory=dict)
    """Claims of transactions whose rollback was cut off, by token; see `giveback`."""
    clock: ServerTime | None = None
    live: list[str] = field(default_factory=list)
    unburied: list[str] = field(default_factory=list)
    """Dead consumers that are still on the register."""
    live_watch: Watch | None = None
    cancel_watch: Watch | None = None
    joining: dict[int, Signal] = field(default_factory=dict)
    trying: set[str] = field(default_factory=set)
    lease_ends: dict[str, int] = field(default_factory=dict)
    later: dict[str, Later] = field(default_factory=dict)
    """What was refused to those who look after the queue, by its path; see `postpone`."""
    counter: int = 0
    mark: str = ""
    unclosed: set[str] = field(default_factory=set)
    """Batches whose last member we took off, and which the connection's loss kept us from closing."""
    gc_lock: str | None = None
    """What the maintenance lock holds when it is this client's: made before it is first sent, kept for good."""
    gc_busy: bool = False
    gc_left: bool = False
    """A clean-up of this client was cut short or never heard of its end: its lock may still stand."""
    unresolved: list[Any] = field(default_factory=list)
    """Enqueues whose callers were not told what became of them, see `core.repeat`."""

    def report(self, path: str, why: str) -> None:
        """Tell of a foreign or damaged znode, once, however often it is met; `Runtime.report` tells of what happened."""
        if path in self.quarantine:
            return
        if len(self.quarantine) >= MAX_QUARANTINE:
            self.quarantine.clear()
        self.quarantine.add(path)
        self.run.report(path, why)

    def new_watch(self) -> Watch:
        """A watch whose event wakes whoever waits for this queue."""
        return Watch(self.signal)

    def nonce(self) -> str:
        """A mark by which a write is recognised as ours."""
        return os.urandom(8).hex()

    def stamp(self) -> str:
        """A time-ordered mark for an entry, rising within this client and like no other client's (22 hex digits)."""
        self.counter = max(self.counter + 1, self.run.wall_ms() << 16)
        self.mark = self.mark or os.urandom(3).hex()
        return f"{self.counter:016x}{self.mark}"

    def new_task_id(self) -> str:
        """A time-ordered id: a UUID of version 7 (RFC 9562)."""
        tail = int.from_bytes(os.urandom(10), "big")
        value = (self.run.wall_ms() & (1 << 48) - 1) << 80 | tail
        value = value & ~(0xF << 76) | 7 << 76
        value = value & ~(0x3 << 62) | 2 << 62
        return str(uuid.UUID(int=value))

    def learn(self, outcome: Outcome) -> None:
        """Remember the server's clock as a transaction told it.

        A reply that was long on its way says little: it is used only where nothing better is known.
        """
        if outcome.time is None or outcome.sent is None:
            return
        told = ServerTime(outcome.time, outcome.sent, self.run.monotonic())
        if told.received - told.sent <= CLOCK_SPAN_SECONDS or self.server_ms() is None:
            self.clock = told

    def server_ms(self) -> int | None:
        """The server's clock now in milliseconds, as far as it is known, rather too late than too early.

        Never this machine's calendar: what was told is carried on by the monotonic clock, from when it was asked.
        """
        if self.clock is None or self.run.monotonic() - self.clock.sent > CLOCK_TRUSTED_SECONDS:
            return None
        return self.clock.ms + int((self.run.monotonic() - self.clock.sent) * 1000)

    def certainly_past(self, now: int) -> int:
        """A server's time that `server_ms` gave, less what it may be ahead of the truth: by this, deadlines are judged."""
        return now if self.clock is None else now - int((self.clock.received - self.clock.sent) * 1000)

    def remember_unsure(self, held: Any) -> None:
        """A claim whose settling by token was sent, and whose outcome is not known."""
        self.unsure[held.task_id, held.token] = held
        if len(self.unsure) > MAX_UNSURE:
            del self.unsure[next(iter(self.unsure))]

    def until(self, when: int) -> float:
        """Seconds until a time of the server's clock has certainly come; 0 where the clock is not known any more."""
        now = self.server_ms()
        return 0.0 if now is None else (when - self.certainly_past(now)) / 1000

    def agenda(self) -> Agenda:
        """An empty agenda."""
        return Agenda(self.run.monotonic)

    def postponed(self, key: str, agenda: Agenda) -> bool:
        """Whether something that was refused is not to be tried again yet; then it is on the agenda."""
        later = self.later.get(key)
        if later is None or later.at <= self.run.monotonic():
            return False
        agenda.within(later.at - self.run.monotonic())
        return True

    def postpone(self, key: str, agenda: Agenda) -> None:
        """Something was refused: try again soon, and less and less often while it goes on being refused."""
        tries = self.later[key].tries + 1 if key in self.later else 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries)
        if len(self.later) >= MAX_LATER:  # most of it is gone by now, and was never asked for again
            old = self.run.monotonic() - LONGEST_PAUSE
            self.later = {path: later for path, later in self.later.items() if later.at > old}
        self.later[key] = Later(self.run.monotonic() + pause, tries)
        agenda.within(pause)

    def cached(self, path: str) -> Cached:
        """The shared memory of what was read at `path`."""
        found = self.cache.get(path)
        if found is None:
            found = self.cache.setdefault(path, Cached(self.run.new_signal()))
        return found

    def forget(self, path: str) -> None:
        """Drop what was read at `path` and below."""
        entry = self.cache.pop(path, None)
        self.stock.pop(path, None)
        self.ranks.pop(path, None)
        self.verdicts.pop(path, None)
        self.lane_filters.pop(path, None)
        if entry is not None and isinstance(entry.value, list):
            for name in entry.value:
                if f"{path}/{name}" in self.cache:
                    self.forget(f"{path}/{name}")


@dataclass(slots=True, eq=False)
class _Fan:
    """A signal that wakes those who wait for one entry, and nobody else."""

    entry: Cached

    @property
    def count(self) -> int:
        return self.entry.signal.count

    def fire(self) -> None:
        self.entry.signal.fire()
        for subscriber in tuple(self.entry.subscribers):
            subscriber.fire()


def listing(context: Context, path: str, *, max_age: float | None = None) -> Procedure[list[str] | None]:
    """The children of `path`, from memory while the watch on them has not fired; None without the znode.

    `max_age`: seconds for which names are good enough although the watch has fired. Several threads that need the same
    listing read it once.
    """
    while True:
        entry = context.cached(path)
        young = max_age is not None and context.run.monotonic() - entry.read_at < max_age
        if entry.fresh or (young and entry.watch is not None):
            return entry.value  # type: ignore[no-any-return]
        if not entry.pending:
            return (yield from _list(context, path, entry))
        yield Wait(entry.signal, entry.signal.count)


def still_listed(context: Context, path: str, name: str) -> bool:
    """Whether a child certainly stands there still: it is in a listing whose watch has not fired."""
    entry = context.cached(path)
    return entry.fresh and name in (entry.value or ())


def _list(context: Context, path: str, entry: Cached) -> Procedure[list[str] | None]:
    watch, read_at = context.new_watch(), context.run.monotonic()
    entry.pending = True
    try:
        names = yield Children(path, watch)
    finally:
        entry.pending = False
        entry.signal.fire()
    if names is None:  # ZooKeeper sets no watch on the children of what does not exist
        context.forget(path)
        return None
    for gone in set(entry.value or ()) - set(names):
        context.forget(f"{path}/{gone}")
    entry.watch, entry.value, entry.read_at = watch, sorted(names), read_at
    context.cache[path] = entry  # another thread may have forgotten it meanwhile
    return entry.value  # type: ignore[no-any-return]


def shared_nodes(context: Context, paths: list[str], mine: Signal) -> Procedure[list[Node | None]]:
    """Read znodes under watches that all waiters of the process share: one watch and one read for each.

    `mine` is fired when one of them changes. A waiter that finds another's read under way waits for its result.
    """
    entries = [context.cached(path) for path in paths]
    for entry in entries:
        if mine not in entry.subscribers:
            entry.subscribers.append(mine)
    read: set[int] = set()  # a missing znode bears no watch: what was read of it is never fresh
    while True:
        seen = [entry.signal.count for entry in entries]
        stale = [at for at, entry in enumerate(entries) if not entry.fresh and at not in read]
        if not stale:
            return [entry.value for entry in entries]
        free = [at for at in stale if not entries[at].pending]
        if free:
            yield from _refresh([(paths[at], entries[at]) for at in free])
            read.update(at for at in free if entries[at].value is None)
        else:
            yield Wait(entries[stale[0]].signal, seen[stale[0]])


def _refresh(stale: list[tuple[str, Cached]]) -> Procedure[None]:
    watches = [Watch(_Fan(entry)) for _, entry in stale]
    for _, entry in stale:
        entry.pending = True
    try:
        nodes = yield Pipeline(tuple(Get(path, watch) for (path, _), watch in zip(stale, watches, strict=True)))
        for (_, entry), watch, node in zip(stale, watches, nodes, strict=True):
            entry.value, entry.watch = node, None if node is None else watch
    except BaseException:
        for watch in watches:
            watch.fired = True  # nobody relies on what was not read
        raise
    finally:
        for _, entry in stale:
            entry.pending = False
            entry.signal.fire()


def unsubscribe(context: Context, paths: list[str], mine: Signal) -> None:
    """End a wait; what nobody waits for any more is forgotten, and its watch on the server goes."""
    for path in paths:
        entry = context.cache.get(path)
        if entry is not None and mine in entry.subscribers:
            entry.subscribers.remove(mine)
            if not entry.subscribers:
                context.cache.pop(path, None)
                if entry.watch is not None:
                    entry.watch.fired = True  # nobody relies on it, whoever still holds it
                context.run.unwatch(path)
