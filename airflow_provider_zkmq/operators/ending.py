"""The end of what was enqueued: an operator waits for tasks, or for a batch, on its worker or deferred."""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from airflow_provider_zkmq.engine import WaitTimeout
from airflow_provider_zkmq.hooks.deferring import AWAY, awaited_ids, deferral_limit, naming
from airflow_provider_zkmq.hooks.killed import cancel_open, ended_by_user
from airflow_provider_zkmq.hooks.naming import EVENT_BYTES, series_ids
from airflow_provider_zkmq.hooks.origins import origin_of
from airflow_provider_zkmq.hooks.outcomes import check_batch, check_outcomes, tell_ended, tell_open
from airflow_provider_zkmq.hooks.telling import Telling, may_end_in_triggerer, pushed_for, size
from airflow_provider_zkmq.operators.once import noted_by
from airflow_provider_zkmq.operators.patience import NO_OUTAGE, persist
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.engine import AnyQueue

#: Airflow kills a process five seconds after it told it to end: what is cancelled is waited for so many seconds.
_CANCELLING: Final = 4.0
#: One task that is dead or cancelled fails the operator, and nothing is told of results.
_TELLING: Final = Telling(results=False, max_xcom_bytes=48_000, fail_on="any")


class WaitingOperator(BaseOperator):
    """An operator that has enqueued, and waits if it was asked to: what `ZkmqEnqueueOperator` does after its write."""

    batch: str | None
    zkmq_queue: str | None
    zkmq_conn_id: str
    deferrable: bool
    cancel_on_kill: bool
    add_origin: bool
    idempotency: str
    _held: tuple[AnyQueue, list[str], dict[str, Any]] | None = None
    """What is waited for on this worker: where, which tasks, and the Airflow task instance."""
    _canceller: threading.Thread | None = None

    def on_kill(self) -> None:
        """Cancel what is waited for, if that was asked for and a user has ended this task.

        Called from a signal handler, which may have interrupted the holder of a lock: another thread does it.
        """
        if self.cancel_on_kill and self._held is not None:
            self._canceller = threading.Thread(target=self._cancel, args=self._held, daemon=True)
            self._canceller.start()

    def _cancel(self, queue: AnyQueue, ids: list[str], instance: Mapping[str, Any]) -> None:
        told = "Told to end: where a user did that, what is open of %d task(s) of queue %r is cancelled"
        self.log.warning(told, len(ids), queue.name)
        try:
            if ended_by_user(instance):
                count = cancel_open(queue, ids)
                self.log.warning("Ended by a user: cancelled %d task(s) of queue %r", count, queue.name)
        except Exception as error:  # noqa: BLE001  a thread beside the end of a process: nobody would hear it
            self.log.warning("The tasks of queue %r are not cancelled: %s", queue.name, error)

    def _await(self, context: Context, queue: AnyQueue, ids: list[str], key: str, span: float | None) -> None:
        """Wait here, through any outage, or look and defer.

        Raises `AirflowException` where it was not in time, tasks failed, or ZooKeeper's certificates are refused.
        """
        deadline = None if span is None else time.time() + span
        members = ids if self.batch is None else _members(self.batch, ids, key)
        self._held = (queue, members, origin_of(context))
        try:
            if self.deferrable:
                self._end(queue, ids, 0)
            else:
                persist(self.log, math.inf if deadline is None else deadline, partial(self._end, queue, ids))
        except (WaitTimeout, AWAY) as error:
            if not self.deferrable or isinstance(error, NO_OUTAGE):
                raise AirflowException(naming(str(error), span)) from None
            if isinstance(error, WaitTimeout):
                tell_open(self.log, queue, error.left, self.zkmq_conn_id)
            self._defer(context, ids, key, deadline, getattr(error, "left", ()))
        finally:
            self._held = None
            if self._canceller is not None:  # the first that it cancelled has ended the wait, perhaps
                self._canceller.join(_CANCELLING)

    def _end(self, queue: AnyQueue, ids: list[str], left: float) -> None:
        """Wait for the batch, else for the tasks. Raises `WaitTimeout`, and `AirflowException` for failures."""
        span = None if left == math.inf else left
        if self.batch is None:
            tasks = queue.wait(ids, timeout=span, stop_at_failure=True)
            tell_ended(self.log, queue.name, tasks, self.zkmq_conn_id)
            check_outcomes(queue.name, tasks)
        else:
            batch = queue.wait_batch(self.batch, span)
            tell_ended(self.log, queue.name, batch, self.zkmq_conn_id)
            check_batch(queue.name, batch)

    def _defer(
        self, context: Context, ids: list[str], key: str | None, deadline: float | None, left: Sequence[str] = ()
    ) -> None:
        """Defer until `deadline`. `left`: those of the ids that have not ended, as far as that is known."""
        awaited = {"batch": self.batch} if self.batch is not None else awaited_ids(ids, key, left)
        self.defer(
            trigger=ZkmqTaskTrigger(
                **awaited,
                stop_at_failure=True,
                success=self._success(context, ids),
                cancels=self._cancels(context, ids, key),
                queue=self.zkmq_queue or None,
                zkmq_conn_id=self.zkmq_conn_id,
                deadline=deadline,
                deferred_at=time.time(),
            ),
            method_name="execute_complete",
            kwargs={"key": key, "deadline": deadline},
            timeout=deferral_limit(deadline),
        )

    @abstractmethod
    def _told(self, ids: list[str]) -> str | list[str]:
        """Return the XCom for tasks of these ids."""

    def _success(self, context: Context, ids: list[str]) -> dict[str, Any] | None:
        """Return how the triggerer ends this task by itself: what is told is known already."""
        value = self._told(ids)
        if size(value) > EVENT_BYTES or not may_end_in_triggerer(self, context):
            return None
        return {"telling": _TELLING.as_dict(), "push": pushed_for(self, context), "value": value}

    def _cancels(self, context: Context, ids: list[str], key: str | None) -> dict[str, Any] | None:
        """Return what a user's end of the deferred task cancels.

        Very many with ids of their own are named once: by what the trigger waits for, or, of a batch, here; the others
        of them are found by their metadata, which say who enqueued them.
        """
        if not self.cancel_on_kill:
            return None
        if self.batch is not None and key is not None:
            ids, key = _members(self.batch, ids, key), self.batch
        cancelled = awaited_ids(ids, key)
        if cancelled.pop("partial", False):
            if self.batch is None:
                del cancelled["task_ids"]
            if self.add_origin:
                cancelled["noted"] = list(noted_by(self.idempotency))
        return {"instance": origin_of(context), **cancelled}


def _members(batch: str, ids: list[str], key: str) -> list[str]:
    """Return the ids of a batch's members: those that were not given are named by the batch, not by the series."""
    of_series = dict(zip(series_ids(key, len(ids)), series_ids(batch, len(ids)), strict=True))
    return [of_series.get(task_id, task_id) for task_id in ids]
