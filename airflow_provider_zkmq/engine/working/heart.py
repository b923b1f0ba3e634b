"""A worker's heart: it extends the locks and leases of what is in hand, and waits for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.working.deliveries import Deliveries, Delivery

#: The longest pause between two looks.
LOOK_SECONDS: Final = 1.0


class Heart:
    """Beats for the deliveries of one worker, in a thread of its own."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._pulse = threading.Event()

    def quicken(self) -> None:
        """There is one more to extend."""
        self._pulse.set()

    def beat(self, wanted: Callable[[], bool]) -> None:
        """Extend what is due, each time a third of its span has passed, while `wanted` says so."""
        while wanted():
            self._pulse.clear()
            for delivery in self._deliveries.due():
                self._extend(delivery)
            self._pulse.wait(self._deliveries.until_next_beat(LOOK_SECONDS))

    def _extend(self, delivery: Delivery) -> None:
        try:
            delivery.claim.extend(delivery.span)
        except Exception as error:  # noqa: BLE001  the others are to be extended, too
            log.warning("extending task %r: %s", delivery.claim.task.id, error)
            self._deliveries.beaten(delivery, good=False)
        else:
            self._deliveries.beaten(delivery, good=True)
