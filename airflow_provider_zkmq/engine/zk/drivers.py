"""Drivers: they carry out what procedures yield, blocking the calling thread or awaiting on an event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from airflow_provider_zkmq.engine.core import protocol
from airflow_provider_zkmq.engine.core.model.names import LAYOUT, check_layout
from airflow_provider_zkmq.engine.core.protocol import Procedure
from airflow_provider_zkmq.engine.core.read.nodes import refuse_another_layout
from airflow_provider_zkmq.engine.errors import HostNotFound, TransportError, ZkmqError
from airflow_provider_zkmq.engine.zk import operations
from airflow_provider_zkmq.engine.zk.connection import CallDeadline, is_address, left, over
from airflow_provider_zkmq.engine.zk.operations import Request, SentRequest
from airflow_provider_zkmq.engine.zk.session import CLOSING_SECONDS, Session, ThreadSignal

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


def run(session: Session, procedure: Procedure[T], call_deadline: CallDeadline | None = None) -> T:
    """Carry a procedure out, blocking the calling thread. Raises `TransportError` in a process forked since.

    `call_deadline`: the call's, where it has waited for something before.
    """
    return _blocking(ThreadDriver(session, call_deadline).run(procedure))


async def arun(session: Session, procedure: Procedure[T], call_deadline: CallDeadline | None = None) -> T:
    """Carry a procedure out on the running event loop, which is never blocked for long.

    A step does no I/O, and of many that are ready at once some go on in a later round; see `fairness`.
    """
    return await LoopDriver(session, call_deadline).run(procedure)


def _blocking(steps: Coroutine[Any, Any, T]) -> T:
    """The result of a thread driver's coroutine, which blocks where it waits and never suspends."""
    try:
        steps.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("a driver of threads has nobody to give way to")


class Driver(ABC):
    """Carries operations out. How it waits is the subclass's: a thread's blocks, a loop's awaits."""

    __slots__ = ("call_deadline", "session")

    def __init__(self, session: Session, call_deadline: CallDeadline | None = None) -> None:
        session.refuse_a_fork()
        self.session = session
        self.call_deadline = call_deadline or session.call_deadline()

    @abstractmethod
    async def wait(
        self, signal: ThreadSignal, seen: int, timeout: float | None, place: protocol.WaitPlace | None = None
    ) -> bool:
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
                    if isinstance(op, protocol.Wait | protocol.Reconnect):  # one event wakes many of them at once
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

    async def execute(self, op: protocol.Op) -> Any:
        """Carry one operation out. What it raises is thrown into its procedure; a cancellation is not."""
        match op:
            case protocol.Wait(ThreadSignal() as signal, seen, timeout, turn, place):
                if turn:
                    return await self._turn(signal, seen)
                woken = await self.wait(signal, seen, timeout, place)
                self.call_deadline.answered()
                return woken
            case protocol.Wait(signal):
                msg = f"{signal!r} is no signal that a thread can wait for: use the one that the runtime makes"
                raise TypeError(msg)
            case protocol.SetTimeout(seconds):
                return self.call_deadline.limit_to(seconds)
            case protocol.Pipeline(ops):
                return await self._pipeline(ops)
            case protocol.Reconnect(since):
                self.call_deadline.begin()
                return await self._connected(self.call_deadline.deadline(since))
            case protocol.EnsureRoot(path):
                return await self.carry_out(ensure_root(path))
            case protocol.Callback(call):
                return call()
            case protocol.Post():
                return operations.post(self.session, op)
            case _:
                return (await self._pipeline((op,)))[0]

    async def carry_out(self, steps: Generator[Request, Any, None]) -> None:
        """Carry requests out, one after the other."""
        result = None
        while True:
            try:
                op = steps.send(result)
            except StopIteration:
                return
            result = operations.gathered(self.session, (op,), await self._window((op,)))[0]

    async def _turn(self, signal: ThreadSignal, seen: int) -> bool:
        """Wait for another call of this client, as long as for a server. Raises `Unavailable`."""
        self.call_deadline.begin()
        if not await self.wait(signal, seen, left(self.call_deadline.deadline())):
            raise self.session.unavailable(self.call_deadline.limit)
        return True

    async def _connected(self, deadline: float) -> None:
        """Wait for the connection. Raises `Unavailable` past the deadline, and at once where it was closed."""
        session = self.session
        while True:
            seen = session.changed.count
            session.usable()
            if over(deadline):
                raise session.unavailable(self.call_deadline.limit)
            if session.connected.is_set():
                return
            await self.wait(session.changed, seen, left(deadline))

    async def _pipeline(self, ops: Sequence[Request]) -> list[Any]:
        """Several requests, so many in flight at once; none is sent after one that was not answered."""
        operations.check_sizes(ops)
        for steps in self.session.access.questions(ops):
            await self.carry_out(steps)
        results: list[Any] = []
        for start in range(0, len(ops), operations.WINDOW):
            try:
                results += await self._window(ops[start : start + operations.WINDOW])
            except TransportError:
                if not results:
                    raise
                break  # those before were sent
            if any(map(operations.troubled, results)):
                break
        return operations.gathered(self.session, ops, results)

    async def _window(self, ops: Sequence[Request]) -> list[Any]:
        """The results, in order; a request's error stands for its result. Raises only where nothing was sent."""
        self.call_deadline.begin()
        deadline = self.call_deadline.deadline()
        await self._connected(deadline)
        try:
            pending = [operations.submit(self.session, op, more=True) for op in ops]
        finally:
            self.flush()
        return [await self._collect(sent, deadline) for sent in pending]

    async def _collect(self, sent: SentRequest, deadline: float) -> Any:
        """A result or an error; a read whose connection was lost is sent again, a write's outcome is then unknown."""
        try:
            while True:
                try:
                    value = await self.reply(sent.reply, left(deadline))
                except operations.LOST:
                    self.call_deadline.missed()
                    if isinstance(sent.op, operations.WRITES):
                        return operations.unknown(sent)
                    await self._connected(deadline)
                    sent = operations.submit(self.session, sent.op)
                except Exception as error:  # noqa: BLE001  mapped, or raised as it is
                    self.call_deadline.answered()
                    return operations.failed(self.session, sent, error)
                else:
                    self.call_deadline.answered()
                    return operations.receive(self.session, sent, value)
        except Exception as error:  # noqa: BLE001  thrown once the others have been answered
            return error


