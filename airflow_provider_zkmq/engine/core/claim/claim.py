"""Claim: look, take, wait; by selector or by id, one task or several together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Final

from ...errors import ConfigError, TransportError, ZkmqError
from .. import client_state
from ..client_state import Claimed, Context
from ..maintenance.consumer_registry import register, stagger
from ..maintenance.due_work import maintain, promote_task
from ..model.filters import FilterMethods, Selector, choose
from ..model.records import TaskState
from ..model.states import State
from ..model.values import MOST_AT_ONCE, Duration, optional_seconds, optional_whole_number, seconds, whole_number
from ..model.znode_names import check_name, priority_of
from ..read.bulk_read import Record
from ..read.claim_status import check_token, current_claim
from ..read.configuration import read_conf
from ..read.queue_existence import missing_queue, unless_missing
from ..read.server_clock import server_time
from ..read.watch_cache import listing
from ..tasks import settle
from ..zk_operations import Get, Node, Procedure, SetTimeout, Sync, Wait, WaitPlace, explained
from . import candidates, take
from .candidates import matching_lanes, rank_of
from .limits import Limits

# --- Claim: the first tasks that a selector accepts, or one task by its id.


def claim(
    context: Context,
    wanted: take.Wanted,
    timeout: float = 0.0,
    caller: client_state.Caller | None = None,
    *,
    stopping: Callable[[], bool] = client_state.never_stopping,
) -> Procedure[Claimed | None]:
    """The first task that fits, waiting at most `timeout` seconds; None when there was none. See `claim_many`."""
    claims = yield from claim_many(context, wanted, 1, timeout, caller, stopping=stopping)
    return claims[0] if claims else None


def claim_many(
    context: Context,
    wanted: take.Wanted,
    most: int,
    timeout: float = 0.0,
    caller: client_state.Caller | None = None,
    *,
    stopping: Callable[[], bool] = client_state.never_stopping,
    read_ahead: client_state.ReadAhead | None = None,
) -> Procedure[list[Claimed]]:
    """The first `most` tasks that fit, or as many as there are, in order.

    What this client has handled, and not settled yet, goes with them. `caller`: who is to get them, all of them with
    one `deliver`; without one, what is returned counts as delivered. What was claimed and nobody got is given back.
    `stopping` ends the wait early; it is asked whenever the queue's signal is fired. `read_ahead`: what the claims that
    they follow have read for them.
    """
    mine = caller or client_state.Caller()
    try:
        if timeout > 0 and read_ahead is None:  # a loop also settles, for which it has as long as any other call
            yield SetTimeout(timeout)
        claims = yield from _claim(context, wanted, most, timeout, mine, stopping, read_ahead)
    except BaseException as error:
        mine.left = True
        if context.claims.handovers:
            context.run.finish_later()
        if not isinstance(error, take.CallerLeft):
            raise
        claims = []
    if claims and caller is None:
        context.claims.deliver(claims[0])
    return claims


def _claim(
    context: Context,
    wanted: take.Wanted,
    most: int,
    timeout: float,
    caller: client_state.Caller,
    stopping: Callable[[], bool],
    read_ahead: client_state.ReadAhead | None,
) -> Procedure[list[Claimed]]:
    """Look, and wait to look again, until something is claimed, or there is no time left."""
    deadline = context.run.monotonic() + timeout
    kind = wanted.kind
    place, deferred, late = WaitPlace(kind), settle.DeferredCompletions(context), False
    try:
        while not stopping():
            seen, schedule = context.signal.count, context.schedule()
            reads = read_ahead
            if reads is None and wanted.task_id is None:  # where others of its kind follow one another closely
                reads = context.paces.begin(kind)
            taker = take.Taker(wanted, caller, deferred, most, reads)
            # What could not go with a claim is settled by itself, also where nothing can be claimed.
            try:
                yield from _look(context, taker, schedule)
            except take.Unregistered:
                yield from deferred.finish()
                again = True
            except take.NoRoom:
                yield from deferred.finish()
                return taker.taken
            except (TransportError, take.CallerLeft):
                raise
            except ZkmqError:
                yield from deferred.finish()
                raise
            else:
                # A task that was given back so may be what is wanted, and was not there when we looked. Past the
                # deadline only once: others may go on deferring completions for ever.
                again = (yield from deferred.finish()) and not late
            left = deadline - context.run.monotonic()
            if again and not taker.taken:
                late = left <= 0
                continue
            if taker.taken or (left <= 0 and not schedule.more):
                return taker.taken
            woken = yield Wait(context.signal, seen, schedule.left(left), place=place)
            if woken and not stopping():
                yield from stagger(context, deadline - context.run.monotonic())
        return []
    finally:
        deferred.sender.over = True
        deferred.close()
        if place.kept:  # woken for all of its kind, perhaps: however it ends, another one looks after it
            context.signal.notify_one(place.kind)


def _look(context: Context, taker: take.Taker, schedule: client_state.Schedule) -> Procedure[None]:
    """One look at the queue, without waiting, after it was looked after: what is wanted may be a dead consumer's.

    `schedule` tells when to look again. Raises `Unregistered`, `NoRoom`, `CallerLeft`; what is in ``taken`` stands.
    """
    wanted = taker.wanted
    taker.conf = yield from read_conf(context)
    taker.limits = None if taker.conf.limit is None else Limits(context, taker.conf.limit, schedule)
    taker.consumer = yield from register(context, str(wanted.selector) if wanted.task_id is None else None)
    yield from maintain(context, schedule if wanted.task_id is None else None)
    if taker.conf.paused:
        return
    if wanted.task_id is not None:
        if not (yield from _take(context, taker, wanted.task_id)):
            # Whoever heard of it from another client may know more than the server that this one is connected to.
            yield Sync(context.paths.task(wanted.task_id))
            yield from _take(context, taker, wanted.task_id)
    elif taker.conf.order == "fifo":
        yield from candidates.claim_in_order(context, taker, schedule)
    else:
        names = yield from listing(context, context.paths.at("queue"))
        lanes = yield from matching_lanes(context, taker.accepts, names or ())
        for _, group in groupby(lanes, key=lambda lane: priority_of(lane[0])):
            yield from candidates.claim_among(context, taker, list(group), schedule)
            if not taker.room:
                return


# --- Asking for tasks: what a consumer wants is checked first; a claim that is not refused can then be carried out.


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Claims that were asked for and not refused: on which queue, and how a caller comes by them."""

    context: Context
    claiming: Callable[[client_state.Caller], Procedure[list[Claimed]]]


