"""What a client knows of one queue: its clock, caches, timers, claims, and what it has under way."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from os import getpid
from typing import Any, Final
from weakref import WeakValueDictionary

from . import zk_operations as zk
from .model.filters import FilterTypes
from .model.records import RecentClaims, TaskState, Times
from .model.settings import Conf, Limit, Settings
from .model.values import Duration, optional_seconds
from .model.znode_names import Lane, Paths
from .transaction_retries import Holds
from .zk_operations import Create, Multi, Node, Outcome, Procedure, Signal, Watch, WriteOp

# --- The server's clock, as writes have told it. Owner: this module; one entry, replaced as a whole.

#: The server's clock is carried on by our own for so long.
TRUSTED_SECONDS: Final = 300.0
#: What only puts tasks in order goes by it for longer: in this time two clocks part by a second at the most.
ORDERING_SECONDS: Final = 1800.0
#: A write whose reply took longer tells the time too loosely, unless nothing better is known.
SPAN_SECONDS: Final = 1.0
#: By so much two clocks may drift apart while one is carried on by the other.
DRIFT_MS: Final = 30


@dataclass(frozen=True, slots=True)
class ServerTime:
    """The server's clock as a write showed it: it stood at `ms` at `sent` by our clock, or at most `span` s later."""

    ms: int
    sent: float
    span: float


@dataclass(slots=True, eq=False)
class Clock:
    """The time at the server in milliseconds, carried on by our monotonic clock from when a write was sent."""

    monotonic: Callable[[], float]
    last: ServerTime | None = None
    best: ServerTime | None = None
    """The most exact one of late: by it moments of ours are told, so that their order and distances stay."""

    def learn(self, outcome: Outcome) -> None:
        """Remember the server's clock as a transaction told it."""
        if outcome.time is None or outcome.sent is None:
            return
        latest = ServerTime(outcome.time, outcome.sent, self.monotonic() - outcome.sent)
        if latest.span <= SPAN_SECONDS or self.now() is None:  # a reply that was long on its way says little
            self.last = latest
        best = self.best or latest
        age = latest.sent - best.sent
        lead = best.ms + age * 1000 - latest.ms  # each of the two may be late by its span
        late, early = best.span * 1000 + DRIFT_MS, latest.span * 1000 + DRIFT_MS
        # Else the best one may be too old, or the server's clock was set, or is another server's.
        stands = age <= TRUSTED_SECONDS and -early <= lead <= late
        if latest.span <= best.span or not stands:
            self.best = latest

    def at(self, moment: float) -> int | None:
        """The server's clock at a moment of our monotonic one, as far as it is known; rather late than early."""
        return None if self.best is None else math.floor(self.best.ms + (moment - self.best.sent) * 1000)

    def now(self) -> int | None:
        """The server's clock now, as far as it is known, rather late than early; never this machine's calendar."""
        if self.last is None or self.monotonic() - self.last.sent > TRUSTED_SECONDS:
            return None
        return self.last.ms + int((self.monotonic() - self.last.sent) * 1000)

    def exact(self) -> int | None:
        """Like `now`, where it was told by a write that took no longer than `SPAN_SECONDS`."""
        return None if self.last is None or self.last.span > SPAN_SECONDS else self.now()

    def ordering(self) -> int | None:
        """Like `exact`, for what puts tasks in order: in the middle of what is known, as that is better than late."""
        last, now = self.last, self.monotonic()
        if last is None or last.span > SPAN_SECONDS or now - last.sent > ORDERING_SECONDS:
            return None
        return last.ms + int((now - last.sent - last.span / 2) * 1000)

    def certainly_past(self, now: int) -> int:
        """A time that `now` gave, less what it may be ahead of the truth: by this, deadlines are judged."""
        return now if self.last is None else now - math.ceil(self.last.span * 1000)

    def until(self, when: int) -> float:
        """Seconds until a time of the server's clock has certainly come; 0 where the clock is not known any more."""
        now = self.now()
        return 0.0 if now is None else (when - self.certainly_past(now)) / 1000


# --- Claims of this client: on their way to their callers, in their hands, and left behind. Owner: this module.
#
# Without the client's lock, a caller that gets its claim takes it off with `deliver`, whoever goes away sets
# ``Caller.left``, and anybody may read ``lost`` and ``cancelled``: each is one statement.

MAX_UNSURE: Final = 256


@dataclass(slots=True, eq=False)
class Turn:
    """A call at work on something that others of its client wait for; ``over`` is fired at its end, if any do."""

    over: Signal | None = None

    def end(self, context: Context) -> Signal:
        """What another call waits for."""
        self.over = self.over or context.run.new_signal()
        return self.over


