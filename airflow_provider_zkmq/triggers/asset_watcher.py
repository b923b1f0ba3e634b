"""`ZkmqEventTrigger`: tells DAGs that are scheduled on an asset that a queue has work, or claims it for them."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from ..engine import ConfigError, Duration, QueueNotFound, check_name, parse_selector
from ..engine.queue_internals import internals
from ..hooks import arguments, claim_references, connection_options, metrics, outages
from .sessions import HeldSession

if TYPE_CHECKING:
    from ..engine import AsyncQueue

_LOG: Final = logging.getLogger(__name__)
#: What each mode stores, besides what both do.
_ARGUMENTS: Final = {"wake": ("refire",), "claim": ("max_in_flight", "lease", "include_data")}
#: For each mode what the other one alone reads, and what it is where nobody gave it.
_OF_OTHER: Final = {"wake": {"max_in_flight": 16, "lease": 900}, "claim": {"refire": 60}}
_MOST_IN_FLIGHT: Final = 64
#: After an event the queue is looked at so often, in seconds: where the work is gone, what comes next is told at once.
_LOOK: Final = 2.0
#: Without room, the queue is looked at again when it has changed, after so many seconds at the soonest and the latest.
_SOONEST: Final = 2.0
_LATEST: Final = 15.0
#: The payloads of an event take so many bytes at the most, as base64.
DATA_BYTES: Final = 48_000


class ZkmqEventTrigger(BaseEventTrigger):
    """Watches a queue for an `AssetWatcher`: fires when there is work that fits.

    With ``mode="wake"`` it claims nothing; the run claims. It fires as soon as a task that `selector` matches may be
    delivered, again after each `refire` seconds while any may, and soon for work that comes after the queue was seen
    without. So what a run left, or died with, makes an event again, and the backlog of a slow or paused DAG stays
    pending: no lease runs out meanwhile, and no attempt is counted. The event is ``{"queue", "selector", "counts"}``,
    `counts` being the number of the whole queue's tasks in each state; it has neither payloads nor ids, since Airflow
    logs and stores it.

    With ``mode="claim"`` it claims for runs, as long as the queue has fewer than `max_in_flight` leases, whoever holds
    them: counted in the tree, so that neither a restart nor a second triggerer makes them more. The event is
    ``{"queue", "selector", "claims"}``, each claim ``{"queue", "id", "token", "attempt", "filters"}``. A run accepts a
    claim by ``queue.claim_handle(id, token).begin()``, and keeps and settles that handle. What no run accepts within
    `lease` seconds comes back, counts no attempt, and is claimed and sent again.

    The watch never ends by itself. While ZooKeeper is away, or the connection or the queue is missing or refused, it
    tries again after pauses of 1 to 60 seconds, and its log has one line a minute at the most. Several triggerers may
    run the same watch for a while: each tells of what it found. Nothing is settled, released or cancelled, whatever
    ends it.

    Args:
        zkmq_queue: the queue's name; None: the connection's.
        selector: only tasks that it matches, as text; None: all.
        mode: ``"wake"`` or ``"claim"``, as described.
        refire: of ``"wake"``: seconds, 1 or more, or their text, after which work that is still there makes an event
            again.
        max_in_flight: of ``"claim"``: no more leased claims of the queue, 1 to 64.
        lease: of ``"claim"``: seconds, 1 or more, or their text, for which a claim waits for its run.
        include_data: of ``"claim"``: each claim of an event has the task's payload, too, in base64 as ``"data"``, as
            far as 48 000 bytes reach. Airflow logs each event and stores it. In the other mode it is refused.
        zkmq_conn_id: the Airflow connection; its secrets are looked up where the trigger runs.

    Raises `ConfigError`, where the DAG is parsed, for what is not understood; its log tells what is of the other mode.
    """

    def __init__(
        self,
        *,
        zkmq_queue: str | None = None,
        selector: str | None = None,
        mode: str = "wake",
        refire: Duration | str = 60,
        max_in_flight: int = 16,
        lease: Duration | str = 900,
        include_data: bool = False,
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
    ) -> None:
        super().__init__()
        of_claims = {"max_in_flight": max_in_flight, "lease": lease, "include_data": include_data}
        _check_mode(mode, {"refire": refire, **of_claims})
        # No attribute may be named `queue`: newer releases of Airflow choose a trigger's triggerer by it.
        self.zkmq_queue = check_name("queue", zkmq_queue) if zkmq_queue else None
        if selector is not None and not isinstance(selector, str):
            kind = type(selector).__name__
            raise ConfigError(f"selector must be text, not {kind}: the triggerer is given it as JSON")
        self.selector = selector or None
        if self.selector is not None:
            parse_selector(self.selector)
        self.mode = mode
        self.refire = _seconds("refire", refire)
        arguments.check_number("max_in_flight", max_in_flight, most=_MOST_IN_FLIGHT)
        self.max_in_flight = max_in_flight
        self.lease = _seconds("lease", lease)
        self.include_data = include_data
        self.zkmq_conn_id = zkmq_conn_id
        self._silent_until: float | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, plain JSON: Airflow tells watchers apart by them."""
        names = ("zkmq_queue", "selector", "mode", "zkmq_conn_id", *_ARGUMENTS[self.mode])
        return (
            "airflow_provider_zkmq.triggers.asset_watcher.ZkmqEventTrigger",
            {name: getattr(self, name) for name in names},
        )

    @cached_property
    def _session(self) -> HeldSession:
        return HeldSession(self.zkmq_conn_id, outages.Backoff(self.log))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event whenever there is work to tell of, until cancelled; whatever fails meanwhile ends nothing."""
        try:
            while True:
                try:
                    event = await self._attempt(await self._session.queue(self.zkmq_queue))
                except Exception as error:  # noqa: BLE001  a watch that ended would be missed by nobody
                    await self._session.after(error)
                    continue
                if event is not None:
                    yield TriggerEvent(event)
        finally:
            await self._session.leave()

    async def cleanup(self) -> None:
        """Give the shared session back: a run that was cancelled between two events has not done so yet."""
        await self._session.leave()

    async def _attempt(self, queue: AsyncQueue) -> dict[str, Any] | None:
        """Wait for something to tell; None: the queue was not there, and now it is."""
        try:
            parts = await (self._claimed(queue) if self.mode == "claim" else self._seen(queue))
        except QueueNotFound as error:
            await self._session.backoff.after(error)
            await queue.exists(timeout=None)
            return None
        return {"queue": queue.name, "selector": self.selector, **parts}

    async def _seen(self, queue: AsyncQueue) -> dict[str, Any]:
        """Wait for work that is worth an event; return the counts."""
        clock = asyncio.get_running_loop().time
        while self._silent_until is not None:  # after an event, until its work is gone, at most for `refire` seconds
            left = self._silent_until - clock()
            await asyncio.sleep(max(0.0, min(left, _LOOK)))
            if left <= 0 or not await queue.ready(selector=self.selector, timeout=0):
                self._silent_until = None
        await queue.ready(selector=self.selector, timeout=None)
        counts = await queue.counts()
        self._silent_until = clock() + self.refire
        return {"counts": counts}

    async def _claimed(self, queue: AsyncQueue) -> dict[str, Any]:
        """Wait for work and room, and claim. From the claim to the event nothing is waited for, and nothing is kept.

        How much is in flight stands in the tree, and claims that no run accepts end with their leases, uncounted. So
        nothing is lost or given back wrongly however the trigger ends.
        """
        while True:
            await queue.ready(selector=self.selector, timeout=None)
            seen, most = internals(queue).changes, self.max_in_flight
            claims = await queue.claim_many(
                most, selector=self.selector, lease=self.lease, prefetch="all", max_leases=most
            )
            if claims:
                break
            await asyncio.sleep(_SOONEST)
            await internals(queue).wait_for_change(seen, min(_LATEST, self.lease))
        metrics.count_claimed(queue.name, [claim.task for claim in claims])
        entries: list[dict[str, Any]] = []
        room = DATA_BYTES if self.include_data else 0
        for claim in claims:  # the first payloads that fit are in the event, too
            entry: dict[str, Any] = {**claim_references.claim_reference(queue.name, claim)}
            data, size = claim.task.data, (len(claim.task.data) + 2) // 3 * 4
            if room and size <= room:
                entry["data"] = base64.b64encode(data).decode()
                room -= size
            entries.append(entry)
        return {"claims": entries}


def _check_mode(mode: object, named: dict[str, object]) -> None:
    if mode not in tuple(_OF_OTHER):  # a list has no hash
        raise ConfigError(f"mode {mode!r} is not allowed: 'wake' or 'claim'")
    if not isinstance(named["include_data"], bool):
        raise ConfigError(f"include_data {named['include_data']!r} is not allowed: True or False")
    if mode == "wake" and named["include_data"]:
        raise ConfigError(
            "include_data would go with mode='claim': a wake event names no task whose data it could have"
        )
    without_use = [name for name, value in _OF_OTHER[str(mode)].items() if named[name] != value]
    if without_use:
        _LOG.warning("ZkmqEventTrigger: %s: of no use with mode=%r", ", ".join(without_use), mode)


def _seconds(what: str, value: Duration | str) -> float:
    seconds = arguments.span(what, value)
    if seconds is None or seconds < 1:
        raise ConfigError(f"{what} {value!r} is not allowed: 1 second or more, as each event is a row and a log line")
    return seconds
