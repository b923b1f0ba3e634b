"""A task's record as it is to be written, and what a write leaves in the caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.names import index_path
from airflow_provider_zkmq.engine.core.model.records import TaskState, replace
from airflow_provider_zkmq.engine.core.model.states import ENDED, FAILED, Event, State, step
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get, Node, Outcome, Procedure
from airflow_provider_zkmq.engine.errors import OutcomeUnknown

# --- The record of a task after an event: every change of state but the claim's is spelt here.

#: How many of the last moves' nonces a record keeps: by them a repeated call knows its own.
KEPT_NONCES: Final = 4


def may_have_dropped(state: TaskState, known: Iterable[str]) -> bool:
    """Whether a record has had so many moves that it keeps none of these nonces: a later one may be gone as well."""
    return len(state.settled) >= KEPT_NONCES and not set(known) & set(state.settled)


@dataclass(frozen=True, slots=True)
class Current:
    """A task as it was read, on which a change is based: its record, and that record's version."""

    task_id: str
    version: int
    state: TaskState
    claim_gone: bool = False
    """The claim's ephemeral vanished with its session."""
    zxid: int = 0
    """The transaction that wrote the record; 0: not known, and of no interest."""

    def with_state(self, state: TaskState) -> Current:
        """The same reading with a record prepared for the change: its history has the present delivery, say."""
        return dataclasses.replace(self, state=state)


def next_record(
    task_id: str, before: TaskState, event: Event, nonce: str, *, now: int = 0, due: int | None = None
) -> TaskState:
    """The record after `event`: state, index and nonce; `due` (server's milliseconds) schedules it.

    Raises `IllegalTransition` where the state table has no row.
    """
    after = step(task_id, before.state, event)
    settled = (*before.settled, nonce)[-KEPT_NONCES:]
    changes: dict[str, Any] = {"ended": now} if after is State.DEAD else {}
    if before.state is State.CLAIMED and after is not State.CLAIMED:
        changes |= {"lease": None, "bound": False, "ended": now if after in {State.FINISHED, State.DEAD} else None}
        if after is not State.FINISHED:
            changes |= {"consumer": None, "claimed": None, "started": None}
    index = _index_of(after, task_id, now, due)
    if event is Event.PROMOTE:
        changes["was_due"] = before.due
    elif due is not None or event is Event.FAIL:
        changes["was_due"] = None
    return replace(before, state=after, nonce=nonce, settled=settled, due=due, index=index, **changes)


def still_ended(current: Current) -> int | None:
    """The transaction in which a run ended whose record is written once more: an archive must not take it for another.

    None of a task that had not ended.
    """
    known = current.state.ended_zxid or current.zxid or None
    return known if current.state.state is State.FINISHED else None


def _index_of(after: State, task_id: str, now: int, due: int | None) -> str | None:
    if due is not None:
        return index_path("requeued" if after is State.FINISHED else "scheduled", due, task_id)
    if after is State.DEAD:
        return f"dlq/{task_id}"
    return index_path(str(after), now, task_id) if after in {State.FINISHED, State.CANCELLED} else None


def leaves_batch(before: TaskState, after: TaskState) -> bool:
    """Whether a change of state ends a task's part in its batch."""
    pending = before.state in {State.INSERTED, State.CLAIMED}
    return before.batch is not None and pending and (after.state in ENDED or after.batch is None)


def fails_batch(before: TaskState, after: TaskState) -> bool:
    """Whether a run ended in failure, also where another one follows it."""
    if after.state is State.INSERTED:
        return not before.history or before.history[-1].outcome != "finished"
    return after.state in FAILED


# --- Whether an earlier try of a transaction whose reply was lost is what stands in the tree.


def written(
    context: Context, task_id: str, mark: str, settled: Sequence[str] | None = None
) -> Procedure[Outcome | None]:
    """Whether a task's record, or the name of its entry, has the mark.

    `settled`: the marks that the record had before. Raises `OutcomeUnknown` for a collected task, and where the record
    has had so many marks since then that it may have dropped this one.
    """
    path = context.paths.task(task_id, "state")
    node: Node | None = yield Get(path)
    if node is None:
        msg = f"task {task_id!r} was changed or not, and has been collected meanwhile"
        raise OutcomeUnknown(msg)
    state = TaskState.decode(path, node.data)
    if mark in state.settled or state.entry.startswith(mark):
        return Outcome(committed=True)
    if settled is not None and may_have_dropped(state, settled[-1:]):
        msg = f"whether task {task_id!r} was changed cannot be told any more: others have changed it since"
        raise OutcomeUnknown(msg)
    return None


def deleted(context: Context, task_id: str) -> Procedure[Outcome | None]:
    """Whether a task is gone."""
    gone = (yield Exists(context.paths.task(task_id))) is None
    return Outcome(committed=True) if gone else None
