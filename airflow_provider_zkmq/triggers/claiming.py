"""A watch that claims for runs to come: what `ZkmqEventTrigger` waits by with ``mode="claim"``.

It keeps nothing of what it has claimed: how much is in flight stands in the tree, and claims that no run accepts end
with their leases, uncounted. So nothing is lost or given back wrongly however it ends, and whoever runs beside it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.hooks.claims import told
from airflow_provider_zkmq.hooks.telemetry import count_claimed
from airflow_provider_zkmq.triggers.watching import Watch

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AsyncClaim, AsyncQueue

#: Without room, the queue is looked at again when it has changed, after so many seconds at the soonest and the latest.
_SOONEST: Final = 2.0
_LATEST: Final = 15.0
#: The payloads of an event take so many bytes at the most, as base64.
DATA_BYTES: Final = 48_000


@dataclass(frozen=True, slots=True)
class Terms:
    """How claims are taken: how many leases the queue has at the most, of how many seconds, and what is told."""

    max_in_flight: int
    lease: float
    include_data: bool


class ClaimingWatch(Watch):
    """Claims what there is room for, group by group, and tells of each group once."""

    def __init__(self, conn_id: str, queue: str | None, selector: str | None, terms: Terms, log: Any) -> None:
        super().__init__(conn_id, queue, selector, 0.0, log)
        self._terms = terms

    async def _next(self, queue: AsyncQueue) -> dict[str, Any]:
        """Wait for work and room, claim and return the event. From the claim to the event nothing is waited for."""
        terms = self._terms
        while True:
            await queue.ready(selector=self._selector, timeout=None)
            seen = queue.changes
            claims = await queue.claim_many(
                terms.max_in_flight,
                selector=self._selector,
                lease=terms.lease,
                ahead="all",
                max_leases=terms.max_in_flight,
            )
            if claims:
                count_claimed(queue.name, [claim.task for claim in claims])
                entries = _entries(queue.name, claims, DATA_BYTES if terms.include_data else 0)
                return {"queue": queue.name, "selector": self._selector, "claims": entries}
            await asyncio.sleep(_SOONEST)
            await queue.wait_for_change(seen, min(_LATEST, terms.lease))


def _entries(queue: str, claims: Sequence[AsyncClaim], room: int) -> list[dict[str, Any]]:
    """Return the claims as events name them; the first payloads that fit into the `room` are told, too."""
    entries: list[dict[str, Any]] = []
    for claim in claims:
        data, size = claim.task.data, (len(claim.task.data) + 2) // 3 * 4
        entry: dict[str, Any] = {**told(queue, claim)}
        if room and size <= room:
            entry["data"] = base64.b64encode(data).decode()
            room -= size
        entries.append(entry)
    return entries
