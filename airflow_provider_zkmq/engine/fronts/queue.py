"""The blocking front: `Queue` and `Claim`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.fronts.hand import Hand
from airflow_provider_zkmq.engine.fronts.kinds import Blocking, BlockingTaker
from airflow_provider_zkmq.engine.fronts.transaction import UnitOfWork
from airflow_provider_zkmq.engine.fronts.verbs import ClaimVerbs, QueueVerbs
from airflow_provider_zkmq.engine.working.worker import Worker
from airflow_provider_zkmq.engine.zk.session import Session


class Claim(ClaimVerbs[UnitOfWork], Blocking[Hand]):
    """A task in hand. Settle it with exactly one of `complete`, `fail`, `release` and `snooze`.

    A session-bound claim ends with its ZooKeeper session, or with its lock; a leased one at its deadline.
    """


class Queue(QueueVerbs, BlockingTaker[Context, Claim]):
    """A queue, each call blocking until ZooKeeper has answered. Usable from several threads.

    The settling methods take a task's id and its claim's token, from whichever process; see `Claim`.
    """

    def __init__(
        self,
        session: Session,
        context: Context,
        used: Callable[[Context], None],
        begin: Callable[[], UnitOfWork],
    ) -> None:
        super().__init__(session, context, used)
        self._begin = begin

    def _receive(self, context: Context, claimed: Claimed) -> Claim:
        """The claim that a caller gets."""
        return Claim(self._session, Hand(context, claimed), self._begin)

    def worker(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """A worker that claims, runs `handler` and settles; the options are `Worker`'s."""
        return Worker(self, handler, **options)
