"""What procedures yield: requests to ZooKeeper, waits and signals; and how a transaction ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ..errors import TransportError, ZkmqError

# --- Who waits for a signal, in which order, and who is woken by what: news of the queue wakes one of each kind.
#
# Of fifty threads of a client that wait for a task of the same kind, one finds out whether there is one, as well as
# all fifty would. If there was none it takes its place again, before those who came after it. It has the next one
# woken when it leaves, for whatever reason, and when it sees more than it can take. So none of them sleeps over
# work, and an event costs a client the same however many of its threads are idle.

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class WaitPlace:
    """A place among those of one ``kind``, for the time of one call; ``kept``: it was taken before."""

    kind: Hashable
    kept: bool = False


class WaitQueue(Generic[K]):
    """The waiters of one signal: those with a place by kind, in the order in which they came, and the others."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, OrderedDict[K, None]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, tuple(self._rows.values())))  # asked without the lock, too

    def take(self, who: K, place: WaitPlace | None) -> None:
        """Join; who has had this place before is the first of its kind again. None: with those of no kind."""
        row = self._rows.setdefault(place and place.kind, OrderedDict())
        row[who] = None
        if place is not None:
            if place.kept:
                row.move_to_end(who, last=False)
            place.kept = True

    def leave(self, who: K, place: WaitPlace | None) -> None:
        """Get up, woken or not."""
        kind = place and place.kind
        row = self._rows.get(kind, OrderedDict())
        row.pop(who, None)
        if not row:
            self._rows.pop(kind, None)

    def everybody(self) -> list[K]:
        """All who wait; they have got up."""
        waiting = list(chain.from_iterable(self._rows.values()))
        self._rows = {}
        return waiting

    def one_of_each(self) -> list[K]:
        """The first of each kind, and all of no kind; they have got up."""
        free = list(self._rows.pop(None, ()))
        return free + [who for kind in list(self._rows) for who in self.next_of(kind)]

    def next_of(self, kind: Hashable) -> list[K]:
        """The first of a kind, who has got up; nobody, where none waits."""
        row = self._rows.get(kind)
        if not row:
            return []
        who, _ = row.popitem(last=False)
        if not row:
            del self._rows[kind]
        return [who]


# --- Transactions: the operations that they are made of, and how they end.


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode; fails if it exists."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a znode's data if its version is `version` (-1: any)."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a childless znode if its version is `version` (-1: any)."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the transaction unless the znode exists with `version` (-1: any)."""

    path: str
    version: int = -1


WriteOp: TypeAlias = Create | SetData | Delete | Check


@dataclass(frozen=True, slots=True)
class Multi:
    """One transaction → `Outcome`: an unknown one where it was sent and the reply did not come, not an exception."""

    ops: tuple[WriteOp, ...]


