"""`ZkmqClaimOperator`: take tasks for a DAG run, which settles them when its work is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from airflow_provider_zkmq.engine import Duration, QueueNotFound
from airflow_provider_zkmq.hooks.claims import MOST, Claim, read_claims, shown
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.deferring import naming
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.memory import Memory
from airflow_provider_zkmq.operators.nodes import class_of
from airflow_provider_zkmq.operators.patience import PATIENCE, outlast
from airflow_provider_zkmq.operators.taking import (
    Taken,
    accept,
    claims_of_events,
    give_back,
    take_back,
    take_new,
)
from airflow_provider_zkmq.operators.unmapped import Unmapped
from airflow_provider_zkmq.operators.waiting import block_until_ready, defer_until_ready, tell_missing
from airflow_provider_zkmq.triggers.leases import checked_lease

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.engine import AnyQueue

_NOTE: Final = "zkmq_claims"
_ON_EMPTY: Final = ("skip", "wait", "fail")
#: So many seconds claims hold where nobody extends them any more: Airflow that is gone keeps them for as long.
LEASE: Final = 300
#: So many seconds claims hold at first at least where others are to extend them: Airflow must start those.
_UNTIL_KEPT: Final = 60.0
#: What holds claims, or ends them, is tried again soon: work that was done is not to be lost for a moment's trouble.
#: And it waits for no other run: one that failed would keep the claims of the next for ever.
AGAIN: Final[dict[str, Any]] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=5),
    "depends_on_past": False,
    "wait_for_downstream": False,
}
#: A wait on the worker asks in steps of so many seconds, so that it ends soon after Airflow ends the task.
_STEP: Final = 30.0


class ZkmqClaimOperator(Unmapped, BaseOperator):
    """Claims tasks for its DAG run; its XCom is ``[{"queue", "id", "token", "attempt", "filters"}, …]``, no payload.

    It is a setup task: `ZkmqKeepOperator` keeps what it took from being delivered again while the run works, and
    `ZkmqSettleOperator`, its teardown, ends it by what became of the work; `ZkmqTaskGroup` lays all three. The claims
    are leased, so that the tasks of a run that is gone are delivered again.

    What it took is noted where Airflow keeps it beyond a try, before the XCom. A later try, and one after a clear,
    takes back the same tasks by their ids and never another: as they are where the claim still holds, claimed anew
    where they are pending. What has ended meanwhile, or is another's, is left out; where nothing is left, the task
    skips and says why. What was claimed by a process that died before it noted it is delivered again when the claim
    runs out.

    Args:
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        selector: claim only tasks whose filters it accepts.
        max_tasks: claim so many at the most, 1 to 100; it takes what is there and waits for no more.
        lease: seconds, a duration or their text, 3 s or more: for so long the claims hold if nobody extends them. For
            a minute at least at first where they are taken `ahead`, or `ZkmqKeepOperator` or ``@task.zkmq`` follow,
            which are to hold them and must have begun.
        ahead: the claims are for runs that take them over, by their `claims`: until one does, the delivery counts no
            attempt, and the claims that nobody took over in time are delivered again. (What is taken over begins.)
        claims: take over these, which another run or process took, such as ``"{{ dag_run.conf['claims'] }}"``, instead
            of claiming: each that still holds is extended, the others are left out.
        from_events: take over those of `zkmq_queue`, if that is given, that the asset events tell of which started the
            run, the latest 100 of them; where these tell of none, as those of ``mode="wake"``, claim.
        on_empty: where nothing can be taken, or the queue is not there: ``"skip"`` the task and with it the run's work,
            ``"wait"`` until there is something, or ``"fail"``, so that it is tried again.
        in_place: for work that is mapped over the claims: what would be left out after a clear keeps its place among
            them, as it was, so that no claim is taken for another's by its index. Where nothing is left, it skips, too.
        deferrable: with ``on_empty="wait"``: wait in the triggerer rather than on a worker.
        zkmq_conn_id: the Airflow connection.

    Raises `ValueError` and `ConfigError`, where the DAG is parsed, for what is not understood.

    """

    template_fields: Sequence[str] = ("zkmq_queue", "selector", "claims", "zkmq_conn_id")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        zkmq_queue: str | None = None,
        selector: str | None = None,
        max_tasks: int = 1,
        lease: Duration | str = LEASE,
        ahead: bool = False,
        claims: object = None,
        from_events: bool = False,
        on_empty: str = "skip",
        in_place: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check(max_tasks, on_empty, claims, from_events=from_events)
        self.zkmq_queue = zkmq_queue
        self.selector = selector
        self.max_tasks = max_tasks
        self.lease = checked_lease(lease)
        self.ahead = ahead
        self.claims = claims
        self.from_events = from_events
        self.on_empty = on_empty
        self.in_place = in_place
        self.deferrable = deferrable
        self.zkmq_conn_id = zkmq_conn_id
        self.is_setup = True
        self.do_xcom_push = True  # `default_args` of another mind would have the run settle nothing, and be green

    def execute(self, context: Context) -> list[Claim]:
        """Take tasks, waiting if asked to.

        Raises:
            AirflowSkipException: there was nothing to take, or nothing was left of what an earlier try took.
            AirflowException: there was nothing to take, with ``on_empty="fail"``.
            ZkmqError: ZooKeeper or the queue refused; a `TransportError` where none answered for nine minutes.

        """
        limit = self.execution_timeout
        return self._take(context, None if limit is None else time.time() + limit.total_seconds())

    def execute_complete(self, context: Context, event: dict[str, Any], deadline: float | None = None) -> list[Claim]:
        """Go on after the trigger: there was work; wait again where others were faster.

        Raises what `execute` does, and `AirflowException` where nothing came before the end of `execution_timeout`.
        """
        if event["status"] != "done":
            limit = self.execution_timeout
            raise AirflowException(naming(event["message"], None if limit is None else limit.total_seconds()))
        return self._take(context, deadline)

    @property
    def _first_lease(self) -> float:
        followers = self.downstream_list if self.has_dag() else []
        kept = self.ahead or any(getattr(class_of(each), "holds_claims", False) for each in followers)
        return max(_UNTIL_KEPT, self.lease) if kept else self.lease

    def _take(self, context: Context, deadline: float | None) -> list[Claim]:
        memory = Memory(context)
        noted = memory.read(_NOTE)
        if not noted:
            self._refuse_another(context, memory)
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            outlasting = partial(outlast, self.log, "Claiming", _patience(deadline))
            if noted:
                taken = self._back(hook, noted, outlasting)
            else:
                taken = outlasting(partial(self._fresh, context, hook, deadline))
            self._note(hook, memory, taken)
        return [each.claim for each in taken]

    def _back(self, hook: ZkmqHook, noted: list[dict[str, Any]], outlasting: Callable[..., list[Taken]]) -> list[Taken]:
        """Take what an earlier try noted. What was claimed anew, and then cannot be told of, is given back."""
        now = list(noted)
        take = partial(take_back, hook, now, self._first_lease, self.log, ahead=self.ahead, in_place=self.in_place)
        try:
            taken = outlasting(lambda _: take())
        except BaseException:
            anew = [Taken(**after) for before, after in zip(noted, now, strict=True) if before != after]
            give_back(hook.queue, anew, self.log)
            raise
        if not taken:
            raise AirflowSkipException("nothing is left of what an earlier try took; see the log above")
        return taken

    def _refuse_another(self, context: Context, memory: Memory) -> None:
        """Where Airflow wipes the notes of what succeeded, one is there all the same if no try of this run did."""
        if memory.fades:
            if memory.read(_NOTE) is None and context["ti"].try_number > 1:
                raise AirflowSkipException(
                    "what an earlier try took is not known any more, as [state_store] clear_on_success is set: nothing "
                    "is claimed, since it would be another task"
                )
            memory.note(_NOTE, [])

    def _fresh(
        self, context: Context, hook: ZkmqHook, deadline: float | None, reached: Callable[[], None]
    ) -> list[Taken]:
        given = claims_of_events(context, self.zkmq_queue or None, self.log) if self.from_events else None
        if self.claims is not None:
            given = read_claims("claims", self.claims)
        if given is not None:
            taken = accept(hook, given, self._first_lease, self.log)
            if taken or self.on_empty != "wait":
                return taken or self._nothing("none of the claims holds any more")
        queue = hook.queue()
        while not (taken := self._take_new(queue)):
            if self.on_empty != "wait":
                self._nothing(f"there is no task of queue {queue.name!r} to take")
            if self.deferrable:
                defer_until_ready(self, deadline)
            reached()
            block_until_ready(queue, self.selector or None, _STEP)
        return taken

    def _take_new(self, queue: AnyQueue) -> list[Taken]:
        try:
            lease, most = self._first_lease, self.max_tasks
            return take_new(queue, self.selector or None, most, lease, self.log, ahead=self.ahead)
        except QueueNotFound as error:
            return tell_missing(error, self.on_empty, self.log)

    def _nothing(self, why: str) -> NoReturn:
        if self.on_empty == "fail":
            raise AirflowException(why)
        raise AirflowSkipException(why)

    def _note(self, hook: ZkmqHook, memory: Memory, taken: list[Taken]) -> None:
        """Note what was taken; what cannot be noted is given back: a later try could not take it back."""
        try:
            memory.note(_NOTE, [each._asdict() for each in taken])
        except BaseException:
            give_back(hook.queue, taken, self.log)
            raise
        for claim, _ in taken:
            self.log.info("Took %s, attempt %d, token %d", shown(claim), claim["attempt"], claim["token"])


def _patience(deadline: float | None) -> float:
    """Return for how many seconds of an outage it goes on: as long as what settles the claims does."""
    return PATIENCE if deadline is None else min(PATIENCE, deadline - time.time())


def _check(max_tasks: object, on_empty: object, claims: object, *, from_events: bool) -> None:
    if isinstance(max_tasks, bool) or not isinstance(max_tasks, int) or not 1 <= max_tasks <= MOST:
        raise ValueError(f"ZkmqClaimOperator: max_tasks {max_tasks!r} is not allowed: a whole number from 1 to {MOST}")
    if on_empty not in _ON_EMPTY:
        raise ValueError(f"ZkmqClaimOperator: on_empty {on_empty!r} is not known: give skip, wait or fail")
    if claims is not None and (from_events or on_empty == "wait"):
        raise ValueError(
            "ZkmqClaimOperator: with claims there are no events to look at, and there is no work to wait for"
        )
