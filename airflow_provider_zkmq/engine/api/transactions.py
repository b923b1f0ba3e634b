"""ZkQueue's `UnitOfWork`, blocking and on an event loop."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self, TypeVar

from .. import lazy_asyncio as asyncio
from ..core.claim.claim import ClaimRequest
from ..core.read.inspect import Task
from ..core.zk_operations import Procedure
from ..coroutine_runners import OF_CALLS
from ..log import log
from ..zk.connection import CallDeadline, left
from ..zk.session import Session
from .calls import Choosing
from .transaction_methods import AsyncTransactionMethods, TransactionMethods
from .transaction_procedures import Transaction

T = TypeVar("T")


class UnitOfWork(TransactionMethods):
    """Take tasks and put tasks, in one transaction across queues; leaving its context uncommitted rolls back.

    Bound to the session it began in: once that ended, what it had taken is given back by the server and only
    `rollback` is left to do. Its methods may be called from several threads: they are carried out one after the other,
    and each waits for its turn as long as it would for a server. Raises `Unavailable` past that: it has sent nothing.
    Each taking counts as a delivery.
    """

    def __init__(self, session: Session, transaction: Transaction) -> None:
        super().__init__(session, transaction)
        self._turn = threading.RLock()

    def _carry_out(self, procedure: Procedure[T], call_deadline: CallDeadline | None = None) -> T:
        call_deadline = self._take_turn()
        try:
            return super()._carry_out(procedure, call_deadline)
        finally:
            self._turn.release()

    def _take(
        self, requesting: Procedure[ClaimRequest], choose: Choosing[Task, T], call_deadline: CallDeadline | None = None
    ) -> T:
        """Claim what is asked for; the transaction remembers it: an interrupt after the handing over loses nothing."""
        call_deadline = self._take_turn()
        try:
            return super()._take(requesting, choose, call_deadline)
        finally:
            self._turn.release()

    def _take_turn(self) -> CallDeadline:
        call_deadline = self._session.call_deadline()
        call_deadline.begin()
        if not self._turn.acquire(timeout=left(call_deadline.deadline())):
            raise self._session.unavailable(call_deadline.limit)
        return call_deadline

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.open:
            return
        try:
            self.rollback()
        except Exception as trouble:  # noqa: BLE001  the error that goes on its way is the handler's
            _report(error, trouble)


class AsyncUnitOfWork(AsyncTransactionMethods):
    """`UnitOfWork` on an event loop: ``async with zk.transaction() as tx:``. Its calls are made one after the other."""

    def __init__(self, session: Session, transaction: Transaction) -> None:
        super().__init__(session, transaction)
        self._turn = asyncio.Lock()

    async def _carry_out(self, procedure: Procedure[T], call_deadline: CallDeadline | None = None) -> T:
        call_deadline = await self._take_turn()
        try:
            return await super()._carry_out(procedure, call_deadline)
        finally:
            self._turn.release()

    async def _take(
        self, requesting: Procedure[ClaimRequest], choose: Choosing[Task, T], call_deadline: CallDeadline | None = None
    ) -> T:
        call_deadline = await self._take_turn()
        try:
            return await super()._take(requesting, choose, call_deadline)
        finally:
            self._turn.release()

    async def _take_turn(self) -> CallDeadline:
        call_deadline = self._session.call_deadline()
        call_deadline.begin()
        try:
            async with asyncio.timeout(left(call_deadline.deadline())):
                await self._turn.acquire()
        except TimeoutError:
            raise self._session.unavailable(call_deadline.limit) from None
        return call_deadline

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.open:
            return

        async def undo() -> None:
            try:
                await self.rollback()
            except Exception as trouble:  # noqa: BLE001  the error that goes on its way is the handler's
                _report(error, trouble)

        await OF_CALLS.to_its_end(undo())  # who could roll back again after that?


def _report(error: BaseException | None, trouble: Exception) -> None:
    """What the rollback of a transaction met that `error` ended: a note on it, which goes on its way, and a warning.

    Without one it is raised: nobody would learn of it.
    """
    if error is None:
        raise trouble
    error.add_note(f"its rollback: {trouble}")
    log.warning("rolling back a transaction after %s: %s", type(error).__name__, trouble)
