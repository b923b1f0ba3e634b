"""Operations to kazoo requests, and replies back."""

from __future__ import annotations

from typing import Any, TypeAlias

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import ZnodeStat

from airflow_provider_zkmq.engine.core.ops import (
    MAX_REQUEST,
    Check,
    Children,
    Create,
    CreateContainer,
    Delete,
    Exists,
    Failure,
    Get,
    GetMany,
    Multi,
    Node,
    Outcome,
    SetData,
    Stat,
    WriteOp,
    request_size,
)
from airflow_provider_zkmq.engine.errors import SessionLost, TaskTooLarge, ZkmqError
from airflow_provider_zkmq.engine.zk.requests import ContainerCreation, MultiRead
from airflow_provider_zkmq.engine.zk.session import Session

Request: TypeAlias = Get | Children | Exists | GetMany | Multi | CreateContainer
#: Requests whose lost reply leaves their outcome unknown.
WRITES = (Multi, CreateContainer)

#: What says that a request may or may not have been carried out.
LOST = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, KazooTimeoutError)
_NO_NODE = NoNodeError.code
_FAILURES: dict[type[Exception], Failure] = {
    NoNodeError: Failure.NO_NODE,
    NodeExistsError: Failure.NODE_EXISTS,
    BadVersionError: Failure.BAD_VERSION,
    NotEmptyError: Failure.NOT_EMPTY,
}
_EPHEMERAL = 1


def submit(session: Session, op: Request) -> Any:
    """Send a request; returns kazoo's asynchronous result."""
    session.usable()
    name = type(op).__name__
    session.requests[name] = session.requests.get(name, 0) + 1
    result = session.client.handler.async_result()
    session.client._call(_request(session, op), result)  # noqa: SLF001  kazoo has no public call for its own requests
    return result


def _request(session: Session, op: Request) -> Any:
    match op:
        case Multi(ops):
            _check_size(ops)
            return wire.Transaction([_write(session, item) for item in ops])
        case CreateContainer(path):
            return ContainerCreation(path, session.acl)
        case GetMany(paths):
            return MultiRead(paths)
        case Get(path, watch):
            return wire.GetData(path, watch and session.watcher(watch))
        case Children(path, watch):
            return wire.GetChildren(path, watch and session.watcher(watch))
        case Exists(path, watch):
            return wire.Exists(path, watch and session.watcher(watch))


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


def _write(session: Session, op: WriteOp) -> Any:
    match op:
        case Create(path, data, ephemeral):
            return wire.Create(path, data, session.acl, _EPHEMERAL if ephemeral else 0)
        case SetData(path, data, version):
            return wire.SetData(path, data, version)
        case Delete(path, version):
            return wire.Delete(path, version)
        case Check(path, version):
            return wire.CheckVersion(path, version)


def receive(session: Session, op: Request, value: Any) -> Any:
    """What a procedure gets for a reply. Raises `AccessDenied` where a transaction was refused for its credentials."""
    match op:
        case Multi():
            return _outcome(session, value)
        case CreateContainer():
            return Outcome(committed=True)
        case GetMany():
            return [_many_item(session, item) for item in value]
        case Get():
            return Node(value[0], stat(value[1]))
        case Exists():
            return None if value is None else stat(value)
        case Children():
            return value


def failed(session: Session, op: Request, error: BaseException) -> Any:
    """What a procedure gets for a failed request, or the error it is thrown. `LOST` errors are the driver's own."""
    if isinstance(op, CreateContainer) and isinstance(error, NodeExistsError | NoNodeError | UnimplementedError):
        return Outcome(committed=False, failure=_FAILURES.get(type(error), Failure.OTHER), detail=type(error).__name__)
    if isinstance(error, NoNodeError) and not isinstance(op, Multi):
        return None
    raise mapped(session, error) from error


def mapped(session: Session, error: BaseException) -> BaseException:
    """kazoo's error as one of ours; what is not kazoo's stays as it is."""
    if isinstance(error, NoAuthError | AuthFailedError):
        return session.denied()
    if isinstance(error, ConnectionClosedError) or (isinstance(error, SessionExpiredError) and session.closed):
        return SessionLost("the connection was closed")
    if isinstance(error, LOST):
        return session.unavailable()
    if isinstance(error, KazooException):
        return ZkmqError(f"ZooKeeper refused a request: {type(error).__name__} {error}".strip())
    return error


def stat(raw: ZnodeStat) -> Stat:
    """The part of a Stat that we use."""
    return Stat(
        czxid=raw.czxid,
        mzxid=raw.mzxid,
        ctime=raw.ctime,
        mtime=raw.mtime,
        version=raw.version,
        owner=raw.ephemeralOwner,
        children=raw.numChildren,
    )


def _many_item(session: Session, item: Any) -> Node | None:
    if isinstance(item, tuple):
        return Node(item[0], stat(item[1]))
    if item == _NO_NODE:
        return None
    if item == NoAuthError.code:
        raise session.denied()
    msg = f"ZooKeeper refused a read with error {item}"
    raise ZkmqError(msg)


def _outcome(session: Session, results: list[Any]) -> Outcome:
    for at, result in enumerate(results):
        if isinstance(result, NoAuthError):
            raise session.denied()
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            failure = _FAILURES.get(type(result), Failure.OTHER)
            return Outcome(committed=False, failed=at, failure=failure, detail=type(result).__name__)
    if any(isinstance(result, Exception) for result in results):
        return Outcome(committed=False, failure=Failure.OTHER, detail="the transaction was rolled back")
    changed = next((result for result in results if isinstance(result, ZnodeStat)), None)
    if changed is None:
        return Outcome(committed=True)
    return Outcome(committed=True, time=changed.mtime, zxid=changed.mzxid)


UNKNOWN = Outcome(committed=False, unknown=True)
