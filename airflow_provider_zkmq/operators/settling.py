"""`ZkmqSettleOperator`: end what a DAG run took by what became of its work."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from airflow.sdk import BaseOperator, Context, TaskGroup, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError, AirflowSkipException

from ..engine import ClaimLost, ConfigError, QueueNotFound, TaskNotFound, TaskTooLarge, ZkmqError
from ..hooks import arguments, claim_references, connection_options, metrics, outages, task_instance, xcom_results
from ..hooks.claim_references import ClaimReference
from ..hooks.zkmq import ZkmqHook
from . import dag_run_work
from .claiming import AGAIN, LEASE, still_held

if TYPE_CHECKING:
    from ..engine import AnyQueue

#: The task and the key of an XCom, and whether each instance of a mapped task has one.
Source: TypeAlias = tuple[str, str, bool]
T = TypeVar("T")


def results_of(operator: ZkmqSettleOperator, context: Context, count: int) -> Callable[[int], bytes | str | None]:
    """Return what gives the result of the claim at a position. It raises `ConfigError` for none, or another's.

    What work returns is asked for only where it succeeded: else there is none, which Airflow's templates complain of.
    """
    task_id, key, by_index = operator.result_of or ("", "", False)

    def pulled(index: int) -> Any:
        instance: Any = context["ti"]
        return instance.xcom_pull(task_ids=task_id, key=key, map_indexes=index)

    @cache
    def for_all() -> Any:
        if operator.result_of is not None:
            return pulled(-1)
        return _made("result cannot be made", lambda: operator.render_template(operator.result, context))

    @cache
    def same() -> bytes | str | None:
        return as_result(for_all())

    @cache
    def in_order() -> list[Any]:
        if isinstance(for_all(), AbstractSet):
            raise ConfigError("result is a set, which has no order: with each=True, give a list in that of the claims")
        values = _made("result cannot be made", lambda: list(for_all()))
        if len(values) != count:  # they would be taken for those of other claims
            raise ConfigError(
                f"result has {len(values)} value(s) for {count} claim(s), and is kept by none, as it may be "
                "another's: with each=True, give a list with a value for each claim, None where it has none"
            )
        return values

    def result(position: int) -> bytes | str | None:
        if by_index:
            return as_result(pulled(position))
        value = for_all()
        if not operator.each or isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return same()
        return as_result(in_order()[position])

    return result


def as_result(value: Any) -> bytes | str | None:
    """Return what a queue's task keeps as its result. Raises `ConfigError` for no text or JSON, such as a set."""

    def as_list(part: Any) -> list[Any]:  # what mapped tasks returned, say, which is read from Airflow one by one
        if isinstance(part, AbstractSet):
            raise TypeError("a set has no order: give a list")
        return list(part)

    if value is None or isinstance(value, bytes):
        return value
    wrong = "result is neither bytes, text nor JSON"
    if isinstance(value, str):
        return _made(wrong, value.encode)  # half a surrogate pair is no text
    return _made(wrong, lambda: json.dumps(value, default=as_list))


def _made(wrong: str, work: Callable[[], T]) -> T:
    """Return what `work` makes of values, by functions of the DAG's, too, which may raise anything.

    Raises `ConfigError` for that: what is not settled is done again, and no later try would do better.
    """
    try:
        return work()
    except (AirflowRuntimeError, OSError, EOFError):  # Airflow does not answer: the next try asks it again
        raise
    except Exception as error:  # noqa: BLE001  whatever a function of the DAG's raises
        raise ConfigError(f"{wrong}: {type(error).__name__}: {error}") from None


