"""Tasks whose claims have lapsed, or whose attempts are used up: given back, or dead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.names import is_prefetched
from airflow_provider_zkmq.engine.core.model.policy import Conf
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import Event, State
from airflow_provider_zkmq.engine.core.protocol.ops import Check, Delete, Get, Multi, Node, Procedure, WriteOp
from airflow_provider_zkmq.engine.core.protocol.transact import damaged
from airflow_provider_zkmq.engine.core.read.configuration import read_conf
from airflow_provider_zkmq.engine.core.read.leases import end_of, lease_path, mark_path, why_ended
from airflow_provider_zkmq.engine.core.read.nodes import Record, read_nodes, record_of
from airflow_provider_zkmq.engine.core.read.server_clock import server_time
from airflow_provider_zkmq.engine.core.tasks.holding import cancel_note
from airflow_provider_zkmq.engine.core.write import escrow, transitions
from airflow_provider_zkmq.engine.core.write.commit import CommitResult, Why, commit, mending
from airflow_provider_zkmq.engine.core.write.record import Current
from airflow_provider_zkmq.engine.core.write.transitions import notes_of

# --- A policy that was tightened binds what is pending, too.


def attempts_exhausted(conf: Conf, state: TaskState) -> bool:
    """Whether a pending task has had as many deliveries as its policy, as it is now, allows."""
    return state.retry(conf.policy).exhausted(state.attempt)


def kill_exhausted(context: Context, current: Current, now: int) -> Procedure[bool]:
    """Move a pending task to the dead letters instead of handing it out; False if it changed meanwhile.

    A run held in escrow is inserted.
    """
    nonce, state = context.marks.nonce(), current.state
    if state.requeue:
        return (yield from escrow.rerun(context, current, nonce)).committed
    why = f"it was delivered {state.attempt} times, and its policy has been lowered to allow no more"
    error = f"{why}; the last delivery ended with: {state.error}" if state.error else why
    plan = yield from transitions.to_dead(context, current, Event.ATTEMPTS_EXHAUSTED, nonce, error, now)
    return (yield from commit(plan)).committed


# --- Giving one task back that nobody holds any more; what its consumer had not begun counts no attempt.

#: How often one task is read again and tried again while it changes under our eyes.
TRIES: Final = 5


def rescue_lapsed(context: Context, task_id: str) -> Procedure[bool]:
    """Give a task back whose claim has ended by its deadline, as it is shown already; whether that was so."""
    node: Node | None = yield Get(context.paths.task(task_id, "state"))
    record = record_of(context, task_id, node)
    if not isinstance(record, Record) or record.state.state is not State.CLAIMED or record.state.lease is None:
        return False
    return (yield from rescue_task(context, task_id, lease_path(context, record.state)))


def rescue_task(context: Context, task_id: str, note: str) -> Procedure[bool]:
    """Give one claimed task back: to its old place, or to the dead letters once its attempts are used up.

    Read and written again while it changes: a requeue may be added, an ephemeral may vanish, a lease be extended.
    """
    for _ in range(TRIES):
        done = yield from _try_rescue(context, task_id, note)
        if done is not None:
            return done
    return False


def _try_rescue(context: Context, task_id: str, note: str) -> Procedure[bool | None]:
    """One try: whether it was given back; None where it changed meanwhile."""
    path, claim_path = context.paths.task(task_id, "state"), context.paths.task(task_id, "claim")
    node, claim, noted = yield from read_nodes((path, claim_path, note))
    if noted is None:
        return False  # settled or rescued meanwhile
    record = record_of(context, task_id, node)
    if not isinstance(record, Record) or not _claimed_with(context, record, note):
        yield Multi((Delete(note, noted.stat.version),))  # nobody is at it any more: only the note is left
        return False
    expired = note != context.paths.current(record.state.consumer or "", task_id)
    now = yield from server_time(context)
    if expired and (end_of(context, note, noted) or now + 1) > context.clock.certainly_past(now):
        return False  # it was extended since it was listed
    known = {note: noted} if claim is None else {note: noted, claim_path: claim}
    marks = yield from _marks_of_prefetched(context, record, known)
    cancel_notes = (yield from cancel_note(context, record.state)) if expired else []  # its consumer lives, it may be
    guards: dict[str, WriteOp] = {
        guard.path: guard for guard in (Check(note, noted.stat.version), *marks, *cancel_notes)
    }
    current = Current(task_id, record.stat.version, record.state, claim_gone=claim is None)
    giving = _give_back_unbegun(context, current, guards) if marks else _give_back(context, current, guards, now)
    refusal = (yield from giving).refusal
    if refusal is None or refusal.why is Why.CHANGED or refusal.path in guards:
        return True if refusal is None else None
    raise damaged(f"giving back task {task_id!r}", refusal.outcome, refusal.multi)


def _marks_of_prefetched(context: Context, record: Record, known: dict[str, Node]) -> Procedure[list[Check]]:
    """What is refused once the handler of a claim prefetched begins; nothing for a claim that counts.

    `known`: what was read of the claim. A mark that is missing or cannot be read makes the claim count.
    """
    path = mark_path(context, record.task_id, record.state)
    node: Node | None = known[path] if path in known else (yield Get(path))
    return [] if node is None or not is_prefetched(path, node.data) else [Check(path, node.stat.version)]


def _claimed_with(context: Context, record: Record, note: str) -> bool:
    """Whether a task is claimed, and this is a note of that claim."""
    return record.state.state is State.CLAIMED and note in notes_of(context, record.task_id, record.state)


def _give_back_unbegun(context: Context, current: Current, guards: Mapping[str, WriteOp]) -> Procedure[CommitResult]:
    """To its place: it was prefetched and no handler had begun, so that the delivery counts as no attempt."""
    checks, nonce = tuple(guards.values()), context.marks.nonce()
    build = partial(transitions.release, context, current, nonce, None, checks)
    return (yield from commit((yield from build()), mending(build)))


def _give_back(context: Context, current: Current, guards: Mapping[str, WriteOp], now: int) -> Procedure[CommitResult]:
    """To its place, or where its attempts are used up to the dead letters, or on to the run held in escrow."""
    conf = yield from read_conf(context)
    state, nonce, checks = current.state, context.marks.nonce(), tuple(guards.values())
    over = context.paths.current(state.consumer or "", current.task_id) not in guards
    why = why_ended(state.consumer) if over else f"its consumer died ({state.consumer})"
    current = current.with_state(state.with_attempt("rescued", now, why))
    if not state.retry(conf.policy).exhausted(state.attempt):
        build = partial(transitions.rescue, context, current, nonce, why, checks)
    elif state.requeue:
        return (yield from escrow.rerun(context, current, nonce, guards=checks))
    else:
        build = partial(transitions.to_dead, context, current, Event.RESCUE_FINAL, nonce, why, now, checks)
    return (yield from commit((yield from build()), mending(build)))
