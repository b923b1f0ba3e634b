"""Opening a session with its drivers; what is wrong is said at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from airflow_provider_zkmq.engine.core.ops import Op, Procedure, Reconnect, Wait
from airflow_provider_zkmq.engine.core.read.nodes import refuse_another_layout
from airflow_provider_zkmq.engine.errors import HostNotFound
from airflow_provider_zkmq.engine.zk.async_driver import execute as execute_on_loop
from airflow_provider_zkmq.engine.zk.connection import CallDeadline, is_address, left, over
from airflow_provider_zkmq.engine.zk.session import CLOSING_SECONDS, Session, ThreadSignal
from airflow_provider_zkmq.engine.zk.sync_driver import carry_out, execute

# --- Drivers: they carry a procedure's operations out, blocking or on an event loop.
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
    session.refuse_a_fork()
    call_deadline = call_deadline or session.call_deadline()
    try:
        op = _resume(session, procedure.send, None)
        while True:
            try:
                result = execute(session, op, call_deadline)
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


async def arun(session: Session, procedure: Procedure[T], call_deadline: CallDeadline | None = None) -> T:
    """Carry a procedure out on the running event loop, which is never blocked for long.

    A step does no I/O, and of many that are ready at once some go on in a later round; see `fairness`.
    """
    session.refuse_a_fork()
    call_deadline = call_deadline or session.call_deadline()
    try:
        await session.fairness.turn()
        op = _resume(session, procedure.send, None)
        while True:
            try:
                result = await execute_on_loop(session, op, call_deadline)
                if isinstance(op, Wait | Reconnect):  # what one event wakes, many at once; nothing of theirs is sent
                    await session.fairness.turn()
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


def _resume(session: Session, go_on: Callable[[Any], Op], result: Any) -> Op:
    """One step of a procedure, alone with its client's memory."""
    with session.memory:
        return go_on(result)


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
        carry_out(session, session.access.look_around(), call_deadline)
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
