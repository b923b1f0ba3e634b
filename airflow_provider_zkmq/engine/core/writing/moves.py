"""Moving a task from one place to another: every change of state but the claim goes through here.

A task is listed in exactly one place. A move is one transaction: the state record under a version check, the
deletes that take the task from where it is, the creates that list it where it goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import index_path
from airflow_provider_zkmq.engine.core.model.lanes import Lane
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import Event, State, step
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Create,
    Delete,
    Failure,
    Get,
    Multi,
    Node,
    Ops,
    Outcome,
    Procedure,
)
from airflow_provider_zkmq.engine.core.protocol.ops import WriteOp as Write
from airflow_provider_zkmq.engine.core.protocol.transact import ensure_bucket, ensure_node, failed_at, transact
from airflow_provider_zkmq.engine.core.protocol.tries import Races
from airflow_provider_zkmq.engine.core.tasks.batches import leaves_batch, membership
from airflow_provider_zkmq.engine.core.writing.closing import close_after, leaving
from airflow_provider_zkmq.engine.core.writing.place import may_reopen, open_segment, remember_opened
from airflow_provider_zkmq.engine.errors import OutcomeUnknown

KEPT_NONCES = 4


def moved(
    context: Context,
    task_id: str,
    before: TaskState,
    event: Event,
    *,
    now: int = 0,
    due: int | None = None,
    nonce: str | None = None,
) -> TaskState:
    """The record after `event`: state, index, nonce (a new one unless given); `due` (in milliseconds) schedules it."""
    after = step(task_id, before.state, event)
    nonce = nonce or context.marks.nonce()
    settled = (*before.settled, nonce)[-KEPT_NONCES:]
    index = _index_of(after, task_id, now, due)
    state = replace(before, state=after, nonce=nonce, settled=settled, due=due, index=index)
    if before.state is State.CLAIMED and after is not State.CLAIMED:
        ended = now if after in {State.FINISHED, State.DEAD} else None
        kept = before if after is State.FINISHED else replace(before, consumer=None, claimed=None)
        state = replace(state, consumer=kept.consumer, claimed=kept.claimed, lease=None, bound=False, ended=ended)
    return replace(state, ended=now) if after is State.DEAD else state


def _index_of(after: State, task_id: str, now: int, due: int | None) -> str | None:
    if due is not None:
        return index_path("requeued" if after is State.FINISHED else "scheduled", due, task_id)
    if after is State.DEAD:
        return f"dlq/{task_id}"
    return index_path(str(after), now, task_id) if after in {State.FINISHED, State.CANCELLED} else None


def notes_of(context: Context, task_id: str, state: TaskState) -> list[str]:
    """Where a claim is noted: with its consumer if it ends with a session, among the leases if it has a deadline."""
    notes = []
    if state.bound or state.lease is None:
        notes.append(context.paths.current(state.consumer or "", task_id))
    if state.lease is not None:
        notes.append(lease_path(context, state))
    return notes


def lease_path(context: Context, state: TaskState) -> str:
    """Where the deadline of a claim stands; it must have one."""
    return context.paths.at("locks" if state.bound else "leases", state.lease or "")


def departure(context: Context, task_id: str, before: TaskState, *, claim_gone: bool = False) -> list[Write]:
    """The deletes that take a task from where it is listed."""
    if before.state is State.CLAIMED:
        gone = [] if claim_gone else [context.paths.task(task_id, "claim")]
        return [Delete(path) for path in (*gone, *notes_of(context, task_id, before))]
    return [Delete(place_of(context, before))]


def tree_deletes(context: Context, task_id: str, state: TaskState, version: int) -> list[Write]:
    """The deletes of a task's own tree; its claim, if any, is deleted by its departure."""
    task = context.paths.task
    parts = ["data", "metadata", *(f"filters/{name}" for name in state.filters), "filters"]
    parts += [name for name, there in (("result", state.result), ("requeue", state.requeue)) if there]
    deletes: list[Write] = [Delete(task(task_id, "state"), version)]
    return [*deletes, *(Delete(task(task_id, part)) for part in parts), Delete(task(task_id))]


def place_of(context: Context, state: TaskState) -> str:
    """The entry that lists a task which is not claimed."""
    return context.paths.entry(state.place) if state.index is None else context.paths.at(state.index)


def arrival(context: Context, after: TaskState) -> Create:
    """The entry of a task that is listed; in a queue of strict order it holds the place it had from the first."""
    return Create(place_of(context, after), b"" if after.rank is None else str(after.rank).encode())


@dataclass(frozen=True, slots=True)
class Moving:
    """What is to be moved: a task, its record and that record's version, and what else is written with it."""

    task_id: str
    version: int
    before: TaskState
    extra: list[Write] = field(default_factory=list)
    claim_gone: bool = False
    """The claim's ephemeral vanished with its session."""
    guards: list[Write] = field(default_factory=list)
    """What must hold besides the record's version, checked before anything is changed."""
    nonce: str | None = None
    """The nonce of an earlier try whose outcome was not known; None: a new one."""
    noted: bool = False
    """Its batch lists it among the failed already, or has no such list."""


def raced(context: Context, it: Moving, outcome: Outcome, multi: Multi) -> bool:
    """Whether a move was refused because the task changed since it was read: read it again, and try again.

    Its record is another, or the ephemeral of its claim went with its session (`Moving.claim_gone` tells that it has).
    Any other refusal says that the tree is not as the record tells: the same try would end the same way.
    """
    path = failed_at(outcome, multi)
    if path == context.paths.task(it.task_id, "state"):
        return outcome.failure in {Failure.BAD_VERSION, Failure.NO_NODE}
    return path == context.paths.task(it.task_id, "claim") and outcome.failure is Failure.NO_NODE


