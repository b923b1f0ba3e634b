"""`ZkmqTaskGroup`: work on tasks of a queue, which are settled by what becomes of the work."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from airflow.sdk import TaskGroup, XComArg

from ..engine import Duration
from ..hooks.connection_options import DEFAULT_CONN_ID
from .claiming import LEASE, ZkmqClaimOperator
from .dag_run_work import check_each, waited_for, work_ids
from .leases import ZkmqKeepOperator
from .settling import ZkmqSettleOperator, prepare_work


class ZkmqTaskGroup(TaskGroup):
    """A task group that takes tasks of a queue, and acknowledges them when the work in it has succeeded.

    ``with ZkmqTaskGroup("orders", zkmq_queue="orders") as orders:`` makes the task ``orders.claim``; the body makes the
    work, which gets the claims as ``orders.claims`` and reads what is in them with
    ``ZkmqHook().queue(claim["queue"]).task(claim["id"]).data``; its end makes ``orders.keep``, deferred beside the
    work, and ``orders.settle``, after it. All tasks in the body are the work; where one fails, its exception is the
    reason that the queue's task keeps. What is downstream of the group follows the work; its failure settles nothing.

    Args:
        group_id: as that of every task group.
        zkmq_queue, selector, max_tasks, claims, from_events, on_empty, deferrable: see `ZkmqClaimOperator`.
        lease: for so long the claims hold if nobody extends them, as when the triggerer is gone; see there.
        result, each, on_skipped, on_marked, on_retry, on_lost: see `ZkmqSettleOperator`. The body may set the attribute
            ``result`` to an XCom of the work.
        keep_pool: the pool of ``keep``, which must have a slot for a moment; None: Airflow's default pool.
        zkmq_conn_id: the Airflow connection.
        kwargs: those of `TaskGroup`.

    Raises `ValueError` and `ConfigError`, where the DAG is parsed, for what is not understood, and for an empty body.
    """

    def __init__(
        self,
        group_id: str,
        *,
        zkmq_queue: str | None = None,
        selector: str | None = None,
        max_tasks: int = 1,
        lease: Duration | str = LEASE,
        claims: object = None,
        from_events: bool = False,
        on_empty: str = "skip",
        deferrable: bool | None = None,
        result: object = None,
        each: bool = False,
        on_skipped: str = "release",
        on_marked: str = "release",
        on_retry: str = "fail",
        on_lost: str = "fail",
        keep_pool: str | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(group_id, **kwargs)
        check_each(f"ZkmqTaskGroup {self.group_id!r}", each, self)
        self._claim_task: dict[str, Any] = {
            "zkmq_queue": zkmq_queue,
            "selector": selector,
            "max_tasks": max_tasks,
            "lease": lease,
            "claims": claims,
            "from_events": from_events,
            "on_empty": on_empty,
            "zkmq_conn_id": zkmq_conn_id,
            "in_place": each,
            **({} if deferrable is None else {"deferrable": deferrable}),
        }
        self._keep_pool = keep_pool or "default_pool"
        self._settling: dict[str, Any] = {
            "each": each,
            "on_skipped": on_skipped,
            "on_marked": on_marked,
            "on_retry": on_retry,
            "on_lost": on_lost,
            "zkmq_conn_id": zkmq_conn_id,
        }
        self.result = result
        self._claim: ZkmqClaimOperator | None = None

    @property
    def claims(self) -> XComArg:
        """The claims, for the tasks in the body: a list, also where it is one. Raises `ValueError` before the body."""
        if self._claim is None:
            raise ValueError(f"ZkmqTaskGroup {self.group_id!r}: claims are for the tasks in its body, after 'with'")
        return self._claim.output

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._claim = ZkmqClaimOperator(task_id="claim", **self._claim_task)
        except BaseException:
            # Without a body there is no end: the next DAGs of this process would be made in this group.
            super().__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lay claim → (keep, work) and work → settle. Raises `ValueError` for an empty body."""
        try:
            if error is not None:
                return
            claim = self._claim
            tasks: list[Any] = [task for task in self if task is not claim]
            if claim is None or not tasks:
                raise ValueError(f"ZkmqTaskGroup {self.group_id!r} has no work: make tasks in the body of its 'with'")
            inside = {task.task_id for task in tasks}
            roots = [task for task in tasks if task.upstream_task_ids.isdisjoint(inside)]
            noting = prepare_work(tasks, claim.output, claim.lease, claim.zkmq_conn_id, each=self._settling["each"])
            # Work that is mapped over the claims goes by their places, also after a clear.
            mapped = claim.has_dag() and next(claim.iter_mapped_dependants(), None) is not None
            claim.in_place = claim.in_place or mapped
            settle = ZkmqSettleOperator(
                task_id="settle",
                claims=claim.output,
                work=[task_id for task in tasks for task_id in work_ids(task)],
                result=self.result,
                **self._settling,
            )
            settle.noting = noting
            keep = ZkmqKeepOperator(
                task_id="keep",
                claims=claim.output,
                lease=claim.lease,
                settle=settle.task_id,
                pool=self._keep_pool,
                zkmq_conn_id=claim.zkmq_conn_id,
            )
            claim >> [keep, settle, *(task for task in roots if claim.task_id not in task.upstream_task_ids)]
            settle.set_upstream(waited_for(tasks))
        finally:
            super().__exit__(kind, error, trace)