@dataclass(slots=True, eq=False, weakref_slot=True)
class Claimed:
    """A task in hand: what settling it needs. ``token`` is the zxid of the claim: rising, and unique for its task.

    Tasks that were claimed in one transaction share it.
    """

    task_id: str
    token: int
    version: int
    state: TaskState
    created: int
    data: bytes = b""
    metadata: dict[str, Any] | None = None
    lost: bool = False
    cancelled: bool = False
    session: int = 0
    sent: float | None = None
    """When the transaction that claimed it was sent, by the driver's monotonic clock; None: that is not known."""
    began: float | None = None
    """When its handler began, by the driver's monotonic clock; None: that is not known."""
    handled: float | None = None
    """When its handler ended; None: it has not, or it ends its delivery itself."""
    prefetched: bool = False
    """Prefetched, and no handler has begun: until one does, the death of its consumer counts no attempt."""
    chained: bool = False
    """It is being settled together with others, which send its transaction (`core.write.commit`)."""
    reported: bool = False
    """Whoever settles it has been told that it is over: settled, or lost."""
    claim: dict[str, Any] = field(default_factory=dict)
    """What the claim's znode holds, less the progress; ``began``: when another process said that it begins."""
    nonces: dict[str, str] = field(default_factory=dict)
    """The nonce with which each way to settle it was first sent: asked again, the same one tells what happened."""
    settling: Turn | None = None
    """A call that settles it is under way: another thread's waits for its end."""
    unsure: bool = False
    """A try to settle it was sent, and its outcome is not known."""
    forgotten: bool = False
    """What became of such a try can be told by nobody any more: the record is gone, or has no room for its nonce."""
    handover: str = ""
    """The key of the note under which it is on its way to its caller."""

    @property
    def span(self) -> float | None:
        """For how many seconds it holds unless it is extended; None: as long as its session lives."""
        return self.claim.get("lease")

    def times(self, clock: Clock, now: int) -> Times:
        """When its handler began and ended, by the server's clock, which stands at about `now`."""
        started = self.claim.get("began") if self.began is None else clock.at(self.began)
        if started is None:
            return Times(None, now)
        return Times(started, clock.at(clock.monotonic() if self.handled is None else self.handled) or now)

    @property
    def ends_with_session(self) -> bool:
        """Whether it ends with its session, with a lock or without."""
        return self.state.bound or self.state.lease is None


def standing(paths: Paths, claims: Sequence[Claimed]) -> Holds:
    """What shows that one transaction claimed these: that at least one of them stands."""
    return Holds(tuple((paths.task(each.task_id, "claim"), each.state.nonce.encode()) for each in claims))


@dataclass(slots=True, eq=False)
class Caller:
    """Whoever asked for claims; ``left``: it went away without them. ``key``: that of what is on its way to it."""

    left: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True)
class Sending:
    """A transaction that claims, and what it claims."""

    claims: tuple[Claimed, ...]
    multi: Multi


@dataclass(slots=True, eq=False)
class Handover:
    """Claims on their way to their caller, from before they are sent until the caller has all of them."""

    caller: Caller
    sent: list[Sending] = field(default_factory=list)
    busy: Signal | None = None
    """It is being given back; fired when that is over."""


@dataclass(frozen=True, slots=True)
class UnsettledClaim:
    """A claim that nobody settles any more, and how its client does."""

    claimed: Claimed
    end: Callable[[Any, Claimed], Procedure[object]]
    """A procedure on the client's memory of the queue; raises `ClaimLost` where nothing is left to be settled."""


@dataclass(slots=True, eq=False)
class Sender:
    """A call that sends deferred completions; ``over``: it does not any more. Set by a single statement."""

    over: bool = False


@dataclass(slots=True, eq=False)
class DeferredCompletion:
    """A claim that has been handled, and is settled together with others: see `core.tasks.settle`."""

    claimed: Claimed
    settle: Callable[[], Procedure[Any]]
    """Settles it; asked for again after a `TransportError`."""
    on_settled: Callable[[Any, Exception | None], None]
    """Called with what `settle` returned, or raised in the end; with the client's memory locked: it waits for nothing.

    A `TransportError` is told only where nobody tries again: of a client that was closed. Where an interrupt meets it,
    it is called once more.
    """
    due: float
    """When it is settled at the latest, by our monotonic clock, whether anything goes with it or not."""
    error: Exception | None = None
    """Why the latest try has failed."""
    sender: Sender | None = None
    """Who has taken it along last."""
    settling: Any = None
    """How far that has come (`core.write.commit.Settling`)."""

    @property
    def waits(self) -> bool:
        """Whether nobody has taken it along."""
        return self.sender is None or self.sender.over


