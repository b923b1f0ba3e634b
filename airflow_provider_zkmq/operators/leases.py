"""`ZkmqKeepOperator`: keep what a DAG run took from being delivered again while the run works."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from airflow.sdk import BaseHook, BaseOperator, Context
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from ..engine import Duration, ZkmqError
from ..environment import FILES
from ..hooks.claim_references import ClaimReference, read_claims, shown
from ..hooks.connection_options import DEFAULT_CONN_ID, connection_options
from ..hooks.zkmq import ZkmqHook
from ..triggers.leases import ZkmqLeaseTrigger, checked_lease, end_of
from .claiming import AGAIN, LEASE, still_held
from .dag_run_work import NotMappable

#: Where worker slots are few, what holds the claims comes before the work.
_PRIORITY: Final = 1_000
#: Seconds after which queue files are looked at again, at the latest: no watch tells that the run has settled.
_LOOK: Final = 30.0


class ZkmqKeepOperator(NotMappable, BaseOperator):
    """Extends claims every third of their lease, deferred, beside the work; it ends when they are settled or lost.

    It takes a worker for a moment and none while it waits, and it ends in the triggerer. It is a teardown task of
    `ZkmqClaimOperator`, which Airflow runs as soon as the claims are there: so it is run again with them after a clear,
    goes on while a run that was marked failed tears down, and neither its state nor its end matters to what comes
    after the work. In ``dag.test()``, which has no triggerer, it does nothing. Claims of queue files, which no trigger
    can use, it extends on a worker, every third of their lease and every 30 seconds at the least: Airflow reschedules
    it, as it does a sensor. It is tried three times more, 5 seconds apart, unless something else is said here:
    ``default_args`` are for the work.

    Args:
        claims: the claims, usually the XCom of `ZkmqClaimOperator`.
        lease: as that of `ZkmqClaimOperator`.
        settle: the id of the Airflow task that settles; when that has ended without settling, nothing is extended any
            more, and the tasks are delivered again. None: it is not looked at, and the claims are kept until they end.
        zkmq_conn_id: the Airflow connection.

    Raises `ValueError`, where the DAG is parsed, for what is not understood.
    """

    template_fields: Sequence[str] = ("claims", "zkmq_conn_id")
    ui_color = "#e8f0e4"
    holds_claims: ClassVar[bool] = True
    """What it follows need hold them only until it has begun."""

    def __init__(
        self,
        *,
        claims: object,
        lease: Duration | str = LEASE,
        settle: str | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        kwargs = {"priority_weight": _PRIORITY, "weight_rule": "absolute"} | AGAIN | kwargs
        super().__init__(**kwargs)
        if settle is not None and not isinstance(settle, str):
            raise ValueError(
                f"ZkmqKeepOperator: settle {settle!r} is not allowed: give the id of the task that settles"
            )
        self.claims = claims
        self.lease = checked_lease(lease)
        self.settle = settle
        self.zkmq_conn_id = zkmq_conn_id
        self.as_teardown(on_failure_fail_dagrun=False)

    def execute(self, context: Context) -> None:
        """Defer to the trigger, which ends the task; claims of queue files are extended here, again and again.

        Raises `AirflowSkipException` where there is nothing to keep, `ConfigError` for what is not understood.
        """
        claims = read_claims("claims", self.claims)
        if not claims:
            raise AirflowSkipException("there are no claims to keep")
        from airflow.sdk.execution_time import supervisor, task_runner

        comms = getattr(task_runner, "SUPERVISOR_COMMS", None)
        if isinstance(comms, supervisor.InProcessSupervisorComms):  # dag.test(): a wait for the others never ends
            self.log.warning("Nothing is extended: there is no triggerer here; the claims hold for %g s", self.lease)
            return
        instance: Any = context["ti"]
        settle = [instance.dag_id, instance.run_id, self.settle, instance.map_index] if self.settle else None
        try:
            hosts: str = connection_options(BaseHook.get_connection(self.zkmq_conn_id))["hosts"]
        except Exception as error:  # noqa: BLE001  whatever a secrets backend raises: the trigger looks it up, too
            self.log.info("Connection %r is not looked up here: %s", self.zkmq_conn_id, error)
            hosts = ""
        if hosts.startswith(FILES):
            self._extend(claims, settle)
            return
        self.defer(
            trigger=ZkmqLeaseTrigger(
                claims=[[claim["queue"], claim["id"], claim["token"]] for claim in claims],
                lease=self.lease,
                settle=settle,
                zkmq_conn_id=self.zkmq_conn_id,
            ),
            method_name="execute_complete",
        )

    def _extend(self, claims: list[ClaimReference], settle: list[Any] | None) -> None:
        """Extend the claims, and be called again, until none holds or who is to settle them has ended."""
        held = 0
        with ZkmqHook(self.zkmq_conn_id) as hook:
            for claim in claims:
                try:
                    held += still_held(hook, claim, self.lease, self.log)
                except ZkmqError as error:  # another process holds the file's lock, say: the claim is tried again soon
                    self.log.warning("Not extended for now: %s: %s", shown(claim), error)
                    held += 1
        if not held:
            return
        try:
            ended = settle is not None and end_of(*settle) is not None
        except Exception as error:  # noqa: BLE001  Airflow does not answer: work that goes on is not delivered again
            self.log.warning("Whether %s has ended is not known now: %s", self.settle, error)
            ended = False
        if ended:
            self.log.warning("%d claim(s) are left to their leases: what was to settle them has ended", held)
            return
        raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=min(self.lease / 3, _LOOK)))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Do nothing: the trigger ends the task without coming here."""
