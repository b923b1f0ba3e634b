"""`ZkmqClaimOperator`: take tasks for a DAG run, which settles them when its work is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from airflow.sdk import BaseOperator, Context, conf
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from ..engine import ClaimLost, ConfigError, Duration, QueueNotFound, TaskNotFound, TransportError, ZkmqError
from ..hooks import arguments, claim_references, connection_options, deferring, metrics, outages, task_instance
from ..hooks.claim_references import ClaimReference
from ..hooks.deferring import deferral
from ..hooks.zkmq import ZkmqHook
from ..triggers.leases import checked_lease
from ..triggers.zkmq import ZkmqReadyTrigger
from .dag_run_work import NotMappable, class_of

if TYPE_CHECKING:
    from ..engine import AnyQueue


def skip_missing_queue(error: QueueNotFound, on_empty: str, log: Any) -> list[Any]:
    """Return nothing where a queue is not there: the first enqueue makes it. ``on_empty="fail"``: raise `error`."""
    if on_empty == "fail":
        raise error
    log.warning("There is no work: %s", error)
    return []


def block_until_ready(
    queue: AnyQueue, selector: str | None, timeout: float | None, stopping: Callable[[], bool] = lambda: False
) -> bool:
    """Wait on this worker, for the queue, too, until there is work, for so many seconds; return whether there is."""
    deadline = None if timeout is None else time.monotonic() + timeout
    if not queue.exists(timeout, stopping=stopping) or stopping():
        return False
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    return queue.ready(selector=selector, timeout=left, stopping=stopping)


def defer_until_ready(operator: Any, deadline: float | None) -> NoReturn:
    """Give up the worker's slot until there is work, at the latest until the deadline, in seconds since 1970.

    The operator has a queue, a selector and a connection; its `execute_complete` gets the event and the deadline.
    """
    where = "the connection's queue" if not operator.zkmq_queue else f"queue {operator.zkmq_queue!r}"
    operator.log.info("Waiting for work in %s that fits: %s", where, operator.selector or "any task")
    wanted = {"zkmq_queue": operator.zkmq_queue or None, "selector": operator.selector or None}
    operator.defer(**deferral(operator, ZkmqReadyTrigger, {"deadline": deadline}, **wanted))
    raise AssertionError  # `defer` raises


#: The engine claims at most so many together.
_TOGETHER: Final = 64


class Taken(NamedTuple):
    """A claim, and when its task was enqueued, in milliseconds since 1970: an id may be enqueued again."""

    claim: ClaimReference
    enqueued: int


def give_back(queue_of: Callable[[str], AnyQueue], taken: Iterable[Taken], log: Any) -> None:
    """Release claims that no later try would know of; what cannot be is delivered again when its lease runs out."""
    left = list(taken)
    while left:
        claim, _ = left.pop(0)
        try:
            queue_of(claim["queue"]).claim_handle(claim["id"], claim["token"]).release()
        except TransportError as error:  # whoever is told to end has no time to wait for each of them
            log.warning("Not given back: %s and %d more: %s", claim_references.shown(claim), len(left), error)
            return
        except ZkmqError as error:
            log.warning("Not given back: %s: %s", claim_references.shown(claim), error)


def still_held(hook: ZkmqHook, claim: ClaimReference, lease: float, log: Any) -> bool:
    """Whether a claim is the current one, which then holds for `lease` seconds from now."""
    with logging_lost_claim(claim, log):
        hook.queue(claim["queue"]).claim_handle(claim["id"], claim["token"]).extend(lease)
        return True
    return False


@contextmanager
def logging_lost_claim(claim: ClaimReference, log: Any) -> Iterator[None]:
    """Go on after a block that finds a claim over, with a line in the log."""
    try:
        yield
    except (ClaimLost, TaskNotFound, QueueNotFound) as error:
        log.info("Claim %d of %s does not hold any more: %s", claim["token"], claim_references.shown(claim), error)


def claims_of_events(context: Context, queue: str | None, log: Any) -> list[ClaimReference] | None:
    """Return the claims of the events that started a run; None where it is to claim, as with those of ``"wake"``.

    `queue`: only those of this one. Of very many the latest: a slow DAG is sent again what it has not accepted in time.
    """
    by_asset = context.get("triggering_asset_events") or {}
    unique: dict[tuple[str, str, int], ClaimReference] = {}
    named = woken = False
    for event in [event for asset in by_asset for event in by_asset[asset]]:
        payload = (event.extra or {}).get("payload")
        if not isinstance(payload, Mapping):
            continue
        woken = woken or ("counts" in payload and queue in (None, payload.get("queue")))
        if "claims" not in payload:
            continue
        try:
            claims = claim_references.read_claims("the claims of an asset event", payload["claims"])
        except ConfigError as error:  # another's event is no reason to leave ours to their leases
            log.warning("An asset event is passed over: %s", error)
            continue
        named = True
        unique |= {(claim["queue"], claim["id"], claim["token"]): claim for claim in claims}
    mine = [claim for claim in unique.values() if queue in {None, claim["queue"]}]
    if len(mine) < len(unique):
        log.info("%d claim(s) of other queues than %r are left to others", len(unique) - len(mine), queue)
    return mine[-claim_references.MOST :] if mine or (named and not woken) else None


_NOTE: Final = "zkmq_claims"
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


class ZkmqClaimOperator(NotMappable, BaseOperator):
    """Claims tasks for its DAG run; its XCom is ``[{"queue", "id", "token", "attempt", "filters"}, …]``, no payload.

    It is a setup task: `ZkmqKeepOperator` keeps what it took from being delivered again while the run works, and
    `ZkmqSettleOperator`, its teardown, ends it by what became of the work; `ZkmqTaskGroup` lays all three. The claims
    are leased, so that the tasks of a run that is gone are delivered again.

    What it took is noted where Airflow keeps it beyond a try, before the XCom. A later try, and one after a clear,
    takes back the same tasks by their ids and never another: as they are where the claim still holds, claimed anew
    where they are pending. What has ended meanwhile, or is another's, is left out; where nothing is left, the task
    skips and says why. What a process claimed that died before it noted it is delivered again when the claim runs out.

    Args:
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        selector: claim only tasks whose filters it accepts.
        max_tasks: claim so many at the most, 1 to 100; it takes what is there and waits for no more.
        lease: seconds, a duration or their text, 3 s or more: for so long the claims hold if nobody extends them. For
            a minute at least at first where they are taken `prefetch`, or `ZkmqKeepOperator` or ``@task.zkmq`` follow,
            which are to hold them and must have begun.
        prefetch: the claims are for runs that take them over, by their `claims`: until one does, the delivery counts no
            attempt, and the claims that nobody took over in time are delivered again. (What is taken over begins.)
        claims: take over these, which another run or process took, such as ``"{{ dag_run.conf['claims'] }}"``, instead
            of claiming: each that still holds is extended, the others are left out.
        from_events: take over those of `zkmq_queue`, if that is given, that the asset events name which started the
            run, the latest 100 of them; where these name none, as those of ``mode="wake"``, claim.
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
    operator_extra_links = task_instance.LINKS

    def __init__(
        self,
        *,
        zkmq_queue: str | None = None,
        selector: str | None = None,
        max_tasks: int = 1,
        lease: Duration | str = LEASE,
        prefetch: bool = False,
        claims: object = None,
        from_events: bool = False,
        on_empty: str = "skip",
        in_place: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.check_number("ZkmqClaimOperator: max_tasks", max_tasks, most=claim_references.MOST)
        arguments.check_choice("ZkmqClaimOperator: on_empty", on_empty, ("skip", "wait", "fail"))
        if claims is not None and (from_events or on_empty == "wait"):
            raise ValueError(
                "ZkmqClaimOperator: with claims there are no events to look at, and there is no work to wait for"
            )
        self.zkmq_queue = zkmq_queue
        self.selector = selector
        self.max_tasks = max_tasks
        self.lease = checked_lease(lease)
        self.prefetch = prefetch
        self.claims = claims
        self.from_events = from_events
        self.on_empty = on_empty
        self.in_place = in_place
        self.deferrable = deferrable
        self.zkmq_conn_id = zkmq_conn_id
        self.is_setup = True
        self.do_xcom_push = True  # `default_args` of another mind would have the run settle nothing, and be green

    def execute(self, context: Context) -> list[ClaimReference]:
        """Take tasks, waiting if asked to.

        Raises `AirflowSkipException` where there was nothing to take, or nothing is left of what an earlier try took,
        `AirflowException` where there was nothing with ``on_empty="fail"``, and `ZkmqError` where ZooKeeper or the
        queue refused: a `TransportError` where none answered for nine minutes.
        """
        limit = deferring.wait_limit(self)
        return self._take(context, None if limit is None else time.time() + limit)

    def execute_complete(
        self, context: Context, event: dict[str, Any], deadline: float | None = None
    ) -> list[ClaimReference]:
        """Go on after the trigger: there was work; wait again where others were faster.

        Raises what `execute` does, and `AirflowException` where nothing came before the end of `execution_timeout`.
        """
        if event["status"] != "done":
            raise AirflowException(deferring.naming(event["message"], deferring.wait_limit(self)))
        return self._take(context, deadline)

    @property
    def _first_lease(self) -> float:
        followers = self.downstream_list if self.has_dag() else []
        kept = self.prefetch or any(getattr(class_of(each), "holds_claims", False) for each in followers)
        return max(_UNTIL_KEPT, self.lease) if kept else self.lease

    def _take(self, context: Context, deadline: float | None) -> list[ClaimReference]:
        """Take tasks and note them. What cannot be noted is given back: a later try could not take it back."""
        state_store = task_instance.TaskStateStore(context)
        noted = state_store.read(_NOTE)
        if not noted and state_store.fades:
            # Airflow wipes the notes of what succeeded: one is there all the same if no try of this run did.
            if noted is None and context["ti"].try_number > 1:
                raise AirflowSkipException(
                    "what an earlier try took is not known any more, as [state_store] clear_on_success is set: nothing "
                    "is claimed, since it would be another task"
                )
            state_store.note(_NOTE, [])
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            # It goes on for as long an outage as what settles the claims does.
            left = outages.RETRY_SECONDS if deadline is None else min(outages.RETRY_SECONDS, deadline - time.time())
            outlasting = partial(outages.outlast, self.log, "Claiming", left)
            if noted:
                now = list(noted)
                try:
                    taken = outlasting(lambda _: self._take_back(hook, now))
                except BaseException:
                    anew = [Taken(**after) for before, after in zip(noted, now, strict=True) if before != after]
                    give_back(hook.queue, anew, self.log)
                    raise
                if not taken:
                    raise AirflowSkipException("nothing is left of what an earlier try took; see the log above")
            else:
                taken = outlasting(partial(self._fresh, context, hook, deadline))
            try:
                state_store.note(_NOTE, [each._asdict() for each in taken])
            except BaseException:
                give_back(hook.queue, taken, self.log)
                raise
            for claim, _ in taken:
                task_instance.link_tasks(self, claim["queue"], "claimed", [each.claim["id"] for each in taken])
                self.log.info(
                    "Took %s, attempt %d, token %d", claim_references.shown(claim), claim["attempt"], claim["token"]
                )
        return [each.claim for each in taken]

    def _take_back(self, hook: ZkmqHook, noted: list[dict[str, Any]]) -> list[Taken]:
        """Take what an earlier try had, by its id, and nothing else: as it is, or claimed anew where it is pending.

        The rest is left out, or, with `in_place`, left as it was if anything is taken. What is claimed anew takes its
        place in `noted`: where the rest cannot be read now, whoever asks again finds it there.
        """
        places: list[Taken] = []
        held = 0
        for at, note in enumerate(noted):
            [claim] = claim_references.read_claims("what an earlier try noted", note["claim"])
            place = Taken(claim, note["enqueued"])
            mine = place if still_held(hook, claim, self._first_lease, self.log) else self._claim_again(hook, place)
            if mine is not None:
                noted[at] = mine._asdict()
                held += 1
            if mine is not None or self.in_place:
                places.append(mine or place)
        return places if held else []

    def _claim_again(self, hook: ZkmqHook, place: Taken) -> Taken | None:
        claim, enqueued = place
        try:
            queue = hook.queue(claim["queue"])
            task = queue.task(claim["id"])
            anew = task.enqueued_ms != enqueued
            lease, prefetch = self._first_lease, self.prefetch
            again = None if anew else queue.claim_task(claim["id"], lease=lease, prefetch=prefetch)
        except (TaskNotFound, QueueNotFound) as error:
            self.log.info("Left out: %s: %s", claim_references.shown(claim), error)
            return None
        if again is None:
            why = "its id was enqueued anew" if anew else f"it is {task.status}, attempt {task.attempt}"
            self.log.info("Left out: %s: %s", claim_references.shown(claim), why)
            return None
        metrics.count_claimed(queue.name, [again.task])
        return Taken(claim_references.claim_reference(queue.name, again), enqueued)

    def _fresh(
        self, context: Context, hook: ZkmqHook, deadline: float | None, reached: Callable[[], None]
    ) -> list[Taken]:
        passed = claims_of_events(context, self.zkmq_queue or None, self.log) if self.from_events else None
        if self.claims is not None:
            passed = claim_references.read_claims("claims", self.claims)
        if passed is not None:
            taken = self._accept(hook, passed)
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

    def _accept(self, hook: ZkmqHook, claims: Iterable[ClaimReference]) -> list[Taken]:
        """Take over claims that another process took: those that still hold begin, and are extended.

        An interrupt gives back what has begun. An error does not: whoever asks again begins it once more.
        """
        taken: list[Taken] = []
        try:
            for claim in claims:
                with logging_lost_claim(claim, self.log):
                    handle = hook.queue(claim["queue"]).claim_handle(claim["id"], claim["token"])
                    handle.begin()
                    handle.extend(self._first_lease)
                    taken.append(Taken(claim, handle.task.enqueued_ms))
        except Exception:
            raise
        except BaseException:
            give_back(hook.queue, taken, self.log)
            raise
        return taken

    def _take_new(self, queue: AnyQueue) -> list[Taken]:
        """Claim what fits and is there. Raises what `claim_many` does, if nothing was. An interrupt gives it back."""
        taken: list[Taken] = []
        try:
            while len(taken) < self.max_tasks:
                wanted = min(_TOGETHER, self.max_tasks - len(taken))
                claims = queue.claim_many(
                    wanted,
                    selector=self.selector or None,
                    lease=self._first_lease,
                    prefetch="all" if self.prefetch else False,
                )
                taken += [
                    Taken(claim_references.claim_reference(queue.name, claim), claim.task.enqueued_ms)
                    for claim in claims
                ]
                metrics.count_claimed(queue.name, [claim.task for claim in claims])
                if len(claims) < wanted:
                    break
        except ZkmqError as error:
            if isinstance(error, QueueNotFound) and not taken:
                return skip_missing_queue(error, self.on_empty, self.log)
            if not taken:  # else they would be nobody's until their leases run out
                raise
        except BaseException:
            give_back(lambda _: queue, taken, self.log)
            raise
        return taken

    def _nothing(self, why: str) -> NoReturn:
        if self.on_empty == "fail":
            raise AirflowException(why)
        raise AirflowSkipException(why)