def source_of(result: Any, *, each: bool) -> Source | None:
    """Return the XCom that a result is. None for what is none, is made of several, or is for all claims.

    Raises `ValueError` for what is made of a mapped task's XComs for claims that are told apart: Airflow leaves out the
    instances that have none, so that those after them would count for the claims before.
    """
    operator, key = getattr(result, "operator", None), getattr(result, "key", None)
    if operator is not None and key is not None:
        mapped = _is_mapped(operator)
        return (str(operator.task_id), str(key), mapped) if each or not mapped else None
    parts = [operator for operator, _ in XComArg.iter_xcom_references(result)] if each else []
    if names := sorted({operator.task_id for operator in parts if _is_mapped(operator)}):
        raise ValueError(
            f"result: with each=True, what is made of the results of the mapped task {names[0]!r} (map, zip, concat, a "
            "list) has no certain order: apply the function in the task itself, and give what the task returns"
        )
    return None


def _is_mapped(operator: Any) -> bool:
    return operator.is_mapped or operator.get_closest_mapped_task_group() is not None


def _with(callback: Any, callbacks: Any) -> list[Any]:
    known = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
    return known if callback in known else [*known, callback]


_OUTCOMES: Final = {"complete": "completed", "fail": "failed", "release": "released"}
_NOTE: Final = "zkmq_settled"
#: How far the task of a claim has got that was settled so: its states, and what its count of attempts is then.
_ENDS: Final = {"complete": ({"finished"}, 0), "fail": ({"inserted", "dead"}, 0), "release": ({"inserted"}, -1)}


class Settlements:
    """What was settled, what was lost, and what was not settled for now. `again`: an earlier try may have settled.

    Of those that failed, `retried` are tried again by their queue, `failed` are not.
    """

    def __init__(self, hook: ZkmqHook, state_store: task_instance.TaskStateStore, log: Any, *, again: bool) -> None:
        self._hook = hook
        self._state_store = state_store
        self._log = log
        self._again = again
        self._noted: dict[str, str] = state_store.read(_NOTE) or {}
        self._done = dict.fromkeys(_OUTCOMES.values(), 0)
        self.failed: list[str] = []
        self.retried: list[str] = []
        self.released: list[str] = []
        self.lost: list[str] = []
        self.trouble: list[str] = []

    def settle(
        self, claim: ClaimReference, settle_result: dag_run_work.SettleResult, result: bytes | str | None
    ) -> None:
        """Settle one claim, or find that an earlier try did; what keeps it from that is in `lost` or `trouble`."""
        name = f"{claim['queue']}/{claim['id']}/{claim['token']}"
        queue = self._hook.queue(claim["queue"])
        try:
            noted = self._noted.get(name)
            if noted is None:
                settle_result = self._settle(queue, claim, settle_result, result)
                self._noted[name] = settle_result.kind
                metrics.count_settled(queue.name, _OUTCOMES[settle_result.kind])
            elif noted != settle_result.kind:  # whatever its work looks like now: nobody is told that it went otherwise
                settle_result = dag_run_work.SettleResult(noted, "so an earlier try settled it, which stands")
            self._done[_OUTCOMES[settle_result.kind]] += 1
            if settle_result.kind == "fail":
                task = queue.task(claim["id"])
                metrics.count_dead(queue.name, int(task.state == "dead"))
                outlook = f"is {task.state} after attempt {task.attempt}"
                if task.state == "inserted":
                    due = "" if task.due_at is None else f" at {task.due_at}"
                    outlook = f"is tried again{due}, after attempt {task.attempt}"
                ends = self.retried if task.state == "inserted" else self.failed
                ends.append(f"{claim_references.shown(claim)} {outlook}: {settle_result.reason}")
                self._log.error(
                    "Failed: %s, which %s: %s", claim_references.shown(claim), outlook, settle_result.reason
                )
            elif settle_result.kind == "release":
                self.released.append(f"{claim_references.shown(claim)}: {settle_result.reason}")
                self._log.warning("Given back: %s: %s", claim_references.shown(claim), settle_result.reason)
            else:
                self._log.info("Completed: %s", claim_references.shown(claim))
        except (ClaimLost, TaskNotFound, QueueNotFound) as error:
            metrics.count_settled(claim["queue"], "lost")
            self.lost.append(f"{type(error).__name__}: {error}")
        except ZkmqError as error:
            self.trouble.append(f"{claim_references.shown(claim)}: {type(error).__name__}: {error}")

    def remember(self) -> None:
        """Note what is settled, and how, for later tries."""
        if self._noted:
            self._state_store.note(_NOTE, self._noted)

    def counts(self) -> dict[str, int]:
        """Return how many were settled in which way, and how many were lost."""
        return {**self._done, "lost": len(self.lost)}

    def _settle(
        self,
        queue: AnyQueue,
        claim: ClaimReference,
        settle_result: dag_run_work.SettleResult,
        result: bytes | str | None,
    ) -> dag_run_work.SettleResult:
        """Settle; return how, which may be another way. Raises `ClaimLost` where no earlier try did so."""
        try:
            handle = queue.claim_handle(claim["id"], claim["token"])
            if settle_result.kind == "release":
                handle.release()
            elif settle_result.kind == "fail":
                handle.fail(settle_result.reason)
            else:
                try:
                    handle.complete(result)
                except TaskTooLarge as error:  # no later try could keep it either
                    handle.fail(str(error))
                    return dag_run_work.SettleResult("fail", str(error))
        except ClaimLost:
            if not self._again:
                raise
            task, (states, attempts) = queue.task(claim["id"]), _ENDS[settle_result.kind]
            if task.state not in states or task.attempt != claim["attempt"] + attempts:
                raise
            self._log.info("Settled by an earlier try: %s", claim_references.shown(claim))
        return settle_result