@dataclass(slots=True, eq=False)
class ClaimTable:
    """As many as this client has in flight and in hand; of settlements of unknown outcome, the latest `MAX_UNSURE`."""

    held: WeakValueDictionary[str, Claimed] = field(default_factory=WeakValueDictionary)
    """What is in the hands of this client's callers, by task; whoever lets go of a claim takes it off."""
    handovers: dict[str, Handover] = field(default_factory=dict)
    """One for each call, by the nonce of the claim that it noted first."""
    unsettled: dict[tuple[str, int], UnsettledClaim] = field(default_factory=dict)
    """Claims of transactions whose rollback was cut off, and of loops that were left, by task and token."""
    deferred: dict[tuple[str, int], DeferredCompletion] = field(default_factory=dict)
    """What has been handled, by task and token, until it is told: it goes with this client's next claim, or soon."""
    unsure: dict[tuple[str, int], Claimed] = field(default_factory=dict)
    """What was settled with an unknown outcome, by task and token: whoever asks again by these is told."""
    trying: set[str] = field(default_factory=set)
    """The entries that threads of this client are claiming."""

    def receive(self, claimed: Claimed, token: int, sent: float | None = None) -> None:
        """Remember a claim; of two of the same task in this process the older one can only be lost."""
        claimed.token = token
        claimed.sent = sent
        other = self.held.get(claimed.task_id)
        if other is not None and other.token > claimed.token:  # this one's reply was long on its way
            claimed.lost = True
            return
        if other is not None and other is not claimed:
            other.lost = True
        self.held[claimed.task_id] = claimed

    def let_go(self, claimed: Claimed) -> None:
        """The claim is over, settled or lost."""
        claimed.lost = True
        if self.held.get(claimed.task_id) is claimed:
            del self.held[claimed.task_id]

    def end_session(self, session: int, zxid: int) -> None:
        """This client is a new session's: what was bound to another, or is newer than the servers' state, is lost."""
        for claimed in list(self.held.values()):
            if (claimed.ends_with_session and claimed.session != session) or claimed.token > zxid:
                self.let_go(claimed)

    def note(self, caller: Caller, claims: tuple[Claimed, ...], multi: Multi) -> Sending:
        """A transaction that claims is about to be sent: what it takes is on its way to the caller."""
        if caller.key not in self.handovers:
            caller.key = claims[0].state.nonce
            self.handovers[caller.key] = Handover(caller)
        for claimed in claims:
            claimed.handover = caller.key
        sending = Sending(claims, multi)
        self.handovers[caller.key].sent.append(sending)
        return sending

    def strike(self, caller: Caller, sending: Sending) -> None:
        """A transaction that was to claim did not happen."""
        handover = self.handovers.get(caller.key)
        if handover is None:
            return
        handover.sent = [each for each in handover.sent if each is not sending]
        if not handover.sent:
            del self.handovers[caller.key]

    def deliver(self, claimed: Claimed) -> None:
        """The caller has its claim, and all that it asked for together with it: they are the caller's to settle."""
        # A statement takes them off, all or none: an interrupt can come after a call that has done its work.
        handovers, key = self.handovers, claimed.handover
        if key in handovers:
            del handovers[key]

    def has_undelivered(self) -> bool:
        """Whether a caller went away from a claim, a rollback was cut off, or a loop was left."""
        return bool(self.unsettled) or any(handover.caller.left for handover in self.handovers.values())

    def remember_unsure(self, claimed: Claimed) -> None:
        """Remember a claim that a call tried to settle, as long as nobody was told, or can be, what became of that."""
        if not (claimed.forgotten or (claimed.unsure and not claimed.reported)):
            if self.unsure:
                self.unsure.pop((claimed.task_id, claimed.token), None)
            return
        self.unsure[claimed.task_id, claimed.token] = claimed
        if len(self.unsure) > MAX_UNSURE:
            del self.unsure[next(iter(self.unsure))]


# --- Pending operations: what interrupted calls left, besides claims.
#
# Owners: `core.write.batch_end`, `core.tasks.settle`, `core.maintenance.due_work`.


@dataclass(slots=True, eq=False)
class PendingOperations:
    """At most what is in flight when a connection is lost."""

    batches: set[str] = field(default_factory=set)
    """Batches whose last member may be off, and which were not ended."""
    lost_claims: dict[str, str] = field(default_factory=dict)
    """Of claims that were lost while their session lives: the task by the note, which may still stand."""
    unmarked_starts: dict[tuple[str, int], Claimed] = field(default_factory=dict)
    """Claims whose handlers have begun, and where that does not stand, by task and token.

    The connection's thread adds to it, without the client's lock: it is read as a copy, and changed by a statement.
    """
    finishing: bool = False
    """A thread puts things right in the background; changed with the client's lock held, read without it."""


@dataclass(slots=True, eq=False)
class Maintenance:
    """The maintenance lock, as far as this client has to do with it."""

    content: str | None = None
    """What the lock holds when it is this client's: made before it is first sent, kept for good."""
    busy: bool = False
    closing: bool = False
    """The client is being closed: a clean-up under way ends soon, where it is. Anybody may set it."""
    left: bool = False
    """A clean-up of this client was cut short or never heard of its end: its lock may still stand."""


# --- When to look again: at what comes due, and at what was refused. Owner: this module; at most `MAX_LATER` refusals.

