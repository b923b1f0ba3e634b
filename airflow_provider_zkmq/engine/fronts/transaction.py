"""ZkQueue's `UnitOfWork`, blocking and on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from airflow_provider_zkmq.engine.core.claiming.claim import claim
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Held
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import seconds
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.core.tasks import transaction
from airflow_provider_zkmq.engine.core.tasks.giveback import give_back
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled, Settlement, settle_outcome
from airflow_provider_zkmq.engine.errors import OutcomeUnknown, SessionLost, ZkmqError
from airflow_provider_zkmq.engine.fronts.background import OF_CALLS
from airflow_provider_zkmq.engine.fronts.handover import handed_over, handed_over_async
from airflow_provider_zkmq.engine.fronts.methods import Method, held_task, wanted
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session, log

#: What a session's id is while it is not known, which is no news of its end.
UNKNOWN_SESSION: Final = 0


def is_over(session: Session, held: Held) -> bool:
    """Whether the session that a claim is bound to has ended: one that is merely cut off still holds it."""
    leased = held.claim.get("lease") is not None and not held.state.bound
    return session.closed or not (leased or session.id in {held.session, UNKNOWN_SESSION})


class _Transaction:
    """What both fronts share: the unit, and the session it is bound to."""

    def __init__(self, session: Session, context_of: Callable[[str], Context]) -> None:
        self._session = session
        self._context_of = context_of
        self._unit = transaction.Unit()
        self._session_id = session.id
        self._open = True
        self._contexts: set[Context] = set()
        """Where it may be waiting for a task."""

    @property
    def open(self) -> bool:
        """Whether it can still be committed."""
        return self._open

    def _check(self, *, ending: bool = False) -> None:
        if not self._open:
            msg = "this transaction has ended; begin another with transaction()"
            raise ZkmqError(msg)
        self._session_id = self._session_id or self._session.id  # begun while the connection was lost
        asking = ending and self._unit.sent is not None  # what became of a commit is told, whatever session asks
        if not asking and self._session.id not in {self._session_id, UNKNOWN_SESSION}:
            msg = "the session of this transaction has ended; what it had taken is given back"
            raise SessionLost(msg)
        if not ending and (self._unit.sent is not None or self._unit.ended):
            msg = "the outcome of this transaction's commit is not known: commit again, which tells it, or roll back"
            raise ZkmqError(msg)

    def _take(
        self, context: Context, node: Mapping[str, object] | None, filter_method: Method,
        selector: Selector | str | None, timeout: object, caller: Caller,
    ) -> Procedure[Held | None]:  # fmt: skip
        span = seconds("timeout", timeout)
        asked = yield from wanted(context, node, filter_method, selector, None)
        self._contexts.add(context)
        held = yield from claim(context, asked, span, lambda: not self._open or caller.left, caller)
        if held is None or self._open:
            return held
        caller.left = True  # closed while this waited: what it got is nobody's
        yield from give_back(context)
        return None

    def _taken(self, context: Context, held: Held) -> Task:
        self._session_id = self._session_id or held.session
        self._unit.taken.append((context, held))
        return held_task(held)

    def adopt(self, queue: str, held: Held) -> None:
        """Make a claim of the same session part of this transaction; a transactional worker does."""
        self._session_id = held.session
        self._taken(self._context_of(queue), held)

    def _close(self) -> None:
        """Let its handler take and put no more; a `try_take` that waits is woken and takes nothing."""
        self._open = False
        for context in tuple(self._contexts):
            context.signal.fire()


class UnitOfWork(_Transaction):
    """Take tasks and put tasks, in one transaction across queues; leaving its context uncommitted rolls back.

    Bound to the session it began in: once that ended, what it had taken is given back by the server and only
    `rollback` is left to do. Its methods may be called from several threads. Each taking counts as a delivery.
    """

    def __init__(self, session: Session, context_of: Callable[[str], Context]) -> None:
        super().__init__(session, context_of)
        self._lock = threading.RLock()

    def try_take(
        self,
        queue: str,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: object = 0,
    ) -> Task | None:
        """Lock the first task that fits, without removing it; None when there is none within `timeout` seconds."""
        with self._lock:
            self._check()
            context = self._context_of(queue)
            return handed_over(
                self._session,
                context,
                lambda caller: self._take(context, node, filter_method, selector, timeout, caller),
                lambda held: self._taken(context, held),
            )

    def put(self, queue: str, data: bytes | str, filters: Mapping[str, object] | None = None, **options: Any) -> str:
        """Remember a task to write on commit; returns its id. Nothing is written, but what is wrong is refused now."""
        with self._lock:
            self._check()
            context = self._context_of(queue)
            tree = run(self._session, transaction.check_put(context, Message(data, filters, **options)))
            self._unit.put.append((context, tree))
            return tree.task_id

    def commit(self, result: bytes | str | None = None) -> list[str]:
        """Finish what was taken and write what was put, at once; returns the ids put.

        `result` is kept with the task that was taken first. Raises `TaskTooLarge`, `ClaimLost`, `DuplicateTask` or
        `SessionLost`; then nothing happened. After `OutcomeUnknown` call it again: it tells what became of the first
        call, and goes on if that did not happen.
        """
        with self._lock:
            self._check(ending=True)
            ids = run(self._session, transaction.commit(self._unit, result))
            self._open = False
            return ids

    def rollback(self) -> None:
        """Cancel every put and give back everything taken; afterwards no lock of this transaction is left.

        Where the connection is lost for longer, call it again, or the client does it before it claims again. Raises
        `IllegalTransition` where a commit of unknown outcome turns out to have happened.
        """
        with self._lock:
            self._open = False
            run(self._session, transaction.rollback(self._unit))

    def settle(self, context: Context, held: Held, outcome: Handled, progress: Settlement) -> bool:
        """End it, and the claim `held` that was adopted, by what a handler has done. See `settle_outcome`."""
        self._close()
        with self._lock:
            return run(self._session, settle_outcome(context, held, outcome, self._unit, progress))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._open:
            return
        try:
            self.rollback()
        except ZkmqError as trouble:
            _tell(error, trouble)


class AsyncUnitOfWork(_Transaction):
    """`UnitOfWork` on an event loop: ``async with zk.transaction() as tx:``. Its calls are made one after the other."""

    def __init__(self, session: Session, context_of: Callable[[str], Context]) -> None:
        super().__init__(session, context_of)
        self._lock = asyncio.Lock()

    async def try_take(
        self,
        queue: str,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: object = 0,
    ) -> Task | None:
        """Lock the first task that fits; see `UnitOfWork.try_take`."""
        async with self._lock:
            self._check()
            context = self._context_of(queue)
            return await handed_over_async(
                self._session,
                context,
                lambda caller: self._take(context, node, filter_method, selector, timeout, caller),
                lambda held: self._taken(context, held),
            )

    async def put(
        self, queue: str, data: bytes | str, filters: Mapping[str, object] | None = None, **options: Any
    ) -> str:
        """Remember a task to write on commit; see `UnitOfWork.put`."""
        async with self._lock:
            self._check()
            context = self._context_of(queue)
            tree = await arun(self._session, transaction.check_put(context, Message(data, filters, **options)))
            self._unit.put.append((context, tree))
            return tree.task_id

    async def commit(self, result: bytes | str | None = None) -> list[str]:
        """Finish what was taken and write what was put; see `UnitOfWork.commit`."""
        async with self._lock:
            self._check(ending=True)
            ids = await arun(self._session, transaction.commit(self._unit, result))
            self._open = False
            return ids

    async def rollback(self) -> None:
        """Cancel every put and give back everything taken; see `UnitOfWork.rollback`."""
        async with self._lock:
            self._open = False
            await arun(self._session, transaction.rollback(self._unit))

    async def settle(self, context: Context, held: Held, outcome: Handled, progress: Settlement) -> bool:
        """End it, and the claim `held` that was adopted; see `UnitOfWork.settle`."""
        self._close()
        async with self._lock:
            return await arun(self._session, settle_outcome(context, held, outcome, self._unit, progress))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._open:
            return
        await OF_CALLS.to_its_end(self._undo(error))  # who could roll back again after that?

    async def _undo(self, error: BaseException | None) -> None:
        try:
            await self.rollback()
        except ZkmqError as trouble:
            _tell(error, trouble)


def _tell(error: BaseException | None, trouble: ZkmqError) -> None:
    """What the rollback of a transaction met that `error` ended.

    A cancellation or an interrupt goes on its way, and a commit of unknown outcome stays that, both with a note; in any
    other case it is raised.
    """
    if error is None or (isinstance(error, Exception) and not isinstance(error, OutcomeUnknown)):
        raise trouble
    error.add_note(f"its rollback: {trouble}")
    log.warning("rolling back a transaction after %s: %s", type(error).__name__, trouble)
