"""Runs held in escrow beside the run under way, and new runs of tasks that are there.

A run in escrow is inserted by the transaction that ends the run before it. Carmine 3.2 ran the old payload again;
here, as from 3.3 on, every new run has the data it was asked with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from ...errors import CorruptRecord, TaskTooLarge
from ..context import Context
from ..model.records import TaskState
from ..model.states import Event, State
from ..protocol import MAX_REQUEST, Create, Delete, Failure, Get, Node, Procedure, SetData, WriteOp, damaged, refused
from ..read.leases import server_time
from .commit import CommitResult, Plan, Refusal, Why, commit
from .new_task import NewTask, content_ops, due_of, pack, unpack
from .transitions import Current, append, next_record, relist, rewrite, still_ended, with_ending, with_history

#: Left beside a run in escrow for the record, whose texts may be ten past errors and one present, and for a result.
ESCROW_ROOM: Final = 120_000


def as_requested(state: TaskState, new: NewTask, place: str) -> TaskState:
    """The record with what a message asks for, under the message's own nonce.

    By that nonce a repeated call knows what the first one wrote.
    """
    return structs.replace(
        state,
        place=place,
        priority=new.lane.priority,
        filters=new.filters,
        policy=new.policy,
        lock=new.lock,
        nonce=new.nonce,
        settled=(*state.settled[:-1], new.nonce),
    )


def insert_run(
    context: Context,
    current: Current,
    new: NewTask,
    event: Event,
    extra: list[WriteOp],
    *,
    result: bool,
    guards: Sequence[WriteOp] = (),
) -> Procedure[Plan]:
    """List the task anew, as `new` says, with a run of its own; `result`: one is kept of the run before."""
    now = yield from server_time(context)
    due = yield from due_of(context, new)
    fresh = next_record(new.task_id, current.state, event, new.nonce, now=now, due=due)
    fresh = structs.replace(
        fresh, attempt=0, error=None, consumer=None, claimed=None, started=None, ended=None, dedupe=None
    )
    fresh = structs.replace(
        fresh, rank=None, requeue=False, result=result, batch=new.batch, ended_zxid=None, was_due=None
    )
    fresh = structs.replace(fresh, metadata=True)  # with data that are made anew they are written, whatever they hold
    if due is not None:
        scheduled = as_requested(fresh, new, f"{new.lane.name}//{new.entry}")
        return (yield from relist(context, current, scheduled, extra, guards=guards))

    def at(place: str) -> TaskState:
        return as_requested(fresh, new, place)

    return (yield from append(context, current, at, extra, guards=guards, lane=new.lane, entry=new.entry))


# --- escrow


def hold_in_escrow(context: Context, new: NewTask, current: Current) -> Procedure[Plan]:
    """Keep the message beside the run under way, to be inserted when that, or the window of a done one, has ended.

    Raises `TaskTooLarge`: the transaction that inserts it must hold the record with its history, too.
    """
    if len(new.data) > MAX_REQUEST - ESCROW_ROOM:
        msg = (
            f"the data for another run of task {new.task_id!r} have {len(new.data):,} bytes; a requeue takes "
            f"{MAX_REQUEST - ESCROW_ROOM:,}"
        )
        raise TaskTooLarge(msg)
    state, path = current.state, context.paths.task(new.task_id, "requeue")
    slot: WriteOp = SetData(path, pack(new)) if state.requeue else Create(path, pack(new))
    due = state.due if state.requeue else state.dedupe  # of a claimed one neither is set
    after = next_record(new.task_id, state, Event.REQUEUE, new.nonce, due=due)
    after = structs.replace(after, requeue=True, ended_zxid=still_ended(current))
    if after.index == state.index:
        return rewrite(context, current, after, [slot])
    return (yield from relist(context, current, after, [slot]))


def rerun(
    context: Context,
    current: Current,
    nonce: str,
    extra: Sequence[WriteOp] = (),
    *,
    guards: Sequence[WriteOp] = (),
    result: bool = False,
) -> Procedure[CommitResult]:
    """Insert the run held in escrow, in the same transaction in which the run before it ends; attempts begin at 1.

    `result`: the ending run leaves one. A run that is missing, cannot be read or has no room in the tree is given up
    and reported: the run before it ends as it would without.
    """
    result = result or current.state.result
    path = context.paths.task(current.task_id, "requeue")
    node: Node | None = yield Get(path)
    try:
        build = _next_run(context, current, nonce, extra, node, guards=guards, result=result)

        def anew(refusal: Refusal) -> Procedure[Plan | None]:
            _refuse_damage(refusal)
            return (yield from build()) if refusal.why is Why.PLACE else None

        return (yield from commit((yield from build()), anew))
    except CorruptRecord as error:
        drop: list[WriteOp] = [] if node is None else [Delete(path)]
        given_up = _give_up_run(context, current, nonce, [*extra, *drop], path, result=result, guards=guards)
        committed = yield from given_up
        if committed.committed:
            context.report(path, f"{error}; the run is given up")
        return committed


def next_run(
    context: Context, current: Current, nonce: str, extra: Sequence[WriteOp], *, result: bool = False
) -> Procedure[Plan]:
    """The plan of `rerun`, to be carried out with others. Raises `CorruptRecord`."""
    result = result or current.state.result
    node: Node | None = yield Get(context.paths.task(current.task_id, "requeue"))
    return (yield from _next_run(context, current, nonce, extra, node, result=result)())


def _next_run(
    context: Context,
    current: Current,
    nonce: str,
    extra: Sequence[WriteOp],
    node: Node | None,
    *,
    result: bool,
    guards: Sequence[WriteOp] = (),
) -> Callable[[], Procedure[Plan]]:
    """What makes the plan that inserts the run held in escrow. Raises `CorruptRecord`."""
    path = context.paths.task(current.task_id, "requeue")
    new = _escrowed(context, path, node, current.task_id)
    new.nonce = nonce
    more = [*extra, *content_ops(context, new, current.state), Delete(path)]
    insert = partial(insert_run, context, current, new, Event.RERUN, more, result=result, guards=guards)
    return partial(_insert_after, context, current, insert, extra)


def _insert_after(
    context: Context, current: Current, insert: Callable[[], Procedure[Plan]], extra: Sequence[WriteOp]
) -> Procedure[Plan]:
    """The plan that inserts a run, with what is kept of the run before it."""
    plan = yield from insert()
    if current.state.state is State.FINISHED:
        return (yield from with_history(context, current, plan))
    now, path = (yield from server_time(context)), context.paths.task(current.task_id, "result")
    _, after = _as_ended(current, "", now)
    result = next((op.data for op in extra if op.path == path and isinstance(op, Create | SetData)), None)
    after = structs.replace(after, requeue=False, result=result is not None, dedupe=None)
    return (yield from with_ending(context, current, after, now, result, plan))


def _refuse_damage(refusal: Refusal) -> None:
    """Raise `CorruptRecord` where a znode of the task is missing or has children: no other try would end otherwise."""
    if refusal.outcome.failure is Failure.OTHER:
        raise refused("inserting a run", refusal.outcome, refusal.multi)
    change = refusal.change
    inside = refusal.path.startswith(change.context.paths.task(change.task_id) + "/")
    if inside and refusal.why is Why.OTHER:
        raise damaged(f"another run of task {change.task_id!r}", refusal.outcome, refusal.multi)


def _escrowed(context: Context, path: str, node: Node | None, task_id: str) -> NewTask:
    """The run held in escrow. Raises `CorruptRecord` where there is none, or another task's."""
    if node is None:
        msg = f"{path} is missing, although its task's record tells of it"
        raise CorruptRecord(msg)
    new = unpack(context, path, node.data)
    if new.task_id != task_id:
        msg = f"{path} holds a run of task {new.task_id!r}"
        raise CorruptRecord(msg)
    return new


