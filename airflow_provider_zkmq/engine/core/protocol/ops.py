"""The operations that procedures yield, and what they get back.

A procedure is a generator: it yields an `Op`, receives its result, and returns its own. A driver
(`engine.zk.drivers`) carries the operations out on a real ZooKeeper; tests use a scripted or an in-memory
one. Reads that meet no znode give None; every other failure is thrown into the procedure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from airflow_provider_zkmq.engine.core.protocol.seats import Seat
from airflow_provider_zkmq.engine.core.protocol.writes import Multi


class Signal(Protocol):
    """Something that happens again and again, and can be waited for without missing one."""

    @property
    def count(self) -> int:
        """How often it has happened."""

    def fire(self) -> None:
        """It happened: wake whoever waits."""

    def nudge(self) -> None:
        """It happened: wake one of each kind of those in seats, and all others."""

    def pass_on(self, kind: Hashable) -> None:
        """Wake one more in a seat of this kind; nothing is counted: who looks now need not look once more."""


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
        self.signal.nudge()

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


# --- operations of a transaction


# --- operations of a procedure


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


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Several operations in flight at the same time → list of their results, in order.

    Of many, some at a time: the rest is not sent once one was not answered. Of a write among several the outcome is
    then unknown, whether it was sent or not.
    """

    ops: tuple[Get | Children | Exists | GetMany | Multi | CreateContainer, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `signal` has happened more than `seen` times, or `timeout` seconds → bool: it has.

    ``turn``: it happens when another call of this client has done what this one needs, too. That is waited for as long
    as for a server: the driver raises `Unavailable` when the time of the waiting call itself is over. ``seat``: others
    who sit there for the same kind of thing are as good as this call to see to what `Signal.nudge` tells of.
    """

    signal: Signal
    seen: int
    timeout: float | None = None
    turn: bool = False
    seat: Seat | None = None


@dataclass(frozen=True, slots=True)
class Within:
    """The caller gave this call a time of its own: from now on it ends within so many seconds.

    What a driver waits for longer raises `Unavailable`.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Wait until the connection is back, at most the driver's patience, raising `Unavailable` past it.

    ``since``: from when on that is counted, by the driver's monotonic clock; None: from now on.
    """

    since: float | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """Have the server that we are connected to catch up with its leader: what is read afterwards is not older."""

    path: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Call a function of the user's, outside of the lock on the client's memory; what it raises is thrown."""

    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class EnsureRoot:
    """Create a persistent path and its parents where missing."""

    path: str


Op: TypeAlias = (
    Get
    | Children
    | Exists
    | GetMany
    | Multi
    | Post
    | CreateContainer
    | Pipeline
    | Wait
    | Within
    | Reconnect
    | Sync
    | Tell
    | EnsureRoot
)
T = TypeVar("T")
Procedure: TypeAlias = Generator[Op, Any, T]
