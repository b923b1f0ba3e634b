"""Writing validated trees: several a transaction, several transactions in flight, each carried to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import refused
from airflow_provider_zkmq.engine.core.protocol.tries import Tries
from airflow_provider_zkmq.engine.core.protocol.writes import Failure
from airflow_provider_zkmq.engine.core.reading.nodes import chunked
from airflow_provider_zkmq.engine.core.tasks import reuse
from airflow_provider_zkmq.engine.core.tasks.repeat import Call
from airflow_provider_zkmq.engine.core.writing.commit import Sent, commit, send_one, send_together
from airflow_provider_zkmq.engine.core.writing.draft import Tree
from airflow_provider_zkmq.engine.core.writing.inserting import insert
from airflow_provider_zkmq.engine.core.writing.place import queue_deleted
from airflow_provider_zkmq.engine.core.writing.plan import Plan, Refusal, Why
from airflow_provider_zkmq.engine.errors import ConfigError, DuplicateTask, TransportError, Unavailable, ZkmqError

TREES_PER_MULTI: Final = 20
GROUP_BYTES: Final = 256_000
WINDOW: Final = 8
T = TypeVar("T")


@dataclass(slots=True)
class _Refused:
    """A task that met its id, and that one's status."""

    task_id: str
    status: str


def write_trees(context: Context, trees: Sequence[Tree], call: Call) -> Procedure[list[str]]:
    """Write validated trees; see `enqueue_many`. `call` learns what may have been written, at every moment."""
    refusals: list[_Refused] = []
    made = groups(context, [tree for tree in trees if tree.task_id not in call.written])
    for window in chunked(made, WINDOW):
        refusals += yield from unless_deleted(context, _write(context, window, call))
    if refusals:
        raise _duplicates(refusals, [tree.task_id for tree in trees if tree.task_id in call.written])
    return [tree.task_id for tree in trees]


def _duplicates(refusals: list[_Refused], done: list[str]) -> DuplicateTask:
    first, ids = refusals[0], [refusal.task_id for refusal in refusals]
    more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    msg = (
        f"task id {first.task_id!r}{more} is in use (status: {first.status}); "
        "choose another or wait until it is collected"
    )
    return DuplicateTask(msg, status=first.status, duplicates=ids, enqueued=done)


def groups(context: Context, trees: Sequence[Tree]) -> list[list[Tree]]:
    """Trees grouped into transactions. What may meet its id goes alone: one duplicate refuses its whole group."""
    made: list[list[Tree]] = []
    room = 0
    for tree in trees:
        size = tree.size(context)
        alone = not tree.only_new and (not tree.generated or tree.uncertain)
        if not made or alone or room < size or len(made[-1]) >= TREES_PER_MULTI:
            made.append([])
            room = 0 if alone else GROUP_BYTES
        made[-1].append(tree)
        room -= size
    return made


def _write(context: Context, groups: Sequence[list[Tree]], call: Call) -> Procedure[list[_Refused]]:
    """One window of transactions in flight together; each that did not commit at once is carried on singly.

    An error of one of them is raised when all have been carried to their end; without a connection none can be.
    """
    plans: list[Plan] = []
    for group in groups:
        plans.append((yield from plan_of(context, group)))
    refusals: list[_Refused] = []
    errors: list[ZkmqError] = []
    for group, plan, sent in zip(groups, plans, (yield from send(call, groups, plans)), strict=True):
        uncertain = group[0].uncertain or sent.outcome.unknown
        refusals += yield from _carry_singly(context, _Group(group, call, uncertain), plan, sent, errors)
    if errors:
        raise errors[0]
    return refusals


def _carry_singly(
    context: Context, group: _Group, plan: Plan, sent: Sent, errors: list[ZkmqError]
) -> Procedure[list[_Refused]]:
    """Carry one group to its end, and add its error to `errors`."""
    try:
        status = yield from _carry_on(context, group, plan, sent)
    except TransportError:
        raise
    except ZkmqError as error:
        errors.append(error)
        return []
    return [] if status is None else [_Refused(group.first.task_id, status)]


