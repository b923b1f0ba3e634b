"""`ZkmqTaskTrigger` waits in the triggerer for tasks or for a batch, `ZkmqReadyTrigger` until there is work."""

from __future__ import annotations

import asyncio
import inspect
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from ..engine import ConfigError, IllegalTransition, TaskNotFound, TransportError, WaitTimeout, ZkmqError
from ..engine.queue_internals import internals
from ..hooks import (
    arguments,
    compact_task_ids,
    connection_options,
    deferring,
    outages,
    outcome_logs,
    task_instance,
    xcom_results,
)
from ..hooks.task_instance import is_of
from .sessions import SESSIONS, HeldSession, going_on

if TYPE_CHECKING:
    from ..engine import AsyncQueue, Batch, Task


#: The engine's own time-out names what it waited for; this much later, in seconds, the wait ends whatever it does.
_GRACE = 1.0


class WaitingTrigger(BaseTrigger):
    """Waits once for something in one queue, until a deadline, and fires once.

    The event is ``{"status": "done", …}``, else ``{"status": "timeout" | "error", "message": …}``; it comes some
    seconds after the deferral at the earliest. ZooKeeper being away ends nothing: the trigger waits for it, too.

    `name`: the queue's name; None: the connection's. `zkmq_conn_id`: the Airflow connection; its secrets are looked up
    where the trigger runs. `deadline`: when to give up; None: never. `deferred_at`: when the Airflow task deferred;
    None: no event is held back. Both are in seconds since 1970.
    """

    def __init__(self, name: str | None, zkmq_conn_id: str, deadline: float | None, deferred_at: float | None) -> None:
        super().__init__()
        self.zkmq_conn_id = zkmq_conn_id
        self.deadline = deadline
        self.deferred_at = deferred_at
        self._name = name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, plain JSON."""
        kwargs = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return (f"{type(self).__module__}.{type(self).__qualname__}", kwargs)

    @abstractmethod
    async def _wait_for(self, queue: AsyncQueue) -> dict[str, Any]:
        """Wait; return what the event says besides its status, with ``"ends"``: that the Airflow task ends here."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield exactly one event; by then the shared session is given back."""
        outcome = await self._outcome()
        if "ends" in outcome:  # what ends the task by itself meets no race
            yield TaskSuccessEvent()
            return
        await asyncio.sleep(deferring.hold_back(self.deferred_at, time.time()))
        yield TriggerEvent(outcome)

    async def _outcome(self) -> dict[str, Any]:
        left = deferring.seconds_left(self.deadline)
        try:
            async with asyncio.timeout(None if left is None else left + _GRACE):
                return {"status": "done", **await self._wait()}
        except TimeoutError as error:  # `WaitTimeout` is one; it names the tasks
            message = str(error) or f"ZooKeeper did not answer within timeout ({left or 0:g} s)"
            return {"status": "timeout", "message": message}
        except (ZkmqError, AirflowNotFoundException) as error:
            return {"status": "error", "message": str(error)}

    async def _wait(self) -> dict[str, Any]:
        """Wait, and again after each failure of the transport; return what the event names."""
        session = HeldSession(
            self.zkmq_conn_id, outages.Backoff(self.log, what="Waiting", longest=outages.LONGEST_OF_A_WAIT)
        )
        try:
            while True:
                try:
                    return await self._wait_for(await session.queue(self._name))
                except TransportError as error:
                    await session.after(error)
        finally:
            await session.leave()


