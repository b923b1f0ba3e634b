"""The asynchronous front: `AsyncQueue` and `AsyncClaim`, the same names, awaitable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_zkmq.engine.core.client.claims import Claimed
from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.fronts.claims import Hand
from airflow_provider_zkmq.engine.fronts.methods import Awaited, AwaitedTaker
from airflow_provider_zkmq.engine.fronts.queue import ClaimVerbs, QueueVerbs
from airflow_provider_zkmq.engine.fronts.transaction import AsyncUnitOfWork
from airflow_provider_zkmq.engine.working.async_worker import AsyncWorker
from airflow_provider_zkmq.engine.zk.session import Session


class AsyncClaim(ClaimVerbs[AsyncUnitOfWork], Awaited[Hand]):
    """A task in hand; see `Claim`."""


class AsyncQueue(QueueVerbs, AwaitedTaker[Context, AsyncClaim]):
    """A queue on an event loop; its methods are `Queue`'s."""

    def __init__(
        self,
        session: Session,
        context: Context,
        used: Callable[[Context], None],
        begin: Callable[[], AsyncUnitOfWork],
    ) -> None:
        super().__init__(session, context, used)
        self._begin = begin

    def _receive(self, context: Context, claimed: Claimed) -> AsyncClaim:
        """The claim that a caller gets."""
        return AsyncClaim(self._session, Hand(context, claimed), self._begin)

    def worker(self, handler: Callable[..., Any], **options: Any) -> AsyncWorker:
        """A worker that claims, awaits `handler` and settles; the options are `AsyncWorker`'s."""
        return AsyncWorker(self, handler, **options)
