"""`Settler` for coroutines: what does not end in time goes on in the background."""

from __future__ import annotations

import asyncio

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.tasks.outcome import settle_outcome
from airflow_provider_zkmq.engine.errors import ClaimLost, SessionLost, TransportError
from airflow_provider_zkmq.engine.fronts.background import Background
from airflow_provider_zkmq.engine.fronts.transaction import is_over
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, Deliveries, Delivery
from airflow_provider_zkmq.engine.working.settler import LEFT_SECONDS, RETRY_SECONDS
from airflow_provider_zkmq.engine.zk.drivers import arun
from airflow_provider_zkmq.engine.zk.session import Session, log


class AsyncSettler:
    """Settles deliveries, and counts how they ended; see `Settler`."""

    def __init__(self, session: Session, context: Context, deliveries: Deliveries) -> None:
        self.finished = 0
        self.failed = 0
        self._session = session
        self._context = context
        self._deliveries = deliveries
        self.background = Background()

    async def settle(self, delivery: Delivery) -> None:
        """Settle, however long ZooKeeper is away while the session lives: what was done must not be done again."""
        try:
            while not await self._try(delivery):  # noqa: ASYNC110  the pause between two tries
                await asyncio.sleep(RETRY_SECONDS)
        except (ClaimLost, SessionLost) as error:
            log.warning("task %r: %s", delivery.claim.task.id, error)
        except Exception:  # noqa: BLE001  one task's trouble must not end the others
            log.exception("task %r could not be settled; this will be tried again", delivery.claim.task.id)
            self.background.do(self._settle_later(delivery))
        finally:
            self._deliveries.drop(delivery)

    async def _settle_later(self, delivery: Delivery) -> None:
        """What could not be settled by whatever means is tried again, while others are handled."""
        await asyncio.sleep(LEFT_SECONDS)
        delivery.progress.refusals = 0
        await self.settle(delivery)

    async def _try(self, delivery: Delivery) -> bool:
        """Whether it was possible; raises what says that there is nothing left to settle, or no way to."""
        try:
            good = await self._once(delivery)
        except TransportError as error:
            if isinstance(error, SessionLost) and is_over(self._session, delivery.claim._held):  # noqa: SLF001
                raise
            log.warning("task %r: %s; trying again", delivery.claim.task.id, error)
            return False
        self.finished += good and delivery.begun
        self.failed += not good and delivery.begun
        return True

    async def _once(self, delivery: Delivery) -> bool:
        held, outcome = delivery.claim._held, delivery.outcome or NOT_BEGUN  # noqa: SLF001  the two are one piece
        if delivery.transaction is not None:
            return await delivery.transaction.settle(self._context, held, outcome, delivery.progress)  # type: ignore[no-any-return]
        return await arun(self._session, settle_outcome(self._context, held, outcome, None, delivery.progress))