#: The first pause before something refused is tried again, and the longest, in seconds.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 30.0
MAX_LATER: Final = 1_000


@dataclass(slots=True, eq=False)
class Schedule:
    """When one look at a queue is to be followed by another, by our monotonic clock. Each look has its own."""

    monotonic: Callable[[], float]
    due: float | None = None
    more: bool = False
    """There is more to look after than this look was allowed to do, and it got on: another one follows at once."""

    def no_later_than(self, seconds: float) -> None:
        """Look again in so many seconds at the latest."""
        at = self.monotonic() + max(0.0, seconds)
        self.due = at if self.due is None else min(at, self.due)

    def left(self, most: float) -> float:
        """Seconds until the next look, at most so many."""
        return most if self.due is None else max(0.0, min(most, self.due - self.monotonic()))


@dataclass(slots=True, eq=False)
class RetryTimes:
    """What was refused to those who look after the queue, by its path: each time it is left alone for longer."""

    monotonic: Callable[[], float]
    pauses: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Until when it is left alone, by our monotonic clock, and how often it was refused before."""

    def waits(self, path: str, schedule: Schedule) -> bool:
        """Whether something that was refused is not to be tried again yet; then it is on the schedule."""
        until, _ = self.pauses.get(path, (-math.inf, 0))
        if until <= self.monotonic():
            return False
        schedule.no_later_than(until - self.monotonic())
        return True

    def retry_later(self, path: str, schedule: Schedule) -> None:
        """Something was refused: try again soon, and less and less often while it goes on being refused."""
        if self.waits(path, schedule):  # another call was refused at the same moment
            return
        tries = self.pauses[path][1] + 1 if path in self.pauses else 0
        seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries)
        if len(self.pauses) >= MAX_LATER:  # most of it is gone by now, and was never asked for again
            old = self.monotonic() - LONGEST_PAUSE
            self.pauses = {other: pause for other, pause in self.pauses.items() if pause[0] > old}
        self.pauses[path] = self.monotonic() + seconds, tries
        schedule.no_later_than(seconds)


# --- Ids, stamps and nonces. Owner: this module; a counter and a mark of the client, for as long as it lives.

#: How many bytes of chance a mark takes at the most, and for how many marks the system is asked at once: each time that
#: it is asked, other threads come in between.
_CHANCE: Final = 10
_AT_ONCE: Final = 100


@dataclass(slots=True, eq=False)
class Marks:
    """Makes what is unlike anything that this or another client makes."""

    wall_ms: Callable[[], int]
    counter: int = 0
    client: str = ""
    _chances: list[bytes] = field(default_factory=list)
    _pid: int = 0

    def nonce(self) -> str:
        """A mark by which a write is recognised as ours."""
        return self._chance()[:8].hex()

    def _chance(self) -> bytes:
        """Bytes that nobody else has, a forked process neither. Taking them off a list is safe among threads."""
        if self._pid != getpid():
            self._chances, self._pid = [], getpid()
        try:
            return self._chances.pop()
        except IndexError:
            chances = os.urandom(_CHANCE * _AT_ONCE)
            self._chances += [chances[at : at + _CHANCE] for at in range(_CHANCE, len(chances), _CHANCE)]
            return chances[:_CHANCE]

    def stamp(self, now: int) -> str:
        """A mark for an entry, rising with the server's clock (ms) and like no other client's (22 hex digits)."""
        self.counter = max(self.counter + 1, now << 16)
        self.client = self.client or self._chance()[:3].hex()
        return f"{self.counter:016x}{self.client}"

    def task_id(self) -> str:
        """A time-ordered id: a UUID of version 7 (RFC 9562)."""
        tail = int.from_bytes(self._chance(), "big")
        value = (self.wall_ms() & (1 << 48) - 1) << 80 | tail
        value = value & ~(0xF << 76) | 7 << 76
        value = value & ~(0x3 << 62) | 2 << 62
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# --- Foreign and damaged znodes that were reported: each once. Owner: `Context.report`; bounded.

MAX_IGNORED_PATHS: Final = 10_000


@dataclass(slots=True, eq=False)
class IgnoredPaths:
    """Paths that are stepped over, and damages that were reported."""

    paths: set[str] = field(default_factory=set)
    damages: set[str] = field(default_factory=set)
    """What was told to be the matter: one damaged record is met from many sides."""

    def __contains__(self, path: str) -> bool:
        return path in self.paths

    def is_news(self, damage: str) -> bool:
        """Whether something damaged is met for the first time."""
        return not damage or _noted(self.damages, damage)

    def add(self, path: str) -> bool:
        """Step over it from now on; False if that was so already."""
        return _noted(self.paths, path)


def _noted(known: set[str], what: str) -> bool:
    if what in known:
        return False
    if len(known) >= MAX_IGNORED_PATHS:
        known.clear()
    known.add(what)
    return True


# --- Enqueues whose callers were not told what became of them, by task id. Owner: `core.tasks.enqueue`.

KEPT_SECONDS: Final = 3600.0
#: So many marks are kept beside those of the call that comes last.
KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A task that may have been written, or a batch; ``written``: it was. ``said``: tells other messages apart."""

    at: float
    said: int
    nonce: str
    stamp: str = ""
    written: bool = False
    restored: int = 0
    """How often the servers had gone back by then."""
    generated: bool = False
    """The id was made for this enqueue: nobody else has written a task of this id for the first time."""


