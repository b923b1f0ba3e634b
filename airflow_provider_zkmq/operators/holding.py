"""Work that is run again begins only while its run still holds the claims that it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_zkmq.hooks.claims import read_claims, shown
from airflow_provider_zkmq.hooks.outcomes import few
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.nodes import class_of
from airflow_provider_zkmq.operators.patience import PATIENCE, outlast
from airflow_provider_zkmq.operators.taking import still_held

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.hooks.claims import Claim


def have_checked(task: Any, claims: object, lease: float, conn_id: str, *, each: bool) -> None:
    """Have a task of the work look first whether its run holds the claims, wherever it is run again.

    Airflow's "clear only failed tasks" runs the work again and leaves out the task that claims: by then the queue may
    have given its task to another run. A first try is not looked at, nor are tasks that take claims over themselves.

    `claims`: the XCom of the task that claims; what is from elsewhere is not looked at. `lease`: seconds for which
    what is held holds from then on. `each`: the instances of a mapped task are the work of one claim each.
    """
    sources = [operator for operator, _ in XComArg.iter_xcom_references(claims)]
    if len(sources) != 1 or getattr(class_of(task), "holds_claims", False):
        return
    [claimer] = sources
    in_group = claimer.get_closest_mapped_task_group() is not None
    given = task.partial_kwargs if task.is_mapped else vars(task)
    also = given.get("pre_execute")  # of a task that two claims are settled by, or of its author's

    def check(context: Context) -> None:
        instance: Any = context["ti"]
        if instance.try_number > 1 or _was_cleared(context):
            index = instance.map_index if in_group else -1
            mine = read_claims("claims", instance.xcom_pull(task_ids=claimer.task_id, map_indexes=index))
            if each and not in_group and 0 <= instance.map_index < len(mine):
                mine = [mine[instance.map_index]]
            check_held(mine, lease, conn_id, claimer.task_id, instance.task.log)
        if also is not None:
            also(context)
        elif not task.is_mapped and type(task).pre_execute is not BaseOperator.pre_execute:
            type(task).pre_execute(instance.task, context)

    if task.is_mapped:
        task.partial_kwargs["pre_execute"] = check
    else:
        task.pre_execute = check


def check_held(claims: list[Claim], lease: float, conn_id: str, claimer: str, log: Any) -> None:
    """Extend the claims. Raises `AirflowSkipException` where none of them holds any more.

    What holds beside others that do not goes on with a warning; it is tried again while ZooKeeper is away, as settling
    is.
    """
    if not claims:
        return
    with ZkmqHook(conn_id) as hook:
        held = outlast(
            log, "Looking at the claims", PATIENCE, lambda _: [still_held(hook, claim, lease, log) for claim in claims]
        )
    lost = [f"{shown(claim)} (claim {claim['token']})" for claim, holds in zip(claims, held, strict=True) if not holds]
    if len(lost) == len(claims):
        raise AirflowSkipException(
            f"this run does not hold what it took any more, and another may be at it: {few(lost)}; to do the "
            f"work again, clear {claimer} with what is downstream of it: it claims the same tasks anew where it can"
        )
    if lost:
        log.warning("This run does not hold all that it took any more; left out is %s", few(lost))


def _was_cleared(context: Context) -> bool:
    """Whether the run was cleared: then a task may run for the first time after it was settled."""
    run: Any = context.get("dag_run")
    return bool(getattr(run, "clear_number", 0))