def have_checked(task: Any, claims: object, lease: float, conn_id: str, *, each: bool) -> None:
    """Have a task of the work look first whether its run holds the claims, wherever it is run again.

    Airflow's "clear only failed tasks" runs the work again and leaves out the task that claims: by then the queue may
    have given its task to another run. A first try is not looked at, nor are tasks that take claims over themselves,
    nor `claims` that are no XCom of a task that claims. What is held holds for `lease` seconds more. `each`: the
    instances of a mapped task are the work of one claim each.
    """
    sources = [operator for operator, _ in XComArg.iter_xcom_references(claims)]
    if len(sources) != 1 or getattr(dag_run_work.class_of(task), "holds_claims", False):
        return
    [claimer] = sources
    in_group = claimer.get_closest_mapped_task_group() is not None
    named = task.partial_kwargs if task.is_mapped else vars(task)
    also = named.get("pre_execute")  # of a task that two claims are settled by, or of its author's

    def hold(mine: list[ClaimReference], log: Any) -> None:
        """Extend the claims, through an outage, too; skip the task where none of them holds any more."""
        with ZkmqHook(conn_id) as hook:
            held = outages.outlast(
                log,
                "Looking at the claims",
                outages.RETRY_SECONDS,
                lambda _: [still_held(hook, claim, lease, log) for claim in mine],
            )
        lost = [
            f"{claim_references.shown(claim)} (claim {claim['token']})"
            for claim, kept in zip(mine, held, strict=True)
            if not kept
        ]
        if len(lost) == len(mine):
            raise AirflowSkipException(
                f"this run does not hold what it took any more, and another may be at it: {xcom_results.few(lost)}; "
                f"to do the work again, clear {claimer.task_id} with what is downstream of it: "
                "it claims the same tasks anew where it can"
            )
        if lost:
            log.warning("This run does not hold all that it took any more; left out is %s", xcom_results.few(lost))

    def check(context: Context) -> None:
        instance: Any = context["ti"]
        run: Any = context.get("dag_run")
        # After a clear a task may run for the first time when its claim was settled.
        if instance.try_number > 1 or getattr(run, "clear_number", 0):
            index = instance.map_index if in_group else -1
            mine = claim_references.read_claims(
                "claims", instance.xcom_pull(task_ids=claimer.task_id, map_indexes=index)
            )
            if each and not in_group and 0 <= instance.map_index < len(mine):
                mine = [mine[instance.map_index]]
            if mine:
                hold(mine, instance.task.log)
        if also is not None:
            also(context)
        elif not task.is_mapped and type(task).pre_execute is not BaseOperator.pre_execute:
            type(task).pre_execute(instance.task, context)

    if task.is_mapped:
        task.partial_kwargs["pre_execute"] = check
    else:
        task.pre_execute = check