@dataclass(slots=True, eq=False)
class UnknownOutcomes:
    """What calls left, the oldest first."""

    marks: dict[str, Mark] = field(default_factory=dict)

    def keep(self, marks: Mapping[str, Mark]) -> None:
        """Remember what one call left, and forget the oldest of what others did."""
        others = {name: mark for name, mark in self.marks.items() if name not in marks}
        self.marks = {**dict(islice(others.items(), max(0, len(others) - KEPT), None)), **marks}

    def take(self, name: str, said: int, now: float) -> Mark | None:
        """The mark of this id, for a call that says the same; whatever the call says, nobody gets it after that."""
        mark = self.marks.pop(name, None)
        return mark if mark is not None and mark.said == said and now - mark.at <= KEPT_SECONDS else None


# --- Transactions of this client that are to go together: those that came while others were on their way.
#
# Owner: `core.write.commit`; bounded by the calls that are under way.


@dataclass(slots=True, eq=False)
class GroupMember:
    """A transaction that stands in line; ``signal`` is fired when its call is to go on."""

    make: Callable[[], Multi]
    """Makes the transaction when it is sent: what was sent before may have changed what it has to do."""
    signal: Signal
    multi: Multi = field(default_factory=lambda: Multi(()))
    is_leader: bool = False
    """Its call is to send it, together with others; it has a place among those that are on their way."""
    sent: float | None = None
    """When it was sent, by our monotonic clock."""
    over: bool = False
    """Another call has had it: ``outcome`` says what became of it; None: it was not sent."""
    outcome: Outcome | None = None


@dataclass(slots=True, eq=False)
class GroupQueue:
    """How many transactions are on their way, and what waits."""

    on_their_way: int = 0
    carried: int = 0
    """How many transactions are sent by another call at this moment."""
    waiting: deque[GroupMember] = field(default_factory=deque)


# --- What was read under watches, and what was worked out from it. Owner: this module and `core.read.watch_cache`.
#
# An entry stands for one path and is shared by all threads of the client. It goes when its znode is seen to be
# gone, or when nobody waits for it any more: the memory is as large as what claims and waits look at.

Filters = Mapping[str, str]


@dataclass(slots=True, eq=False)
class CachedRead:
    """Something read under a watch: a listing (names, sorted), or a znode; None where there is none."""

    signal: Signal
    watch: Watch | None = None
    value: Any = None
    pending: bool = False
    """A thread is reading it: the others wait for `signal`."""
    read_at: float = 0.0
    subscribers: dict[Signal, None] = field(default_factory=dict)
    """Who waits for a change, in the order in which they came; thousands may wait for one znode."""
    cached_entries: list[str] | None = None
    """Of a segment's entries those that this client has not tried yet; made anew from each listing."""
    ranks: dict[str, int] = field(default_factory=dict)
    """The ranks of a segment's entries; replaced, never changed."""
    entry_filters: dict[str, Filters | None] = field(default_factory=dict)
    """The filters of the entries of a mixed lane's segment; replaced, never changed. None: they cannot be read."""
    lane: Filters | None = None
    """What a lane with a shortened name stands for."""

    @property
    def fresh(self) -> bool:
        """Whether the value still stands."""
        return self.watch is not None and not self.watch.fired


@dataclass(slots=True, eq=False)
class Listings:
    """The readings of one client, by path."""

    new_signal: Callable[[], Signal]
    readings: dict[str, CachedRead] = field(default_factory=dict)

    def at(self, path: str) -> CachedRead:
        """The shared memory of what was read at `path`."""
        reading = self.readings.get(path)
        if reading is None:
            reading = self.readings[path] = CachedRead(self.new_signal())
        return reading

    def forget(self, path: str) -> None:
        """Drop what was read at `path` and below."""
        reading = self.readings.pop(path, None)
        if reading is not None and isinstance(reading.value, list):
            for name in reading.value:
                self.forget(f"{path}/{name}")

    def forget_below(self, path: str, keep: set[str]) -> None:
        """Drop what was read below `path`, but for the children that are to be kept."""
        start = path + "/"
        for other in list(self.readings):
            if other.startswith(start) and other[len(start) :].partition("/")[0] not in keep:
                self.forget(other)

    def still_listed(self, path: str, name: str) -> bool:
        """Whether a child certainly stands there still: it is in a listing whose watch has not fired."""
        reading = self.readings.get(path)
        return reading is not None and reading.fresh and name in (reading.value or ())

    def forget_tried(self, path: str) -> None:
        """What was tried of a segment is tried again."""
        if path in self.readings:
            self.readings[path].cached_entries = None


