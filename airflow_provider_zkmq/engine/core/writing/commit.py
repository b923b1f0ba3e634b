"""The one guarded write: a plan is sent, an unknown outcome resolved, a refusal explained, and the plan made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Pipeline, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import resolved
from airflow_provider_zkmq.engine.core.protocol.tries import Tries, described
from airflow_provider_zkmq.engine.core.protocol.writes import Failure, Multi, Outcome
from airflow_provider_zkmq.engine.core.reading.skeleton import restored
from airflow_provider_zkmq.engine.core.writing.combining import send
from airflow_provider_zkmq.engine.core.writing.plan import Change, Plan, Refusal, Why

#: Makes the plan anew after a refusal; None: the refusal stands.
Rebuild: TypeAlias = Callable[[Refusal], Procedure[Plan | None]]
#: Sends a transaction, which is made when that is due, and tells how it ended, as if it had been sent alone.
Sending: TypeAlias = Callable[[Context, Callable[[], Multi]], Procedure[tuple[Multi, Outcome]]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a commit ended: with the plan that was carried out, or with the refusal of the last one."""

    plan: Plan
    outcome: Outcome
    refusal: Refusal | None = None

    @property
    def committed(self) -> bool:
        """Whether it was carried out."""
        return self.refusal is None

    @property
    def uncertain(self) -> bool:
        """Whether it was refused after a try of unknown outcome, which may have been carried out."""
        return self.refusal is not None and self.refusal.uncertain

    @property
    def after(self) -> TaskState | None:
        """The record of a plan of one change, if it was carried out."""
        return self.plan.changes[0].after if self.committed else None


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that was sent among others, and how it ended at first."""

    multi: Multi
    outcome: Outcome


def give_up(_refusal: Refusal) -> Procedure[Plan | None]:
    """For plans that are not made anew."""
    return None
    yield  # pragma: no cover


def anew(build: Callable[[], Procedure[Plan]]) -> Rebuild:
    """Make the plan anew where a segment came or went, and only there."""

    def rebuild(refusal: Refusal) -> Procedure[Plan | None]:
        return (yield from build()) if refusal.why is Why.PLACE else None

    return rebuild


def mending(build: Callable[[], Procedure[Plan]]) -> Rebuild:
    """`anew` for those who look after a queue: a listing that is missing, or there already, keeps no task where it is.

    The record, whose version is part of the same transaction, says that the task has to leave the one and to come to
    the other. Of its own tree nothing may be missing. A task that was dropped, and enqueued anew by the same id, may
    have that version, too: its record is not the one that was read, and its listing is another one.
    """

    def rebuild(refusal: Refusal) -> Procedure[Plan | None]:
        change, path = refusal.change, refusal.path
        if refusal.why is Why.PLACE:
            return (yield from build())
        if refusal.why is not Why.OTHER or not change.lists(path, refusal.outcome.failure):
            return None
        change.superseded = yield from _is_superseded(change)
        if change.superseded:
            return None
        change.context.tell(path, f"{described(refusal.outcome, refusal.multi)}; task {change.task_id!r} goes on")
        change.drop(path)
        return Plan([change])

    return rebuild


def _is_superseded(change: Change) -> Procedure[bool]:
    """Whether the task's record is not the one that a change was made from, whatever its version says."""
    path = change.context.paths.task(change.task_id, "state")
    node: Node | None = yield Get(path)
    return change.before is not None and (node is None or TaskState.decode(path, node.data).nonce != change.before)


