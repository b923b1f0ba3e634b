"""Transactions: the operations that they are made of, and how they end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias


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
