"""ZkQueue's unit of work: take N tasks, put K, in one transaction across queues, or nothing happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_provider_zkmq.engine.core.memory.claims import Held
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.slots import OpenSegment
from airflow_provider_zkmq.engine.core.model.records import Message, TaskState, encode_data
from airflow_provider_zkmq.engine.core.protocol.ops import (
    MAX_REQUEST,
    Create,
    Failure,
    Get,
    Multi,
    Node,
    Outcome,
    Procedure,
    SetData,
    WriteOp,
    request_size,
)
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, refused, transact
from airflow_provider_zkmq.engine.core.protocol.tries import Races
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configure import read_conf
from airflow_provider_zkmq.engine.core.tasks.batches import membership
from airflow_provider_zkmq.engine.core.tasks.giveback import owe, roll_back
from airflow_provider_zkmq.engine.core.tasks.settle import finished, result_op, still_ours
from airflow_provider_zkmq.engine.core.writing.closing import close_after, leaving
from airflow_provider_zkmq.engine.core.writing.draft import Tree, prepare
from airflow_provider_zkmq.engine.core.writing.moves import departure, notes_of
from airflow_provider_zkmq.engine.core.writing.place import (
    known_bucket,
    may_reopen,
    open_segment,
    queue_deleted,
    remember_opened,
    slot_ops,
)
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
class _Built:
    """The transaction, the segments it writes to, and by what each part of it is recognised."""

    ops: list[WriteOp] = field(default_factory=list)
    slots: list[tuple[Context, OpenSegment]] = field(default_factory=list)
    marks: list[tuple[Context, str, str]] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Unit:
    """What a transaction has taken and will put, and how far its end has come."""

    taken: list[tuple[Context, Held]] = field(default_factory=list)
    put: list[tuple[Context, Tree]] = field(default_factory=list)
    sent: _Built | None = None
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
    races = Races()
    while not unit.ended:
        asked_again = unit.sent is not None
        built = unit.sent or (yield from _build(unit, data))
        multi = Multi(tuple(built.ops))
        _check_size(multi)
        if not multi.ops:
            unit.ended = True
            break
        outcome = yield from _send(unit, built, multi, asked_again=asked_again)
        for context in {id(context): context for context, _ in built.slots}.values():
            remember_opened(context, multi, outcome)
        if outcome.committed:
            _end(unit)
        elif races.lost(outcome, multi) or not (yield from _may_retry(unit, built, multi, outcome)):
            raise _refusal(unit, multi, outcome)
    yield from _close_batches(unit)
    return [tree.task_id for _, tree in unit.put]


def _send(unit: Unit, built: _Built, multi: Multi, *, asked_again: bool) -> Procedure[Outcome]:
    """Carry the transaction out; one that was sent before may have been carried out then."""
    unit.sent = built  # before it is sent: whoever is interrupted here does not know what became of it
    sending = transact(multi, partial(_ours, built.marks))
    for context, held in unit.taken:
        sending = leaving(context, held.state.batch, sending)
    try:
        outcome: Outcome = yield from sending
    except OutcomeUnknown:
        raise
    except ZkmqError as error:  # not sent, or refused before it was sent
        if asked_again and isinstance(error, TransportError):
            raise _not_known_yet(error) from error
        unit.sent = None
        raise
    if asked_again and not outcome.committed:
        outcome = (yield from _became_of(unit)) or outcome
    unit.sent = None
    return outcome


def _not_known_yet(error: ZkmqError) -> OutcomeUnknown:
    return OutcomeUnknown(f"what became of an earlier call of commit is not known yet: {error}")


def _became_of(unit: Unit) -> Procedure[Outcome | None]:
    """What became of a commit whose outcome was not known; told once, as a later look would tell no more."""
    if unit.sent is None:
        return None
    try:
        told = yield from _ours(unit.sent.marks)
    except OutcomeUnknown:  # what it wrote has been collected meanwhile
        unit.sent = None
        raise
    except TransportError as error:
        raise _not_known_yet(error) from error
    unit.sent = None
    return told


def _end(unit: Unit) -> None:
    """Everything has been committed: no claim is left."""
    unit.ended = True
    for context, held in unit.taken:
        context.claims.let_go(held)


def _close_batches(unit: Unit) -> Procedure[None]:
    for context, held in unit.taken:
        yield from close_after(context, held.state.batch)


def _build(unit: Unit, result: bytes) -> Procedure[_Built]:
    built = _Built()
    for at, (context, held) in enumerate(unit.taken):
        yield from _take_ops(context, held, built, b"" if at else result)
    opened: dict[int, set[str]] = {}
    for context, tree in unit.put:
        slot = yield from open_segment(context, tree.lane)
        built.slots.append((context, slot))
        known = opened.setdefault(id(context), set())
        built.ops += [op for op in slot_ops(slot, known) if op not in built.ops]
        built.ops += tree.ops(context, f"{slot.lane.name}/{slot.segment}/{tree.entry}", None, None)
        built.marks.append((context, tree.task_id, tree.stamp))
    return built


def _take_ops(context: Context, held: Held, built: _Built, result: bytes) -> Procedure[None]:
    if held.lost:
        msg = f"the claim of task {held.task_id!r} was lost; nothing was committed"
        raise ClaimLost(msg)
    now = yield from server_time(context)
    before = held.state
    state = finished(context, held, now)
    index = context.paths.at(state.index or "")
    yield from known_bucket(context, state.index or "")
    built.indexes.append(index)
    built.ops += [
        SetData(context.paths.task(held.task_id, "state"), state.encode(), held.version),
        *departure(context, held.task_id, before),
        result_op(context, held, result),
        *membership(context, held.task_id, before),
        Create(index),
    ]
    built.marks.append((context, held.task_id, state.nonce))


def _check_size(multi: Multi) -> None:
    size = request_size(multi.ops)
    if size > MAX_REQUEST:
        msg = (
            f"the transaction needs {size:,} bytes, ZooKeeper takes {MAX_REQUEST:,} at once; nothing was committed: "
            "take and put less in one transaction"
        )
        raise TaskTooLarge(msg)


def _ours(marks: Sequence[tuple[Context, str, str]]) -> Procedure[Outcome | None]:
    """All or nothing: what became of the first part tells of the whole."""
    context, task_id, mark = marks[0]
    path = context.paths.task(task_id, "state")
    node: Node | None = yield Get(path)
    if node is None:
        msg = f"task {task_id!r} of an interrupted commit has been collected meanwhile"
        raise OutcomeUnknown(msg)
    state = TaskState.decode(path, node.data)
    return Outcome(committed=True) if mark in state.settled or state.entry.startswith(mark) else None


def _may_retry(unit: Unit, built: _Built, multi: Multi, outcome: Outcome) -> Procedure[bool]:
    """Whether a segment or a bucket came or went meanwhile, or the record of a claim that still holds changed."""
    path = failed_at(outcome, multi)
    for context, held in unit.taken:
        if path == context.paths.task(held.task_id, "state") and outcome.failure is Failure.BAD_VERSION:
            yield from still_ours(context, held, -1)
            return True
        if held.state.batch is not None and path.startswith(context.paths.batch(held.state.batch) + "/"):
            context.report(path, f"task {held.task_id!r} is no member of its batch any more; it goes on without it")
            held.state = replace(held.state, batch=None)
            return True
    for context, slot in built.slots:
        if may_reopen(context, [slot], multi, outcome):
            return True
    if path in built.indexes and outcome.failure is Failure.NO_NODE:
        for context, _ in unit.taken:
            context.slots.buckets.clear()
        return True
    return False


def _refusal(unit: Unit, multi: Multi, outcome: Outcome) -> ZkmqError:
    path = failed_at(outcome, multi)
    for context, held in unit.taken:
        if path.startswith(context.paths.task(held.task_id) + "/") or path in notes_of(
            context, held.task_id, held.state
        ):
            return ClaimLost(f"the claim of task {held.task_id!r} was lost; nothing was committed")
    for context, tree in unit.put:
        if outcome.failure is Failure.NO_NODE and path.startswith(context.paths.base + "/"):
            return queue_deleted(context)
        if path == context.paths.task(tree.task_id):
            return DuplicateTask(
                f"task id {tree.task_id!r} is in use; nothing was committed", duplicates=[tree.task_id]
            )
    return refused("commit", outcome, multi)


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
        for context, held in unit.taken:
            owe(context, held)
        raise


def _rollback(unit: Unit) -> Procedure[None]:
    if unit.sent is not None and not (unit.taken or unit.rolling_back):
        yield from _not_committed(unit)
        msg = "the commit of this transaction was sent and may still happen: it took nothing that could be given back"
        raise OutcomeUnknown(msg)
    unit.rolling_back = True
    unit.put.clear()
    error: ZkmqError | None = None
    for context, held in reversed(unit.taken):
        try:
            yield from roll_back(context, held)
        except ClaimLost:  # its session ended or it was rescued: no lock of ours is left
            yield from _not_committed(unit)
        except TransportError:
            raise
        except ZkmqError as trouble:
            error = trouble
            continue
        unit.taken.remove((context, held))
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
