"""Operations to kazoo requests, and replies back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kazoo.exceptions import (
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol import serialization as wire

from airflow_provider_zkmq.engine.core.protocol.ops import Children, CreateContainer, Exists, Get, GetMany, Sync, Watch
from airflow_provider_zkmq.engine.core.protocol.writes import (
    MAX_REQUEST,
    Multi,
    Outcome,
    WriteOp,
    request_size,
)
from airflow_provider_zkmq.engine.errors import TaskTooLarge, TransportError
from airflow_provider_zkmq.engine.zk.access import ReadAcl
from airflow_provider_zkmq.engine.zk.requests import ContainerCreation, Listing, MultiRead, Read, Transaction
from airflow_provider_zkmq.engine.zk.session import Session
from airflow_provider_zkmq.engine.zk.watches import CHILD, DATA, Fan

Request: TypeAlias = Get | Children | Exists | GetMany | Multi | CreateContainer | Sync | ReadAcl
#: Which reads set a watch, and of what kind.
_WATCHED: dict[type, str] = {Get: DATA, Exists: DATA, Children: CHILD}
#: Requests whose lost reply leaves their outcome unknown.
WRITES = (Multi, CreateContainer)

#: What says that a request may or may not have been carried out.
LOST = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, KazooTimeoutError)
#: Requests in flight at once of one operation.
WINDOW: Final = 64


@dataclass(frozen=True, slots=True)
class Sent:
    """A request on its way: kazoo's reply to come, and when it was sent by the monotonic clock."""

    op: Request
    reply: Any
    at: float


def submit(session: Session, op: Request, *, more: bool = False) -> Sent:
    """Send a request; never blocks. `more`: others follow, and then a flush."""
    kind = _WATCHED.get(type(op))
    watch: Watch | None = None if kind is None else getattr(op, "watch", None)
    at = time.monotonic()
    with session.watches.lock:  # what is noted of watches has the order of what is sent
        if kind is None or watch is None:
            reply, fan = session.client.handler.async_result(), None
        else:
            reply = session.watches.reading(kind, getattr(op, "path", ""), watch)
            fan = reply.fan
        session.send(type(op).__name__, _request(session, op, fan), reply, more=more)
    return Sent(op, reply, at)


def _request(session: Session, op: Request, fan: Fan | None) -> Any:
    match op:
        case Multi(ops):
            return Transaction(ops, session.access.rights)
        case CreateContainer(path):
            return ContainerCreation(path, session.access.acl)
        case GetMany(paths):
            return MultiRead(paths)
        case Get(path, _):
            return Read(path, fan)
        case Children(path, _):
            return Listing(path, fan)
        case Exists(path, _):
            return wire.Exists(path, fan)
        case Sync(path):
            return wire.Sync(path)
        case ReadAcl(path):
            return wire.GetACL(path)


def check_sizes(ops: Iterable[Request]) -> None:
    """Refuse what is too large, before any of it is sent."""
    for op in ops:
        if isinstance(op, Multi):
            _check_size(op.ops)


def _check_size(ops: tuple[WriteOp, ...]) -> None:
    """Refuse what the server would answer by dropping the connection, which would look like an unknown outcome."""
    size = request_size(ops)
    if size > MAX_REQUEST:
        largest = max(ops, key=lambda op: len(getattr(op, "data", b"")))
        msg = (
            f"a transaction of {size:,} bytes was not sent: ZooKeeper takes {MAX_REQUEST:,}; "
            f"most of it is {largest.path}"
        )
        raise TaskTooLarge(msg)


def unknown(sent: Sent) -> Outcome:
    """What a procedure gets for a write without a reply."""
    return Outcome(committed=False, unknown=True, sent=sent.at)


def _unsent(session: Session, op: Request) -> Any:
    """What stands for a request that was not sent any more since those before it were not answered."""
    return UNKNOWN if isinstance(op, WRITES) else session.unanswered()


def troubled(result: Any) -> bool:
    """Whether nothing more is to be sent after this result."""
    return isinstance(result, Exception) or bool(getattr(result, "unknown", False))


def gathered(session: Session, ops: Sequence[Request], results: Sequence[Any]) -> list[Any]:
    """The results of several requests, of which the last may not have been sent; or the first error among them.

    An error of the connection's says that nothing was written: of one write among several, that is not known.
    """
    several = sum(isinstance(op, WRITES) for op in ops) > 1
    replies: list[Any] = []
    missing = [_unsent(session, op) for op in ops[len(results) :]]
    for op, result in zip(ops, [*results, *missing], strict=True):
        if several and isinstance(op, WRITES) and isinstance(result, TransportError):
            replies.append(UNKNOWN)
        elif isinstance(result, Exception):
            raise result
        else:
            replies.append(result)
    return replies


UNKNOWN = Outcome(committed=False, unknown=True)
