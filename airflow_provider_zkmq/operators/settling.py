"""`ZkmqSettleOperator`: end what a DAG run took by what became of its work."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.hooks.claims import read_claims
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.outcomes import few
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.claiming import AGAIN, LEASE
from airflow_provider_zkmq.operators.holding import have_checked
from airflow_provider_zkmq.operators.memory import Memory
from airflow_provider_zkmq.operators.nodes import ends_of, work_ids, work_tasks
from airflow_provider_zkmq.operators.results import Results, source_of
from airflow_provider_zkmq.operators.settlements import Settlements
from airflow_provider_zkmq.operators.unmapped import Unmapped, check_each
from airflow_provider_zkmq.operators.verdicts import (
    MARKED,
    Verdict,
    Work,
    apart,
    have_noted,
    instances,
    judge,
    notes_its_end,
    reasons_of,
    share,
    told_from_marked,
    uneven,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.hooks.claims import Claim

_ON_SKIPPED: Final = ("release", "complete", "fail")
_ON_LOST: Final = ("fail", "ignore")
#: The end of a task is noted a moment after Airflow knows it: so many seconds, at the most, it is waited for.
_NOTED: Final = 10.0
_PAUSE: Final = 1.0
_ON_RETRY: Final = ("fail", "succeed")
#: ZooKeeper may be away for minutes, and the work is done: it is tried for nine minutes at least.
_PATIENT: Final[dict[str, Any]] = AGAIN | {
    "retries": 12,
    "retry_exponential_backoff": 2,
    "max_retry_delay": timedelta(minutes=1),
}


class ZkmqSettleOperator(Unmapped, BaseOperator):
    """Settles claims by the states of the tasks that did their work, and fails where the run is to be seen as failed.

    All succeeded: the queue's tasks are completed. Any failed, was not run for that, or is missing: they are failed,
    with Airflow's error as the reason, so that the queue's policy says when they are tried again, and when they are
    dead. Else, where some were skipped, they are given back, and the delivery counts no attempt: so it is with what is
    pending when a run is marked failed.

    It is a teardown task whose failure fails the run: it fails, without another try, after it has settled what failed
    or given back what was not done, since Airflow judges the run by it alone, also one that a user has marked failed;
    and where a claim was lost, since the work may be done twice. What the queue or ZooKeeper keeps from being settled
    does not keep the others from it, and is tried again by Airflow's retries: twelve, 5 seconds apart at first and a
    minute in the end, unless told otherwise here (``default_args`` are for the work). A later try, and one after a
    clear, knows what was settled before, and settles nothing twice.

    Args:
        claims: the claims, usually the XCom of `ZkmqClaimOperator`.
        work: the tasks that must succeed: operators, task groups or task ids, one or a list. Nodes are made upstream of
            this task, and note their exceptions, as the reason that the queue's tasks keep; ids are not, and do not.
        result: what the finished tasks keep as their result: bytes, text, or JSON; usually an XCom of the work. A task
            whose result cannot be kept is failed with that for its reason. With `each`, the XCom of a mapped task, by
            its index, which counts as work, or a list in the order of the claims, with one value for each: of another
            length, it is kept by none, and is the reason for which those are failed whose work succeeded.
        each: the instances of mapped tasks with index 0, 1, … are the work of the first, second, … claim, and tasks
            that are not mapped are the work of all: each claim is settled by its own work. Where a mapped task has not
            one instance for each claim, none is completed: the index tells nobody whose they are. Else all are settled
            alike.
        on_skipped: what becomes of them where work was skipped: ``"release"``, ``"complete"`` or ``"fail"``.
        on_marked: what becomes of them where work is a success and has not run to its end, as a user, who marked it or
            the run so, has ended it: ``"release"``, ``"complete"`` or ``"fail"``. Work that Airflow's scheduler or
            triggerer ends without a worker is known by its state alone where its operator says so (empty ones,
            `end_from_trigger`, `start_from_trigger`); other such work wants ``"complete"``. So is work that is named
            by its id.
        on_retry: what it means that work has failed and the queue tries its task again: ``"fail"`` for the run, or
            ``"succeed"``: the run is judged by those alone that are dead.
        on_lost: what a lost claim means: ``"fail"`` for the run, or ``"ignore"``: a warning in the log.
        zkmq_conn_id: the Airflow connection.

    Raises `ValueError`, where the DAG is parsed, for what is not understood.

    """

    # The result is rendered where the work succeeded: other work may have none, and then Airflow would not even start.
    template_fields: Sequence[str] = ("claims", "zkmq_conn_id")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        claims: object,
        work: object,
        result: object = None,
        each: bool = False,
        on_skipped: str = "release",
        on_marked: str = "release",
        on_retry: str = "fail",
        on_lost: str = "fail",
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**(_PATIENT | kwargs))
        if on_skipped not in _ON_SKIPPED:
            raise ValueError(f"ZkmqSettleOperator: on_skipped {on_skipped!r} is not known: give {_ON_SKIPPED}")
        if on_marked not in _ON_SKIPPED:
            raise ValueError(f"ZkmqSettleOperator: on_marked {on_marked!r} is not known: give {_ON_SKIPPED}")
        if on_retry not in _ON_RETRY:
            raise ValueError(f"ZkmqSettleOperator: on_retry {on_retry!r} is not known: give {_ON_RETRY}")
        if on_lost not in _ON_LOST:
            raise ValueError(f"ZkmqSettleOperator: on_lost {on_lost!r} is not known: give {_ON_LOST}")
        check_each("ZkmqSettleOperator", each, self)
        nodes = list(work) if isinstance(work, list | tuple | set) else [work]
        self.claims = claims
        self.work = sorted({task_id for node in nodes for task_id in work_ids(node)})
        tasks = [task for node in nodes for task in work_tasks(node)]
        for task in tasks:
            have_noted(task)
            have_checked(task, claims, LEASE, zkmq_conn_id, each=each)
        self.noting = sorted({task.task_id for task in tasks if notes_its_end(task)})
        if not self.work:
            raise ValueError("ZkmqSettleOperator: work names no task: what would the claims be settled by?")
        self.result_of = source_of(result, each=each)
        if each and self.result_of is not None and self.result_of[2]:
            # Its instances are told apart as those of the work are.
            self.work = sorted({*self.work, self.result_of[0]})
        self.result = None if self.result_of else result
        self.each = each
        self.on_skipped = on_skipped
        self.on_marked = on_marked
        self.on_retry = on_retry
        self.on_lost = on_lost
        self.zkmq_conn_id = zkmq_conn_id
        self.as_teardown(on_failure_fail_dagrun=True)
        made_of = [operator for operator, _ in XComArg.iter_xcom_references(result)]
        for node in [*nodes, *made_of]:
            if not isinstance(node, str):
                self.set_upstream(ends_of(node))

    def execute(self, context: Context) -> dict[str, Any]:
        """Settle all; return how many were ``completed``, ``failed``, ``released``, ``lost``.

        Raises:
            AirflowFailException: work failed, or was given back, or a claim was lost (see `on_lost`), or a result could
                not be kept; there is no other try. So it is where claims with `each` are in a mapped task group after
                all, and where there is no XCom of claims, or none that is understood: then nothing is settled, and they
                are left to their leases.
            AirflowException: ZooKeeper kept a claim from being settled.

        """
        claims = self._claims()
        work = self._told_from_marked(context, self._work(context))
        reasons = reasons_of(context, work)
        kept = self._kept(context, self._verdicts(work, reasons, len(claims)))
        with ZkmqHook(self.zkmq_conn_id) as hook:
            again = context["ti"].try_number > 1
            settlements = Settlements(hook, Memory(context), self.log, again=again)
            try:
                for claim, (verdict, result) in zip(claims, kept, strict=True):
                    settlements.settle(claim, verdict, result)
            finally:
                settlements.remember()
        self._tell(claims, settlements, self._judge(work, reasons))
        return settlements.counts()

    def _claims(self) -> list[Claim]:
        """Return the claims. No other try would understand them."""
        try:
            return read_claims("claims", self.claims)
        except ConfigError as error:
            raise AirflowFailException(f"nothing is settled: {error}") from None

    def _work(self, context: Context) -> list[Work]:
        instance: Any = context["ti"]
        if self.each and instance.map_index >= 0:
            raise AirflowFailException(
                "nothing is settled: each=True has no meaning in a mapped task group, whose instances have its index, "
                "not that of a claim; the claims are left to their leases"
            )
        work: list[Work] = []
        for task_ids in apart(self.work):
            states: dict[str, Any] = instance.get_task_states(
                dag_id=instance.dag_id, task_ids=task_ids, run_ids=[instance.run_id]
            )
            work += instances(states.get(instance.run_id, {}), task_ids)
        return work if instance.map_index < 0 else share(work, instance.map_index)

    def _told_from_marked(self, context: Context, work: list[Work]) -> list[Work]:
        until = time.monotonic() + _NOTED
        while True:
            told = told_from_marked(context, work, self.noting)
            if time.monotonic() >= until or all(each.state != MARKED for each in told):
                return told
            time.sleep(_PAUSE)

    def _judge(self, work: list[Work], reasons: Mapping[tuple[str, int], str]) -> Verdict:
        return judge(work, self.on_skipped, reasons, self.on_marked)

    def _verdicts(self, work: list[Work], reasons: Mapping[tuple[str, int], str], count: int) -> list[Verdict]:
        if not self.each:
            return [self._judge(work, reasons)] * count
        verdicts = [self._judge(share(work, position), reasons) for position in range(count)]
        odd = uneven(work, count)
        return [Verdict("fail", odd) if odd and each.kind == "complete" else each for each in verdicts]

    def _kept(self, context: Context, verdicts: list[Verdict]) -> list[tuple[Verdict, bytes | str | None]]:
        """Return the verdicts, with what the tasks keep; where that is none, the verdict is a failure, and says why."""
        render = partial(self.render_template, self.result, context)
        results = Results(render, self.result_of, context, len(verdicts), each=self.each)
        kept: list[tuple[Verdict, bytes | str | None]] = []
        for position, verdict in enumerate(verdicts):
            try:
                kept.append((verdict, results.of(position) if verdict.kind == "complete" else None))
            except ConfigError as error:  # no later try could keep it either
                # Of work that was skipped, and is complete all the same, there may be none.
                kept.append((verdict if verdict.reason else Verdict("fail", str(error)), None))
        return kept

    def _tell(self, claims: list[Claim], settlements: Settlements, overall: Verdict) -> None:
        """Raise what the run is to be seen by. What is tried again comes first: it may go well.

        Work that is no claim's that was settled counts as well: Airflow judges the run by this task alone.
        """
        if settlements.trouble:
            raise AirflowException(f"not settled: {few(settlements.trouble)}")
        if settlements.lost and self.on_lost == "ignore":
            self.log.warning("%s", few(settlements.lost))
        elif settlements.lost:
            raise AirflowFailException(
                f"{len(settlements.lost)} of {len(claims)} settled too late: {few(settlements.lost)}"
            )
        failed = settlements.failed + (settlements.retried if self.on_retry == "fail" else [])
        if failed:
            raise AirflowFailException(f"the work failed: {few(failed)}")
        if settlements.released:
            raise AirflowFailException(f"the work was not done, and given back is {few(settlements.released)}")
        if overall.kind != "complete" and not settlements.retried:
            raise AirflowFailException(f"the work was not done: {overall.reason}")
        if self.claims is None or self.claims == "":  # an empty list is what a task says that has taken nothing
            raise AirflowFailException(
                "nothing is settled: there is no XCom of claims; where a task pushes none, they are not known here"
            )
