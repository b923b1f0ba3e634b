"""A claim by id, and a claim that another process holds, taken over by id and token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from airflow_provider_zkmq.engine.core.claim.candidates import (
    CallerLeft,
    Look,
    RankedEntry,
    Taker,
    Unregistered,
    Wanted,
    candidate,
    claim_together,
    read_tasks,
)
from airflow_provider_zkmq.engine.core.claim.claim import ClaimRequest, release_if_undelivered, then_settle, wanted
from airflow_provider_zkmq.engine.core.claim.order import rank_of
from airflow_provider_zkmq.engine.core.client.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.maintenance.consumers import register
from airflow_provider_zkmq.engine.core.maintenance.promote import promote_task
from airflow_provider_zkmq.engine.core.maintenance.rescue import maintain
from airflow_provider_zkmq.engine.core.model.codec import load, optional_whole_number
from airflow_provider_zkmq.engine.core.model.names import check_name
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.time import Duration
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.read.configuration import read_conf
from airflow_provider_zkmq.engine.core.read.leases import check_token, current_claim
from airflow_provider_zkmq.engine.core.read.nodes import Record, unless_missing
from airflow_provider_zkmq.engine.core.read.server_clock import server_time
from airflow_provider_zkmq.engine.core.tasks.deferred_completions import DeferredCompletions
from airflow_provider_zkmq.engine.core.tasks.holding import extend
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, TaskNotFound

# --- Claiming one task by its id, wherever it is pending: for whoever was told of it, and wants no other.
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
    request = replace((yield from wanted(context, lease=lease)), prefetch="all" if prefetch else False)

    def claiming(caller: Caller) -> Procedure[list[Claimed]]:
        return unless_missing(context, claim_by_id(context, request, name, number, caller))

    return ClaimRequest(context, claiming)


def claim_by_id(
    context: Context, request: Wanted, task_id: str, attempt: int | None = None, caller: Caller | None = None
) -> Procedure[list[Claimed]]:
    """Claim one task; none where it cannot be. `caller`: who is to get it; without one, it counts as delivered."""
    mine = caller or Caller()
    claims = yield from release_if_undelivered(context, mine, _claim(context, request, task_id, attempt, mine))
    if claims and caller is None:
        context.claims.deliver(claims[0])
    return claims


def _claim(
    context: Context, request: Wanted, task_id: str, attempt: int | None, caller: Caller
) -> Procedure[list[Claimed]]:
    deferred, first = DeferredCompletions(context), True
    try:
        while True:
            look, again = Look(request, caller, deferred), True
            try:
                settled = yield from then_settle(deferred, _look(context, look, task_id, attempt))
                again, first = settled and first, False  # once: others may go on putting down for ever
            except Unregistered:
                pass
            except CallerLeft:
                if context.claims.handovers:
                    context.run.finish_later()
                return []
            if look.taken or not again:
                return look.taken
    finally:
        deferred.sender.over = True
        deferred.close()


def _look(context: Context, look: Look, task_id: str, attempt: int | None) -> Procedure[None]:
    """One look at the task, after the queue was looked after: it may be a dead consumer's.

    Whoever was told of the task by another client may know more than the server that this one is connected to: what
    cannot be claimed is looked at again when that has caught up.
    """
    conf = yield from read_conf(context)
    consumer = yield from register(context)
    yield from maintain(context)
    if conf.paused:
        return
    taker = Taker(conf, consumer, look)
    if not (yield from _take(context, taker, task_id, attempt)):
        yield Sync(context.paths.task(task_id))
        yield from _take(context, taker, task_id, attempt)


def _take(context: Context, taker: Taker, task_id: str, attempt: int | None) -> Procedure[bool]:
    """Try to claim it, again and again while it changes and could be claimed."""
    for _ in range(TRIES):
        [nodes] = yield from read_tasks(context, [task_id])
        record = _record_of(context, task_id, nodes[0])
        if record is None or not (yield from _may_be_claimed(context, record.state, attempt)):
            return False
        if record.state.index is not None:
            yield from promote_task(context, record)
            continue
        claimed = yield from _candidate(context, taker, record, nodes)
        if claimed is not None and (yield from claim_together(context, taker, [claimed])):
            return True
    return False


def _record_of(context: Context, task_id: str, node: Node | None) -> Record | None:
    """The task's record; None without the task. Raises `CorruptRecord`."""
    path = context.paths.task(task_id, "state")
    return None if node is None else Record(task_id, node.stat, TaskState.decode(path, node.data))


