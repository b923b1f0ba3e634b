"""Drivers: they carry out what procedures yield, blocking a thread or awaiting on an event loop."""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from kazoo import exceptions
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol import serialization as wire

from .. import lazy_asyncio as asyncio
from ..core import zk_operations as zk
from ..core.model.znode_names import LAYOUT, check_layout
from ..core.read.queue_existence import refuse_another_layout
from ..core.zk_operations import Procedure
from ..coroutine_runners import run_blocking
from ..errors import HostNotFound, SessionLost, TaskTooLarge, TransportError, ZkmqError
from . import connection
from .acl_check import ReadAcl
from .session import CHILD, CLOSING_SECONDS, DATA, NotedReply, Reply, Session, ThreadSignal

# --- Operations to kazoo requests, and replies back.

Request: TypeAlias = zk.Get | zk.Children | zk.Exists | zk.GetMany | zk.Multi | zk.CreateContainer | zk.Sync | ReadAcl
#: Which reads set a watch, and of what kind.
_WATCHED: dict[type, str] = {zk.Get: DATA, zk.Exists: DATA, zk.Children: CHILD}
#: Requests whose lost reply leaves their outcome unknown.
WRITES = (zk.Multi, zk.CreateContainer)

UNKNOWN = zk.Outcome(committed=False, unknown=True)
#: What says that a request may or may not have been carried out.
LOST = (exceptions.ConnectionLoss, exceptions.SessionExpiredError, exceptions.OperationTimeoutError, KazooTimeoutError)
#: Requests in flight at once of one operation.
WINDOW: Final = 64


class SentRequest(NamedTuple):
    """A request on its way: kazoo's reply to come, and when it was sent by the monotonic clock."""

    op: Request
    reply: Any
    at: float


def submit(session: Session, op: Request, *, more: bool = False) -> SentRequest:
    """Send a request; never blocks. `more`: others follow, and then a flush."""
    kind = _WATCHED.get(type(op))
    watch: zk.Watch | None = None if kind is None else getattr(op, "watch", None)
    at = time.monotonic()
    with session.watches.lock:  # what is noted of watches has the order of what is sent
        if kind is None or watch is None:
            reply, fan = Reply(), None
        else:
            reply = session.watches.reading(kind, getattr(op, "path", ""), watch)
            fan = reply.fan
        request: Any
        match op:
            case zk.Multi(ops):
                request = connection.MultiRequest(ops, session.access.rights)
            case zk.CreateContainer(path):
                request = connection.ContainerCreation(path, session.access.rights)
            case zk.GetMany(paths):
                request = connection.MultiRead(paths)
            case zk.Get(path, _):
                request = connection.Read(path, fan)
            case zk.Children(path, _):
                request = connection.Listing(path, fan)
            case zk.Exists(path, _):
                request = wire.Exists(path, fan)
            case zk.Sync(path):
                request = wire.Sync(path)
            case ReadAcl(path):
                request = wire.GetACL(path)
        session.send(type(op).__name__, request, reply, more=more)
    return SentRequest(op, reply, at)


def check_sizes(ops: Iterable[Request]) -> None:
    """Refuse what the server would answer by dropping the connection, like an outage. Raises `TaskTooLarge`."""
    for op in ops:
        if isinstance(op, zk.Multi) and (size := zk.request_size(op.ops)) > zk.MAX_REQUEST:
            largest = max(op.ops, key=lambda part: len(getattr(part, "data", b"")))
            raise TaskTooLarge(
                f"a transaction of {size:,} bytes was not sent: ZooKeeper takes {zk.MAX_REQUEST:,}; "
                f"most of it is {largest.path}"
            )


def gathered(session: Session, ops: Sequence[Request], results: Sequence[Any]) -> list[Any]:
    """The results of several requests, of which the last may not have been sent; or the first error among them.

    An error of the connection's says that nothing was written: of one write among several, that is not known.
    """
    many = sum(isinstance(op, WRITES) for op in ops) > 1
    replies: list[Any] = []
    unsent = [UNKNOWN if isinstance(op, WRITES) else session.unanswered() for op in ops[len(results) :]]
    for op, result in zip(ops, [*results, *unsent], strict=True):
        if many and isinstance(op, WRITES) and isinstance(result, TransportError):
            replies.append(UNKNOWN)
        elif isinstance(result, Exception):
            raise result
        else:
            replies.append(result)
    return replies


# --- Replies of kazoo's, and its errors, as what procedures get for their operations.