def prepare_work(tasks: Sequence[Any], claims: object, lease: float, conn_id: str, *, each: bool) -> list[str]:
    """Have tasks of the work note how they end, beside what their author has called; see `have_checked`, too.

    Return the ids of those that note their end: one that is a success, and has noted none, was marked so by a user.
    """
    noting: set[str] = set()
    for task in tasks:
        task.on_failure_callback = _with(dag_run_work.note_error, task.on_failure_callback)
        named = task.partial_kwargs if task.is_mapped else vars(task)
        # A scheduler or a triggerer may end empty tasks, and those whose deferral ends them: no worker would note it.
        ends_elsewhere = named.get("end_from_trigger") or named.get("start_from_trigger")
        if not (task.inherits_from_empty_operator or ends_elsewhere):
            task.on_success_callback = _with(dag_run_work.note_end, task.on_success_callback)
            noting.add(task.task_id)
        have_checked(task, claims, lease, conn_id, each=each)
    return sorted(noting)


#: The end of a task is noted a moment after Airflow knows it: so many seconds, at the most, it is waited for.
_NOTED: Final = 10.0
_PAUSE: Final = 1.0
#: ZooKeeper may be away for minutes, and the work is done: it is tried for nine minutes at least.
_PATIENT: Final[dict[str, Any]] = AGAIN | {
    "retries": 12,
    "retry_exponential_backoff": 2,
    "max_retry_delay": timedelta(minutes=1),
}