def move(context: Context, it: Moving, after: TaskState) -> Procedure[tuple[Outcome, Multi]]:
    """Carry out one move to the place that `after` names; the caller judges a refusal, see `raced`.

    A place without a segment is none to go to: the task goes to the end of its lane.
    """
    if after.index is None and not after.placed:
        lane = Lane(after.priority, dict(after.filters))
        there = lambda place: replace(after, place=place, rank=None)  # noqa: E731
        return (yield from move_to_lane(context, it, lane, after.entry, there))
    batch, races = it.before.batch, Races()
    while True:
        place = arrival(context, after)
        multi = move_ops(context, it, after, [])
        outcome = yield from _send(context, it, after, multi)
        if outcome.committed or races.lost(outcome, multi):
            break
        if (other := _past_batch(context, it, outcome, multi)) is not None:
            it, after = other, replace(after, batch=other.before.batch and after.batch)
        elif failed_at(outcome, multi) == place.path and outcome.failure is Failure.NO_NODE:
            yield from _ensure_parents(context, after)
        else:
            break
    yield from _learn(context, it, after, outcome, batch)
    return outcome, multi


def _send(context: Context, it: Moving, after: TaskState, multi: Multi) -> Procedure[Outcome]:
    name = it.before.batch if leaves_batch(it.before, after) else None
    return leaving(context, name, transact(multi, partial(written, context, it.task_id, after.nonce)))


def _past_batch(context: Context, it: Moving, outcome: Outcome, multi: Multi) -> Moving | None:
    """How to go on where a move was refused at its batch, which must hold up no task; None: it was not.

    A member that ended as failed before, in an earlier run of the same id, is noted already; it leaves the open ones.
    """
    path, name = failed_at(outcome, multi), it.before.batch
    if name is None or not path.startswith(context.paths.batch(name) + "/"):
        return None
    if path == context.paths.batch(name, "failed", it.task_id) and not it.noted:
        return replace(it, noted=True)
    context.report(path, f"task {it.task_id!r} is no member of its batch any more; it goes on without it")
    return replace(it, before=replace(it.before, batch=None))


def _learn(context: Context, it: Moving, after: TaskState, outcome: Outcome, batch: str | None) -> Procedure[None]:
    context.clock.learn(outcome)
    if outcome.committed and (it.before.batch != batch or leaves_batch(it.before, after)):
        yield from close_after(context, batch)


def move_to_lane(
    context: Context, it: Moving, lane: Lane, entry: str, after_at: Callable[[str], TaskState]
) -> Procedure[tuple[Outcome, Multi]]:
    """Carry out one move to the end of a lane; `after_at` gives the record for a place. The caller judges a refusal."""
    batch, races = it.before.batch, Races()
    while True:
        slot = yield from open_segment(context, lane)
        after = after_at(f"{slot.lane.name}/{slot.segment}/{entry}")
        multi = move_ops(context, it, after, slot.ops)
        outcome = yield from _send(context, it, after, multi)
        remember_opened(context, multi, outcome)
        if outcome.committed or races.lost(outcome, multi):
            break
        if (other := _past_batch(context, it, outcome, multi)) is not None:
            it = other
        elif not may_reopen(context, [slot], multi, outcome):
            break
    yield from _learn(context, it, after, outcome, batch)
    return outcome, multi


def move_ops(context: Context, it: Moving, after: TaskState, slot: list[Write]) -> Multi:
    """The transaction of a move; `slot`: what opens the segment that it goes to."""
    ops = Ops().set(context.paths.task(it.task_id, "state"), after.encode(), it.version).extend(it.guards)
    ops.extend(departure(context, it.task_id, it.before, claim_gone=it.claim_gone)).extend(it.extra).extend(slot)
    if leaves_batch(it.before, after):
        failed = _failed(it.before, after) and not it.noted
        ops.extend(membership(context, it.task_id, it.before, failed=failed))
    return ops.extend([arrival(context, after)]).multi()


def _failed(before: TaskState, after: TaskState) -> bool:
    """Whether a run ended in failure, also where another one follows it."""
    if after.state is State.INSERTED:
        return not before.history or before.history[-1].outcome != "finished"
    return after.state in {State.DEAD, State.CANCELLED}


def _ensure_parents(context: Context, after: TaskState) -> Procedure[None]:
    """Create what must hold the arriving entry; a drained segment may have been deleted meanwhile."""
    if after.index is not None:
        yield from ensure_bucket(context.paths.at(after.index.rpartition("/")[0]))
        return
    lane, segment, _ = after.place.split("/")
    yield from ensure_node(context.paths.at("queue", lane), _lane_data(lane, after))
    yield from ensure_node(context.paths.at("queue", lane, segment))


def _lane_data(name: str, state: TaskState) -> bytes:
    lane = Lane(state.priority, dict(state.filters))
    return (lane if lane.name == name else lane.mixed()).encode()


def written(context: Context, task_id: str, nonce: str) -> Procedure[Outcome | None]:
    """Whether an earlier try of a refused transaction is what stands in the task's record."""
    path = context.paths.task(task_id, "state")
    node: Node | None = yield Get(path)
    if node is None:
        msg = f"task {task_id!r} was moved or not, and has been collected meanwhile"
        raise OutcomeUnknown(msg)
    return Outcome(committed=True) if nonce in TaskState.decode(path, node.data).settled else None