def wanted(
    context: Context,
    node: Mapping[str, object] | Selector | str | None = None,
    filter_method: FilterMethods = "absolute",
    selector: Selector | str | None = None,
    lease: Duration | None = None,
) -> Procedure[take.Wanted]:
    """What a consumer asks for, checked against the queue's declarations. Raises `ConfigError`, `QueueNotFound`."""
    conf = yield from read_conf(context)
    return take.Wanted(
        choose(conf.types, node=node, filter_method=filter_method, selector=selector), lease_seconds(lease)
    )


def lease_seconds(lease: Duration | None) -> float | None:
    """For how long a claim is to hold. Raises `ConfigError`."""
    span = optional_seconds("lease", lease)
    if span == 0:
        msg = "a lease of 0 seconds would end at once"
        raise ConfigError(msg)
    return span


def request_claim(
    context: Context,
    node: Mapping[str, object] | None = None,
    filter_method: FilterMethods = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration = 0,
    lease: Duration | None = None,
    stopping: Callable[[], bool] = client_state.never_stopping,
) -> Procedure[ClaimRequest]:
    """Take the first task that fits, waiting at most `timeout` seconds; None when there was none.

    `node` with `filter_method`, or `selector`, say what fits; neither: everything. `lease`: seconds for which
    the claim outlives this process; without it the claim ends with the ZooKeeper session. `stopping` ends the wait
    early; it is asked whenever the queue changes. A call that is cancelled or interrupted gives back what it took.
    Raises `ConfigError` for what the queue's declarations refuse, and `QueueNotFound`, also while it waits.
    """
    return request_claims(
        context, 1, node, filter_method, selector=selector, timeout=timeout, lease=lease, stopping=stopping
    )


def request_claims(
    context: Context,
    n: int,
    node: Mapping[str, object] | None = None,
    filter_method: FilterMethods = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration = 0,
    lease: Duration | None = None,
    stopping: Callable[[], bool] = client_state.never_stopping,
    prefetch: take.Prefetch = False,
    max_leases: int | None = None,
) -> Procedure[ClaimRequest]:
    """Take the first `n` tasks that fit (1 to 64), or as many as there are; an empty list when there was none.

    They come in the queue's order, and are taken together in few transactions: tasks that one transaction took have the
    same token. A call that is cancelled or interrupted gives back all that it took. The arguments are `claim`'s, and:

    - `timeout`: for how many seconds the first of them is waited for; what is there by then is taken.
    - `prefetch`: all but the first are handled later, or ``"all"`` of them. Until `begin` says that one is, the death
      of this process, or the end of its lease, counts it as no attempt.
    - `max_leases`, of claims with a `lease`: no more are taken than leave the queue with so many leases, whoever holds
      them, and however many claim under a bound at once; other claims of the same moment may come on top. Where there
      is no room for one, the list is empty at once.

    Raises `ConfigError`, also for another `n`, and `QueueNotFound`, also while it waits.
    """
    most, span = whole_number("n", n, 1, MOST_AT_ONCE), seconds("timeout", timeout)
    if span > 0:
        yield SetTimeout(span)
    request = yield from wanted(context, node, filter_method, selector, lease)
    bound = optional_whole_number("max_leases", max_leases, 1)
    if bound is not None and request.lease is None:
        raise ConfigError("max_leases goes with a lease: other claims are not counted")
    if prefetch not in {True, False, "all"}:
        raise ConfigError(f"prefetch {prefetch!r} is not allowed: True, False or 'all'")
    return _requested(context, replace(request, prefetch=prefetch, max_leases=bound), most, span, stopping)