# --- Candidates that were read before they are claimed. Owner: `core.claim.take`.

#: So many candidates are read at once, and so many bytes of theirs at the most, by what they had so far.
MOST: Final = 16
MOST_BYTES: Final = 64_000
#: Of claims that happen to follow one another so many at first, since it is not known how large they are.
FIRST: Final = 4
#: Claims that follow one another within so many seconds read ahead; what was read longer ago is read again.
PACE_SECONDS: Final = 1.0
#: A client remembers what it read for so many kinds of claims.
MOST_PACES: Final = 8


@dataclass(slots=True, eq=False)
class ReadAhead:
    """What claims of one kind that follow one another read for those to come."""

    tasks: dict[str, Sequence[Node | None]] = field(default_factory=dict)
    """Candidates, by entry, as they were then: whether they are so still their claim tells. A later run has another."""
    most: int = MOST
    """So many are worth to be read at once."""
    read_at: float = float("-inf")
    requested_at: float = float("-inf")
    """When one of the claims began."""
    busy: bool = False
    """One of them is reading for those to come."""

    def is_old(self, now: float) -> bool:
        """Whether what was read may have changed by now."""
        return now - self.read_at > PACE_SECONDS

    def has_read(self, entries: Iterable[str], now: float) -> bool:
        """Whether all of these were read of late."""
        return not self.is_old(now) and self.tasks.keys() >= set(entries)

    def learn(self, count: int, size: int, now: float) -> None:
        """So many were read, which had so many bytes."""
        self.most = max(1, min(MOST, 2 * self.most, MOST_BYTES * count // max(1, size)))
        if not self.tasks:  # else those that were read before tell how old all of it is
            self.read_at = now


@dataclass(slots=True, eq=False)
class Paces:
    """Which kinds of claims of a client follow one another closely."""

    monotonic: Callable[[], float]
    kinds: dict[Hashable, ReadAhead] = field(default_factory=dict)

    def begin(self, kind: Hashable) -> ReadAhead | None:
        """A claim of this kind begins; what it may read ahead with, if another one has begun just before."""
        now = self.monotonic()
        read_ahead = self.kinds.pop(kind, None) or ReadAhead(most=FIRST)
        self.kinds[kind] = read_ahead
        while len(self.kinds) > MOST_PACES:
            del self.kinds[next(iter(self.kinds))]
        close, read_ahead.requested_at = now - read_ahead.requested_at <= PACE_SECONDS, now
        return read_ahead if close else None


# --- What this client knows of the keys of a queue's limit. Owner: `core.claim.limits`; a bounded memory.


@dataclass(slots=True, eq=False)
class LimitedKey:
    """One key: its slots, and the claims of late that count still."""

    taken: set[int] = field(default_factory=set)
    """The slots that were taken when they were listed, and those that this client took since; some may be free."""
    trying: set[int] = field(default_factory=set)
    """The slots that calls of this client are taking."""
    highest: int = -1
    """The highest of those that were listed."""
    there: bool = True
    """Whether there was a znode for its slots; without one a claim is refused, and makes it."""
    watch: Watch | None = None
    """On the slots; None: they have to be listed."""
    recent: tuple[tuple[int, int], ...] | None = None
    """Until when claims count from, in the server's milliseconds, and how many; None: they have to be read."""
    counted: int = 0
    """How many all of them are."""
    written: tuple[RecentClaims, int] | None = None
    """What a transaction on its way writes of them, and the version that its znode has with it."""
    version: int | None = None
    """That of the znode from which they were read; None: it was not there."""
    rates_version: int = 0
    """The version of ``rates``, which clean-up changes."""
    counting: Signal | None = None
    """A call is claiming under it: others wait for this."""
    served: int = 0
    """A number that tells when this client claimed of it last."""

    def remember(self, recent: tuple[tuple[int, int], ...]) -> None:
        """These claims count, as was read or written by this client."""
        self.recent, self.counted = recent, sum(count for _, count in recent)

    @property
    def stale(self) -> bool:
        """Whether the slots may be others than they were when they were listed."""
        return self.watch is None or self.watch.fired

    @property
    def in_use(self) -> bool:
        """Whether a call of this client is claiming under it."""
        return bool(self.trying) or self.counting is not None


@dataclass(slots=True, eq=False)
class LimitedKeys:
    """The keys of the limit that the queue has now."""

    limit: Limit = field(default_factory=Limit)
    born: int = 0
    """The transaction that made the queue: versions of another one of its name say nothing about its claims."""
    keys: dict[str, LimitedKey] = field(default_factory=dict)
    most: int = 0
    """So many are remembered before those that have room are forgotten."""
    served: int = 0


# --- Who this client is as a consumer, and who else lives.
#
# Owner: `core.maintenance.consumer_registry`.


@dataclass(slots=True)
class Registered:
    """A registration under ``consumers``, good for one ZooKeeper session."""

    id: str
    session: int
    accepts: list[str] = field(default_factory=list)
    """The selectors it has announced."""


@dataclass(slots=True, eq=False)
class Registration:
    """This client's own record. Other threads may read ``consumer`` without the lock."""

    consumer: Registered | None = None
    cancel_watch: Watch | None = None
    joining: dict[int, Signal] = field(default_factory=dict)
    """The threads that register this client, by session; the others wait for the signal."""

    @property
    def cancellations_checked(self) -> bool:
        """Whether nothing was told to this consumer since it looked; there is none before it registers."""
        return self.consumer is None or (self.cancel_watch is not None and not self.cancel_watch.fired)


@dataclass(slots=True, eq=False)
class KnownConsumers:
    """The consumers as last read, and until when the claims hold that have a deadline."""

    live: list[str] = field(default_factory=list)
    unrescued: list[str] = field(default_factory=list)
    """Dead consumers that are still on the register."""
    watch: Watch | None = None
    lease_ends: dict[str, int] = field(default_factory=dict)
    """By the path of the lease or lock, in the server's milliseconds."""

    @property
    def stands(self) -> bool:
        """Whether nobody has come or gone since it was read."""
        return self.watch is not None and not self.watch.fired


# --- What a driver lends to procedures: time, chance, the session; all of it replaced in tests.


@dataclass(slots=True, eq=False)
class Runtime:
    """Functions that a driver provides. None of them waits; none but `new_signal` remembers anything."""

    monotonic: Callable[[], float]
    wall_ms: Callable[[], int]
    random: Callable[[], float]
    new_signal: Callable[[], Signal]
    session: Callable[[], int]
    report: Callable[[str, str], None]
    zxid: Callable[[], int]
    """The latest transaction that the session has seen."""
    restored: Callable[[], int]
    """How often the servers turned out to have gone back to an older state: what was written before may be gone."""
    unwatch: Callable[[str], None]
    """Nobody waits for changes of this znode's data any more: its watch may go. Does not wait, does not raise."""
    finish_later: Callable[[], None]
    """Finish in the background what interrupted calls left; from any thread. Does not wait, does not raise."""


# --- Where the next entries go: the newest segments of lanes, and buckets known to exist. Owner: `core.write.commit`.

#: Lanes whose newest segment a client remembers.
MAX_OPEN: Final = 256
MAX_BUCKETS: Final = 64


@dataclass(slots=True, eq=False)
class OpenSegment:
    """A lane's segment: ``ops`` go with the next entry, ``then`` with those after it; ``ordered``: in strict order."""

    lane: Lane
    segment: str
    count: int
    ops: list[WriteOp]
    then: list[WriteOp]
    ordered: bool

    @property
    def opens(self) -> bool:
        """Whether writing to it creates it."""
        return any(isinstance(op, Create) for op in self.ops)


@dataclass(slots=True, eq=False)
class OpenSegments:
    """A bounded memory: what was used last is kept."""

    open: dict[str, OpenSegment] = field(default_factory=dict)
    """By the name of the lane that was wanted."""
    searching: dict[str, Signal] = field(default_factory=dict)
    """Lanes whose newest segment a call is looking for, each with what is fired when it has; the others wait."""
    buckets: set[str] = field(default_factory=set)

    def remember(self, name: str, segment: OpenSegment) -> None:
        """Keep what was used last; a producer of ever new filters does not grow."""
        self.open.pop(name, None)
        while len(self.open) >= MAX_OPEN:
            del self.open[next(iter(self.open))]
        self.open[name] = segment

    def keep_lanes(self, names: set[str]) -> None:
        """Forget lanes that are not there any more, but for those that are about to be made."""
        for name, segment in list(self.open.items()):
            if segment.lane.name not in names and not segment.opens:
                del self.open[name]

    def add_bucket(self, bucket: str) -> None:
        """A bucket is there."""
        if len(self.buckets) >= MAX_BUCKETS:
            self.buckets.clear()
        self.buckets.add(bucket)


# --- One client's memory of one queue: its parts, and who it is.


@dataclass(slots=True, eq=False)
class Configuration:
    """The queue's configuration as last read. Owner: `core.read.configuration`."""

    conf: Conf | None = None
    born: int = 0
    """The transaction that made the queue."""
    watch: Watch | None = None
    changed: Callable[[], None] = lambda: None
    """Called when a part of it may have changed, by whoever is told; neither waits nor raises."""
    parts: tuple[CachedRead, ...] = ()
    """What it was read from: it holds as long as no watch of these has fired."""
    settings: tuple[Settings, FilterTypes] | None = None
    """What could be read last: it is followed while the settings cannot be read."""


@dataclass(slots=True, eq=False)
class Context:
    """What the procedures of one client share."""

    queue: str
    root: str
    paths: Paths
    run: Runtime
    signal: Signal
    """Fired when something in the queue may have changed; anybody may fire it."""
    describe: dict[str, Any] = field(default_factory=dict)
    """What the client's record as a consumer tells of its process."""
    configuration: Configuration = field(default_factory=Configuration)
    segments: OpenSegments = field(default_factory=OpenSegments)
    claims: ClaimTable = field(default_factory=ClaimTable)
    group: GroupQueue = field(default_factory=GroupQueue)
    registration: Registration = field(default_factory=Registration)
    known_consumers: KnownConsumers = field(default_factory=KnownConsumers)
    pending: PendingOperations = field(default_factory=PendingOperations)
    maintenance: Maintenance = field(default_factory=Maintenance)
    unknown_outcomes: UnknownOutcomes = field(default_factory=UnknownOutcomes)
    ignored_paths: IgnoredPaths = field(default_factory=IgnoredPaths)
    limited_keys: LimitedKeys = field(default_factory=LimitedKeys)
    shared: dict[str, Signal] = field(default_factory=dict)
    """What one thread does for all; fired when it has ended. Owner: `core.read.watch_cache`."""
    settled: Signal = field(init=False)
    """Fired when deferred completions were settled, or are left to whoever settles them next."""
    listings: Listings = field(init=False)
    sizes: Listings = field(init=False)
    """How many names stand where tasks are listed; of what lists those, the names. Owner: `core.read.inspect`."""
    clock: Clock = field(init=False)
    """Of a client with several queues it is one clock for all of them."""
    marks: Marks = field(init=False)
    retry_times: RetryTimes = field(init=False)
    paces: Paces = field(init=False)

    def __post_init__(self) -> None:
        self.settled = self.run.new_signal()
        self.listings, self.sizes = Listings(self.run.new_signal), Listings(self.run.new_signal)
        self.clock, self.marks = Clock(self.run.monotonic), Marks(self.run.wall_ms)
        self.retry_times, self.paces = RetryTimes(self.run.monotonic), Paces(self.run.monotonic)

    def report(self, path: str, why: str, damage: str = "") -> None:
        """Tell of a foreign or damaged znode, once, and step over it; `damage`: what other paths suffer from, too."""
        if self.ignored_paths.add(path) and self.ignored_paths.is_news(damage):
            self.run.report(path, why)

    def forget_queue(self) -> None:
        """The queue is not there: what was remembered of its znodes is forgotten; what is in hand is its callers'."""
        self.configuration = Configuration(changed=self.configuration.changed)
        self.registration.consumer = self.registration.cancel_watch = None
        self.known_consumers = KnownConsumers()
        self.pending.batches.clear()
        self.pending.unmarked_starts.clear()
        self.maintenance.left = False
        self.ignored_paths = IgnoredPaths()
        self.retry_times.pauses.clear()
        self.segments.open.clear()
        self.segments.buckets.clear()
        self.unknown_outcomes.marks.clear()
        self.limited_keys = LimitedKeys()
        used = {path: each for path, each in self.listings.readings.items() if each.pending or each.subscribers}
        self.listings.readings = used
        self.sizes.readings.clear()

    def warn_once(self, path: str, why: str, damage: str = "") -> None:
        """Tell of damage, once, and do not step over `path`: it was mended, or somebody may put it right."""
        if self.ignored_paths.is_news(damage or f"{path}: {why}"):
            self.run.report(path, why)

    def new_watch(self) -> Watch:
        """A watch whose event wakes whoever waits for this queue."""
        return Watch(self.signal)

    def schedule(self) -> Schedule:
        """An empty schedule."""
        return Schedule(self.run.monotonic)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment at which a wait ends, by the driver's monotonic clock; None: it has no bound."""

    context: Context
    at: float | None
    span: float | None = None
    """The seconds that were given for it."""

    @classmethod
    def after(cls, context: Context, timeout: Duration | None) -> Procedure[Deadline]:
        """`timeout` (seconds or a duration, None without bound) from now, for the whole call. Raises `ConfigError`."""
        span = optional_seconds("timeout", timeout)
        if span:  # who does not wait at all waits for the servers all the same
            yield zk.SetTimeout(span)
        return cls(context, None if span is None else context.run.monotonic() + span, span)

    @property
    def left(self) -> float | None:
        """For how many seconds it may be waited still."""
        return None if self.at is None else max(0.0, self.at - self.context.run.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self.left == 0.0

    def __str__(self) -> str:
        return f"timeout ({self.span or 0:g} s)"

    def wait(self, signal: zk.Signal, seen: int) -> Procedure[None]:
        """Wait until `signal` has happened more than `seen` times, or the time is over."""
        yield zk.Wait(signal, seen, self.left)


def never_stopping() -> bool:
    """The `stopping` of whoever waits to the end."""
    return False
