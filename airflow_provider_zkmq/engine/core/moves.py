"""Moving a task from one place to another: every change of state but the claim goes through here.

A task is listed in exactly one place. A move is one transaction: the state record under a version check, the
deletes that take the task from where it is, the creates that list it where it goes.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.lanes import Lane
from airflow_provider_zkmq.engine.core.ops import Failure, Get, Multi, Node, Ops, Outcome, Procedure
from airflow_provider_zkmq.engine.core.records import TaskState
from airflow_provider_zkmq.engine.core.schedule import index_path
from airflow_provider_zkmq.engine.core.states import Event, State, step
from airflow_provider_zkmq.engine.core.transact import ensure_bucket, failed_at, transact
from airflow_provider_zkmq.engine.errors import OutcomeUnknown

KEPT_NONCES = 4


def moved(
    context: Context, task_id: str, before: TaskState, event: Event, *, now: int = 0, due: int | None = None
) -> TaskState:
    """The record after `event`: state, index and nonce; `due` (server's milliseconds) schedules it."""
    after = step(task_id, before.state, event)
    nonce = context.nonce()
    settled = (*before.settled, nonce)[-KEPT_NONCES:]
    index = _index_of(after, task_id, now, due)
    state = replace(before, state=after, nonce=nonce, settled=settled, due=due, index=index)
    if before.state is State.CLAIMED and after is not State.CLAIMED:
        ended = now if after in {State.FINISHED, State.DEAD} else None
        kept = before if after is State.FINISHED else replace(before, consumer=None, claimed=None)
        state = replace(state, consumer=kept.consumer, claimed=kept.claimed, lease=None, ended=ended)
    return state


def _index_of(after: State, task_id: str, now: int, due: int | None) -> str | None:
    if after is State.INSERTED:
        return None if due is None else index_path("scheduled", due, task_id)
    if after is State.DEAD:
        return f"dlq/{task_id}"
    return index_path(str(after), now, task_id) if after in {State.FINISHED, State.CANCELLED} else None


def note_of(context: Context, task_id: str, state: TaskState) -> str:
    """Where a claim is noted: with its consumer, or among the leases."""
    if state.lease is not None:
        return context.paths.at("leases", state.lease)
    return context.paths.current(state.consumer or "", task_id)


def _depart(context: Context, ops: Ops, task_id: str, before: TaskState, *, claim_gone: bool) -> None:
    if before.state is State.CLAIMED:
        if not claim_gone:
            ops.delete(context.paths.task(task_id, "claim"))
        ops.delete(note_of(context, task_id, before))
    elif before.index is not None:
        ops.delete(context.paths.at(before.index))
    else:
        ops.delete(context.paths.entry(before.place))


def _arrival(context: Context, after: TaskState) -> str:
    return context.paths.entry(after.place) if after.index is None else context.paths.at(after.index)


def move(
    context: Context,
    task_id: str,
    version: int,
    before: TaskState,
    after: TaskState,
    *,
    extra: Ops | None = None,
    claim_gone: bool = False,
) -> Procedure[tuple[Outcome, Multi]]:
    """Carry out one move; the caller judges a refusal. `claim_gone`: the claim's ephemeral vanished with its session."""
    ops = Ops().set(context.paths.task(task_id, "state"), after.encode(), version)
    _depart(context, ops, task_id, before, claim_gone=claim_gone)
    arrival = _arrival(context, after)
    ops.extend(extra.items if extra else ()).create(arrival)
    multi = ops.multi()
    while True:
        outcome = yield from transact(multi, lambda: _ours(context, task_id, after.nonce))
        if outcome.committed or failed_at(outcome, multi) != arrival or outcome.failure is not Failure.NO_NODE:
            context.learn_time(outcome.time)
            return outcome, multi
        yield from _ensure_parents(context, after)


def _ensure_parents(context: Context, after: TaskState) -> Procedure[None]:
    """Create what must hold the arriving entry; a drained segment may have been deleted meanwhile."""
    if after.index is not None:
        yield from ensure_bucket(context.paths.at(after.index.rpartition("/")[0]))
        return
    lane, segment, _ = after.place.split("/")
    yield from ensure_bucket(context.paths.at("queue", lane), _lane_data(lane, after))
    yield from ensure_bucket(context.paths.at("queue", lane, segment))


def _lane_data(name: str, state: TaskState) -> bytes:
    lane = Lane(state.priority, dict(state.filters))
    return (lane if lane.name == name else lane.mixed()).encode()


def _ours(context: Context, task_id: str, nonce: str) -> Procedure[Outcome | None]:
    path = context.paths.task(task_id, "state")
    node: Node | None = yield Get(path)
    if node is None:
        msg = f"task {task_id!r} was moved or not, and has been collected meanwhile"
        raise OutcomeUnknown(msg)
    return Outcome(committed=True) if nonce in TaskState.decode(path, node.data).settled else None