def alone(_context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
    """Send a transaction by itself."""
    multi = make()
    outcome: Outcome = yield multi
    return multi, outcome


def commit(
    plan: Plan, rebuild: Rebuild = give_up, *, first: Sent | None = None, asked: bool = False, by: Sending = alone
) -> Procedure[Verdict]:
    """Carry out a plan; what is missing around it is made, and what it is not a member of any more is left out.

    Every other refusal goes to `rebuild`. Three refusals alike, of the same operation for the same reason, with
    nothing gained in between, are no race any more: `CorruptRecord` names the path. `first`: how it ended when it was
    sent before, among others. `asked`: an earlier call sent this plan and did not hear of it.
    `by`: how it is sent; by `combining.send`, it may go together with what other calls send at the same time.
    Raises `Unavailable` where nothing was sent, and `OutcomeUnknown`.
    """
    tries, uncertain = Tries(plan.what), asked
    while True:
        multi, outcome, unknown = yield from _send(plan, first, by, asked=asked)
        plan.learn(multi, outcome)
        if outcome.committed:
            yield from _follow(plan)
            return Verdict(plan, outcome)
        first, asked, uncertain = None, False, uncertain or unknown
        refusal = plan.explain(multi, outcome, uncertain=uncertain)
        better = yield from _mend(plan, refusal, rebuild)
        if better is None:
            why = Why.CHANGED if refusal.change.superseded else refusal.why
            return Verdict(plan, outcome, replace(refusal, why=why))
        yield from tries.refused(outcome, multi, None)
        plan = better


def _send(plan: Plan, first: Sent | None, by: Sending, *, asked: bool) -> Procedure[tuple[Multi, Outcome, bool]]:
    """Send it, and resolve an unknown outcome; whether it was unknown at first.

    Where that is cut off, or stays unknown, the batches whose last member it may have taken off are remembered: the
    transaction may have happened, and its caller may never ask again.
    """
    try:
        context = plan.changes[0].context
        multi, outcome = (yield from by(context, plan.multi)) if first is None else (first.multi, first.outcome)
        unknown = outcome.unknown
        outcome = yield from resolved(multi, outcome, plan.ours)
        if asked and not unknown and not outcome.committed:
            outcome = (yield from plan.ours()) or outcome
    except BaseException:
        _owe_batches(plan)
        raise
    return multi, outcome, unknown


def _owe_batches(plan: Plan) -> None:
    for change in plan.changes:
        if change.batch is not None:
            change.context.debts.batches.add(change.batch)
            change.context.run.pay()


def _follow(plan: Plan) -> Procedure[None]:
    """What follows a commit; cut off at one batch, the client remembers the others, too."""
    try:
        for change in plan.changes:
            if change.afterwards is not None:
                yield from change.afterwards()
    except BaseException:
        _owe_batches(plan)
        raise


def _mend(plan: Plan, refusal: Refusal, rebuild: Rebuild) -> Procedure[Plan | None]:
    outcome = refusal.outcome
    gone = outcome.failure is Failure.NO_NODE and refusal.why in {Why.OTHER, Why.HOME, Why.PLACE}
    if gone and (yield from restored(refusal.change.context, refusal.path)):
        return plan
    if refusal.change.turns(refusal.path):
        why = f"{described(outcome, refusal.multi)}, whatever its task's record tells; it is written all the same"
        refusal.change.context.tell(refusal.path, why)
        return plan
    match refusal.why:
        case Why.HOME:
            parent = refusal.change.misjudged(refusal.path, outcome.failure)
            if parent is None:
                yield from refusal.change.homes[refusal.path]()
            else:
                refusal.change.judge_anew(parent)
            return plan
        case Why.BATCH:
            _leave_batch(refusal)
            return plan
        case Why.PLACE:
            for context in plan.contexts:
                context.slots.open.clear()
    return (yield from rebuild(refusal))


def _leave_batch(refusal: Refusal) -> None:
    """A batch holds up no task. One that failed in an earlier run of its id is noted among the failed already."""
    change, path = refusal.change, refusal.path
    if path == change.context.paths.batch(change.batch or "", "failed", change.task_id):
        change.drop(path)
        return
    change.context.report(path, f"task {change.task_id!r} is no member of its batch any more; it goes on without it")
    change.leave_batch()


def send_one(plan: Plan) -> Procedure[Sent]:
    """Send a plan, perhaps together with what other calls send at the same time; how it ended."""
    multi, outcome = yield from send(plan.changes[0].context, plan.multi)
    plan.learn(multi, outcome)
    return Sent(multi, outcome)


def send_together(plans: Sequence[Plan]) -> Procedure[list[Sent]]:
    """Send several plans in flight together, each a transaction of its own; how each ended, or that it is not known."""
    opened: set[str] = set()  # requests of one session are carried out in order: the first one opens for all
    multis = [plan.multi(opened) for plan in plans]
    outcomes: list[Outcome] = yield Pipeline(tuple(multis))
    for plan, multi, outcome in zip(plans, multis, outcomes, strict=True):
        plan.learn(multi, outcome)
    return [Sent(multi, outcome) for multi, outcome in zip(multis, outcomes, strict=True)]