class ZkmqSettleOperator(dag_run_work.NotMappable, BaseOperator):
    """Settles claims by the states of the tasks that did their work, and fails where the run is to be seen as failed.

    All succeeded: the queue's tasks are completed. Any failed, was not run for that, or is missing: they are failed,
    with Airflow's error as the reason, so that the queue's policy says when they are tried again, and when they are
    dead. Else, where some were skipped, they are given back, and the delivery counts no attempt: so it is with what is
    pending when a run is marked failed.

    It is a teardown task whose failure fails the run. It fails, without another try, after it has settled what failed
    or given back what was not done, since Airflow judges the run by it alone, also one that a user has marked failed;
    and where a claim was lost, since the work may be done twice. What the queue or ZooKeeper keeps from being settled
    does not keep the others from it, and is tried again by Airflow's retries: twelve, 5 seconds apart at first and a
    minute in the end, unless something else is said here (``default_args`` are for the work). A later try, and one
    after a clear, knows what was settled before, and settles nothing twice.

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
            one instance for each claim, none is completed. Else all are settled alike.
        on_skipped: what becomes of them where work was skipped: ``"release"``, ``"complete"`` or ``"fail"``.
        on_marked: the same where work is a success and has not run to its end, as a user, who marked it or the run so,
            has ended it. Work that Airflow's scheduler or triggerer ends without a worker is known by its state alone
            where its operator says so (empty ones, `end_from_trigger`, `start_from_trigger`); other such work wants
            ``"complete"``. So is work that is named by its id.
        on_retry: what it means that work has failed and the queue tries its task again: ``"fail"`` for the run, or
            ``"succeed"``: the run is judged by those alone that are dead.
        on_lost: what a lost claim means: ``"fail"`` for the run, or ``"ignore"``: a warning in the log.
        zkmq_conn_id: the Airflow connection.

    Raises `ValueError`, where the DAG is parsed, for what is not understood.
    """

    # The result is rendered where the work succeeded: other work may have none, and then Airflow would not even start.
    template_fields: Sequence[str] = ("claims", "zkmq_conn_id")
    ui_color = "#e8f0e4"
    operator_extra_links = task_instance.LINKS

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
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**(_PATIENT | kwargs))
        arguments.check_choice("ZkmqSettleOperator: on_skipped", on_skipped, _OUTCOMES)
        arguments.check_choice("ZkmqSettleOperator: on_marked", on_marked, _OUTCOMES)
        arguments.check_choice("ZkmqSettleOperator: on_retry", on_retry, ("fail", "succeed"))
        arguments.check_choice("ZkmqSettleOperator: on_lost", on_lost, ("fail", "ignore"))
        dag_run_work.check_each("ZkmqSettleOperator", each, self)
        nodes = list(work) if isinstance(work, list | tuple | set) else [work]
        self.claims = claims
        self.work = sorted({task_id for node in nodes for task_id in dag_run_work.work_ids(node)})
        tasks = [task for node in nodes for task in dag_run_work.work_tasks(node)]
        self.noting = prepare_work(tasks, claims, LEASE, zkmq_conn_id, each=each)
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
                own = isinstance(node, TaskGroup)
                self.set_upstream(dag_run_work.waited_for(dag_run_work.work_tasks(node)) if own else node)

    def execute(self, context: Context) -> dict[str, Any]:
        """Settle all; return how many were ``completed``, ``failed``, ``released``, ``lost``.

        Raises `AirflowException` where ZooKeeper kept a claim from being settled. There is no other try, but an
        `AirflowFailException`, where work failed, or was given back, a claim was lost (see `on_lost`), or a result
        could not be kept; also where claims with `each` are in a mapped task group after all, and where there is no
        XCom of claims, or none that is understood: then nothing is settled, and they are left to their leases.
        """
        try:
            claims = claim_references.read_claims("claims", self.claims)
        except ConfigError as error:  # no other try would understand them
            raise AirflowFailException(f"nothing is settled: {error}") from None
        if claims:
            task_instance.link_tasks(self, claims[0]["queue"], "settled", [claim["id"] for claim in claims])
        work = self._work(context)
        failed = [(each.task_id, each.map_index) for each in work if each.state == "failed"]
        failed = failed[: dag_run_work.MOST_CHECKED]
        instance: Any = context["ti"]
        key = dag_run_work.ERROR_KEY
        texts = [instance.xcom_pull(task_ids=name, key=key, map_indexes=index) for name, index in failed]
        reasons = {key: str(text) for key, text in zip(failed, texts, strict=True) if text is not None}
        kept = self._kept(context, work, reasons, len(claims))
        with ZkmqHook(self.zkmq_conn_id) as hook:
            again = instance.try_number > 1
            settlements = Settlements(hook, task_instance.TaskStateStore(context), self.log, again=again)
            try:
                for claim, (settle_result, result) in zip(claims, kept, strict=True):
                    settlements.settle(claim, settle_result, result)
            finally:
                settlements.remember()
        overall = dag_run_work.judge(work, self.on_skipped, reasons, self.on_marked)
        self._log_settled(claims, settlements, overall)
        return settlements.counts()

    def _work(self, context: Context) -> list[dag_run_work.Work]:
        """Return the work, with `MARKED` for a success that has not noted its end, as those tasks do otherwise."""
        instance: Any = context["ti"]
        if self.each and instance.map_index >= 0:
            raise AirflowFailException(
                "nothing is settled: each=True has no meaning in a mapped task group, whose instances have its index, "
                "not that of a claim; the claims are left to their leases"
            )
        work: list[dag_run_work.Work] = []
        for task_ids in dag_run_work.apart(self.work):
            states: dict[str, Any] = instance.get_task_states(
                dag_id=instance.dag_id, task_ids=task_ids, run_ids=[instance.run_id]
            )
            work += dag_run_work.instances(states.get(instance.run_id, {}), task_ids)
        if instance.map_index >= 0:
            work = dag_run_work.share(work, instance.map_index)
        until = time.monotonic() + _NOTED
        succeeded = {each for each in work if each.state == "success" and each.task_id in self.noting}
        while True:
            ended: set[tuple[str, int]] = set()
            for task_id in sorted({each.task_id for each in succeeded}):
                noted = instance.xcom_pull(task_ids=task_id, key=dag_run_work.END_KEY)
                ended |= {(task_id, index) for index in (noted if isinstance(noted, list) else [noted])}
            marked = {each for each in succeeded if (each.task_id, each.map_index) not in ended}
            if not marked or time.monotonic() >= until:
                return [each._replace(state=dag_run_work.MARKED) if each in marked else each for each in work]
            time.sleep(_PAUSE)

    def _kept(
        self, context: Context, work: list[dag_run_work.Work], reasons: Mapping[tuple[str, int], str], count: int
    ) -> list[tuple[dag_run_work.SettleResult, bytes | str | None]]:
        """Return how each claim is settled, and what its task keeps; what cannot be kept is a failure, and says why."""
        parts = [dag_run_work.share(work, position) if self.each else work for position in range(count)]
        settle_results = [dag_run_work.judge(part, self.on_skipped, reasons, self.on_marked) for part in parts]
        # Airflow leaves out what returned nothing when a task is mapped over what another returned, and multiplies what
        # is mapped over several lists: then an index tells nobody whose work an instance is.
        counts = Counter(each.task_id for each in work if each.map_index >= 0)
        odd = [f"{task_id} has {number}" for task_id, number in sorted(counts.items()) if number != count]
        if self.each and odd:
            unknown = dag_run_work.SettleResult(
                "fail", f"whose work it is is not known: {xcom_results.few(odd)} instance(s) for {count} claim(s)"
            )
            settle_results = [unknown if each.kind == "complete" else each for each in settle_results]
        result = results_of(self, context, count)
        kept: list[tuple[dag_run_work.SettleResult, bytes | str | None]] = []
        for position, settle_result in enumerate(settle_results):
            try:
                kept.append((settle_result, result(position) if settle_result.kind == "complete" else None))
            except ConfigError as error:  # no later try could keep it either
                # Of work that was skipped, and is complete all the same, there may be none.
                failed = dag_run_work.SettleResult("fail", str(error))
                kept.append((settle_result if settle_result.reason else failed, None))
        return kept

    def _log_settled(
        self, claims: list[ClaimReference], settlements: Settlements, overall: dag_run_work.SettleResult
    ) -> None:
        """Raise what the run is to be seen by. What is tried again comes first: it may go well.

        Work that is no claim's that was settled counts as well: Airflow judges the run by this task alone.
        """
        if settlements.trouble:
            raise AirflowException(f"not settled: {xcom_results.few(settlements.trouble)}")
        if settlements.lost and self.on_lost == "ignore":
            self.log.warning("%s", xcom_results.few(settlements.lost))
        elif settlements.lost:
            raise AirflowFailException(
                f"{len(settlements.lost)} of {len(claims)} settled too late: {xcom_results.few(settlements.lost)}"
            )
        failed = settlements.failed + (settlements.retried if self.on_retry == "fail" else [])
        if failed:
            raise AirflowFailException(f"the work failed: {xcom_results.few(failed)}")
        if settlements.released:
            raise AirflowFailException(
                f"the work was not done, and given back is {xcom_results.few(settlements.released)}"
            )
        if overall.kind != "complete" and not settlements.retried:
            raise AirflowFailException(f"the work was not done: {overall.reason}")
        if self.claims is None or self.claims == "":  # an empty list is what a task says that has taken nothing
            raise AirflowFailException(
                "nothing is settled: there is no XCom of claims; where a task pushes none, they are not known here"
            )
