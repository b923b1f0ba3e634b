"""A worker's heartbeat: it extends the locks and leases of what is in hand, and waits for nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.protocols import (
    AsyncWorkerClaim,
    AsyncWorkerTransaction,
    BaseClaim,
    Closing,
    WorkerClaim,
    WorkerTransaction,
)
from airflow_provider_zkmq.engine.working.deliveries import Deliveries, Delivery
from airflow_provider_zkmq.engine.working.handling import MAINTENANCE_SECONDS

# --- Waiting on an event loop: for an event or a while, for many tasks, and for tasks that are to end.

#: How long a cancelled task is waited for, and how often it is told again to end.
CANCEL_SECONDS: Final = 1.0
MOST_CANCELLATIONS: Final = 3


async def until(event: asyncio.Event, span: float) -> None:
    """Wait for the event, `span` seconds at the most; a cancellation is never swallowed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(span):
            await event.wait()


async def all_of(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for all of the tasks, however they end."""
    await asyncio.wait(tasks)


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended; one that swallows a cancellation gets another, and is then left alone."""
    for _ in range(MOST_CANCELLATIONS):
        pending = {task for task in tasks if not task.done()}
        if not pending:
            return
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_SECONDS)


def is_cancelled() -> bool:
    """Whether the running task was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# --- A worker's heart: it extends the locks and leases of what is in hand, and waits for nothing else.

C = TypeVar("C", bound=BaseClaim)
U = TypeVar("U", bound=Closing)


class Heartbeat:
    """Beats for the deliveries of one worker, in a thread of its own."""

    def __init__(self, deliveries: Deliveries[WorkerClaim, WorkerTransaction]) -> None:
        self._deliveries = deliveries
        self._pulse = threading.Event()

    def wake(self) -> None:
        """There is one more to extend."""
        self._pulse.set()

    def run(self, wanted: Callable[[], bool]) -> None:
        """Extend what is due, each time a third of its span has passed, while `wanted` says so."""
        while wanted():
            self._pulse.clear()
            for delivery in self._deliveries.due():
                self._extend(delivery)
            self._pulse.wait(self._deliveries.seconds_until_extension(MAINTENANCE_SECONDS))

    def _extend(self, delivery: Delivery[WorkerClaim, WorkerTransaction]) -> None:
        try:
            delivery.claim.extend(delivery.span or 0.0)
        except Exception as error:  # noqa: BLE001  the others are to be extended, too
            _beaten(self._deliveries, delivery, error)
        else:
            _beaten(self._deliveries, delivery)


class AsyncHeartbeat:
    """Beats for the deliveries of one worker, in a task of its own."""

    def __init__(self, deliveries: Deliveries[AsyncWorkerClaim, AsyncWorkerTransaction]) -> None:
        self._deliveries = deliveries
        self._pulse = asyncio.Event()

    def wake(self) -> None:
        """There is one more to extend."""
        self._pulse.set()

    async def run(self) -> None:
        """Extend what is due, each time a third of its span has passed, until cancelled."""
        while True:
            self._pulse.clear()
            for delivery in self._deliveries.due():
                await self._extend(delivery)
            await until(self._pulse, self._deliveries.seconds_until_extension(MAINTENANCE_SECONDS))

    async def _extend(self, delivery: Delivery[AsyncWorkerClaim, AsyncWorkerTransaction]) -> None:
        try:
            await delivery.claim.extend(delivery.span or 0.0)
        except Exception as error:  # noqa: BLE001  the others are to be extended, too
            _beaten(self._deliveries, delivery, error)
        else:
            _beaten(self._deliveries, delivery)


def _beaten(deliveries: Deliveries[C, U], delivery: Delivery[C, U], error: Exception | None = None) -> None:
    """A claim was extended, or that failed: then it is tried again soon."""
    if error is not None:
        log.warning("extending task %r: %s", delivery.claim.task.id, error)
    deliveries.beaten(delivery, good=error is None)
