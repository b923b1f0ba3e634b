"""Operations carried out by the calling thread, which waits for them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from airflow_provider_zkmq.engine.core.model.names import LAYOUT, check_layout
from airflow_provider_zkmq.engine.core.ops import (
    Callback,
    Create,
    EnsureRoot,
    Exists,
    Failure,
    Get,
    Multi,
    Node,
    Op,
    Outcome,
    Pipeline,
    Post,
    Reconnect,
    SetData,
    SetTimeout,
    Wait,
    WaitPlace,
)
from airflow_provider_zkmq.engine.errors import TransportError, ZkmqError
from airflow_provider_zkmq.engine.zk.connection import CallDeadline, left, over
from airflow_provider_zkmq.engine.zk.operations import (
    LOST,
    WINDOW,
    WRITES,
    Request,
    SentRequest,
    check_sizes,
    failed,
    gathered,
    post,
    receive,
    submit,
    troubled,
    unknown,
)
from airflow_provider_zkmq.engine.zk.session import Session, ThreadSignal

# --- The path under which the queues live.


def ensure_root(path: str) -> Generator[Exists | Get | Multi, Any, None]:
    """Create a path's missing parts; the last one is given the version of our layout, also where it is there, empty.

    Raises `ConfigError` where it has another.
    """
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts)):
        above = "/" + "/".join(parts[:depth])
        while (yield Exists(above)) is None:
            yield from _write(Create(above))
    version = str(LAYOUT).encode()
    node: Node | None = yield Get(path)
    while node is None or not node.data:
        yield from _write(Create(path, version) if node is None else SetData(path, version, node.stat.version))
        node = yield Get(path)
    check_layout(path, node.data)


def _write(op: Create | SetData) -> Generator[Multi, Any, None]:
    """Write, unless somebody else did; whoever asks looks again, also after a lost reply. Raises `ZkmqError`."""
    outcome: Outcome = yield Multi((op,))
    overtaken = outcome.failure in {Failure.NODE_EXISTS, Failure.BAD_VERSION}
    if not (outcome.committed or outcome.unknown or overtaken):
        msg = f"writing {op.path} was refused: {outcome.detail}"
        raise ZkmqError(msg)


# --- Operations carried out by the calling thread, which waits for them.


def execute(session: Session, op: Op, call_deadline: CallDeadline) -> Any:
    """Carry one operation out. What it raises is thrown into its procedure."""
    match op:
        case Wait(ThreadSignal() as signal, seen, timeout, turn, place):
            return (
                _turn(session, signal, seen, call_deadline)
                if turn
                else _wait(signal, seen, timeout, place, call_deadline)
            )
        case Wait(signal):
            raise TypeError(f"{signal!r} is no signal that a thread can wait for: use the one that the runtime makes")
        case SetTimeout(seconds):
            return call_deadline.limit_to(seconds)
        case Pipeline(ops):
            return _pipeline(session, ops, call_deadline)
        case Reconnect(since):
            call_deadline.begin()
            return _connected(session, call_deadline.deadline(since), call_deadline)
        case EnsureRoot(path):
            return carry_out(session, ensure_root(path), call_deadline)
        case Callback(call):
            return call()
        case Post():
            return post(session, op)
        case _:
            return _pipeline(session, (op,), call_deadline)[0]


def _wait(
    signal: ThreadSignal, seen: int, timeout: float | None, place: WaitPlace | None, call_deadline: CallDeadline
) -> bool:
    woken = signal.wait(seen, timeout, place)
    call_deadline.answered()
    return woken


def _turn(session: Session, signal: ThreadSignal, seen: int, call_deadline: CallDeadline) -> bool:
    """Wait for another call of this client, as long as for a server. Raises `Unavailable`."""
    call_deadline.begin()
    if not signal.wait(seen, left(call_deadline.deadline())):
        raise session.unavailable(call_deadline.limit)
    return True


def _connected(session: Session, deadline: float, call_deadline: CallDeadline) -> None:
    """Wait for the connection. Raises `Unavailable` past the deadline, and at once where the connection was closed."""
    while True:
        seen = session.changed.count
        session.usable()
        if over(deadline):
            raise session.unavailable(call_deadline.limit)
        if session.connected.is_set():
            return
        session.changed.wait(seen, left(deadline))


def carry_out(session: Session, steps: Generator[Request, Any, None], call_deadline: CallDeadline) -> None:
    """Carry requests out, one after the other."""
    result = None
    while True:
        try:
            op = steps.send(result)
        except StopIteration:
            return
        result = gathered(session, (op,), _window(session, (op,), call_deadline))[0]


def _pipeline(session: Session, ops: Sequence[Request], call_deadline: CallDeadline) -> list[Any]:
    """Several requests, so many in flight at once; none is sent after one that was not answered."""
    check_sizes(ops)
    for steps in session.access.questions(ops):
        carry_out(session, steps, call_deadline)
    results: list[Any] = []
    for start in range(0, len(ops), WINDOW):
        try:
            results += _window(session, ops[start : start + WINDOW], call_deadline)
        except TransportError:
            if not results:
                raise
            break  # those before were sent
        if any(map(troubled, results)):
            break
    return gathered(session, ops, results)


def _window(session: Session, ops: Sequence[Request], call_deadline: CallDeadline) -> list[Any]:
    """The results, in order; a request's error stands for its result. Raises only where nothing was sent."""
    call_deadline.begin()
    deadline = call_deadline.deadline()
    _connected(session, deadline, call_deadline)
    try:
        pending = [submit(session, op, more=True) for op in ops]
    finally:
        session.client.flush()
    return [_collect(session, sent, deadline, call_deadline) for sent in pending]


def _collect(session: Session, sent: SentRequest, deadline: float, call_deadline: CallDeadline) -> Any:
    """A result or an error; a read whose connection was lost is sent again, a write's outcome is then unknown."""
    try:
        while True:
            try:
                value = sent.reply.get(timeout=left(deadline))
            except LOST:
                call_deadline.missed()
                if isinstance(sent.op, WRITES):
                    return unknown(sent)
                _connected(session, deadline, call_deadline)
                sent = submit(session, sent.op)
            except Exception as error:  # noqa: BLE001  mapped, or raised as it is
                call_deadline.answered()
                return failed(session, sent, error)
            else:
                call_deadline.answered()
                return receive(session, sent, value)
    except Exception as error:  # noqa: BLE001  thrown once the others have been answered
        return error
