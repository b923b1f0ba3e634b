"""ZkQueue's unit of work: take N tasks, put K, in one transaction across queues, or nothing happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.messages import Message, encode_data
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import refused
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST, Failure, Multi, Outcome, request_size
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.tasks.giveback import owe, roll_back
from airflow_provider_zkmq.engine.core.tasks.settle import still_ours
from airflow_provider_zkmq.engine.core.writing import transitions
from airflow_provider_zkmq.engine.core.writing.commit import commit as commit_plan
from airflow_provider_zkmq.engine.core.writing.draft import Tree, prepare
from airflow_provider_zkmq.engine.core.writing.inserting import insert
from airflow_provider_zkmq.engine.core.writing.pieces import notes_of
from airflow_provider_zkmq.engine.core.writing.place import known_bucket, queue_deleted
from airflow_provider_zkmq.engine.core.writing.plan import Ours, Plan, Refusal, Why, merge
from airflow_provider_zkmq.engine.core.writing.record import Current
from airflow_provider_zkmq.engine.core.writing.written import written
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    ConfigError,
    DuplicateTask,
    IllegalTransition,
    OutcomeUnknown,
    TaskTooLarge,
    TransportError,
    ZkmqError,
)


@dataclass(slots=True)
class Unit:
    """What a transaction has taken and will put, and how far its end has come."""

    taken: list[tuple[Context, Claimed]] = field(default_factory=list)
    put: list[tuple[Context, Tree]] = field(default_factory=list)
    sent: Plan | None = None
    """A commit that was sent and whose outcome is not known: the next one asks for that first."""
    rolling_back: bool = False
    ended: bool = False


def check_put(context: Context, message: Message) -> Procedure[Tree]:
    """Validate a message to put; nothing is written."""
    conf = yield from read_conf(context, create=True)
    tree = prepare(context, conf, message)
    if tree.update or tree.requeue:
        msg = "a transaction can put new tasks only; update or requeue one outside of the transaction"
        raise ConfigError(msg)
    if tree.delay:
        msg = "a transaction cannot put a delayed task; enqueue it with delay= outside of the transaction"
        raise ConfigError(msg)
    return tree


def commit(unit: Unit, result: bytes | str | None = None) -> Procedure[list[str]]:
    """Finish everything taken and enqueue everything put, at once; returns the ids put.

    `result` is kept with what was taken first. Called again after `OutcomeUnknown`, it tells what became of the
    first call, and goes on if that did not happen.

    Raises `TaskTooLarge` when it does not fit into one ZooKeeper transaction, `ClaimLost` when something taken was
    lost, `DuplicateTask`; in each case nothing happened.
    """
    data = b"" if result is None else encode_data("result", result)
    if not unit.ended and (unit.sent is not None or unit.taken or unit.put):
        yield from _commit(unit, data)
    unit.ended = True
    return [tree.task_id for _, tree in unit.put]


def _commit(unit: Unit, result: bytes) -> Procedure[None]:
    asked = unit.sent is not None
    plan = unit.sent if unit.sent is not None else (yield from _plan(unit, result))
    if asked:
        plan.changes[0].ours = partial(_told_once, unit, plan.changes[0].ours)
    try:
        unit.sent = plan  # before it is sent: whoever is interrupted here does not know what became of it
        verdict = yield from commit_plan(plan, partial(_anew, unit, result), asked=asked)
    except OutcomeUnknown:
        raise
    except ZkmqError as error:  # not sent, or refused before it was sent
        if asked and unit.sent is not None and isinstance(error, TransportError):
            raise _not_known_yet(error) from error
        unit.sent = None
        raise
    unit.sent = None
    if verdict.refusal is not None:
        raise _refusal(unit, verdict.refusal)
    _end(unit)


def _told_once(unit: Unit, ours: Ours) -> Procedure[Outcome | None]:
    """What became of a commit that was sent by an earlier call; where nothing tells any more, no later call asks."""
    try:
        return (yield from ours())
    except OutcomeUnknown:
        unit.sent = None
        raise


def _not_known_yet(error: ZkmqError) -> OutcomeUnknown:
    return OutcomeUnknown(f"what became of an earlier call of commit is not known yet: {error}")


def _became_of(unit: Unit) -> Procedure[Outcome | None]:
    """What became of a commit whose outcome was not known; told once, as a later look would tell no more."""
    if unit.sent is None:
        return None
    try:
        outcome = yield from unit.sent.ours()
    except OutcomeUnknown:  # what it wrote has been collected meanwhile
        unit.sent = None
        raise
    except TransportError as error:
        raise _not_known_yet(error) from error
    unit.sent = None
    return outcome


def _end(unit: Unit) -> None:
    """Everything has been committed: no claim is left."""
    unit.ended = True
    for context, claimed in unit.taken:
        context.claims.let_go(claimed)


def _plan(unit: Unit, result: bytes) -> Procedure[Plan]:
    """Each taking is finished, each put inserted; raises `ClaimLost`, `TaskTooLarge`."""
    plans = []
    for at, (context, claimed) in enumerate(unit.taken):
        plans.append((yield from _finish(context, claimed, b"" if at else result)))
    for context, tree in unit.put:
        change = yield from insert(context, tree)
        change.ours = partial(written, context, tree.task_id, tree.stamp)
        plans.append(Plan([change]))
    plan = merge(plans)
    _check_size(plan.multi())
    return plan


def _finish(context: Context, claimed: Claimed, result: bytes) -> Procedure[Plan]:
    if claimed.lost:
        msg = f"the claim of task {claimed.task_id!r} was lost; nothing was committed"
        raise ClaimLost(msg)
    now = yield from server_time(context)
    current = Current(claimed.task_id, claimed.version, claimed.state)
    plan = yield from transitions.finish(context, current, context.marks.nonce(), result, now)
    for change in plan.changes:
        if change.after is not None and change.after.index is not None:
            yield from known_bucket(context, change.after.index)
    return plan


def _check_size(multi: Multi) -> None:
    size = request_size(multi.ops)
    if size > MAX_REQUEST:
        msg = (
            f"the transaction needs {size:,} bytes, ZooKeeper takes {MAX_REQUEST:,} at once; nothing was committed: "
            "take and put less in one transaction"
        )
        raise TaskTooLarge(msg)


def _anew(unit: Unit, result: bytes, refusal: Refusal) -> Procedure[Plan | None]:
    """The plan made anew, where a segment came or went, or the record of a claim that still holds has changed."""
    unit.sent = None
    changed = refusal.why is Why.CHANGED and refusal.outcome.failure is Failure.BAD_VERSION
    if not changed and refusal.why is not Why.PLACE:
        return None
    for context, claimed in unit.taken:
        if changed and refusal.path == context.paths.task(claimed.task_id, "state"):
            yield from still_ours(context, claimed, -1)
    unit.sent = yield from _plan(unit, result)
    return unit.sent


def _refusal(unit: Unit, refusal: Refusal) -> ZkmqError:
    path = refusal.path
    for context, claimed in unit.taken:
        notes = notes_of(context, claimed.task_id, claimed.state)
        if path.startswith(context.paths.task(claimed.task_id) + "/") or path in notes:
            return ClaimLost(f"the claim of task {claimed.task_id!r} was lost; nothing was committed")
    for context, tree in unit.put:
        if refusal.outcome.failure is Failure.NO_NODE and path.startswith(context.paths.base + "/"):
            return queue_deleted(context)
        if path == context.paths.task(tree.task_id):
            msg = f"task id {tree.task_id!r} is in use; nothing was committed"
            return DuplicateTask(msg, duplicates=[tree.task_id])
    return refused("commit", refusal.outcome, refusal.multi)


def rollback(unit: Unit) -> Procedure[None]:
    """Forget what was put and give back what was taken; what was lost meanwhile needs no giving back.

    Each taking counts as a delivery: after the last one that its policy allows, a task is dead. May be repeated: what
    could not be given back is still in `unit.taken`. One task's trouble holds up no other: its error is raised last.
    Raises `IllegalTransition` where a commit of unknown outcome turns out to have happened, and `OutcomeUnknown` where
    it may still come, which only giving something back could keep out. Cut off, it is owed: its client gives back what
    is left before it claims again.
    """
    try:
        yield from _rollback(unit)
    except BaseException:
        for context, claimed in unit.taken:
            owe(context, claimed)
        raise


def _rollback(unit: Unit) -> Procedure[None]:
    if unit.sent is not None and not (unit.taken or unit.rolling_back):
        yield from _not_committed(unit)
        msg = "the commit of this transaction was sent and may still happen: it took nothing that could be given back"
        raise OutcomeUnknown(msg)
    unit.rolling_back = True
    unit.put.clear()
    error: ZkmqError | None = None
    for context, claimed in reversed(unit.taken):
        try:
            yield from roll_back(context, claimed)
        except ClaimLost:  # its session ended or it was rescued: no lock of ours is left
            yield from _not_committed(unit)
        except TransportError:
            raise
        except ZkmqError as trouble:
            error = trouble
            continue
        unit.taken.remove((context, claimed))
    if error is not None:
        raise error
    unit.ended = True


def _not_committed(unit: Unit) -> Procedure[None]:
    """Look whether a commit of unknown outcome has happened. Raises `IllegalTransition`: then it has."""
    if (yield from _became_of(unit)) is None:
        return
    _end(unit)
    unit.taken.clear()
    msg = "the commit of this transaction, whose outcome was not known, had happened: nothing was rolled back"
    raise IllegalTransition(msg)
