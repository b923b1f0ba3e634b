"""ZkQueue's unit of work: take N tasks, put K, in one transaction across queues, or nothing happened."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_zkmq.engine.core.claim import Held
from airflow_provider_zkmq.engine.core.configure import read_conf
from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.enqueue import MAX_REQUEST, Tree, open_segment, prepare
from airflow_provider_zkmq.engine.core.moves import moved, note_of
from airflow_provider_zkmq.engine.core.ops import (
    Create,
    Delete,
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
from airflow_provider_zkmq.engine.core.paths import entry_name
from airflow_provider_zkmq.engine.core.records import Message, TaskState
from airflow_provider_zkmq.engine.core.settle import release
from airflow_provider_zkmq.engine.core.states import Event
from airflow_provider_zkmq.engine.core.transact import ensure_bucket, failed_at, refused, server_time, transact
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    ConfigError,
    DuplicateTask,
    OutcomeUnknown,
    TaskTooLarge,
    ZkmqError,
)


@dataclass(slots=True)
class Unit:
    """What a transaction has taken and will put."""

    taken: list[tuple[Context, Held]] = field(default_factory=list)
    put: list[tuple[Context, Tree]] = field(default_factory=list)


def check_put(context: Context, message: Message) -> Procedure[Tree]:
    """Validate a message to put; nothing is written."""
    conf = yield from read_conf(context, create=True)
    tree = prepare(context, conf, message)
    if tree.delay > 0:
        msg = "a transaction cannot put a delayed task; enqueue it with delay= outside of the transaction"
        raise ConfigError(msg)
    return tree


def commit(unit: Unit) -> Procedure[list[str]]:
    """Finish everything taken and enqueue everything put, at once; returns the ids put.

    Raises `TaskTooLarge` when it does not fit into one ZooKeeper transaction, `ClaimLost` when something taken was
    lost, `DuplicateTask`; in each case nothing happened.
    """
    while True:
        multi, marks = yield from _build(unit)
        _check_size(multi)

        def ours(marks: Sequence[tuple[Context, str, str]] = marks) -> Procedure[Outcome | None]:
            return (yield from _ours(marks))

        if not multi.ops:
            return []
        outcome = yield from transact(multi, ours)
        if outcome.committed:
            return [tree.task_id for _, tree in unit.put]
        if not _may_retry(unit, multi, outcome):
            raise _refusal(unit, multi, outcome)


def _build(unit: Unit) -> Procedure[tuple[Multi, list[tuple[Context, str, str]]]]:
    ops: list[WriteOp] = []
    marks: list[tuple[Context, str, str]] = []
    for context, held in unit.taken:
        state = yield from _take_ops(context, held, ops)
        marks.append((context, held.task_id, state.nonce))
    opened: set[str] = set()
    for context, tree in unit.put:
        lane, segment, creates = yield from open_segment(context, tree.lane)
        ops += [op for op in creates if op.path not in opened]
        opened.update(op.path for op in creates)
        place = f"{lane.name}/{segment}/{entry_name(tree.stamp, tree.task_id)}"
        ops += tree.ops(context, place, None, None)
        marks.append((context, tree.task_id, tree.stamp))
    return Multi(tuple(ops)), marks


def _take_ops(context: Context, held: Held, ops: list[WriteOp]) -> Procedure[TaskState]:
    if held.lost:
        msg = f"the claim of task {held.task_id!r} was lost; nothing was committed"
        raise ClaimLost(msg)
    now = yield from server_time(context)
    state = replace(moved(context, held.task_id, held.state, Event.COMPLETE, now=now), error=None)
    index = context.paths.at(state.index or "")
    bucket = index.rpartition("/")[0]
    if bucket not in context.buckets:
        yield from ensure_bucket(bucket)
        context.buckets.add(bucket)
    ops += [
        SetData(context.paths.task(held.task_id, "state"), state.encode(), held.version),
        Delete(context.paths.task(held.task_id, "claim")),
        Delete(note_of(context, held.task_id, held.state)),
        Create(context.paths.task(held.task_id, "result")),
        Create(index),
    ]
    return state


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
    entry = state.place.rpartition("/")[2]
    return Outcome(committed=True) if mark in state.settled or entry == entry_name(mark, task_id) else None


def _may_retry(unit: Unit, multi: Multi, outcome: Outcome) -> bool:
    """Whether a segment or a bucket came or went meanwhile."""
    path = failed_at(outcome, multi)
    contexts = {id(context): context for context, _ in (*unit.taken, *unit.put)}.values()
    for context in contexts:
        inside = path.startswith((context.paths.at("queue") + "/", context.paths.at("finished") + "/"))
        if inside and outcome.failure in {Failure.NO_NODE, Failure.NODE_EXISTS}:
            context.open_segments.clear()
            context.buckets.clear()
            return True
    return False


def _refusal(unit: Unit, multi: Multi, outcome: Outcome) -> ZkmqError:
    path = failed_at(outcome, multi)
    for context, held in unit.taken:
        if path.startswith(context.paths.task(held.task_id) + "/") or path == note_of(
            context, held.task_id, held.state
        ):
            return ClaimLost(f"the claim of task {held.task_id!r} was lost; nothing was committed")
    for context, tree in unit.put:
        if path == context.paths.task(tree.task_id):
            return DuplicateTask(
                f"task id {tree.task_id!r} is in use; nothing was committed", duplicates=[tree.task_id]
            )
    return refused("commit", outcome, multi)


def rollback(unit: Unit) -> Procedure[None]:
    """Forget what was put and give back what was taken; what was lost meanwhile needs no giving back."""
    unit.put.clear()
    while unit.taken:
        context, held = unit.taken[-1]
        with contextlib.suppress(ClaimLost):  # its session ended or it was rescued: no lock of ours is left
            yield from release(context, held)
        unit.taken.pop()
