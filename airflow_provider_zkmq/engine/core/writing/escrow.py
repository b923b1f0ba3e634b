"""An id that runs again: what a message holds is put into the tree of the task that has the id.

A run may also wait in escrow, beside the run under way, to be inserted by the transaction that ends that.

Carmine 3.2 ran the old payload again; here, as from 3.3 on, every new run has the data it was asked with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import Event, State, step
from airflow_provider_zkmq.engine.core.protocol.ops import (
    MAX_REQUEST,
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
)
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, refused, transact
from airflow_provider_zkmq.engine.core.protocol.tries import damaged
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.writing.draft import Tree, due_of, pack, unpack
from airflow_provider_zkmq.engine.core.writing.moves import (
    KEPT_NONCES,
    Moving,
    move,
    move_to_lane,
    moved,
    raced,
    written,
)
from airflow_provider_zkmq.engine.errors import CorruptRecord, TaskTooLarge

#: Left beside a run in escrow for the record, whose texts may be ten past errors and one present, and for a result.
ESCROW_ROOM: Final = 120_000


#: A transaction and how it ended.
Written = tuple[Outcome, Multi]


def as_asked(state: TaskState, tree: Tree, place: str) -> TaskState:
    """The record with what a message asks for, under the message's own nonce."""
    priority, filters = tree.lane.priority, tree.filters
    state = replace(state, place=place, priority=priority, filters=filters, policy=tree.policy, lock=tree.lock)
    return _signed(state, tree)


def _signed(state: TaskState, tree: Tree) -> TaskState:
    """The record of a move under the message's nonce, by which a repeated call knows what the first one wrote."""
    return replace(state, nonce=tree.nonce, settled=(*state.settled[:-1], tree.nonce))


def insert(
    context: Context, it: Moving, tree: Tree, event: Event, *, result: bool
) -> Procedure[tuple[TaskState, Outcome, Multi]]:
    """List the task anew, as `tree` says; the new record, and whether it was written."""
    now = yield from server_time(context)
    due = (yield from due_of(context, tree.delay)) if tree.delay else None
    made: list[TaskState] = []

    def after(place: str) -> TaskState:
        state = moved(context, tree.task_id, it.before, event, now=now, due=due)
        state = replace(state, attempt=0, error=None, consumer=None, claimed=None, ended=None, dedupe=None, rank=None)
        made.append(replace(as_asked(state, tree, place), requeue=False, result=result, batch=tree.batch))
        return made[-1]

    if due is not None:
        outcome, multi = yield from move(context, it, after(f"{tree.lane.name}//{tree.entry}"))
    else:
        outcome, multi = yield from move_to_lane(context, it, tree.lane, tree.entry, after)
    return made[-1], outcome, multi


def content_ops(context: Context, tree: Tree, before: TaskState, *, fresh: bool = True) -> list[WriteOp]:
    """Put what a message holds into a task's tree; `fresh`: the data's znode is made anew: it tells when it came."""
    paths, at = context.paths, tree.task_id
    data = paths.task(at, "data")
    ops: list[WriteOp] = [Delete(data), Create(data, tree.data)] if fresh else [SetData(data, tree.data)]
    ops.append(SetData(paths.task(at, "metadata"), tree.metadata))
    for name in sorted({*before.filters, *tree.filters}):
        path, value = paths.task(at, "filters", name), tree.filters.get(name)
        if value is None:
            ops.append(Delete(path))
        elif name not in before.filters:
            ops.append(Create(path, value.encode()))
        elif before.filters[name] != value:
            ops.append(SetData(path, value.encode()))
    return ops


def write_over(
    context: Context, task_id: str, version: int, after: TaskState, extra: list[WriteOp]
) -> Procedure[Written]:
    """Change a task where it is."""
    multi = Multi((SetData(context.paths.task(task_id, "state"), after.encode(), version), *extra))
    return (yield from transact(multi, lambda: written(context, task_id, after.nonce))), multi


# --- escrow


