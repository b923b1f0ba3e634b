"""Settling what a worker's threads have in hand: again and again, until it is known to be settled or lost."""

from __future__ import annotations

import time
from functools import partial

from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.protocols import Claim, Transaction
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, Deliveries, Delivery
from airflow_provider_zkmq.engine.working.verdicts import RETRY_SECONDS, Tally, Verdict


class Settler:
    """Settles deliveries in the thread that it is called from."""

    def __init__(self, deliveries: Deliveries[Claim, Transaction], tally: Tally) -> None:
        self._deliveries = deliveries
        self._tally = tally

    def begin(self, delivery: Delivery[Claim, Transaction]) -> bool:
        """Its handler is about to be called; False: it is not, since that cannot be said."""
        if delivery.claim.ahead:
            try:
                delivery.claim.begin()
            except Exception as error:  # noqa: BLE001  whatever it is: it is given back, which tells more
                log.warning("task %r is not begun: %s", delivery.claim.task.id, error)
                return False
        return True

    def give_back(self, deliveries: list[Delivery[Claim, Transaction]]) -> None:
        """Settle what was taken ahead and whose handlers will not be called."""
        for delivery in deliveries:
            if self._deliveries.decide(delivery, NOT_BEGUN):
                self.settle(delivery)

    def settle(self, delivery: Delivery[Claim, Transaction]) -> None:
        """Settle, however long ZooKeeper is away while the session lives; one task's trouble ends no thread."""
        try:
            while self._try(delivery) is Verdict.AGAIN:
                time.sleep(RETRY_SECONDS)
        finally:
            self._deliveries.drop(delivery)

    def settle_later(self, delivery: Delivery[Claim, Transaction]) -> None:
        """Settle together with others, without waiting for it; it is in hand until that is known."""
        delivery.claim.settle_later(delivery.outcome or NOT_BEGUN, delivery.progress, partial(self._told, delivery))

    def _told(self, delivery: Delivery[Claim, Transaction], success: bool, error: Exception | None) -> None:
        try:
            if error is None:
                self._tally.settled(delivery, success=success)
            elif self._tally.judge(delivery, error) is not Verdict.LOST:
                self._deliveries.leave(delivery)
        finally:
            self._deliveries.drop(delivery)

    def settle_left(self) -> None:
        """Try once more what could not be settled."""
        for delivery in self._deliveries.take_left():
            delivery.progress.refusals = 0
            if self._try(delivery) is Verdict.AGAIN:
                self._deliveries.leave(delivery)

    def _try(self, delivery: Delivery[Claim, Transaction]) -> Verdict:
        try:
            success = delivery.ending().settle(delivery.outcome or NOT_BEGUN, delivery.progress)
        except BaseException as error:  # noqa: BLE001  judged and reported, whatever it is
            verdict = self._tally.judge(delivery, error)
            if verdict is Verdict.LATER:
                self._deliveries.leave(delivery)
            return verdict
        return self._tally.settled(delivery, success=success)
