"""Taking pending tasks: one read of the candidates, one transaction.

A claim is remembered before it is sent (`Handover`). Whatever interrupts the call after that, a lost connection, a
cancellation, an interrupt from the keyboard, the claim may have happened and nobody would know of it: what its caller
never got, its client gives back before it claims again (`giveback`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.register import Consumer
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.model.records import TaskState, load
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Node, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import refused
from airflow_provider_zkmq.engine.core.protocol.tries import described
from airflow_provider_zkmq.engine.core.protocol.writes import Failure
from airflow_provider_zkmq.engine.core.reading.claims import one_stands
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes, unless_corrupt
from airflow_provider_zkmq.engine.core.reading.trees import WHOLE_AT_ONCE
from airflow_provider_zkmq.engine.core.tasks.exhaust import bury_exhausted, used_up
from airflow_provider_zkmq.engine.core.writing import transitions
from airflow_provider_zkmq.engine.core.writing.commit import commit
from airflow_provider_zkmq.engine.core.writing.plan import Plan, Refusal, merge, mergeable
from airflow_provider_zkmq.engine.core.writing.record import Current

#: How often a candidate whose record changes under our eyes is read again.
TRIES: Final = 4
_PARTS: Final = ("state", "data", "metadata")


class Unregistered(Exception):
    """This session is no consumer any more: it is a new one, or was taken for dead. Whoever claims registers again."""


class CallerLeft(Exception):
    """Whoever asked for the claim has gone away: nothing more is taken for it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer asks for. ``lease`` (seconds): the claim outlives the process; None: it ends with its session."""

    selector: Selector
    lease: float | None = None


@dataclass(frozen=True, slots=True)
class Taker:
    """Who claims, for whom, and by what rules."""

    conf: Conf
    wanted: Wanted
    consumer: Consumer
    caller: Caller
    most: int = 1
    """How many tasks are wanted."""
    taken: list[Claimed] = field(default_factory=list)
    """What has been claimed, in order."""

    @property
    def room(self) -> int:
        """How many tasks are wanted still."""
        return self.most - len(self.taken)

    def accepts(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters is wanted."""
        return self.wanted.selector.matches(filters, self.conf.types)


@dataclass(frozen=True, slots=True)
class Pick:
    """An entry that is to be tried; ``rank``: its place in strict order."""

    entry: str
    segment: str
    rank: int | None = None

    @property
    def path(self) -> str:
        """Where it stands."""
        return f"{self.segment}/{self.entry}"


def take(context: Context, taker: Taker, pick: Pick) -> Procedure[bool]:
    """Try to claim one entry; False: another was faster, or it is not ours. Raises `Unregistered`, `CallerLeft`.

    While no watch on the segment's listing has fired, the entry is still there: a refusal then means that the record
    was changed in place (updated, say), and it is read again. What cannot be claimed although it stands there is
    reported, and stepped over from then on.
    """
    for _ in range(TRIES):
        candidates = yield from read_candidates(context, taker, [pick])
        if candidates and (yield from claim_together(context, taker, candidates)):
            return True
        if not may_be_tried(context, pick):
            return False
    if not candidates and (yield Exists(pick.path)) is not None and may_be_tried(context, pick):
        context.report(pick.path, "a pending entry of a task that is not pending; stepped over")
    return False


def may_be_tried(context: Context, pick: Pick) -> bool:
    """Whether an entry that was tried certainly stands there still, and is not stepped over."""
    return pick.path not in context.quarantine and context.listings.still_listed(pick.segment, pick.entry)


def read_candidates(
    context: Context, taker: Taker, picks: Sequence[Pick], *, in_order: bool = False
) -> Procedure[list[Claimed]]:
    """The tasks of entries as they are now, ready to be claimed, less those that cannot be.

    `in_order`: of those before the first one that cannot be.
    """
    ids = [_task_of(context, pick) for pick in picks]
    known = [(pick, task_id) for pick, task_id in zip(picks, ids, strict=True) if task_id is not None]
    paths = [context.paths.task(task_id, part) for _, task_id in known for part in _PARTS]
    nodes = yield from read_nodes(paths, len(_PARTS) * WHOLE_AT_ONCE)
    candidates = []
    for at, (pick, task_id) in enumerate(known):
        of_task = nodes[len(_PARTS) * at : len(_PARTS) * (at + 1)]
        claimed = yield from _candidate(context, taker, task_id, pick, of_task)
        if claimed is not None:
            candidates.append(claimed)
        elif in_order:
            break
    return candidates


def _task_of(context: Context, pick: Pick) -> str | None:
    task_id = entry_task(pick.entry)
    if task_id is None:
        context.report(pick.path, "no entry of ours; stepped over")
    return task_id


