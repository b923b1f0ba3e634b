"""`ZkmqLeaseTrigger`: keeps a DAG run's claims from running out, in the triggerer, for as long as they hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from airflow_provider_zkmq.engine import Duration, Unsupported
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.templating import span
from airflow_provider_zkmq.triggers.keeping import Keeping

#: Seconds: a shorter lease could run out before anybody extends it.
_SHORTEST: Final = 3.0
#: What goes on when its trigger has gone: an event loop itself keeps no task alive.
_GIVING_BACK: Final[set[asyncio.Task[None]]] = set()


def checked_lease(lease: Duration | str) -> float:
    """Return a lease in seconds. Raises `ValueError` for one that is too short to be extended, and `ConfigError`."""
    seconds = span("lease", lease)
    if seconds is None or seconds < _SHORTEST:
        raise ValueError(f"lease {lease!r} is not allowed: {_SHORTEST:g} seconds or more, to be extended in time")
    return seconds


class ZkmqLeaseTrigger(BaseTrigger):
    """Extends claims every third of their lease, until none of them holds, and ends its Airflow task as a success.

    A claim is over when its task was settled, by whomever, or was lost; that is learnt by a watch. ZooKeeper being away
    ends nothing: the trigger tries again after pauses, with one line a minute in its log. Where the Airflow task that
    is to settle has ended and has not settled, the claims are left to their leases, so that the tasks are delivered
    again. Where that task is skipped, as by a run's time-out (``dagrun_timeout``), the claims are given back. Where the
    connection names queue files, which a trigger cannot use, its Airflow task is ended as a failure, and the log says
    why. Nothing else is settled here, whatever ends the trigger; two triggerers that run it do no harm.

    Args:
        claims: the claims, each as the queue's name, the task's id and the token.
        lease: seconds for which a claim holds after it was extended.
        settle: the Airflow task that is to settle, as its DAG, run, task and map index; None: it is not looked at.
        zkmq_conn_id: the Airflow connection; its secrets are looked up where the trigger runs.

    """

    def __init__(
        self,
        *,
        claims: list[list[Any]],
        lease: float,
        settle: list[Any] | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
    ) -> None:
        super().__init__()
        self.claims = [list(claim) for claim in claims]
        self.lease = lease
        self.settle = None if settle is None else list(settle)
        self.zkmq_conn_id = zkmq_conn_id
        self._keeping: Keeping | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, plain JSON."""
        kwargs = {name: getattr(self, name) for name in ("claims", "lease", "settle", "zkmq_conn_id")}
        return ("airflow_provider_zkmq.triggers.leases.ZkmqLeaseTrigger", kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the one event that ends the task without a worker; by then nothing is extended any more."""
        keeping = self._keeping = Keeping(self.zkmq_conn_id, self.claims, self.lease, self.settle, self.log)
        end: TriggerEvent = TaskSuccessEvent()
        try:
            await keeping.until_over()
        except Unsupported as error:
            self.log.warning("Nothing is extended, and the claims are left to their leases: %s", error)
            end = TaskFailedEvent()
        finally:
            await keeping.leave()
        yield end

    async def on_kill(self) -> None:
        """Give the claims back where the Airflow task that was to settle them is skipped, as by a run's time-out.

        Airflow calls this on other occasions, too, in which that task is still to come. It cancels this call when it
        takes long: what it began goes on.
        """
        if self._keeping is not None:
            giving_back = asyncio.create_task(self._keeping.give_back())
            _GIVING_BACK.add(giving_back)
            giving_back.add_done_callback(_GIVING_BACK.discard)
            await asyncio.shield(giving_back)

    async def cleanup(self) -> None:
        """Give the shared session back."""
        if self._keeping is not None:
            await self._keeping.leave()
