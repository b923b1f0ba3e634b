"""What a worker's threads ask of its queue; one that is not there is waited for."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from airflow_provider_zkmq.engine.errors import QueueNotFound
from airflow_provider_zkmq.engine.protocols import Claim, Queue, Transaction
from airflow_provider_zkmq.engine.working.deliveries import Delivery
from airflow_provider_zkmq.engine.working.heart import Heart
from airflow_provider_zkmq.engine.working.options import Handler, Options
from airflow_provider_zkmq.engine.working.rules import Working
from airflow_provider_zkmq.engine.working.settler import Settler


class Asking(Working[Claim, Transaction]):
    """A worker as far as it asks for tasks."""

    def __init__(self, queue: Queue, handler: Handler, options: Options) -> None:
        super().__init__(queue, handler, options)
        self.queue = queue
        self._stopping = threading.Event()
        self._settler = Settler(self._deliveries, self._tally)
        self._heart = Heart(self._deliveries)
        self._filling = threading.Lock()
        """One thread claims for all while handlers are fast."""

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, or has ended."""
        return self._stopping.is_set()

    def _check_wanted(self) -> None:
        """Raise `ConfigError` for what the queue refuses. One that is not there can refuse nothing yet."""
        try:
            self.queue.check_wanted(**self._options.choice)
        except QueueNotFound as error:
            self._tell_of_absence(error, 0)

    def _claim(self, *, idle: bool) -> Delivery[Claim, Transaction] | None:
        """Claim, for all threads if handlers are fast; None: there was nothing, or no queue, and it was waited for."""
        if idle or not self._ahead.fast:
            return self._fill(idle=idle)
        with self._filling:  # who had it may have waited for the queue, or for a server
            return None if self.stopping else self._ahead.take() or self._fill(idle=False)

    def _fill(self, *, idle: bool) -> Delivery[Claim, Transaction] | None:
        """Claim, where handlers are fast more than one; the first of them is the caller's."""
        since = self._absence.ended
        try:
            with self._ahead.asking(idle=idle):
                claims = self._claim_within_limit(self._patience(idle=idle))
        except QueueNotFound as error:
            self._await_queue(error, since)
            return None
        deliveries = [self._add(claim) for claim in claims]
        self._ahead.put(deliveries[1:])
        if self._ahead and self._ahead.idle:  # who began to wait meanwhile takes of it
            self.queue.wake()
        return deliveries[0] if deliveries else None

    def _claim_within_limit(self, patience: float) -> Sequence[Claim]:
        most = self._budget.take(self._ahead.room)
        claims: Sequence[Claim] = []
        try:
            if most:
                claims = self._ask(most, patience)
        finally:
            self._budget.put_back(most - len(claims))
        return claims

    def _return(self, deliveries: list[Delivery[Claim, Transaction]]) -> None:
        """Give back what was taken ahead and whose handlers will not be called."""
        self._budget.put_back(len(deliveries))
        self._settler.give_back(deliveries)

    def _ask(self, most: int, patience: float) -> Sequence[Claim]:
        choice, lease = self._options.choice, self._options.lease
        stopping = lambda: self._stopping.is_set() or bool(self._ahead)  # noqa: E731
        if most > 1:
            return self.queue.claim_many(most, **choice, lease=lease, timeout=patience, stopping=stopping, ahead=True)
        claim = self.queue.claim(**choice, lease=lease, timeout=patience, stopping=stopping)
        return [] if claim is None else [claim]

    def _add(self, claim: Claim) -> Delivery[Claim, Transaction]:
        transaction = claim.transaction() if self._options.transactional else None
        delivery = self._deliveries.add(claim, claim.span, transaction)
        self._heart.quicken()  # one more to extend
        return delivery

    def _await_queue(self, error: QueueNotFound, since: int) -> None:
        """Wait for the queue to come, or the worker to be stopped."""
        self._tell_of_absence(error, since)
        if self.queue.exists(None, stopping=self._stopping.is_set):
            self._absence.end()

    def _size(self) -> int:
        """How many tasks are pending, once there is a queue. Raises `QueueNotFound` where none came before the end."""
        since = self._absence.ended
        try:
            return self.queue.pending()
        except QueueNotFound as error:
            self._await_queue(error, since)
        return self.queue.pending()