class Failure(Enum):
    """Why an operation of a transaction was refused."""

    NO_NODE = "no such znode"
    NODE_EXISTS = "the znode exists"
    BAD_VERSION = "the znode has another version"
    NOT_EMPTY = "the znode has children"
    OTHER = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended: committed, refused at one operation, or unknown.

    ``time`` is the server's clock at commit in milliseconds, where the transaction created something or set
    data (else None); ``zxid`` likewise its number. ``sent``: when the driver sent the request, by its monotonic clock.
    """

    committed: bool
    failed: int | None = None
    failure: Failure | None = None
    detail: str = ""
    time: int | None = None
    zxid: int | None = None
    unknown: bool = False
    sent: float | None = None


#: ZooKeeper's default ``jute.maxbuffer`` is 1 048 575 bytes for a whole request; a larger one is answered by a
#: dropped connection, which would look like an outage. Some room is left for the server's own framing.
MAX_REQUEST: Final = 1_040_000
#: The largest payload and metadata, or result, of a task in bytes: the rest of a request is for its record.
MAX_PAYLOAD: Final = MAX_REQUEST - 20_000


def request_size(ops: Iterable[WriteOp]) -> int:
    """An upper estimate of the bytes these operations take on the wire (header, path, data, one ACL)."""
    size = 0
    for op in ops:
        size += len(op.path.encode()) + len(getattr(op, "data", b"")) + 80
    return size


# --- The operations that procedures yield, and what they get back.
#
# A procedure is a generator: it yields an `Op`, receives its result, and returns its own. A driver
# (`engine.zk.procedure_drivers`) carries the operations out on a real ZooKeeper; tests use a scripted or an in-memory
# one. Reads that meet no znode give None; every other failure is thrown into the procedure.


class Signal(Protocol):
    """Something that happens again and again, and can be waited for without missing one."""

    @property
    def count(self) -> int:
        """How often it has happened."""

    def fire(self) -> None:
        """It happened: wake whoever waits."""

    def notify(self) -> None:
        """It happened: wake one of each kind of those with a place, and all others."""

    def notify_one(self, kind: Hashable) -> None:
        """Wake one more waiter of this kind; nothing is counted: who looks now need not look once more."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Watch:
    """A one-shot watch; ``fired`` becomes true on the event, or when the connection that held it is lost.

    Drivers hold it weakly: whoever relies on a watch keeps it, in what it remembers or on its stack, until it has fired
    or nobody waits any more. A watch that nobody keeps tells nobody.
    """

    signal: Signal
    fired: bool = False

    def fire(self) -> None:
        """Mark what was read under this watch as stale and wake one waiter of each kind."""
        self.fired = True
        self.signal.notify()

    def lose(self) -> None:
        """The connection is lost, and the watch with it: each waiter is to learn that by itself."""
        self.fired = True
        self.signal.fire()


class Stat(NamedTuple):
    """What ZooKeeper knows of a znode; times are the server's, in milliseconds since 1970.

    ``cversion``: twice the children that were ever made, less those that are there. ``pzxid``: the transaction that
    last created or deleted a child of it, or itself.
    """

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    owner: int
    children: int
    cversion: int = 0
    pzxid: int = 0


class Node(NamedTuple):
    """A znode's data and Stat."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Get:
    """Read a znode → `Node` or None."""

    path: str
    watch: Watch | None = None


@dataclass(frozen=True, slots=True)
class Children:
    """List a znode's children → list of names, or None without the znode."""

    path: str
    watch: Watch | None = None


@dataclass(frozen=True, slots=True)
class Exists:
    """Look for a znode → `Stat` or None."""

    path: str
    watch: Watch | None = None