def _candidate(
    context: Context, taker: Taker, task_id: str, pick: Pick, nodes: Sequence[Node | None]
) -> Procedure[Claimed | None]:
    parts, entry = [context.paths.task(task_id, part) for part in _PARTS], pick.path
    node, data, metadata = nodes
    if node is None or data is None:
        if (yield Exists(entry)) is not None:  # else it was claimed, finished and collected meanwhile
            context.report(entry, "a pending entry without a task; stepped over")
        return None
    records = unless_corrupt(context, entry, partial(_records, parts, node, metadata))
    if records is None or not _is_pending_at(context, entry, records[0]):
        return None
    state, extra = records
    if not taker.conf.may_deliver(state.attempt, state.policy):
        context.quarantine.wait(entry)
        return None
    if used_up(taker.conf, state):  # its policy was lowered meanwhile
        current = Current(task_id, node.stat.version, state)
        yield from bury_exhausted(context, current, (yield from server_time(context)))
        return None
    state = state if pick.rank is None else replace(state, rank=pick.rank)
    claimed = Claimed(task_id, 0, node.stat.version + 1, state, data.stat.ctime, data.data, extra)
    claimed.session = taker.consumer.session
    return claimed


def _records(parts: list[str], node: Node, metadata: Node | None) -> tuple[TaskState, dict[str, Any]]:
    """A candidate's record and its metadata. Raises `CorruptRecord`."""
    return TaskState.decode(parts[0], node.data), load(parts[2], metadata.data) if metadata is not None else {}


def _is_pending_at(context: Context, entry: str, state: TaskState) -> bool:
    """Whether a task is pending, and this is its entry."""
    return state.state is State.INSERTED and state.index is None and context.paths.entry(state.place) == entry


def claim_together(
    context: Context, taker: Taker, candidates: Sequence[Claimed], *, in_order: bool = False
) -> Procedure[bool]:
    """Claim candidates in one transaction, as many as fit; whether all of them are taken.

    Where it is refused at one of them, that one is left out and the others are sent again; `in_order`: those before it.
    """
    now = yield from server_time(context)
    plans = [(claimed, _plan(context, taker, claimed, now)) for claimed in candidates]
    if len(plans) > 1:
        plans = plans[: len(next(mergeable((plan for _, plan in plans), len(plans))))]
    while plans:
        refused_at = yield from _send(context, taker, [claimed for claimed, _ in plans], [plan for _, plan in plans])
        if refused_at is None:
            return len(plans) == len(candidates)
        plans = plans[:refused_at] + ([] if in_order else plans[refused_at + 1 :])
    return False


def _plan(context: Context, taker: Taker, claimed: Claimed, now: int) -> Plan:
    """What claims a candidate. It holds for a lease, or else for a lock, unless it is extended."""
    span = taker.wanted.lease or claimed.state.lock or taker.conf.lock
    return transitions.claim(context, claimed, taker.consumer.id, span, taker.wanted.lease, now)


def _send(context: Context, taker: Taker, claims: Sequence[Claimed], plans: Sequence[Plan]) -> Procedure[int | None]:
    """Claim all of them, or none: then at which it was refused. What is sent is remembered until it is known."""
    if taker.caller.left:  # its client may have given back what was owed already, and claim again
        raise CallerLeft
    plan = merge(plans)
    plan.changes[0].ours = partial(one_stands, context, claims)  # any of them may be taken away meanwhile
    sending = context.claims.note(taker.caller, tuple(claims), plan.multi())
    verdict = yield from commit(plan, together=True)
    if verdict.committed:
        for claimed in claims:
            context.claims.receive(claimed, verdict.outcome.zxid or 0)
        taker.taken.extend(claims)
        return None
    context.claims.strike(taker.caller, sending)
    refusal = verdict.refusal
    at = next((at for at, each in enumerate(plan.changes) if refusal is not None and each is refusal.change), 0)
    if refusal is not None:
        _refused(context, taker.consumer, claims[at], refusal)
    return at


def _refused(context: Context, consumer: Consumer, claimed: Claimed, refusal: Refusal) -> None:
    """Another was faster, or the record changed. Raises `Unregistered`, and `ZkmqError` for what nobody expects."""
    failure = refusal.outcome.failure
    own = {context.paths.live(consumer.id), context.paths.current(consumer.id, claimed.task_id)}
    if failure is Failure.NO_NODE and refusal.path in own:
        if context.registration.consumer is consumer:
            context.registration.consumer = None
        raise Unregistered
    if failure is Failure.OTHER:
        raise refused("claim", refusal.outcome, refusal.multi)
    entry, record = context.paths.entry(claimed.state.place), context.paths.task(claimed.task_id, "state")
    if failure in {Failure.NODE_EXISTS, Failure.NOT_EMPTY} or refusal.path not in {entry, record}:
        context.report(entry, f"it cannot be claimed, {described(refusal.outcome, refusal.multi)}; stepped over")
