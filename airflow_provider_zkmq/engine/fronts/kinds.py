"""The two kinds of front: objects whose calls block, and objects whose calls are awaited.

Everything that the two do differently stands here and in `handover`, once; what can be asked of them is described
in `methods` and `verbs`, once for both.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from airflow_provider_zkmq.engine.core.claiming.ask import Asked
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.fronts.handover import handed_over, handed_over_async
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.limits import Patience, left
from airflow_provider_zkmq.engine.zk.session import Session

S = TypeVar("S")
T = TypeVar("T")
C = TypeVar("C")


class Front(Generic[S]):
    """An object whose calls are procedures on its subject, carried out over one session."""

    def __init__(self, session: Session, subject: S) -> None:
        self._session = session
        self._subject = subject

    @property
    def closed(self) -> bool:
        """Whether its connection has been closed: nothing can be done with it any more."""
        return self._session.closed

    def _explained(self, procedure: Procedure[T]) -> Procedure[T]:
        """A procedure on the subject, with its errors as callers are to see them. A queue overrides this."""
        return procedure

    def _mark_used(self) -> None:
        """Tasks are about to be enqueued or claimed. A queue overrides this: its client then takes part in clean-up."""


class Blocking(Front[S]):
    """A front whose calls block the calling thread until they are carried out."""

    def _carry_out(self, call: Callable[[S], Procedure[T]]) -> T:
        """Carry out the procedure that `call` makes of the subject."""
        return run(self._session, self._explained(call(self._subject)))


class Awaited(Front[S]):
    """A front whose calls are coroutines; the event loop goes on meanwhile."""

    async def _carry_out(self, call: Callable[[S], Procedure[T]]) -> T:
        """Carry out the procedure that `call` makes of the subject."""
        return await arun(self._session, self._explained(call(self._subject)))


class BlockingTaker(Blocking[S], Generic[S, C]):
    """A blocking front that claims tasks and hands each over as a `C`."""

    @abstractmethod
    def _receive(self, context: Context, claimed: Claimed) -> C:
        """What the caller gets for a claim. May neither block nor fail."""

    def _take(self, ask: Callable[[S], Procedure[Asked]], patience: Patience | None = None) -> C | None:
        """Claim what is asked for. After `deliver`, inside of `handed_over`, nothing may happen but returns.

        An interrupt of the calling thread is raised at the next call or end of a ``with`` block; one that fell there
        would lose a claim that the client does not remember any more.
        """
        patience = patience or self._session.patience()
        asked = run(self._session, ask(self._subject), patience)
        self._mark_used()
        first = lambda claims: self._receive(asked.context, claims[0]) if claims else None  # noqa: E731
        return handed_over(self._session, asked, first, patience)

    def _take_all(self, ask: Callable[[S], Procedure[Asked]]) -> list[C]:
        """Claim what is asked for, several at once; as in `_take`, nothing happens after `deliver`."""
        patience = self._session.patience()
        asked = run(self._session, ask(self._subject), patience)
        self._mark_used()
        all_of = lambda claims: [self._receive(asked.context, each) for each in claims]  # noqa: E731
        return handed_over(self._session, asked, all_of, patience)


class AwaitedTaker(Awaited[S], Generic[S, C]):
    """An awaited front that claims tasks and hands each over as a `C`."""

    @abstractmethod
    def _receive(self, context: Context, claimed: Claimed) -> C:
        """What the caller gets for a claim. May not fail."""

    async def _take(self, ask: Callable[[S], Procedure[Asked]], patience: Patience | None = None) -> C | None:
        """Claim what is asked for. Cancelled, it gives back what it took."""
        patience = patience or self._session.patience()
        asked = await arun(self._session, ask(self._subject), patience)
        self._mark_used()
        first = lambda claims: self._receive(asked.context, claims[0]) if claims else None  # noqa: E731
        return await handed_over_async(self._session, asked, first, patience)

    async def _take_all(self, ask: Callable[[S], Procedure[Asked]]) -> list[C]:
        """Claim what is asked for, several at once. Cancelled, it gives back all that it took."""
        patience = self._session.patience()
        asked = await arun(self._session, ask(self._subject), patience)
        self._mark_used()
        all_of = lambda claims: [self._receive(asked.context, each) for each in claims]  # noqa: E731
        return await handed_over_async(self._session, asked, all_of, patience)


class BlockingInTurn(BlockingTaker[S, C]):
    """A blocking front whose calls are carried out one after the other, from whichever threads they come.

    A call waits for its turn as long as it would for a server. Raises `Unavailable` past that: it has sent nothing.
    """

    def __init__(self, session: Session, subject: S) -> None:
        super().__init__(session, subject)
        self._turn = threading.RLock()

    def _carry_out(self, call: Callable[[S], Procedure[T]]) -> T:
        """Carry out the procedure that `call` makes of the subject, when it is this call's turn."""
        patience = self._begin()
        try:
            return run(self._session, self._explained(call(self._subject)), patience)
        finally:
            self._turn.release()

    def _take(self, ask: Callable[[S], Procedure[Asked]], patience: Patience | None = None) -> C | None:
        """Claim what is asked for; the subject remembers it, so an interrupt after the handing over loses nothing."""
        patience = self._begin()
        try:
            return super()._take(ask, patience)
        finally:
            self._turn.release()

    def _begin(self) -> Patience:
        patience = self._session.patience()
        patience.begin()
        if not self._turn.acquire(timeout=left(patience.deadline())):
            raise self._session.unavailable(patience.limit)
        return patience


class AwaitedInTurn(AwaitedTaker[S, C]):
    """An awaited front whose calls are carried out one after the other, from whichever coroutines they come."""

    def __init__(self, session: Session, subject: S) -> None:
        super().__init__(session, subject)
        self._turn = asyncio.Lock()

    async def _carry_out(self, call: Callable[[S], Procedure[T]]) -> T:
        """Carry out the procedure that `call` makes of the subject, when it is this call's turn."""
        patience = await self._begin()
        try:
            return await arun(self._session, self._explained(call(self._subject)), patience)
        finally:
            self._turn.release()

    async def _take(self, ask: Callable[[S], Procedure[Asked]], patience: Patience | None = None) -> C | None:
        """Claim what is asked for, when it is this call's turn."""
        patience = await self._begin()
        try:
            return await super()._take(ask, patience)
        finally:
            self._turn.release()

    async def _begin(self) -> Patience:
        patience = self._session.patience()
        patience.begin()
        try:
            async with asyncio.timeout(left(patience.deadline())):
                await self._turn.acquire()
        except TimeoutError:
            raise self._session.unavailable(patience.limit) from None
        return patience