@dataclass(frozen=True, slots=True)
class GetMany:
    """Read several znodes in one request → list of `Node` or None, in order. Not a snapshot."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Post:
    """Send a transaction, and wait neither for its reply nor for a connection → bool: the system has all of it.

    What was given to the system is sent although this process dies, before every later request of the session. False:
    it was not sent, or not known to be; sent once more it must do no harm. Raises nothing for a lost connection.

    ``lost``: called where it turns out not to have been carried out, or perhaps not: refused, or not answered. From the
    connection's thread: it neither waits nor raises, and takes no lock of the client's. It may be called twice.
    """

    multi: Multi
    lost: Callable[[], None]


@dataclass(frozen=True, slots=True)
class CreateContainer:
    """Create a container znode, which the server deletes some time after its last child went → `Outcome`."""

    path: str


#: What is one request with one reply.
Exchange: TypeAlias = Get | Children | Exists | GetMany | Multi | CreateContainer


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Several operations in flight at the same time → list of their results, in order.

    Of many, some at a time: the rest is not sent once one was not answered. Of a write among several the outcome is
    then unknown, whether it was sent or not.
    """

    ops: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `signal` has happened more than `seen` times, or `timeout` seconds → bool: it has.

    ``turn``: it happens when another call of this client has done what this one needs, too. That is waited for as long
    as for a server: the driver raises `Unavailable` when the time of the waiting call itself is over. ``place``: others
    that wait there for the same kind of thing can see to what `Signal.notify` tells of as well as this call.
    """

    signal: Signal
    seen: int
    timeout: float | None = None
    turn: bool = False
    place: WaitPlace | None = None


@dataclass(frozen=True, slots=True)
class SetTimeout:
    """From now on this call ends within so many seconds: what a driver waits for longer raises `Unavailable`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Wait until the connection is back, at most the driver's time-out, raising `Unavailable` past it.

    ``since``: from when on that is counted, by the driver's monotonic clock; None: from now on.
    """

    since: float | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """Have the server that we are connected to catch up with its leader: what is read afterwards is not older."""

    path: str


@dataclass(frozen=True, slots=True)
class Callback:
    """Call a function of the user's, outside of the lock on the client's memory; what it raises is thrown."""

    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class EnsureRoot:
    """Create a persistent path and its parents where missing."""

    path: str


Op: TypeAlias = Exchange | Post | Pipeline | Wait | SetTimeout | Reconnect | Sync | Callback | EnsureRoot
T = TypeVar("T")
Procedure: TypeAlias = Generator[Op, Any, T]


def explained(procedure: Procedure[T], explain: Callable[[ZkmqError], Procedure[ZkmqError | None]]) -> Procedure[T]:
    """Carry a procedure out. Where it fails, and `explain` knows a better error, that is raised instead."""
    try:
        return (yield from procedure)
    except ZkmqError as error:
        better = yield from explain(error)
        if better is None:
            raise
        raise better from error


# --- Several procedures that only read, side by side.


class _Sidestep(Generic[T]):
    """One of several procedures: what it asks for, or how it ended."""

    def __init__(self, procedure: Procedure[T]) -> None:
        self.procedure = procedure
        self.asks: Op | None = None
        self.ended: T | ZkmqError | None = None
        self.step(procedure.send, None)

    @property
    def reads(self) -> tuple[Exchange, ...]:
        """The requests of what it asks for, if all of them read; else none."""
        ops = self.asks.ops if isinstance(self.asks, Pipeline) else (self.asks,)
        reads = tuple(each for each in ops if isinstance(each, Get | Children | Exists | GetMany))
        return reads if len(reads) == len(ops) else ()

    def step(self, resume: Callable[[Any], Op], value: Any) -> None:
        """Let it go on with an answer, or an error."""
        self.asks = None
        try:
            self.asks = resume(value)
        except StopIteration as stop:
            self.ended = stop.value
        except ZkmqError as error:
            if isinstance(error, TransportError):
                raise
            self.ended = error

    def alone(self) -> Procedure[None]:
        """Carry out what it asks for by itself."""
        if self.asks is None:
            return
        try:
            answer = yield self.asks
        except ZkmqError as error:
            if isinstance(error, TransportError):
                raise
            self.step(self.procedure.throw, error)
        else:
            self.step(self.procedure.send, answer)


def together(procedures: Iterable[Procedure[T]]) -> Procedure[list[T | ZkmqError]]:
    """Carry out procedures that read, their requests in flight together; what each returned, or its error.

    So reading two hundred queues takes as many round trips as reading one. What is no read is carried out for each by
    itself. Raises `TransportError`, for all.
    """
    sides = [_Sidestep(procedure) for procedure in procedures]
    try:
        while running := [side for side in sides if side.asks is not None]:
            yield from _round(running)
    finally:
        for side in sides:
            side.procedure.close()
    return [side.ended for side in sides]  # type: ignore[misc]


def _round(sides: Sequence[_Sidestep[Any]]) -> Procedure[None]:
    """Carry out what each asks for now."""
    joint = [(side, reads) for side in sides if (reads := side.reads)]
    try:
        answers = iter((yield Pipeline(tuple(op for _, reads in joint for op in reads))) if joint else ())
    except ZkmqError as error:
        if isinstance(error, TransportError):
            raise
        joint = []  # one of them was refused: whose that is turns out where each asks by itself
    shared = {id(side) for side, _ in joint}
    for side, reads in joint:
        mine = list(islice(answers, len(reads)))
        side.step(side.procedure.send, mine if isinstance(side.asks, Pipeline) else mine[0])
    for side in sides:
        if id(side) not in shared:
            yield from side.alone()
