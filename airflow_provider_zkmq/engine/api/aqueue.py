"""The asynchronous API: `AsyncQueue` and `AsyncClaim`, the same names, awaitable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_zkmq.engine.api.claim_handles import ClaimHandle
from airflow_provider_zkmq.engine.api.methods import AsyncApi, AsyncClaiming
from airflow_provider_zkmq.engine.api.queue import ClaimMethods, QueueMethods
from airflow_provider_zkmq.engine.api.unit_of_work import AsyncUnitOfWork
from airflow_provider_zkmq.engine.core.client.claims import Claimed
from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.working.async_worker import AsyncWorker
from airflow_provider_zkmq.engine.zk.session import Session


class AsyncClaim(ClaimMethods[AsyncUnitOfWork], AsyncApi[ClaimHandle]):
    """A task in hand; see `Claim`."""


class AsyncQueue(QueueMethods, AsyncClaiming[Context, AsyncClaim]):
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
        return AsyncClaim(self._session, ClaimHandle(context, claimed), self._begin)

    def worker(self, handler: Callable[..., Any], **options: Any) -> AsyncWorker:
        """A worker that claims, awaits `handler` and settles; the options are `AsyncWorker`'s."""
        return AsyncWorker(self, handler, **options)