def _give_up_run(
    context: Context,
    current: Current,
    nonce: str,
    extra: list[WriteOp],
    path: str,
    *,
    result: bool,
    guards: Sequence[WriteOp],
) -> Procedure[CommitResult]:
    """End a task whose next run is lost, as its present run ended."""
    before, after = _as_ended(current, nonce, (yield from server_time(context)))
    after = structs.replace(after, requeue=False, result=result, dedupe=None, ended_zxid=still_ended(current))
    build = partial(relist, context, current.with_state(before), after, extra, guards=guards)

    def anew(refusal: Refusal) -> Procedure[Plan | None]:
        if refusal.outcome.failure is Failure.OTHER:
            raise refused("giving up a run", refusal.outcome, refusal.multi)
        if refusal.outcome.failure is Failure.NOT_EMPTY and refusal.path == path:
            refusal.change.drop(path)  # what stands under it is not ours to delete
            return Plan([refusal.change])
        return (yield from build()) if refusal.why is Why.PLACE else None

    return (yield from commit((yield from build()), anew))


def _as_ended(current: Current, nonce: str, now: int) -> tuple[TaskState, TaskState]:
    """The record of a run that ends, and what it would be without the next one: finished, or dead."""
    state, history = current.state, current.state.history
    last = history[-1] if history else None
    succeeded = state.state is State.FINISHED or (last is not None and last.outcome == "finished")
    before = structs.replace(state, history=history[:-1]) if succeeded else state
    after = next_record(current.task_id, before, _last_event(state, succeeded=succeeded), nonce, now=now)
    if succeeded and last is not None and last.started is not None:
        after = structs.replace(after, claimed=last.claimed, started=last.started, ended=last.ended)
    return before, structs.replace(after, error=None if succeeded or last is None else last.error)


def _last_event(before: TaskState, *, succeeded: bool) -> Event:
    if before.state is State.FINISHED:
        return Event.GIVE_UP_RUN
    if before.state is State.INSERTED:
        return Event.ATTEMPTS_EXHAUSTED
    return Event.COMPLETE if succeeded else Event.FAIL_FINAL
