"""An id that exists already: what an enqueue makes of it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.names import SEPARATOR, Lane, entry_name
from airflow_provider_zkmq.engine.core.model.records import TaskState, replace
from airflow_provider_zkmq.engine.core.model.states import ENDED, Event, State, Status
from airflow_provider_zkmq.engine.core.protocol.ops import Create, Delete, Exists, Get, Node, Procedure, Stat, Sync
from airflow_provider_zkmq.engine.core.protocol.transact import Tries
from airflow_provider_zkmq.engine.core.read.configuration import known_conf
from airflow_provider_zkmq.engine.core.read.leases import status_of
from airflow_provider_zkmq.engine.core.read.nodes import read_nodes
from airflow_provider_zkmq.engine.core.tasks.recovery import rescue_lapsed
from airflow_provider_zkmq.engine.core.write.commit import Plan, anew, commit
from airflow_provider_zkmq.engine.core.write.escrow import as_requested, hold_in_escrow, insert_run
from airflow_provider_zkmq.engine.core.write.history import with_history
from airflow_provider_zkmq.engine.core.write.new_task import NewTask, content_ops, due_of
from airflow_provider_zkmq.engine.core.write.record import Current, next_record
from airflow_provider_zkmq.engine.core.write.transitions import append, relist, rewrite
from airflow_provider_zkmq.engine.errors import CorruptRecord, DuplicateTask, OutcomeUnknown

#: How long the stamp of an entry is; what follows tells how often its filters were changed.
STAMP: Final = 22


class Conflict(Enum):
    """What became of an enqueue that met its id."""

    WRITTEN = "written"
    GONE = "gone"


def resolve(
    context: Context, new: NewTask, *, uncertain: bool, sending: Callable[[], None]
) -> Procedure[Conflict | str]:
    """Deal with the task that has the id: written in its place or into it, gone meanwhile, or its status: refused.

    `uncertain`: an earlier try of the same enqueue may have written it, which its stamp or nonce tells. `sending` is
    called before anything is written.
    """
    path = context.paths.task(new.task_id, "state")
    tries = Tries(f"enqueue of task {new.task_id!r}")
    while True:
        node = yield from _read(path, again=uncertain)
        if node is None and uncertain:
            msg = f"task {new.task_id!r} was written or not, and what stood there has been collected meanwhile"
            raise OutcomeUnknown(msg)
        if node is None:
            yield from refuse_a_torso(context, new.task_id)
            return Conflict.GONE
        state = TaskState.decode(path, node.data)
        if (uncertain and _is_same_enqueue(new, state)) or (yield from _same_member(context, new, state)):
            return Conflict.WRITTEN
        action = _action(new, state, status := (yield from status_of(context, state)))
        if action is None:
            if new.update and state.state is State.CLAIMED and (yield from rescue_lapsed(context, new.task_id)):
                continue
            return str(status)
        sending()
        current = Current(new.task_id, node.stat.version, state, zxid=node.stat.mzxid)
        build = partial(action, context, new, current)
        committed = yield from commit((yield from build()), anew(build))
        if committed.refusal is None:
            return Conflict.WRITTEN
        yield from tries.refused(committed.refusal.outcome, committed.refusal.multi, node.stat.mzxid)


def _read(path: str, *, again: bool) -> Procedure[Node | None]:
    """A record; `again`: the server catches up and is asked once more for a missing one."""
    node: Node | None = yield Get(path)
    if node is None and again:
        yield Sync(path)
        node = yield Get(path)
    return node


def refuse_a_torso(context: Context, task_id: str) -> Procedure[None]:
    """Raise `CorruptRecord` for a znode that has the id and is no task; the id would never be free."""
    base, record = yield from read_nodes((context.paths.task(task_id), context.paths.task(task_id, "state")))
    if base is not None and record is None:
        msg = f"{context.paths.task(task_id)} has no state: it is no task of ours; delete it, or choose another id"
        raise CorruptRecord(msg)


def _is_same_enqueue(new: NewTask, state: TaskState) -> bool:
    """Whether an earlier try wrote the task. One whose id was made for it is ours, whatever became of it since."""
    return (new.generated and new.batch is None) or new.has_written(state)


def _same_member(context: Context, new: NewTask, state: TaskState) -> Procedure[bool]:
    """Whether an earlier call wrote the same message as a member of the same batch; one that has ended stays so."""
    if new.batch is None or state.batch != new.batch:
        return False
    if state.state in ENDED:
        return True
    node: Node | None = yield Get(context.paths.task(new.task_id, "data"))
    same = (state.filters, state.priority) == (new.filters, new.lane.priority)
    return same and node is not None and node.data == new.data


Action = Callable[[Context, NewTask, Current], Procedure[Plan]]


def _action(new: NewTask, state: TaskState, status: Status) -> Action | None:
    """What the message may do to the task with its id; None: it is refused."""
    match status:
        case Status.DONE_AWAITING_GC | Status.CANCELLED:
            return run_anew
        case Status.QUEUED | Status.QUEUED_WITH_BACKOFF:
            return _update if new.update else None
        case Status.LOCKED | Status.LOCKED_WITH_REQUEUE | Status.DONE_WITH_BACKOFF | Status.DONE_WITH_REQUEUE:
            return hold_in_escrow if new.requeue and (new.update or not state.requeue) else None
        case _:
            return None


def ended_before(context: Context, new: NewTask) -> Procedure[Current | None]:
    """The task that has the id, which a new message runs anew; None without one.

    Raises `DuplicateTask` with the status of one that refuses it.
    """
    path = context.paths.task(new.task_id, "state")
    node = yield from _read(path, again=True)
    if node is None:
        yield from refuse_a_torso(context, new.task_id)
        return None
    state = TaskState.decode(path, node.data)
    status = yield from status_of(context, state)
    if _action(new, state, status) is None:
        msg = f"task id {new.task_id!r} is in use: {status}; nothing was committed"
        raise DuplicateTask(msg, status=str(status), duplicates=[new.task_id])
    return Current(new.task_id, node.stat.version, state, zxid=node.stat.mzxid)


def run_anew(context: Context, new: NewTask, current: Current) -> Procedure[Plan]:
    """The id of a task that has ended starts again; its last run is kept in the history, and for readers of the log."""
    state = current.state
    extra = content_ops(context, new, state)
    if state.result:
        extra.append(Delete(context.paths.task(new.task_id, "result")))
    if new.batch:
        extra.append(Create(context.paths.batch(new.batch, "open", new.task_id)))
    before = current
    if state.state is State.FINISHED:
        before = current.with_state(state.with_attempt("finished", state.ended or 0, None, state.started))
    plan = yield from insert_run(context, before, new, Event.ENQUEUE_AGAIN, extra, result=False)
    return (yield from with_history(context, current, plan))


def _update(context: Context, new: NewTask, current: Current) -> Procedure[Plan]:
    """Replace what is still queued; it keeps its place in line, and its time unless another is given.

    Other filters or another priority give it a place in its new lane: the old one would be gone back to, and would
    offer it to those who asked for what it was.
    """
    state, due = current.state, current.state.due
    if new.timed:
        due = yield from due_of(context, new)
    stays = Lane(state.priority, dict(state.filters)).name == new.lane.name
    entry = _entry_for(state, new)
    rank = (yield from _rank(context, state, due)) if stays else None
    extra = content_ops(context, new, state, fresh=False)
    updated = next_record(new.task_id, state, Event.UPDATE, new.nonce, due=due)
    updated = replace(updated, metadata=state.metadata or new.has_metadata)

    def after(place: str) -> TaskState:
        return replace(as_requested(updated, new, place), rank=rank)

    place = state.place if stays else f"{new.lane.name}//{entry}"
    if due == state.due and (stays or due is not None):
        return rewrite(context, current, after(place), extra)
    if due is not None or (rank is not None and state.placed):
        return (yield from relist(context, current, after(place), extra))
    return (yield from append(context, current, after, extra, lane=new.lane, entry=entry))


def _entry_for(state: TaskState, new: NewTask) -> str:
    """The name of an updated task's entry: consumers remember its filters by it, so others need a name of their own.

    The names sort next to each other: it keeps its place in line.
    """
    stamp = state.entry.partition(SEPARATOR)[0]
    if new.filters == state.filters:
        return entry_name(stamp, new.task_id)
    first, times = stamp[:STAMP], stamp[STAMP:]
    number = int(times, 16) + 1 if times and set(times) <= set("0123456789abcdef") else 0
    return entry_name(f"{first}{number:x}", new.task_id)


def _rank(context: Context, state: TaskState, due: int | None) -> Procedure[int | None]:
    """Its rank; one that leaves its lane for a time takes it along, so that it comes back to its place in line."""
    leaves = state.due is None and due is not None
    if state.rank is not None or not leaves or not (yield from known_conf(context)).ordered:
        return state.rank
    stat: Stat | None = yield Exists(context.paths.entry(state.place))
    return None if stat is None else stat.czxid
