"""`ZkmqKeepOperator`: keep what a DAG run took from being delivered again while the run works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_zkmq.engine import Duration
from airflow_provider_zkmq.hooks.claims import read_claims
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.operators.claiming import AGAIN, checked_lease
from airflow_provider_zkmq.operators.unmapped import Unmapped
from airflow_provider_zkmq.triggers.leases import ZkmqLeaseTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Where worker slots are few, what holds the claims comes before the work.
_PRIORITY: Final = 1_000


class ZkmqKeepOperator(Unmapped, BaseOperator):
    """Extends claims every third of their lease, deferred, beside the work; it ends when they are settled or lost.

    It takes a worker for a moment and none while it waits, and it ends in the triggerer. It is a teardown task of
    `ZkmqClaimOperator`, which Airflow runs as soon as the claims are there: so it is run again with them after a clear,
    goes on while a run that was marked failed tears down, and neither its state nor its end matters to what comes
    after the work. In ``dag.test()``, which has no triggerer, it does nothing.

    It is tried three times more, 5 seconds apart, unless told otherwise here: ``default_args`` are for the work.

    Args:
        claims: the claims, usually the XCom of `ZkmqClaimOperator`.
        lease: as that of `ZkmqClaimOperator`.
        settle: the id of the Airflow task that settles; when that has ended without settling, nothing is extended any
            more, and the tasks are delivered again. None: it is not looked at, and the claims are kept until they end.
        zkmq_conn_id: the Airflow connection.

    """

    template_fields: Sequence[str] = ("claims", "zkmq_conn_id")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        claims: object,
        lease: Duration | str = 900,
        settle: str | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        kwargs = {"priority_weight": _PRIORITY, "weight_rule": "absolute"} | AGAIN | kwargs
        super().__init__(**kwargs)
        self.claims = claims
        self.lease = checked_lease(lease)
        self.settle = settle
        self.zkmq_conn_id = zkmq_conn_id
        self.as_teardown(on_failure_fail_dagrun=False)

    def execute(self, context: Context) -> None:
        """Defer to the trigger, which ends the task. Raises `AirflowSkipException` where there is nothing to keep."""
        claims = read_claims("claims", self.claims)
        if not claims:
            raise AirflowSkipException("there are no claims to keep")
        if _in_process():
            self.log.warning("Nothing is extended: there is no triggerer here; the claims hold for %g s", self.lease)
            return
        instance: Any = context["ti"]
        settle = [instance.dag_id, instance.run_id, self.settle, instance.map_index] if self.settle else None
        self.defer(
            trigger=ZkmqLeaseTrigger(
                claims=[[claim["queue"], claim["id"], claim["token"]] for claim in claims],
                lease=self.lease,
                settle=settle,
                zkmq_conn_id=self.zkmq_conn_id,
            ),
            method_name="execute_complete",
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Do nothing: the trigger ends the task without coming here."""


def _in_process() -> bool:
    """Whether this is ``dag.test()``: tasks are run one after the other, so that a wait for the others never ends."""
    from airflow.sdk.execution_time import supervisor, task_runner

    return isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), supervisor.InProcessSupervisorComms)