def _requested(
    context: Context, request: take.Wanted, most: int, span: float, stopping: Callable[[], bool]
) -> ClaimRequest:
    def claiming(caller: client_state.Caller) -> Procedure[list[Claimed]]:
        stops = lambda: caller.left or stopping()  # noqa: E731
        claims = claim_many(context, request, most, span, caller, stopping=stops)
        return explained(claims, partial(missing_queue, context))

    return ClaimRequest(context, claiming)


# --- Claiming one task by its id, wherever it is pending: for whoever knows of it, and wants no other.
#
# It passes by what stands before it, in strict order, too: whoever asks for a task by its id knows that.

#: How often a task that changes under our eyes is read again.
TRIES: Final = 4


def request_by_id(
    context: Context, task_id: str, *, lease: Duration | None = None, attempt: int | None = None, prefetch: bool = False
) -> Procedure[ClaimRequest]:
    """Take this task and no other, if it is pending and due, in whichever lane; it waits for nothing.

    None where there is no such task, it is not pending, another was faster, or the queue is paused. `attempt`: only if
    this is its delivery of that number, the first being 1. `lease` as with `claim`. `prefetch`: it is claimed for
    somebody who says when the handling begins (`begin`); until then the delivery counts no attempt. A task whose
    attempts are used up is not delivered. In strict order it passes by what stands before it. A call that is cancelled
    or interrupted gives back what it took. Raises `ConfigError` for a bad id, lease or number, `QueueNotFound`, and
    `CorruptRecord` for a task that cannot be read.
    """
    name, number = check_name("task id", task_id), optional_whole_number("attempt", attempt, 1)
    if not isinstance(prefetch, bool):
        raise ConfigError(f"prefetch {prefetch!r} is not allowed: True or False")
    request = yield from wanted(context, lease=lease)
    request = replace(request, prefetch="all" if prefetch else False, task_id=name, attempt=number)
    return _requested(context, request, 1, 0.0, client_state.never_stopping)


def _take(context: Context, taker: take.Taker, task_id: str) -> Procedure[bool]:
    """Try to claim one task, again and again while it changes and could be claimed. Raises `CorruptRecord`."""
    path = context.paths.task(task_id, "state")
    for _ in range(TRIES):
        [nodes] = yield from take.read_tasks(context, [task_id])
        node = nodes[0]
        if node is None:
            return False
        state = TaskState.decode(path, node.data)
        if state.state is not State.INSERTED or taker.wanted.attempt not in {None, state.attempt + 1}:
            return False
        if state.due is not None and state.due > context.clock.certainly_past((yield from server_time(context))):
            return False
        if state.index is not None:
            yield from promote_task(context, Record(task_id, node.stat, state))
            continue
        segment, _, entry = context.paths.entry(state.place).rpartition("/")
        ranked = take.RankedEntry(entry, segment)
        if taker.conf.ordered:  # it keeps its rank, so that it comes back to where it stood
            listed: Node | None = yield Get(ranked.path)
            if listed is None:
                continue
            ranked = replace(ranked, rank=rank_of(listed))
        claimed = yield from take.candidate(context, taker, task_id, ranked, nodes)
        if claimed is not None and (yield from take.claim_together(context, taker, [claimed])):
            return True
    return False


# --- A claim by its task's id and its token: whoever knows both has it, in whichever process it was made.


def request_handle(
    context: Context, task_id: str, token: int, *, lease: Duration | None = None
) -> Procedure[ClaimRequest]:
    """Return the current leased claim of a task by its token, to be extended and settled as one's own.

    Whoever else knows the token may settle it as well, and who does so first has. The client that made it, while it
    refers to it, gets that very claim; so does who asks again after `OutcomeUnknown`. `lease`: it holds for so many
    seconds from now, and from each time that a worker extends it; without it, nothing is written. Of one that was
    prefetched the delivery counts when it begins. That the task was cancelled is known by the claim being over. Raises
    `ClaimLost` where the token is not the current claim's, `TaskNotFound`, `QueueNotFound`, and `CorruptRecord` for a
    task that cannot be read; `ConfigError` for a claim that ends with another client's session, and for what is no id,
    token or lease.
    """
    name, number, span = check_name("task id", task_id), check_token(token), lease_seconds(lease)

    def claiming(_: client_state.Caller) -> Procedure[list[Claimed]]:
        return unless_missing(context, _handle(context, name, number, span))

    yield from ()
    return ClaimRequest(context, claiming)


def _handle(context: Context, task_id: str, token: int, span: float | None) -> Procedure[list[Claimed]]:
    """Two objects of one claim could not know what became of the other: this client's own one is found again."""
    claimed = context.claims.unsure.get((task_id, token))
    if claimed is None:
        found = yield from current_claim(context, task_id, token, whole=True)
        claimed = context.claims.held.get(task_id)
        if claimed is None or claimed.token != token:
            if found.ends_with_session:
                msg = f"claim {token} of task {task_id!r} ends with the session that made it: claim with a lease"
                raise ConfigError(msg)
            claimed = found
            context.claims.receive(found, token)
    if span is not None:
        yield from settle.extend(context, claimed, span)
        claimed.claim = claimed.claim | {"lease": span}
    return [claimed]
