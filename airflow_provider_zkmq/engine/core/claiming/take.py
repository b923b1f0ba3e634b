"""Taking one pending task: one read of the candidate, one transaction.

A claim is remembered before it is sent (`Handover`). Whatever interrupts the call after that, a lost connection, a
cancellation, an interrupt from the keyboard, the claim may have happened and nobody would know of it: what its caller
never got, its client gives back before it claims again (`giveback`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed, Handover
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
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes, unless_corrupt
from airflow_provider_zkmq.engine.core.tasks.exhaust import bury_exhausted, used_up
from airflow_provider_zkmq.engine.core.writing import transitions
from airflow_provider_zkmq.engine.core.writing.commit import commit
from airflow_provider_zkmq.engine.core.writing.plan import Refusal
from airflow_provider_zkmq.engine.core.writing.record import Current

#: How often a candidate whose record changes under our eyes is read again.
TRIES: Final = 4


class Unregistered(Exception):
    """This session is no consumer any more: it is a new one, or was taken for dead. Whoever claims registers again."""


class CallerLeft(Exception):
    """Whoever asked for the claim has gone away: nothing more is taken for it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer asks for. ``lease`` (seconds): the claim outlives the process; None: it ends with its session.

    ``ahead``: its handling begins later, see `core.tasks.holding.begin`.
    """

    selector: Selector
    lease: float | None = None
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Taker:
    """Who claims, for whom, and by what rules."""

    conf: Conf
    wanted: Wanted
    consumer: Consumer
    caller: Caller

    def accepts(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters is wanted."""
        return self.wanted.selector.matches(filters, self.conf.types)


def take(
    context: Context, taker: Taker, segment: str, entry: str, rank: int | None = None
) -> Procedure[Claimed | None]:
    """Try to claim one entry; None: another was faster, or the record is not ours. Raises `Unregistered`, `CallerLeft`.

    While no watch on the segment's listing has fired, the entry is still there: a refusal then means that the record
    was changed in place (updated, say), and it is read again. What cannot be claimed although it stands there is
    reported, and stepped over from then on.
    """
    path = f"{segment}/{entry}"
    task_id = entry_task(entry)
    if task_id is None:
        context.report(path, "no entry of ours; stepped over")
        return None
    for _ in range(TRIES):
        claimed = yield from _candidate(context, taker, task_id, path, rank)
        if claimed is not None and (yield from _commit(context, taker, claimed)):
            return claimed
        if path in context.quarantine or not context.listings.still_listed(segment, entry):
            return None
    if claimed is None and (yield Exists(path)) is not None and context.listings.still_listed(segment, entry):
        context.report(path, "a pending entry of a task that is not pending; stepped over")
    return None


def _candidate(context: Context, taker: Taker, task_id: str, entry: str, rank: int | None) -> Procedure[Claimed | None]:
    """The entry's task as it is now, ready to be claimed; None if it cannot be."""
    parts = [context.paths.task(task_id, part) for part in ("state", "data", "metadata")]
    node, data, metadata = yield from read_nodes(parts)
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
    state = state if rank is None else replace(state, rank=rank)
    claimed = Claimed(task_id, 0, node.stat.version + 1, state, data.stat.ctime, data.data, extra)
    claimed.session, claimed.ahead = taker.consumer.session, taker.wanted.ahead
    return claimed


def _records(parts: list[str], node: Node, metadata: Node | None) -> tuple[TaskState, dict[str, Any]]:
    """A candidate's record and its metadata. Raises `CorruptRecord`."""
    return TaskState.decode(parts[0], node.data), load(parts[2], metadata.data) if metadata is not None else {}


def _is_pending_at(context: Context, entry: str, state: TaskState) -> bool:
    """Whether a task is pending, and this is its entry."""
    return state.state is State.INSERTED and state.index is None and context.paths.entry(state.place) == entry


def _commit(context: Context, taker: Taker, claimed: Claimed) -> Procedure[bool]:
    """Claim the candidate: remembered before it is sent, forgotten once it is known not to have happened."""
    now = yield from server_time(context)
    if taker.caller.left:  # its client may have given back what was owed already, and claim again
        raise CallerLeft
    plan = transitions.claim(context, claimed, taker.consumer.id, _span_of(taker, claimed), taker.wanted.lease, now)
    nonce = claimed.state.nonce
    context.claims.handovers[nonce] = Handover(claimed, plan.multi(), taker.caller)
    verdict = yield from commit(plan)
    if verdict.committed:
        context.claims.receive(claimed, verdict.outcome.zxid or 0)
        return True
    context.claims.handovers.pop(nonce, None)
    if verdict.refusal is not None:
        _refused(context, taker.consumer, claimed, verdict.refusal)
    return False


def _span_of(taker: Taker, claimed: Claimed) -> float | None:
    """For how many seconds the claim holds unless it is extended."""
    return taker.wanted.lease or claimed.state.lock or taker.conf.lock


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