def hold_in_escrow(context: Context, tree: Tree, version: int, state: TaskState) -> Procedure[Written]:
    """Keep the message beside the run under way, to be inserted when that has ended.

    Raises `TaskTooLarge`: the transaction that inserts it must hold the record with its history, too.
    """
    if len(tree.data) > MAX_REQUEST - ESCROW_ROOM:
        msg = (
            f"the data for another run of task {tree.task_id!r} have {len(tree.data):,} bytes; a requeue takes "
            f"{MAX_REQUEST - ESCROW_ROOM:,}"
        )
        raise TaskTooLarge(msg)
    after = replace(
        state,
        state=step(tree.task_id, state.state, Event.REQUEUE),
        requeue=True,
        nonce=tree.nonce,
        settled=(*state.settled, tree.nonce)[-KEPT_NONCES:],
    )
    path = context.paths.task(tree.task_id, "requeue")
    slot: WriteOp = SetData(path, pack(tree)) if state.requeue else Create(path, pack(tree))
    return (yield from write_over(context, tree.task_id, version, after, [slot]))


def rerun(context: Context, it: Moving, *, result: bool = False) -> Procedure[TaskState | None]:
    """Insert the run held in escrow, in the same transaction in which the run before it ends; attempts begin at 1.

    The new record, or None if the task changed meanwhile. `result`: the ending run leaves one. A run that is missing,
    cannot be read or has no room in the tree is given up and reported: the run before it ends as it would without.
    """
    path = context.paths.task(it.task_id, "requeue")
    node: Node | None = yield Get(path)
    result = result or it.before.result
    try:
        tree = _escrowed(context, path, node, it.task_id)
        tree.nonce = it.nonce or tree.nonce
        it_then = replace(it, extra=[*it.extra, *content_ops(context, tree, it.before), Delete(path)])
        after, outcome, multi = yield from insert(context, it_then, tree, Event.RERUN, result=result)
        _refuse_damage(context, it, outcome, multi)
    except CorruptRecord as error:
        last = yield from _give_up_run(context, it, [Delete(path)] if node is not None else [], result=result)
        if last is not None:
            context.report(path, f"{error}; the run is given up")
        return last
    return after if outcome.committed else None


def _refuse_damage(context: Context, it: Moving, outcome: Outcome, multi: Multi) -> None:
    """Raise `CorruptRecord` where a znode of the task is missing or has children: no other try would end otherwise."""
    if outcome.failure is Failure.OTHER:
        raise refused("inserting a run", outcome, multi)
    inside = failed_at(outcome, multi).startswith(context.paths.task(it.task_id) + "/")
    if not outcome.committed and inside and not raced(context, it, outcome, multi):
        raise damaged(f"another run of task {it.task_id!r}", outcome, multi)


def _escrowed(context: Context, path: str, node: Node | None, task_id: str) -> Tree:
    """The run held in escrow. Raises `CorruptRecord` where there is none, or another task's."""
    if node is None:
        msg = f"{path} is missing, although its task's record tells of it"
        raise CorruptRecord(msg)
    tree = unpack(context, path, node.data)
    if tree.task_id != task_id:
        msg = f"{path} holds a run of task {tree.task_id!r}"
        raise CorruptRecord(msg)
    return tree


def _give_up_run(context: Context, it: Moving, drop: list[WriteOp], *, result: bool) -> Procedure[TaskState | None]:
    """End a task whose next run is lost, as its present run ended; the record, or None if it changed meanwhile."""
    now = yield from server_time(context)
    how = it.before.history[-1] if it.before.history else None
    succeeded = it.before.state is State.FINISHED or (how is not None and how.outcome == "finished")
    before = replace(it.before, history=it.before.history[:-1]) if succeeded else it.before
    after = moved(context, it.task_id, before, _last(before, succeeded=succeeded), now=now, nonce=it.nonce)
    error = None if succeeded or how is None else how.error
    after = replace(after, requeue=False, error=error, result=result, dedupe=None)
    outcome, multi = yield from move(context, replace(it, before=before, extra=[*it.extra, *drop]), after)
    if outcome.failure is Failure.NOT_EMPTY and drop and failed_at(outcome, multi) == drop[0].path:
        return (yield from _give_up_run(context, it, [], result=result))  # what stands under it is not ours to delete
    if outcome.failure is Failure.OTHER:
        raise refused("giving up a run", outcome, multi)
    return after if outcome.committed else None


def _last(before: TaskState, *, succeeded: bool) -> Event:
    if before.state is State.FINISHED:
        return Event.GIVE_UP_RUN
    if before.state is State.INSERTED:
        return Event.EXHAUST
    return Event.COMPLETE if succeeded else Event.FAIL_FINAL