def unless_deleted(context: Context, writing: Procedure[T]) -> Procedure[T]:
    """Carry out a procedure that writes; what is refused since the queue was deleted meanwhile is a `ConfigError`."""
    try:
        return (yield from writing)
    except ZkmqError as error:
        if type(error) is not ZkmqError or (yield Exists(context.paths.at("tasks"))) is not None:
            raise
        raise queue_deleted(context) from error


def plan_of(context: Context, group: list[Tree]) -> Procedure[Plan]:
    """The transaction that writes a group of trees."""
    changes = []
    for tree in group:
        changes.append((yield from insert(context, tree)))
    return Plan(changes)


def send(call: Call, groups: Sequence[list[Tree]], plans: list[Plan]) -> Procedure[list[Sent]]:
    """Send what writes these trees; where no server is connected, nothing is sent."""
    trees = [tree for group in groups for tree in group]
    before = set(call.sent)
    call.sending(trees)
    try:
        if len(plans) == 1 and not trees[0].only_new:
            return [(yield from send_one(plans[0]))]
        return (yield from send_together(plans))
    except Unavailable:
        call.refused(tree for tree in trees if tree.task_id not in before)
        raise


@dataclass(slots=True)
class _Group:
    """Trees of one transaction, and the call whose they are.

    ``uncertain``: it may have been written, although no reply said so. ``status``: that of the task that has the id of
    the first one.
    """

    trees: list[Tree]
    call: Call
    uncertain: bool
    status: str | None = None
    written: bool = False

    @property
    def first(self) -> Tree:
        return self.trees[0]


def _carry_on(context: Context, group: _Group, plan: Plan, sent: Sent) -> Procedure[str | None]:
    """Carry a group to its end: None when it is written, or the status of the task that holds its first id."""
    tries = Tries(f"enqueue of task {group.first.task_id!r}")
    try:
        verdict = yield from commit(plan, partial(_anew, context, group, tries), first=sent)
    except Unavailable:
        if not group.uncertain:
            group.call.refused(group.trees)
        raise
    if verdict.committed or group.written:
        group.call.done(group.trees)
        return None
    if group.status is None and verdict.refusal is not None:
        for tree in group.trees:
            tree.uncertain = tree.uncertain or group.uncertain
        raise refused_group(context, group.call, group.trees, verdict.refusal)
    return group.status


def _anew(context: Context, group: _Group, tries: Tries, refusal: Refusal) -> Procedure[Plan | None]:
    """What follows a refusal: the same elsewhere, or what the task that has the id allows."""
    group.uncertain = group.uncertain or refusal.uncertain
    if not group.uncertain:
        group.call.refused(group.trees)
    if refusal.why is not Why.PLACE:
        taken = refusal.path == context.paths.task(group.first.task_id)
        if not taken or refusal.outcome.failure is not Failure.NODE_EXISTS:
            return None
        if not (yield from _met(context, group)):
            return None
        yield from tries.refused(refusal.outcome, refusal.multi, None)
    plan = yield from plan_of(context, group.trees)
    group.call.sending(group.trees)
    return plan


def _met(context: Context, group: _Group) -> Procedure[bool]:
    """Deal with the task that has the id; whether it is gone, so that another try makes sense."""
    sending = partial(group.call.sending, group.trees)
    met = yield from reuse.meet(context, group.first, uncertain=group.uncertain, sending=sending)
    if met is reuse.Met.GONE:
        return True
    group.written = met is reuse.Met.WRITTEN
    if not group.written:
        group.call.refused(group.trees)
        group.status = str(met)
    return False


def refused_group(context: Context, call: Call, trees: Sequence[Tree], refusal: Refusal) -> ZkmqError:
    """The error for a refusal that no other try would change."""
    call.refused(tree for tree in trees if not (refusal.uncertain or tree.uncertain))
    if refusal.outcome.failure is not Failure.NO_NODE:
        return refused("enqueue", refusal.outcome, refusal.multi)
    if refusal.path.startswith(context.paths.at("batches") + "/"):
        msg = f"the batch of {refusal.path} is not open for new tasks: it was written to its end, or deleted"
        return ConfigError(msg)
    return queue_deleted(context)
