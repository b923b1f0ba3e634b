"""An id that is in use: Carmine's rules for a message whose id is known already.

Refused while queued, claimed, in its dedupe window, or dead; ``update`` replaces what is still queued; ``requeue``
holds one more run in escrow while it is claimed; what has finished (or was cancelled) is run anew.

Carmine 3.2 ran the old payload again; here, as from 3.3 on, every new run has the data it was asked with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final

from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.inspect import status_of
from airflow_provider_zkmq.engine.core.lanes import Lane
from airflow_provider_zkmq.engine.core.moves import Moving, move, move_to_lane, moved, written
from airflow_provider_zkmq.engine.core.ops import (
    MAX_REQUEST,
    Create,
    Delete,
    Failure,
    Get,
    GetMany,
    Multi,
    Node,
    Outcome,
    Procedure,
    SetData,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.paths import SEPARATOR, entry_name
from airflow_provider_zkmq.engine.core.records import TaskState
from airflow_provider_zkmq.engine.core.states import Event, State, Status, step
from airflow_provider_zkmq.engine.core.transact import refused, server_time, transact
from airflow_provider_zkmq.engine.core.tree import Tree, due_of, pack, unpack
from airflow_provider_zkmq.engine.errors import CorruptRecord, OutcomeUnknown, TaskTooLarge

#: Left beside a run in escrow for the record, whose texts may be ten past errors and one present, and for a result.
ESCROW_ROOM: Final = 120_000


class Met(Enum):
    """What became of an enqueue that met its id."""

    WRITTEN = "written"
    GONE = "gone"


def meet(context: Context, tree: Tree, *, uncertain: bool) -> Procedure[Met | str]:
    """Deal with the task that has the id: written in its place or into it, gone meanwhile, or its status: refused.

    `uncertain`: an earlier try of the same enqueue may have written it. The entry's name holds our stamp, and a
    task keeps it for as long as it is the same task.
    """
    path = context.paths.task(tree.task_id, "state")
    while True:
        node: Node | None = yield Get(path)
        if node is None and uncertain:
            msg = f"task {tree.task_id!r} was written or not, and what stood there has been collected meanwhile"
            raise OutcomeUnknown(msg)
        if node is None:
            yield from _refuse_a_torso(context, tree.task_id)
            return Met.GONE
        state = TaskState.decode(path, node.data)
        ours = uncertain and state.place.endswith("/" + tree.entry)
        if ours or (yield from _same_member(context, tree, state)):
            return Met.WRITTEN
        status = yield from status_of(context, state)
        action = _action(tree, state, status)
        if action is None:
            return str(status)
        if (yield from action(context, tree, node.stat.version, state)):
            return Met.WRITTEN


def _refuse_a_torso(context: Context, task_id: str) -> Procedure[None]:
    """Raise `CorruptRecord` for a znode that has the id and is no task; the id would never be free."""
    nodes: list[Node | None] = yield GetMany((context.paths.task(task_id), context.paths.task(task_id, "state")))
    if nodes[0] is not None and nodes[1] is None:
        msg = f"{context.paths.task(task_id)} has no state: it is no task of ours; delete it, or choose another id"
        raise CorruptRecord(msg)


def _same_member(context: Context, tree: Tree, state: TaskState) -> Procedure[bool]:
    """Whether an earlier call wrote the same message as a member of the same batch."""
    if tree.batch is None or state.batch != tree.batch:
        return False
    node: Node | None = yield Get(context.paths.task(tree.task_id, "data"))
    same = (state.filters, state.priority) == (tree.filters, tree.lane.priority)
    return same and node is not None and node.data == tree.data


Action = Callable[[Context, Tree, int, TaskState], Procedure[bool]]


def _action(tree: Tree, state: TaskState, status: Status) -> Action | None:
    """What the message may do to the task with its id; None: it is refused."""
    match status:
        case Status.DONE_AWAITING_GC | Status.CANCELLED:
            return _run_anew
        case Status.QUEUED | Status.QUEUED_WITH_BACKOFF:
            return _update if tree.update else None
        case Status.LOCKED | Status.LOCKED_WITH_REQUEUE:
            return _hold_in_escrow if tree.requeue and (tree.update or not state.requeue) else None
        case _:
            return None


def _run_anew(context: Context, tree: Tree, version: int, state: TaskState) -> Procedure[bool]:
    """The id of a task that has ended starts again; its last run is kept in the history."""
    before = state
    if state.state is State.FINISHED:
        before = state.with_attempt("finished", state.ended or 0, None)
    extra = content_ops(context, tree, state)
    if state.result:
        extra.append(Delete(context.paths.task(tree.task_id, "result")))
    if tree.batch:
        extra.append(Create(context.paths.batch(tree.batch, "open", tree.task_id)))
    it = Moving(tree.task_id, version, before, extra)
    after = yield from _insert(context, it, tree, Event.ENQUEUE_AGAIN, result=False)
    return after is not None


def _as_asked(state: TaskState, tree: Tree, place: str) -> TaskState:
    """The record with what a message asks for."""
    priority, filters = tree.lane.priority, tree.filters
    return replace(state, place=place, priority=priority, filters=filters, policy=tree.policy, lock=tree.lock)


def _insert(context: Context, it: Moving, tree: Tree, event: Event, *, result: bool) -> Procedure[TaskState | None]:
    """List the task anew, as `tree` says; the new record, or None if somebody was faster."""
    now = yield from server_time(context)
    due = (yield from due_of(context, tree.delay)) if tree.delay > 0 else None
    made: list[TaskState] = []

    def after(place: str) -> TaskState:
        state = moved(context, tree.task_id, it.before, event, now=now, due=due, nonce=it.nonce)
        state = replace(state, attempt=0, error=None, consumer=None, claimed=None, ended=None, dedupe=None, rank=None)
        made.append(replace(_as_asked(state, tree, place), requeue=False, result=result, batch=tree.batch))
        return made[-1]

    if due is not None:
        outcome, multi = yield from move(context, it, after(f"{tree.lane.name}//{tree.entry}"))
    else:
        outcome, multi = yield from move_to_lane(context, it, tree.lane, tree.entry, after)
    return made[-1] if _done("enqueue", outcome, multi) else None


def _done(what: str, outcome: Outcome, multi: Multi) -> bool:
    """True when written, False when the task changed meanwhile."""
    if outcome.committed:
        return True
    if outcome.failure in {Failure.BAD_VERSION, Failure.NO_NODE, Failure.NODE_EXISTS}:
        return False
    raise refused(what, outcome, multi)


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


def _update(context: Context, tree: Tree, version: int, state: TaskState) -> Procedure[bool]:
    """Replace what is still queued; it keeps its place in line, and its time unless a delay is given."""
    stamp = state.place.rpartition("/")[2].partition(SEPARATOR)[0]
    # What others remember of an entry's filters goes by its name: changed filters make a new one, next to the old.
    entry = entry_name(stamp if tree.filters == state.filters else stamp + "0", tree.task_id)
    extra = content_ops(context, tree, state, fresh=False)
    due = state.due
    if tree.delay > 0:
        due = yield from due_of(context, tree.delay)

    def after(place: str) -> TaskState:
        return _as_asked(moved(context, tree.task_id, state, Event.UPDATE, due=due), tree, place)

    lane = Lane(state.priority, dict(state.filters))
    stays = due == state.due and (due is not None or lane.name == tree.lane.name)
    if stays:
        return (yield from _write_over(context, tree.task_id, version, after(state.place), extra))
    it = Moving(tree.task_id, version, state, extra)
    if due is not None:
        outcome, multi = yield from move(context, it, after(f"{tree.lane.name}//{entry}"))
    else:
        outcome, multi = yield from move_to_lane(context, it, tree.lane, entry, after)
    return _done("update", outcome, multi)


def _write_over(
    context: Context, task_id: str, version: int, after: TaskState, extra: list[WriteOp]
) -> Procedure[bool]:
    """Change a task where it is."""
    multi = Multi((SetData(context.paths.task(task_id, "state"), after.encode(), version), *extra))
    outcome = yield from transact(multi, lambda: written(context, task_id, after.nonce))
    return _done("update", outcome, multi)


# --- escrow


def _hold_in_escrow(context: Context, tree: Tree, version: int, state: TaskState) -> Procedure[bool]:
    """Keep the message beside the run under way, to be inserted when that has ended.

    Raises `TaskTooLarge`: the transaction that inserts it must hold the record with its history, too.
    """
    if len(tree.data) > MAX_REQUEST - ESCROW_ROOM:
        msg = (
            f"the data for another run of task {tree.task_id!r} have {len(tree.data):,} bytes; a requeue takes "
            f"{MAX_REQUEST - ESCROW_ROOM:,}"
        )
        raise TaskTooLarge(msg)
    nonce = context.nonce()
    after = replace(
        state,
        state=step(tree.task_id, state.state, Event.REQUEUE),
        requeue=True,
        nonce=nonce,
        settled=(*state.settled, nonce)[-4:],
    )
    path = context.paths.task(tree.task_id, "requeue")
    slot: WriteOp = SetData(path, pack(tree)) if state.requeue else Create(path, pack(tree))
    return (yield from _write_over(context, tree.task_id, version, after, [slot]))


def rerun(context: Context, it: Moving, *, result: bool = False) -> Procedure[TaskState | None]:
    """Insert the run held in escrow, in the same transaction in which the run before it ends; attempts begin at 1.

    The new record, or None if the task changed meanwhile. `result`: the ending run leaves one.
    """
    path = context.paths.task(it.task_id, "requeue")
    node: Node | None = yield Get(path)
    if node is None:
        return None
    tree = unpack(path, node.data)
    extra = [*it.extra, *content_ops(context, tree, it.before), Delete(path)]
    result = result or it.before.result
    return (yield from _insert(context, replace(it, extra=extra), tree, Event.RERUN, result=result))
