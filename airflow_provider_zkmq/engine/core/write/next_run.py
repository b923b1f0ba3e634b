"""Runs held in escrow beside the run under way, and new runs of tasks that are there.

A run in escrow is inserted by the transaction that ends the run before it. Carmine 3.2 ran the old payload again;
here, as from 3.3 on, every new run has the data it was asked with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import structs

from ...errors import CorruptRecord, TaskTooLarge
from ..client_state import Context
from ..model.records import TaskState
from ..model.states import Event, State
from ..read.server_clock import server_time
from ..transaction_retries import damaged, refused
from ..zk_operations import MAX_REQUEST, Create, Delete, Failure, Get, Node, Procedure, SetData, WriteOp
from .commit import CommitResult, Plan, Refusal, Why, commit
from .new_task import NewTask, content_ops, due_of, pack, unpack
from .transitions import Current, Ops, next_record, relist, rewrite, still_ended, with_ending, with_history

#: Left beside a run in escrow for the record, whose texts may be ten past errors and one present, and for a result.
ESCROW_ROOM: Final = 120_000


def as_requested(state: TaskState, new: NewTask, place: str) -> TaskState:
    """The record with what a message asks for, under the message's own nonce.

    By that nonce a repeated call knows what the first one wrote.
    """
    wanted = {"priority": new.lane.priority, "filters": new.filters, "policy": new.policy, "lock": new.lock}
    settled = (*state.settled[:-1], new.nonce)
    return structs.replace(state, place=place, nonce=new.nonce, settled=settled, **wanted)


def insert_run(
    context: Context, current: Current, new: NewTask, event: Event, extra: Ops, *, result: bool, guards: Ops = ()
) -> Procedure[Plan]:
    """List the task anew, as `new` says, with a run of its own; `result`: one is kept of the run before."""
    now = yield from server_time(context)
    due = yield from due_of(context, new)
    fresh = next_record(new.task_id, current.state, event, new.nonce, now=now, due=due)
    fresh = structs.replace(
        fresh, attempt=0, error=None, consumer=None, claimed=None, started=None, ended=None, ended_zxid=None,
        dedupe=None, rank=None, was_due=None, requeue=False, result=result, batch=new.batch,
        metadata=True,  # with data that are made anew they are written, whatever they hold
    )  # fmt: skip
    after = as_requested(fresh, new, f"{new.lane.name}//{new.entry}")
    return (yield from relist(context, current, after, extra, guards=guards))


def hold_in_escrow(context: Context, new: NewTask, current: Current) -> Procedure[Plan]:
    """Keep the message beside the run under way, to be inserted when that, or the window of a done one, has ended.

    Raises `TaskTooLarge`: the transaction that inserts it must hold the record with its history, too.
    """
    if len(new.data) > MAX_REQUEST - ESCROW_ROOM:
        raise TaskTooLarge(
            f"the data for another run of task {new.task_id!r} have {len(new.data):,} bytes; a requeue takes "
            f"{MAX_REQUEST - ESCROW_ROOM:,}"
        )
    state, path = current.state, context.paths.task(new.task_id, "requeue")
    escrow: WriteOp = SetData(path, pack(new)) if state.requeue else Create(path, pack(new))
    due = state.due if state.requeue else state.dedupe  # of a claimed one neither is set
    after = next_record(new.task_id, state, Event.REQUEUE, new.nonce, due=due)
    after = structs.replace(after, requeue=True, ended_zxid=still_ended(current))
    if after.index == state.index:
        return rewrite(context, current, after, [escrow])
    return (yield from relist(context, current, after, [escrow]))


def rerun(
    context: Context, current: Current, nonce: str, extra: Ops = (), *, guards: Ops = (), result: bool = False
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
            if refusal.outcome.failure is Failure.OTHER:
                raise refused("inserting a run", refusal.outcome, refusal.multi)
            if refusal.why is Why.OTHER and refusal.path.startswith(context.paths.task(current.task_id) + "/"):
                raise damaged(f"another run of task {current.task_id!r}", refusal.outcome, refusal.multi)
            return (yield from build()) if refusal.why is Why.PLACE else None

        return (yield from commit((yield from build()), anew))
    except CorruptRecord as error:
        before, after = _as_ended(current, nonce, (yield from server_time(context)))
        after = structs.replace(after, requeue=False, result=result, dedupe=None, ended_zxid=still_ended(current))
        drop: list[WriteOp] = [] if node is None else [Delete(path)]
        end = partial(relist, context, current.with_state(before), after, [*extra, *drop], guards=guards)

        def give_up(refusal: Refusal) -> Procedure[Plan | None]:
            if refusal.outcome.failure is Failure.OTHER:
                raise refused("giving up a run", refusal.outcome, refusal.multi)
            if refusal.outcome.failure is Failure.NOT_EMPTY and refusal.path == path:
                refusal.change.drop(path)  # what stands under it is not ours to delete
                return Plan([refusal.change])
            return (yield from end()) if refusal.why is Why.PLACE else None

        given_up = yield from commit((yield from end()), give_up)
        if given_up.committed:
            context.report(path, f"{error}; the run is given up")
        return given_up


def next_run_plan(
    context: Context, current: Current, nonce: str, extra: Ops, *, result: bool = False
) -> Procedure[Plan]:
    """The plan of `rerun`, to be carried out with others. Raises `CorruptRecord`."""
    result = result or current.state.result
    node: Node | None = yield Get(context.paths.task(current.task_id, "requeue"))
    return (yield from _next_run(context, current, nonce, extra, node, result=result)())


def _next_run(
    context: Context, current: Current, nonce: str, extra: Ops, node: Node | None, *, result: bool, guards: Ops = ()
) -> Callable[[], Procedure[Plan]]:
    """What makes the plan that inserts the run held in escrow. Raises `CorruptRecord`."""
    path = context.paths.task(current.task_id, "requeue")
    if node is None:
        raise CorruptRecord(f"{path} is missing, although its task's record tells of it")
    new = unpack(context, path, node.data)
    if new.task_id != current.task_id:
        raise CorruptRecord(f"{path} holds a run of task {new.task_id!r}")
    new.nonce = nonce
    more = [*extra, *content_ops(context, new, current.state), Delete(path)]

    def build() -> Procedure[Plan]:
        plan = yield from insert_run(context, current, new, Event.RERUN, more, result=result, guards=guards)
        if current.state.state is State.FINISHED:
            return (yield from with_history(context, current, plan))
        now, at = (yield from server_time(context)), context.paths.task(current.task_id, "result")
        _, after = _as_ended(current, "", now)
        written = next((op.data for op in extra if op.path == at and isinstance(op, Create | SetData)), None)
        after = structs.replace(after, requeue=False, result=written is not None, dedupe=None)
        return (yield from with_ending(context, current, after, now, written, plan))

    return build


def _as_ended(current: Current, nonce: str, now: int) -> tuple[TaskState, TaskState]:
    """The record of a run that ends, and what it would be without the next one: finished, or dead."""
    state, history = current.state, current.state.history
    last = history[-1] if history else None
    succeeded = state.state is State.FINISHED or (last is not None and last.outcome == "finished")
    before = structs.replace(state, history=history[:-1]) if succeeded else state
    ends = {State.FINISHED: Event.GIVE_UP_RUN, State.INSERTED: Event.ATTEMPTS_EXHAUSTED}
    event = ends.get(state.state, Event.COMPLETE if succeeded else Event.FAIL_FINAL)
    after = next_record(current.task_id, before, event, nonce, now=now)
    if succeeded and last is not None and last.started is not None:
        after = structs.replace(after, claimed=last.claimed, started=last.started, ended=last.ended)
    return before, structs.replace(after, error=None if succeeded or last is None else last.error)
