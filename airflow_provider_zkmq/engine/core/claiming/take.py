"""Taking pending tasks: one read of the candidates, one transaction.

A claim is remembered before it is sent (`Handover`). Whatever interrupts the call after that, a lost connection, a
cancellation, an interrupt from the keyboard, the claim may have happened and nobody would know of it: what its caller
never got, its client gives back before it claims again (`giveback`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

from airflow_provider_zkmq.engine.core.claiming.room import Guard, guard_of
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.readahead import ReadAhead
from airflow_provider_zkmq.engine.core.memory.register import Consumer
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import refused
from airflow_provider_zkmq.engine.core.protocol.tries import described
from airflow_provider_zkmq.engine.core.protocol.writes import Failure
from airflow_provider_zkmq.engine.core.reading.claims import one_stands
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.tasks.departing import Departure
from airflow_provider_zkmq.engine.core.writing import transitions
from airflow_provider_zkmq.engine.core.writing.commit import commit
from airflow_provider_zkmq.engine.core.writing.plan import Plan, Refusal, merge, mergeable

#: Of which claims of a group the handling begins later.
Ahead: TypeAlias = Literal["all"] | bool


class Unregistered(Exception):
    """This session is no consumer any more: it is a new one, or was taken for dead. Whoever claims registers again."""


class CallerLeft(Exception):
    """Whoever asked for the claim has gone away: nothing more is taken for it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer asks for. ``lease`` (seconds): the claim outlives the process; None: it ends with its session.

    ``ahead``: the handling of all but the first, or of all, begins later, see `core.tasks.beginning.begin`.
    ``max_leases``: no more are claimed than leave the queue with so many leases, see `room`.
    """

    selector: Selector
    lease: float | None = None
    ahead: Ahead = False
    max_leases: int | None = None

    @property
    def kind(self) -> Hashable:
        """What those have in common who are after the same tasks: where one finds nothing, none does."""
        return str(self.selector)


@dataclass(frozen=True, slots=True)
class Look:
    """One look of a call at the queue: what it wants, and what it has got."""

    wanted: Wanted
    caller: Caller
    departure: Departure
    """What has been handled goes with what is claimed."""
    most: int = 1
    """How many tasks are wanted."""
    taken: list[Claimed] = field(default_factory=list)
    """What has been claimed, in order."""
    read_ahead: ReadAhead | None = None
    """What the claims before it have read, and it may read for those after it."""

    @property
    def room(self) -> int:
        """How many tasks are wanted still."""
        return self.most - len(self.taken)


@dataclass(frozen=True, slots=True)
class Taker:
    """Who claims, for whom, and by what rules."""

    conf: Conf
    consumer: Consumer
    look: Look
    later: list[Pick] = field(default_factory=list)
    """What comes next, as far as the latest look can tell: it is read with what is tried now."""

    @property
    def wanted(self) -> Wanted:
        """What the consumer asks for."""
        return self.look.wanted

    @property
    def taken(self) -> list[Claimed]:
        """What has been claimed, in order."""
        return self.look.taken

    @property
    def read_ahead(self) -> ReadAhead | None:
        """What was read ahead, where claims follow one another."""
        return self.look.read_ahead

    @property
    def room(self) -> int:
        """How many tasks are wanted still."""
        return self.look.room

    @property
    def view(self) -> int:
        """How many entries are worth to be known: those wanted now, and those that are read ahead."""
        return self.room if self.read_ahead is None else max(self.room, self.read_ahead.most)

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


def claim_together(
    context: Context, taker: Taker, candidates: Sequence[Claimed], *, in_order: bool = False
) -> Procedure[bool]:
    """Claim candidates in one transaction, as many as fit; whether all of them are taken.

    Where it is refused at one of them, that one is left out and the others are sent again; `in_order`: those before it.
    Raises `NoRoom` where none may be claimed now.
    """
    now = yield from server_time(context)
    plans = [(claimed, _plan(context, taker, claimed, now, at)) for at, claimed in enumerate(candidates)]
    if len(plans) > 1:
        plans = plans[: len(next(mergeable((plan for _, plan in plans), len(plans))))]
    while plans:
        guard = yield from guard_of(context, taker.wanted.max_leases)
        plans = plans[: guard.room]
        claims, changes = [claimed for claimed, _ in plans], [plan for _, plan in plans]
        refused_at = yield from _send(context, taker, claims, changes, guard)
        if refused_at is None:
            return len(plans) == len(candidates)
        if refused_at < len(plans):
            plans = plans[:refused_at] + ([] if in_order else plans[refused_at + 1 :])
    return False


def _plan(context: Context, taker: Taker, claimed: Claimed, now: int, at: int) -> Plan:
    """What claims a candidate, the one `at` this place. It holds for a lease, or else for a lock, unless extended."""
    ahead = taker.wanted.ahead
    claimed.ahead = ahead == "all" or (ahead and (at > 0 or bool(taker.taken)))
    span = taker.wanted.lease or claimed.state.lock or taker.conf.lock
    return transitions.claim(context, claimed, taker.consumer.id, span, taker.wanted.lease, now)


def _send(
    context: Context, taker: Taker, claims: Sequence[Claimed], plans: Sequence[Plan], guard: Guard
) -> Procedure[int | None]:
    """Claim all of them, or none: then at which it was refused. What is sent is remembered until it is known.

    Where others have claimed since the `guard` was read, it is refused behind the last one.
    """
    if taker.look.caller.left:  # its client may have given back what was owed already, and claim again
        raise CallerLeft
    plan = merge(plans)
    plan.changes.extend(guard.changes)
    plan.changes[0].ours = partial(one_stands, context, claims)  # any of them may be taken away meanwhile
    sending = context.claims.note(taker.look.caller, tuple(claims), plan.multi())
    registration, heard = context.registration, context.registration.cancel_watch
    verdict = yield from commit(plan, by=taker.look.departure.send)
    if verdict.committed:
        if registration.cancel_watch is not heard:
            registration.cancel_watch = None  # who listened meanwhile took what came for these to be for others
        for claimed in claims:
            context.claims.receive(claimed, verdict.outcome.zxid or 0, verdict.outcome.sent)
        taker.taken.extend(claims)
        return None
    context.claims.strike(taker.look.caller, sending)
    refusal = verdict.refusal
    if refusal is not None and refusal.change in guard.changes:
        return len(plans)
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
