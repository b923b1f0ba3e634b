"""Operations to ZooKeeper requests, and replies and errors back to what procedures get."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeAlias

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol import serialization as wire

from ..core.protocol import (
    MAX_REQUEST,
    Children,
    CreateContainer,
    Exists,
    Failure,
    Get,
    GetMany,
    Multi,
    Node,
    Outcome,
    Post,
    Stat,
    Sync,
    Watch,
    WriteOp,
    request_size,
)
from ..errors import SessionLost, TaskTooLarge, TransportError, ZkmqError
from .connection import ContainerCreation, Listing, MultiRead, MultiRequest, Read, Refused, Written, exception
from .session import CHILD, DATA, Fan, ReadAcl, Reply, Session

# --- Operations to kazoo requests, and replies back.

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
class SentRequest:
    """A request on its way: kazoo's reply to come, and when it was sent by the monotonic clock."""

    op: Request
    reply: Any
    at: float


def submit(session: Session, op: Request, *, more: bool = False) -> SentRequest:
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
    return SentRequest(op, reply, at)


def _request(session: Session, op: Request, fan: Fan | None) -> Any:
    match op:
        case Multi(ops):
            return MultiRequest(ops, session.access.rights)
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


def unknown(sent: SentRequest) -> Outcome:
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
    many = sum(isinstance(op, WRITES) for op in ops) > 1
    replies: list[Any] = []
    missing = [_unsent(session, op) for op in ops[len(results) :]]
    for op, result in zip(ops, [*results, *missing], strict=True):
        if many and isinstance(op, WRITES) and isinstance(result, TransportError):
            replies.append(UNKNOWN)
        elif isinstance(result, Exception):
            raise result
        else:
            replies.append(result)
    return replies


UNKNOWN = Outcome(committed=False, unknown=True)

# --- Replies of kazoo's, and its errors, as what procedures get for their operations.

_NO_NODE = NoNodeError.code
#: Of the eleven values of ZooKeeper's Stat, those of ours, in the order of `Stat`.
_PART_OF_STAT = itemgetter(0, 1, 2, 3, 4, 7, 9, 5, 10)
_FAILURES: dict[type[Exception], Failure] = {
    NoNodeError: Failure.NO_NODE,
    NodeExistsError: Failure.NODE_EXISTS,
    BadVersionError: Failure.BAD_VERSION,
    NotEmptyError: Failure.NOT_EMPTY,
}


def receive(session: Session, sent: SentRequest, value: Any) -> Any:
    """What a procedure gets for a reply. Raises `AccessDenied` where a transaction was refused for its credentials."""
    session.silent = False
    match sent.op:
        case Multi():
            return _outcome(session, value[0], sent.at)
        case CreateContainer():
            return Outcome(committed=True, sent=sent.at)
        case GetMany():
            return [_many_item(session, item) for item in value]
        case Get():
            return Node(value[0], stat(value[1]))
        case Exists():
            return None if value is None else stat(value)
        case Children():
            return value
        case ReadAcl():
            return value[0]
        case Sync():
            return None


def failed(session: Session, sent: SentRequest, error: BaseException) -> Any:
    """What a procedure gets for a failed request, or the error it is thrown. `LOST` errors are the driver's own."""
    op = sent.op
    if isinstance(op, CreateContainer) and isinstance(error, NodeExistsError | NoNodeError | UnimplementedError):
        failure = _FAILURES.get(type(error), Failure.OTHER)
        return Outcome(committed=False, failure=failure, detail=type(error).__name__, sent=sent.at)
    if isinstance(op, ReadAcl) and op.above and isinstance(error, NoAuthError):
        return None
    if isinstance(error, NoNodeError) and not isinstance(op, Multi):
        return None
    raise mapped(session, error) from error


def mapped(session: Session, error: BaseException) -> BaseException:
    """kazoo's error as one of ours; what is not kazoo's stays as it is."""
    if isinstance(error, NoAuthError | AuthFailedError):
        return session.denied()
    if isinstance(error, InvalidACLError):
        return session.not_known()
    if isinstance(error, ConnectionClosedError) or (isinstance(error, SessionExpiredError) and session.closed):
        return SessionLost("the connection was closed")
    if isinstance(error, LOST):
        return session.unanswered()
    if isinstance(error, KazooException):
        return ZkmqError(f"ZooKeeper refused a request: {type(error).__name__} {error}".strip())
    return error


def stat(raw: tuple[int, ...]) -> Stat:
    """The part of a Stat that we use."""
    return Stat._make(_PART_OF_STAT(raw))


def _many_item(session: Session, item: Any) -> Node | None:
    if isinstance(item, tuple):
        return Node(item[0], Stat._make(_PART_OF_STAT(item[1])))
    if item == _NO_NODE:
        return None
    if item == NoAuthError.code:
        raise session.denied()
    msg = f"ZooKeeper refused a read with error {item}"
    raise ZkmqError(msg)


def _outcome(session: Session, result: Written | Refused, sent: float) -> Outcome:
    if isinstance(result, Written):
        return Outcome(committed=True, time=result.time, zxid=result.zxid, sent=sent)
    if result.at is None:
        return Outcome(committed=False, failure=Failure.OTHER, detail="the transaction was rolled back", sent=sent)
    error = exception(result.code)
    if isinstance(error, NoAuthError | InvalidACLError):
        raise mapped(session, error)
    failure = _FAILURES.get(type(error), Failure.OTHER)
    return Outcome(committed=False, failed=result.at, failure=failure, detail=type(error).__name__, sent=sent)


# --- Transactions that nobody waits for: sent at once by the caller's thread, or not at all.


class Posted(Reply):
    """The reply to a transaction that nobody waits for; the connection's thread sets it."""

    __slots__ = ("_lost",)

    def __init__(self, lost: Callable[[], None]) -> None:
        super().__init__()
        self._lost = lost

    def set(self, value: Any = None) -> None:
        """The server answered; refused, it was not carried out."""
        if isinstance(value[0], Refused):
            self._lost()
        super().set(value)

    def set_exception(self, exception: BaseException) -> None:
        """The connection was lost before the answer."""
        self._lost()
        super().set_exception(exception)


def post(session: Session, op: Post) -> bool:
    """Send a transaction without waiting for anything; whether the system has all of it.

    Not where something is to be asked before, nor where only the connection's thread may write: over TLS, say. What
    waits in this process when it is killed is never sent. Raises `TaskTooLarge`.
    """
    check_sizes((op.multi,))
    if session.closed or not session.connected.is_set() or any(True for _ in session.access.questions((op.multi,))):
        return False
    transaction = MultiRequest(op.multi.ops, session.access.rights)
    return session.send_now(type(op.multi).__name__, transaction, Posted(op.lost))