#: Of the eleven values of ZooKeeper's Stat, those of ours, in the order of `Stat`.
_PART_OF_STAT = itemgetter(0, 1, 2, 3, 4, 7, 9, 5, 10)
_FAILURES: dict[type[Exception], zk.Failure] = {
    exceptions.NoNodeError: zk.Failure.NO_NODE,
    exceptions.NodeExistsError: zk.Failure.NODE_EXISTS,
    exceptions.BadVersionError: zk.Failure.BAD_VERSION,
    exceptions.NotEmptyError: zk.Failure.NOT_EMPTY,
}


def receive(session: Session, sent: SentRequest, value: Any) -> Any:
    """What a procedure gets for a reply. Raises `AccessDenied` where a transaction was refused for its credentials."""
    session.silent = False
    match sent.op:
        case zk.Multi():
            result = value[0]
            if isinstance(result, connection.Written):
                return zk.Outcome(committed=True, time=result.time, zxid=result.zxid, sent=sent.at)
            return _refusal(session, result, sent.at)
        case zk.CreateContainer():
            return zk.Outcome(committed=True, sent=sent.at)
        case zk.GetMany():
            return [_many_item(session, item) for item in value]
        case zk.Get():
            return zk.Node(value[0], zk.Stat._make(_PART_OF_STAT(value[1])))
        case zk.Exists():
            return None if value is None else zk.Stat._make(_PART_OF_STAT(value))
        case zk.Children():
            return value
        case ReadAcl():
            return value[0]
        case zk.Sync():
            return None


def failed(session: Session, sent: SentRequest, error: BaseException) -> Any:
    """What a procedure gets for a failed request, or the error it is thrown. `LOST` errors are the driver's own."""
    op = sent.op
    if isinstance(op, zk.CreateContainer) and isinstance(
        error, exceptions.NodeExistsError | exceptions.NoNodeError | exceptions.UnimplementedError
    ):
        failure = _FAILURES.get(type(error), zk.Failure.OTHER)
        return zk.Outcome(committed=False, failure=failure, detail=type(error).__name__, sent=sent.at)
    if isinstance(op, ReadAcl) and op.above and isinstance(error, exceptions.NoAuthError):
        return None
    if isinstance(error, exceptions.NoNodeError) and not isinstance(op, zk.Multi):
        return None
    raise mapped(session, error) from error


def mapped(session: Session, error: BaseException) -> BaseException:
    """kazoo's error as one of ours; what is not kazoo's stays as it is."""
    if isinstance(error, exceptions.NoAuthError | exceptions.AuthFailedError):
        return session.denied()
    if isinstance(error, exceptions.InvalidACLError):
        return session.not_known()
    if isinstance(error, exceptions.ConnectionClosedError) or (
        isinstance(error, exceptions.SessionExpiredError) and session.closed
    ):
        return SessionLost("the connection was closed")
    if isinstance(error, LOST):
        return session.unanswered()
    if isinstance(error, exceptions.KazooException):
        return ZkmqError(f"ZooKeeper refused a request: {type(error).__name__} {error}".strip())
    return error


def _many_item(session: Session, item: Any) -> zk.Node | None:
    if isinstance(item, tuple):
        return zk.Node(item[0], zk.Stat._make(_PART_OF_STAT(item[1])))
    if item == exceptions.NoNodeError.code:
        return None
    if item == exceptions.NoAuthError.code:
        raise session.denied()
    raise ZkmqError(f"ZooKeeper refused a read with error {item}")


def _refusal(session: Session, result: connection.Refused, sent: float) -> zk.Outcome:
    if result.at is None:
        return zk.Outcome(
            committed=False, failure=zk.Failure.OTHER, detail="the transaction was rolled back", sent=sent
        )
    error = connection.exception(result.code)
    if isinstance(error, exceptions.NoAuthError | exceptions.InvalidACLError):
        raise mapped(session, error)
    failure = _FAILURES.get(type(error), zk.Failure.OTHER)
    return zk.Outcome(committed=False, failed=result.at, failure=failure, detail=type(error).__name__, sent=sent)


# --- Transactions that nobody waits for: sent at once by the caller's thread, or not at all.


def post(session: Session, op: zk.Post) -> bool:
    """Send a transaction without waiting for anything; whether the system has all of it.

    Not where something is to be asked before, nor where only the connection's thread may write: over TLS, say. What
    waits in this process when it is killed is never sent. Raises `TaskTooLarge`.
    """
    check_sizes((op.multi,))
    if session.closed or not session.connected.is_set():
        return False
    if session.access.secured and any(True for _ in session.access.questions((op.multi,))):
        return False

    def note(value: Any, error: BaseException | None) -> None:
        if error is not None or isinstance(value[0], connection.Refused):  # it was not carried out, or nobody knows
            op.lost()

    passed = session.client.give(connection.MultiRequest(op.multi.ops, session.access.rights), NotedReply(note))
    if passed:
        session.requests["Multi"] = session.requests.get("Multi", 0) + 1
    return passed