class ZkmqTaskTrigger(WaitingTrigger):
    """Waits on ZooKeeper watches; fires once, with a small event, and never the tasks' results. See `WaitingTrigger`.

    The event is ``{"status": "done", "ids": […]}``, with ``"count"`` in their place where they are many or `partial`;
    for a batch ``{"status": "done", "batch": …}``; or it ends the Airflow task at once, see `success`. Its size and
    that of the arguments are bounded. With a `selector` it waits for a queue that is not there, too.

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
        stop_at_failure: the event comes as soon as one of the tasks is dead or cancelled.
        success: end the Airflow task here where nothing has failed and what is told is small: ``"telling"``, the
            arguments of `XComResults`; ``"push"``, the task instance whose XCom it is, None for no XCom; ``"value"``,
            the XCom, if it is known before. None: the task is to go on on a worker.
        cancels: what a user's end of the Airflow task cancels: ``"instance"``, the task's, and ``"task_ids"`` or
            ``"series"``, or neither: those that are waited for; with ``"noted"``, also what notes this instance as its
            origin, as far as that names it. None: nothing.
        queue: the queue's name; None: the connection's.
        zkmq_conn_id, deadline, deferred_at: see `WaitingTrigger`.
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
        stop_at_failure: bool = False,
        success: dict[str, Any] | None = None,
        cancels: dict[str, Any] | None = None,
        queue: str | None = None,
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        deadline: float | None = None,
        deferred_at: float | None = None,
    ) -> None:
        super().__init__(queue, zkmq_conn_id, deadline, deferred_at)
        self.task_ids = None if task_ids is None else list(task_ids)
        self.series = None if series is None else list(series)
        self.partial = partial
        self.selector = selector
        self.min_tasks = min_tasks
        self.since = since
        self.batch = batch
        self.event = event
        self.log_progress = log_progress
        self.stop_at_failure = stop_at_failure
        self.success = success
        self.cancels = cancels
        self.queue = queue

    async def _wait_for(self, queue: AsyncQueue) -> dict[str, Any]:
        if self.batch is not None:
            batch = await queue.wait_batch(self.batch, deferring.seconds_left(self.deadline))
            return await self._succeeded(queue.name, batch) or {"batch": self.batch}
        ids = self.task_ids if self.series is None else compact_task_ids.series_ids(*self.series)
        if ids is None:
            since = arguments.moment("since", self.since)
            left = deferring.seconds_left(self.deadline)
            ids = await internals(queue).find(self.selector or "all()", self.min_tasks, left, since=since)
        if not ids:
            raise ConfigError("no task was named: there is nothing to wait for")
        on_progress = outcome_logs.progress_log(self.log) if self.log_progress else None
        tasks = await queue.wait(
            ids, self.event, deferring.seconds_left(self.deadline), on_progress, stop_at_failure=self.stop_at_failure
        )
        if success := await self._succeeded(queue.name, tasks):
            return success
        named = not self.partial and compact_task_ids.fits(ids, compact_task_ids.EVENT_BYTES)
        return {"ids": ids} if named else {"count": len(ids)}

    async def on_kill(self) -> None:
        """Cancel what was asked for, if a user has ended the task: Airflow calls this on other occasions, too.

        It cancels this call as well when it takes longer than a second or so: what it began goes on.
        """
        if self.cancels is not None:
            await asyncio.shield(going_on(self._cancel(self.cancels)))

    async def _cancel(self, cancels: dict[str, Any]) -> None:
        self.log.warning("Ended: where a user did that, what is open of its tasks is cancelled")
        try:
            if not await asyncio.to_thread(task_instance.ended_by_user, cancels["instance"]):
                return
            named: list[str] = cancels.get("task_ids", self.task_ids or [])
            ids = compact_task_ids.series_ids(*cancels["series"]) if "series" in cancels else named
            async with SESSIONS.lease(self.zkmq_conn_id) as lease:
                queue = lease.queue(self.queue)
                count = await acancel_open(queue, ids)
                if "noted" in cancels:
                    count += await acancel_noted(queue, cancels["instance"], cancels["noted"])
            self.log.warning("Ended by a user: cancelled %d task(s) of queue %r", count, queue.name)
        except Exception as error:  # noqa: BLE001  whatever it is, it is told: nobody waits for this any more
            self.log.warning("Ended, but its tasks are not cancelled: %s", error)

    async def _succeeded(self, queue: str, ended: Sequence[Task] | Batch) -> dict[str, Any] | None:
        """Tell what has ended; return that the Airflow task ends here. None: it goes on on a worker."""
        if self.success is None or self.partial:
            return None
        results = xcom_results.XComResults(**self.success["telling"])
        try:
            results.check(queue, ended)
        except AirflowException:
            return None
        value = self.success["value"] if "value" in self.success else results.to_xcom(queue, ended)
        if xcom_results.size(value) > compact_task_ids.EVENT_BYTES:
            return None
        if (instance := self.success["push"]) is not None:
            from airflow.sdk.execution_time.xcom import XCom

            # `TaskSuccessEvent` itself writes the text of the value's JSON in the value's place (Airflow 3.3).
            try:
                await XCom.aset(key=XCom.XCOM_RETURN_KEY, value=value, **instance)
            except Exception as error:  # noqa: BLE001  whatever it is: a worker does it
                self.log.warning("A worker is to end this task, as its XCom cannot be written here: %s", error)
                return None
        outcome_logs.log_ended(self.log, queue, ended, self.zkmq_conn_id)
        return {"ends": True}


class ZkmqReadyTrigger(WaitingTrigger):
    """Waits until there is work that `selector` matches and that may be delivered, and for its queue; claims nothing.

    The event is ``{"status": "done"}``; see `WaitingTrigger`, also for the arguments. By the time that somebody claims,
    others may have been faster.
    """

    def __init__(
        self,
        *,
        zkmq_queue: str | None = None,
        selector: str | None = None,
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        deadline: float | None = None,
        deferred_at: float | None = None,
    ) -> None:
        super().__init__(zkmq_queue, zkmq_conn_id, deadline, deferred_at)
        self.zkmq_queue = zkmq_queue
        self.selector = selector

    async def _wait_for(self, queue: AsyncQueue) -> dict[str, Any]:
        there = await queue.exists(timeout=deferring.seconds_left(self.deadline))
        if not there or not await queue.ready(selector=self.selector, timeout=deferring.seconds_left(self.deadline)):
            span = (self.deadline or 0.0) - (self.deferred_at or 0.0)
            raise WaitTimeout(nothing_came(queue.name, self.selector, span if self.deferred_at else None))
        return {}


def nothing_came(queue: str, selector: str | None, span: float | None) -> str:
    """Return what to say of a wait for work that was in vain, for so many seconds, as far as that is known."""
    what = f"no task that fits {selector}" if selector else "no task"
    return f"{what} came into queue {queue!r} {'in time' if span is None else f'within timeout ({span:g} s)'}"


# --- Cancelling what an Airflow task enqueued that a user has ended.

#: So many tasks are read together.
_AT_ONCE: Final = 500
_METADATA: Final[tuple[Literal["metadata"]]] = ("metadata",)


async def acancel_noted(queue: AsyncQueue, origin: Mapping[str, Any], names: Sequence[str]) -> int:
    """Cancel the tasks that have not ended and note this origin, as far as it has these names; return their number.

    All that has not ended is looked at, a part at a time, and again until there is none of them: one may have come back
    to its queue meanwhile.
    """
    count = 0
    while True:
        before = count
        for state in ("claimed", "inserted"):
            ids = await internals(queue).ids(state=state)
            for at in range(0, len(ids), _AT_ONCE):
                tasks = await queue.tasks(ids=ids[at : at + _AT_ONCE], parts=_METADATA)
                count += await acancel_open(queue, [task.id for task in tasks if is_of(task.metadata, origin, names)])
        if count == before:
            return count


async def acancel_open(queue: AsyncQueue, ids: Sequence[str]) -> int:
    """Cancel those of the tasks that have not ended; return how many there were."""
    count = 0
    for task_id in ids:
        with suppress(IllegalTransition, TaskNotFound):
            await queue.cancel(task_id)
            count += 1
    return count
