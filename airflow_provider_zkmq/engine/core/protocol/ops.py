"""The operations that procedures yield, and what they get back.

A procedure is a generator: it yields an `Op`, receives its result, and returns its own. A driver
(`engine.zk.drivers`) carries the operations out on a real ZooKeeper; tests use a scripted or an in-memory
one. Reads that meet no znode give None; every other failure is thrown into the procedure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias, TypeVar


class Signal(Protocol):
    """Something that happens again and again, and can be waited for without missing one."""

    @property
    def count(self) -> int:
        """How often it has happened."""

    def fire(self) -> None:
        """It happened: wake whoever waits."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Watch:
    """A one-shot watch; ``fired`` becomes true on the event, or when the connection that held it is lost.

    Drivers hold it weakly: whoever relies on a watch keeps it, in what it remembers or on its stack, until it has fired
    or nobody waits any more. A watch that nobody keeps tells nobody.
    """

    signal: Signal
    fired: bool = False

    def fire(self) -> None:
        """Mark what was read under this watch as stale and wake the waiters."""
        self.fired = True
        self.signal.fire()


@dataclass(frozen=True, slots=True)
class Stat:
    """What ZooKeeper knows of a znode; times are the server's, in milliseconds since 1970."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    owner: int
    children: int


@dataclass(frozen=True, slots=True)
class Node:
    """A znode's data and Stat."""

    data: bytes
    stat: Stat


# --- operations of a transaction


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

    ``time`` is the server's clock at commit in milliseconds, where the transaction set data (else None);
    ``zxid`` likewise its number. ``sent``: when the driver sent the request, by its monotonic clock.
    """

    committed: bool
    failed: int | None = None
    failure: Failure | None = None
    detail: str = ""
    time: int | None = None
    zxid: int | None = None
    unknown: bool = False
    sent: float | None = None


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
class Multi:
    """One transaction → `Outcome`: an unknown one where it was sent and the reply did not come, not an exception."""

    ops: tuple[WriteOp, ...]


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
    """Wait until `signal` has happened more than `seen` times, or `timeout` seconds → bool: it has."""

    signal: Signal
    seen: int
    timeout: float | None = None


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
    Get | Children | Exists | GetMany | Multi | CreateContainer | Pipeline | Wait | Reconnect | Sync | Tell | EnsureRoot
)
T = TypeVar("T")
Procedure: TypeAlias = Generator[Op, Any, T]


@dataclass(slots=True)
class Ops:
    """Collects the operations of one transaction."""

    items: list[WriteOp] = field(default_factory=list)

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Ops:
        """Add a create."""
        self.items.append(Create(path, data, ephemeral))
        return self

    def set(self, path: str, data: bytes, version: int) -> Ops:
        """Add a conditional write."""
        self.items.append(SetData(path, data, version))
        return self

    def delete(self, path: str, version: int = -1) -> Ops:
        """Add a delete."""
        self.items.append(Delete(path, version))
        return self

    def check(self, path: str, version: int = -1) -> Ops:
        """Add a condition."""
        self.items.append(Check(path, version))
        return self

    def extend(self, more: Iterable[WriteOp]) -> Ops:
        """Add several."""
        self.items.extend(more)
        return self

    def multi(self) -> Multi:
        """The transaction."""
        return Multi(tuple(self.items))


#: ZooKeeper's default ``jute.maxbuffer`` is 1 048 575 bytes for a whole request; a larger one is answered by a
#: dropped connection, which would look like an outage. Some room is left for the server's own framing.
MAX_REQUEST: Final = 1_040_000


def request_size(ops: Iterable[WriteOp]) -> int:
    """An upper estimate of the bytes these operations take on the wire (header, path, data, one ACL)."""
    return sum(len(op.path.encode()) + len(getattr(op, "data", b"")) + 80 for op in ops)