def _resume(session: Session, go_on: Callable[[Any], protocol.Op], result: Any) -> protocol.Op:
    """One step of a procedure, alone with its client's memory."""
    with session.memory:
        return go_on(result)


class ThreadDriver(Driver):
    """Blocks the calling thread where it waits, so that its coroutines never suspend."""

    __slots__ = ()

    async def wait(
        self, signal: ThreadSignal, seen: int, timeout: float | None, place: protocol.WaitPlace | None = None
    ) -> bool:
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

    async def wait(
        self, signal: ThreadSignal, seen: int, timeout: float | None, place: protocol.WaitPlace | None = None
    ) -> bool:
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
        """Go on in a later round where many are ready at once; see `fairness`."""
        await self.session.fairness.turn()

    def flush(self) -> None:
        """Send it before the loop's next round, with what others submit until then."""
        self.session.flush_soon()


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


def ensure_root(path: str) -> Generator[protocol.Exists | protocol.Get | protocol.Multi, Any, None]:
    """Create a path's missing parts; the last one is given the version of our layout, also where it is there, empty.

    Raises `ConfigError` where it has another.
    """
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts)):
        above = "/" + "/".join(parts[:depth])
        while (yield protocol.Exists(above)) is None:
            yield from _write(protocol.Create(above))
    version = str(LAYOUT).encode()
    node: protocol.Node | None = yield protocol.Get(path)
    while node is None or not node.data:
        yield from _write(
            protocol.Create(path, version) if node is None else protocol.SetData(path, version, node.stat.version)
        )
        node = yield protocol.Get(path)
    check_layout(path, node.data)


def _write(op: protocol.Create | protocol.SetData) -> Generator[protocol.Multi, Any, None]:
    """Write, unless somebody else did; whoever asks looks again, also after a lost reply. Raises `ZkmqError`."""
    outcome: protocol.Outcome = yield protocol.Multi((op,))
    overtaken = outcome.failure in {protocol.Failure.NODE_EXISTS, protocol.Failure.BAD_VERSION}
    if not (outcome.committed or outcome.unknown or overtaken):
        msg = f"writing {op.path} was refused: {outcome.detail}"
        raise ZkmqError(msg)


# --- Opening a session: names, connection, who else may come in, the root's layout; what is wrong is said at once.


def open_session(session: Session) -> None:
    """Connect within ``connect_timeout``, blocking.

    Raises `Unavailable` naming the hosts, as `HostNotFound` and `TlsRefused` at once; `AccessDenied`; `NotSecured`;
    `ConfigError` where what stands under the root has another layout.
    """
    limit = session.config.connect_timeout
    call_deadline = CallDeadline(limit, "connect_timeout")
    call_deadline.limit_to(limit, "connect_timeout", grace=0.0)
    call_deadline.begin()
    try:
        _check_names(session, call_deadline)
        session.open(call_deadline)
        _blocking(ThreadDriver(session, call_deadline).carry_out(session.access.look_around()))
        run(session, refuse_another_layout(session.config.root), call_deadline)
    except BaseException:
        session.close(call_deadline=CLOSING_SECONDS)
        raise


class _Lookup:
    """The look-up of a server's name, in a thread of its own: nothing bounds how long the system takes."""

    def __init__(self, host: str, port: int, answered: ThreadSignal) -> None:
        self.host, self.port = host, port
        self.known = self.over = False
        self.error: OSError | None = None
        self._answered = answered
        threading.Thread(target=self._look, name="zkmq-names", daemon=True).start()

    def _look(self) -> None:
        try:
            self.known = bool(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            self.error = error if isinstance(error, OSError) else OSError(str(error))
        finally:
            self.over = True
            self._answered.fire()

    def __str__(self) -> str:
        return f"{self.host} ({self.error and (self.error.strerror or self.error)})"


def _check_names(session: Session, call_deadline: CallDeadline) -> None:
    """Return when one of the servers can be looked for. Raises `HostNotFound` where none of their names is known."""
    hosts: Sequence[tuple[str, int]] = session.client.hosts
    if any(is_address(host) for host, _ in hosts):
        return
    answered = ThreadSignal()
    lookups = [_Lookup(host, port, answered) for host, port in hosts]
    while True:
        seen = answered.count
        if any(lookup.known for lookup in lookups):
            return
        if all(lookup.over for lookup in lookups):
            unknown = ", ".join(map(str, lookups))
            raise HostNotFound(f"no ZooKeeper server can be looked for: its name is not known here: {unknown}")
        if over(call_deadline.deadline()):
            raise session.unavailable(call_deadline.limit)
        answered.wait(seen, left(call_deadline.deadline()))