# --- Drivers.
#
# A client's procedures share its memory, so each step of one, from an operation's result to the next operation, runs
# under the session's ``memory`` lock; operations are carried out without it. Threads and coroutines of a client
# therefore interleave at operations and nowhere else. A watch's event only sets flags, from kazoo's thread.
#
# A call's `CallDeadline` bounds all that it waits for, also for other calls; a wait takes its own time. However a call
# ends, by an interrupt or by being cancelled too, the procedure is closed and nothing of ours is left with signals or
# with kazoo.

T = TypeVar("T")


def run(session: Session, procedure: Procedure[T], call_deadline: connection.CallDeadline | None = None) -> T:
    """Carry a procedure out, blocking the calling thread. Raises `TransportError` in a process forked since.

    `call_deadline`: the call's, where it has waited for something before.
    """
    try:  # as `run_blocking` does, with a call less for each verb
        ThreadDriver(session, call_deadline).run(procedure).send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("a driver of threads has nobody to give way to")


async def arun(session: Session, procedure: Procedure[T], call_deadline: connection.CallDeadline | None = None) -> T:
    """Carry a procedure out on the running event loop, which is never blocked for long: see `Fairness`."""
    return await LoopDriver(session, call_deadline).run(procedure)


class Driver(ABC):
    """Carries operations out. How it waits is the subclass's: a thread's blocks, a loop's awaits."""

    __slots__ = ("call_deadline", "session")
    gathers: ClassVar = True  # whether a lone request may leave together with those of others

    def __init__(self, session: Session, call_deadline: connection.CallDeadline | None = None) -> None:
        session.refuse_a_fork()
        self.session = session
        self.call_deadline = call_deadline or session.call_deadline()

    @abstractmethod
    async def wait(self, signal: ThreadSignal, seen: int, timeout: float | None, place: zk.WaitPlace | None) -> bool:
        """Wait until a signal has been fired since `seen`; False when the time was over before."""

    @abstractmethod
    async def reply(self, reply: Any, timeout: float) -> Any:
        """What kazoo's reply holds, once it is there. Raises the error that came instead, or kazoo's time-out."""

    @abstractmethod
    async def give_way(self) -> None:
        """Let others of the same thread go first."""

    @abstractmethod
    def flush(self) -> None:
        """Have sent what was submitted."""

    async def run(self, procedure: Procedure[T]) -> T:
        """Carry a procedure out, from its first step to its end."""
        session = self.session
        try:
            await self.give_way()
            op = _resume(session, procedure.send, None)
            while True:
                try:
                    result = await self.execute(op)
                    if isinstance(op, zk.Wait | zk.Reconnect):  # one event wakes many of them at once
                        await self.give_way()
                except Exception as error:  # noqa: BLE001  every failure belongs to the procedure that asked
                    op = _resume(session, procedure.throw, error)
                else:
                    op = _resume(session, procedure.send, result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            with session.memory:
                procedure.close()

    async def execute(self, op: zk.Op) -> Any:
        """Carry one operation out. What it raises is thrown into its procedure; a cancellation is not."""
        match op:
            case zk.Wait(ThreadSignal() as signal, seen, timeout, turn, place):
                if turn:
                    return await self._turn(signal, seen)
                woken = await self.wait(signal, seen, timeout, place)
                self.call_deadline.answered()
                return woken
            case zk.Wait(signal):
                raise TypeError(
                    f"{signal!r} is no signal that a thread can wait for: use the one that the runtime makes"
                )
            case zk.SetTimeout(seconds):
                return self.call_deadline.limit_to(seconds)
            case zk.Pipeline(ops):
                return await self._pipeline(ops)
            case zk.Reconnect(since):
                self.call_deadline.begin()
                return await self._connected(self.call_deadline.deadline(since))
            case zk.EnsureRoot(path):
                return await self.carry_out(ensure_root(path))
            case zk.Callback(call):
                return call()
            case zk.Post():
                return post(self.session, op)
            case _:
                return await self._single(op)

    async def carry_out(self, steps: Generator[Request, Any, None]) -> None:
        """Carry requests out, one after the other."""
        result = None
        while True:
            try:
                op = steps.send(result)
            except StopIteration:
                return
            result = await self._answer(op)

    async def _turn(self, signal: ThreadSignal, seen: int) -> bool:
        """Wait for another call of this client, as long as for a server. Raises `Unavailable`."""
        if not await self.wait(signal, seen, connection.left(self.call_deadline.begin()), None):
            raise self.session.unavailable(self.call_deadline.limit)
        return True

    async def _connected(self, deadline: float) -> None:
        """Wait for the connection. Raises `Unavailable` past the deadline, and at once where it was closed."""
        session = self.session
        while True:
            seen = session.changed.count
            session.usable()
            if time.monotonic() >= deadline:
                raise session.unavailable(self.call_deadline.limit)
            if session.connected.is_set():
                return
            await self.wait(session.changed, seen, connection.left(deadline), None)

    async def _single(self, op: Request) -> Any:
        """What a procedure gets for one request; what the server's rights need to be asked for comes before it."""
        if isinstance(op, zk.Multi):
            check_sizes((op,))
        if self.session.access.secured:
            for steps in self.session.access.questions((op,)):
                await self.carry_out(steps)
        return await self._answer(op)

    async def _answer(self, op: Request) -> Any:
        """Send one request, and wait for what came of it. Raises its error."""
        session, deadline = self.session, self.call_deadline.begin()
        if session.closed or not session.connected.is_set() or time.monotonic() >= deadline:
            await self._connected(deadline)
        try:
            sent = submit(session, op, more=self.gathers)
        finally:
            if self.gathers:
                self.flush()
        result = await self._collect(sent, deadline)
        if isinstance(result, Exception):
            raise result
        return result

    async def _pipeline(self, ops: Sequence[Request]) -> list[Any]:
        """Several requests, so many in flight at once; none is sent after one that was not answered."""
        check_sizes(ops)
        for steps in self.session.access.questions(ops):
            await self.carry_out(steps)
        results: list[Any] = []
        for start in range(0, len(ops), WINDOW):
            try:
                deadline = self.call_deadline.begin()
                await self._connected(deadline)
                try:
                    pending = [submit(self.session, op, more=True) for op in ops[start : start + WINDOW]]
                finally:
                    self.flush()
            except TransportError:
                if not results:
                    raise
                break  # those before were sent
            results += [await self._collect(sent, deadline) for sent in pending]
            if any(isinstance(result, Exception) or getattr(result, "unknown", False) for result in results):
                break
        return gathered(self.session, ops, results)

    async def _collect(self, sent: SentRequest, deadline: float) -> Any:
        """A result or an error; a read whose connection was lost is sent again, a write's outcome is then unknown."""
        try:
            while True:
                try:
                    value = await self.reply(sent.reply, max(0.0, deadline - time.monotonic()))
                except LOST:
                    self.call_deadline.missed()
                    if isinstance(sent.op, WRITES):
                        return zk.Outcome(committed=False, unknown=True, sent=sent.at)
                    await self._connected(deadline)
                    sent = submit(self.session, sent.op)
                except Exception as error:  # noqa: BLE001  mapped, or raised as it is
                    self.call_deadline.answered()
                    return failed(self.session, sent, error)
                else:
                    self.call_deadline.answered()
                    return receive(self.session, sent, value)
        except Exception as error:  # noqa: BLE001  thrown once the others have been answered
            return error


def _resume(session: Session, go_on: Callable[[Any], zk.Op], result: Any) -> zk.Op:
    """One step of a procedure, alone with its client's memory."""
    with session.memory:
        return go_on(result)


class ThreadDriver(Driver):
    """Blocks the calling thread where it waits, so that its coroutines never suspend."""

    __slots__ = ()
    gathers = False

    async def wait(self, signal: ThreadSignal, seen: int, timeout: float | None, place: zk.WaitPlace | None) -> bool:
        """Block the thread until the signal is fired."""
        return signal.wait(seen, timeout, place)

    async def reply(self, reply: Any, timeout: float) -> Any:
        """Block the thread until the reply is there."""
        return reply.get(timeout=timeout)

    async def give_way(self) -> None:
        """Threads take turns by themselves."""

    def flush(self) -> None:
        """Send it now."""
        self.session.client.flush()


class LoopDriver(Driver):
    """Awaits on the running event loop, which goes on meanwhile."""

    __slots__ = ()

    async def wait(self, signal: ThreadSignal, seen: int, timeout: float | None, place: zk.WaitPlace | None) -> bool:
        """Await the signal."""
        future = asyncio.get_running_loop().create_future()
        wake = self.session.wakes.line().waker(future)
        try:
            return not signal.on_next(seen, wake, place) or await _until(future, timeout)
        finally:
            signal.forget(wake, place)

    async def reply(self, reply: Any, timeout: float) -> Any:
        """Await the reply."""
        if not reply.ready():
            future = asyncio.get_running_loop().create_future()
            wake = self.session.wakes.line().waker(future)
            try:
                reply.rawlink(wake)
                await _until(future, timeout)
            finally:
                reply.unlink(wake)
        return reply.get_nowait()

    async def give_way(self) -> None:
        """Go on in a later round where many are ready at once; see `Fairness`."""
        await self.session.fairness.turn()

    def flush(self) -> None:
        """Send it before the loop's next round, with what others submit until then; the only one under way, at once."""
        if len(self.session.client.send_queue) > 1:
            self.session.wakes.line().soon(self.session.client.flush)
        else:
            self.session.client.flush()


async def _until(future: asyncio.Future[Any], timeout: float | None) -> bool:
    """Whether a future came in time. `asyncio.wait_for` would lose a cancellation that meets the future's result."""
    if timeout is None:
        return bool(await future)
    expiry = future.get_loop().call_later(timeout, _expire, future)
    try:
        return bool(await future)
    finally:
        expiry.cancel()


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(False)


# --- The path under which the queues live.


def ensure_root(path: str) -> Generator[zk.Exists | zk.Get | zk.Multi, Any, None]:
    """Create a path's missing parts; the last one is given the version of our layout, also where it is there, empty.

    Raises `ConfigError` where it has another.
    """
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts)):
        above = "/" + "/".join(parts[:depth])
        while (yield zk.Exists(above)) is None:
            yield from _write(zk.Create(above))
    version = str(LAYOUT).encode()
    node: zk.Node | None = yield zk.Get(path)
    while node is None or not node.data:
        yield from _write(zk.Create(path, version) if node is None else zk.SetData(path, version, node.stat.version))
        node = yield zk.Get(path)
    check_layout(path, node.data)


