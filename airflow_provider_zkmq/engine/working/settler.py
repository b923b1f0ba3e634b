"""Settling what a worker's threads have in hand: again and again, until it is known to be settled or lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from airflow_provider_zkmq.engine.errors import ClaimLost, SessionLost, TransportError
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.working.deliveries import Deliveries, Delivery

RETRY_SECONDS: Final = 0.5
#: The pause between two tries at settling what cannot be settled.
LEFT_SECONDS: Final = 5.0


class Settler:
    """Settles deliveries, and counts how they ended.

    `once` tries to settle one, telling whether that is a success; `over` says whether a claim's session has ended.
    """

    def __init__(
        self, deliveries: Deliveries, once: Callable[[Delivery], bool], over: Callable[[Delivery], bool]
    ) -> None:
        self.finished = 0
        self.failed = 0
        self._deliveries = deliveries
        self._once = once
        self._over = over
        self._lock = threading.Lock()

    def settle(self, delivery: Delivery) -> None:
        """Settle, however long ZooKeeper is away while the session lives: what was done must not be done again."""
        try:
            while not self._try(delivery):
                time.sleep(RETRY_SECONDS)
        except (ClaimLost, SessionLost) as error:
            log.warning("task %r: %s", delivery.claim.task.id, error)
        except BaseException:  # noqa: BLE001  one task's trouble must not end a thread
            log.exception("task %r could not be settled; this will be tried again", delivery.claim.task.id)
            self._deliveries.leave(delivery)
        finally:
            self._deliveries.drop(delivery)

    def settle_left(self) -> None:
        """Try once more what could not be settled."""
        for delivery in self._deliveries.take_left():
            delivery.progress.refusals = 0
            try:
                if not self._try(delivery):
                    self._deliveries.leave(delivery)
            except (ClaimLost, SessionLost) as error:
                log.warning("task %r: %s", delivery.claim.task.id, error)
            except Exception as error:  # noqa: BLE001  told in full when it happened first
                log.warning("task %r can still not be settled: %s", delivery.claim.task.id, error)
                self._deliveries.leave(delivery)

    def _try(self, delivery: Delivery) -> bool:
        """Whether it was possible; raises what says that there is nothing left to settle, or no way to."""
        try:
            good = self._once(delivery)
        except TransportError as error:
            if isinstance(error, SessionLost) and self._over(delivery):
                raise
            log.warning("task %r: %s; trying again", delivery.claim.task.id, error)
            return False
        if delivery.begun:
            self._count(delivery, good=good)
        return True

    def _count(self, delivery: Delivery, *, good: bool) -> None:
        with self._lock:
            self.finished += good
            self.failed += not good
        if not good:
            log.info("task %r: %s", delivery.claim.task.id, delivery.progress.outcome)