def _may_be_claimed(context: Context, state: TaskState, attempt: int | None) -> Procedure[bool]:
    """Whether a task is pending, due, and its next delivery the one that is asked for."""
    if state.state is not State.INSERTED or attempt not in {None, state.attempt + 1}:
        return False
    if state.due is None:
        return True
    return state.due <= context.clock.certainly_past((yield from server_time(context)))


def _candidate(
    context: Context, taker: Taker, record: Record, nodes: Sequence[Node | None]
) -> Procedure[Claimed | None]:
    """The task, ready to be claimed; in strict order with its rank, so that it comes back to where it stood."""
    segment, _, entry = context.paths.entry(record.state.place).rpartition("/")
    rank: int | None = None
    if taker.conf.ordered:
        node: Node | None = yield Get(f"{segment}/{entry}")
        if node is None:
            return None
        rank = rank_of(node)
    return (yield from candidate(context, taker, record.task_id, RankedEntry(entry, segment, rank), nodes))


# --- Taking a claim over: whoever was told of a task's id and its claim's token gets the claim, as if it had made it.


def request_adoption(
    context: Context, task_id: str, token: int, *, lease: Duration | None = None
) -> Procedure[ClaimRequest]:
    """Return a leased claim that another process made, to be extended and settled as one's own.

    None where `token` is not the current claim's any more, or the task is gone. `lease`: it holds for so many seconds
    from now, and from each time that a worker extends it; without it, nothing is written, and it holds as long as it
    did. Of one that was prefetched the delivery counts when it begins. Whoever else knows the token may settle it as
    well, and who does so first has. The client that made it, while it refers to it, gets that very claim, with the new
    lease. That the task was cancelled is known by the claim being over. Raises `ConfigError` for a claim that ends with
    the session which made it, and for what is no id, token or lease; `QueueNotFound`, and `CorruptRecord` for a task
    that cannot be read.
    """
    name, number = check_name("task id", task_id), check_token(token)
    span = (yield from wanted(context, lease=lease)).lease

    def claiming(_: Caller) -> Procedure[list[Claimed]]:
        return unless_missing(context, _take_over(context, name, number, span))

    return ClaimRequest(context, claiming)


def _take_over(context: Context, task_id: str, token: int, span: float | None) -> Procedure[list[Claimed]]:
    try:
        found = yield from current_claim(context, task_id, token)
        claimed = yield from _mine(context, found)
        if span is not None:
            yield from extend(context, claimed, span)
            claimed.claim = claimed.claim | {"lease": span}
    except (ClaimLost, TaskNotFound):
        return []
    return [claimed]


def _mine(context: Context, found: Claimed) -> Procedure[Claimed]:
    """The claim with what its handler is given. Two of one claim could not know what became of the other."""
    if found.ends_with_session:
        msg = f"claim {found.token} of task {found.task_id!r} ends with the session that made it: claim with a lease"
        raise ConfigError(msg)
    known = _held(context, found)
    if known is not None:
        return known
    [(_, data, metadata)] = yield from read_tasks(context, [found.task_id])
    if data is None:
        raise TaskNotFound(f"task {found.task_id!r} is not in queue {context.queue!r} any more")
    known = _held(context, found)  # another call may have taken it over meanwhile
    if known is None:
        path = context.paths.task(found.task_id, "metadata")
        extra = load(path, metadata.data) if metadata is not None else {}
        known = replace(found, created=data.stat.ctime, data=data.data, metadata=extra)
        context.claims.receive(known, found.token)
    return known


def _held(context: Context, found: Claimed) -> Claimed | None:
    known = context.claims.held.get(found.task_id)
    return known if known is not None and known.token == found.token else None