def _write(op: zk.Create | zk.SetData) -> Generator[zk.Multi, Any, None]:
    """Write, unless somebody else did; whoever asks looks again, also after a lost reply. Raises `ZkmqError`."""
    outcome: zk.Outcome = yield zk.Multi((op,))
    overtaken = outcome.failure in {zk.Failure.NODE_EXISTS, zk.Failure.BAD_VERSION}
    if not (outcome.committed or outcome.unknown or overtaken):
        raise ZkmqError(f"writing {op.path} was refused: {outcome.detail}")


# --- Opening a session: names, connection, who else may come in, the root's layout; what is wrong is said at once.


def open_session(session: Session) -> None:
    """Connect within ``connect_timeout``, blocking.

    Raises `Unavailable` naming the hosts, as `HostNotFound` and `TlsRefused` at once; `AccessDenied`; `NotSecured`;
    `ConfigError` where what stands under the root has another layout.
    """
    limit = session.config.connect_timeout
    call_deadline = connection.CallDeadline(limit, "connect_timeout")
    call_deadline.limit_to(limit, "connect_timeout", grace=0.0)
    call_deadline.begin()
    try:
        _check_names(session, call_deadline)
        session.open(call_deadline)
        run_blocking(ThreadDriver(session, call_deadline).carry_out(session.access.look_around()))
        run(session, refuse_another_layout(session.config.root), call_deadline)
    except BaseException:
        session.close(call_deadline=CLOSING_SECONDS)
        raise


def _check_names(session: Session, call_deadline: connection.CallDeadline) -> None:
    """Return when one of the servers can be looked for. Raises `HostNotFound` where none of their names is known."""
    hosts: Sequence[tuple[str, int]] = session.client.hosts
    if any(connection.is_address(host) for host, _ in hosts):
        return
    answered, known = ThreadSignal(), threading.Event()
    looked_up: dict[tuple[str, int], str] = {}

    def look_up(host: str, port: int) -> None:
        why: object = None
        try:
            if socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                known.set()
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
        finally:
            looked_up[host, port] = f"{host} ({why})"
            answered.fire()

    for each in hosts:  # in threads of their own: nothing bounds how long the system takes
        threading.Thread(target=look_up, args=each, name="zkmq-names", daemon=True).start()
    while True:
        seen = answered.count
        if known.is_set():
            return
        if all(each in looked_up for each in hosts):
            unknown = ", ".join(looked_up[each] for each in hosts)
            raise HostNotFound(f"no ZooKeeper server can be looked for: its name is not known here: {unknown}")
        if not connection.left(call_deadline.deadline()):
            raise session.unavailable(call_deadline.limit)
        answered.wait(seen, connection.left(call_deadline.deadline()))
