"""Replies of kazoo's, and its errors, as what procedures get for their operations."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    UnimplementedError,
)

from airflow_provider_zkmq.engine.core.protocol.ops import (
    Children,
    CreateContainer,
    Exists,
    Get,
    GetMany,
    Node,
    Stat,
    Sync,
)
from airflow_provider_zkmq.engine.core.protocol.writes import Failure, Multi, Outcome
from airflow_provider_zkmq.engine.errors import SessionLost, ZkmqError
from airflow_provider_zkmq.engine.zk.access import ReadAcl
from airflow_provider_zkmq.engine.zk.requests import Refused, Written, exception
from airflow_provider_zkmq.engine.zk.session import Session
from airflow_provider_zkmq.engine.zk.wire import LOST, Sent

_NO_NODE = NoNodeError.code
#: Of the eleven values of ZooKeeper's Stat, those of ours, in the order of `Stat`.
_PART_OF_STAT = itemgetter(0, 1, 2, 3, 4, 7, 9, 5, 10)
_FAILURES: dict[type[Exception], Failure] = {
    NoNodeError: Failure.NO_NODE,
    NodeExistsError: Failure.NODE_EXISTS,
    BadVersionError: Failure.BAD_VERSION,
    NotEmptyError: Failure.NOT_EMPTY,
}


def receive(session: Session, sent: Sent, value: Any) -> Any:
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


def failed(session: Session, sent: Sent, error: BaseException) -> Any:
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
