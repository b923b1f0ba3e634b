"""`ZkmqTaskTrigger`: waits in the triggerer until tasks are claimed or completed, or a batch is done."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_zkmq.engine import ConfigError, TransportError, Unavailable, WaitTimeout, ZkmqError
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.deferring import hold_back
from airflow_provider_zkmq.hooks.naming import EVENT_BYTES, fits, series_ids
from airflow_provider_zkmq.hooks.outcomes import progress_log
from airflow_provider_zkmq.hooks.templating import moment
from airflow_provider_zkmq.triggers.sessions import SESSIONS, Lease

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AsyncQueue

_ARGUMENTS: Final = (
    "task_ids",
    "series",
    "partial",
    "selector",
    "min_tasks",
    "since",
    "batch",
    "event",
    "log_progress",
    "queue",
    "zkmq_conn_id",
    "deadline",
    "deferred_at",
)
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 15.0
#: The engine's own time-out names the tasks it waited for; this much later the wait ends whatever it does.
_GRACE: Final = 1.0


class ZkmqTaskTrigger(BaseTrigger):
    """Waits on ZooKeeper watches; fires once, with a small event, and never the tasks' results.

    The event is ``{"status": "done", "ids": […]}``, with ``"count"`` in their place where they are many or `partial`;
    for a batch ``{"status": "done", "batch": …}``; else ``{"status": "timeout" | "error", "message": …}``. Its size and
    that of the arguments are bounded. It comes some seconds after the deferral at the earliest.
    ZooKeeper being away ends nothing: the trigger waits for it, too, until its deadline; so it does, with a `selector`,
    for a queue that is not there.

    Args:
        task_ids: the tasks to wait for; None without `batch`: those that `selector` matches, as soon as there are
            `min_tasks`.
        series: instead of `task_ids`: a key and a number, for the tasks of that series.
        partial: `task_ids` are some of those that the Airflow task waits for; the event names none.
        selector: see `task_ids`; as text.
        min_tasks: see `task_ids`.
        since: with `selector`: only tasks that were enqueued then or later; in ISO 8601, with a zone.
        batch: the batch to wait for, at the cost of one watch; None: tasks.
        event: ``"completion"`` or ``"claim"``, of tasks.
        log_progress: log the progress that the tasks' handlers report.
        queue: the queue's name; None: the connection's.
        zkmq_conn_id: the Airflow connection; its secrets are looked up where the trigger runs.
        deadline: when to give up, in seconds since 1970; None: never.
        deferred_at: when the Airflow task deferred, in seconds since 1970; None: no event is held back.

    """

    def __init__(
        self,
        *,
        task_ids: list[str] | None = None,
        series: list[Any] | None = None,
        partial: bool = False,
        selector: str | None = None,
        min_tasks: int = 1,
        since: str | None = None,
        batch: str | None = None,
        event: str = "completion",
        log_progress: bool = False,
        queue: str | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        deadline: float | None = None,
        deferred_at: float | None = None,
    ) -> None:
        super().__init__()
        self.task_ids = None if task_ids is None else list(task_ids)
        self.series = None if series is None else list(series)
        self.partial = partial
        self.selector = selector
        self.min_tasks = min_tasks
        self.since = since
        self.batch = batch
        self.event = event
        self.log_progress = log_progress
        self.queue = queue
        self.zkmq_conn_id = zkmq_conn_id
        self.deadline = deadline
        self.deferred_at = deferred_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, plain JSON."""
        kwargs = {name: getattr(self, name) for name in _ARGUMENTS}
        return ("airflow_provider_zkmq.triggers.zkmq.ZkmqTaskTrigger", kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield exactly one event; by then the shared session is given back."""
        outcome = await self._outcome()
        await asyncio.sleep(hold_back(self.deferred_at, time.time()))
        yield TriggerEvent(outcome)

    async def _outcome(self) -> dict[str, object]:
        left = self._left()
        try:
            async with asyncio.timeout(None if left is None else left + _GRACE):
                return {"status": "done", **await self._wait()}
        except TimeoutError as error:  # `WaitTimeout` is one; it names the tasks
            return {"status": "timeout", "message": str(error) or "ZooKeeper did not answer before the deadline"}
        except (ZkmqError, AirflowNotFoundException) as error:
            return {"status": "error", "message": str(error)}

    def _left(self) -> float | None:
        """Return the seconds to the deadline, not below 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.time())

    async def _wait(self) -> dict[str, object]:
        """Wait, and again after each failure of the transport; return what the event names."""
        patience = _Patience(self)
        while True:
            try:
                async with SESSIONS.lease(self.zkmq_conn_id) as lease:
                    return await self._wait_in(lease)
            except TransportError as error:
                await patience.after(error)

    async def _wait_in(self, lease: Lease) -> dict[str, object]:
        """Wait within one session, for as long as it lives. Raises `TransportError` when it has ended."""
        queue = lease.client.queue(self.queue or lease.default_queue)
        patience = _Patience(self)
        while True:
            try:
                return await self._wait_for(queue)
            except Unavailable as error:
                await patience.after(error)
            except WaitTimeout:
                raise
            except TransportError:
                lease.forget()
                raise

    async def _wait_for(self, queue: AsyncQueue) -> dict[str, object]:
        if self.batch is not None:
            await queue.wait_batch(self.batch, self._left())
            return {"batch": self.batch}
        ids = self.task_ids if self.series is None else series_ids(*self.series)
        if ids is None:
            since = moment("since", self.since)
            ids = await queue.find(
                self.selector or "all()", self.min_tasks, self._left(), since=since, wait_for_queue=True
            )
        if not ids:
            raise ConfigError("no task was named: there is nothing to wait for")
        await queue.wait(ids, self.event, self._left(), progress_log(self.log) if self.log_progress else None)
        return {"ids": ids} if not self.partial and fits(ids, EVENT_BYTES) else {"count": len(ids)}


class _Patience:
    """The pauses after failures: longer after each, and each trigger another time, so that not all come at once."""

    def __init__(self, trigger: ZkmqTaskTrigger) -> None:
        self._trigger = trigger
        self._failures = 0

    async def after(self, error: TransportError) -> None:
        """Log the first failure, and sleep."""
        self._failures += 1
        if self._failures == 1:
            self._trigger.log.warning("waiting goes on when ZooKeeper is back: %s", error)
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10))
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  no secret
