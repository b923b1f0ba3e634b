"""The operations of which changes are made: where a task is listed, noted, and a member."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.notes import claim_note, consumer_note
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import ENDED, State
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, SetData, WriteOp
from airflow_provider_zkmq.engine.core.reading.lapsed import lease_path, mark_path
from airflow_provider_zkmq.engine.core.writing.record import Current


def notes_of(context: Context, task_id: str, state: TaskState) -> list[str]:
    """Where a claim is noted: with its consumer if it ends with a session, among the leases if it has a deadline."""
    notes = []
    if state.bound or state.lease is None:
        notes.append(context.paths.current(state.consumer or "", task_id))
    if state.lease is not None:
        notes.append(lease_path(context, state))
    return notes


def beginning(context: Context, claimed: Claimed) -> SetData:
    """Say that the handler of a claim begins. Whoever is at the claim's note meanwhile is refused."""
    note = consumer_note(ahead=False) if claimed.ends_with_session else claim_note(claimed.claim, ahead=False)
    return SetData(mark_path(context, claimed.task_id, claimed.state), note)


def record_write(context: Context, current: Current, after: TaskState) -> SetData:
    """Write the record, if it is still the one that was read: this fences every change."""
    return SetData(context.paths.task(current.task_id, "state"), after.encode(), current.version)


def departure(context: Context, current: Current) -> list[WriteOp]:
    """The deletes that take a task from where it is listed."""
    if current.state.state is State.CLAIMED:
        gone = [] if current.claim_gone else [context.paths.task(current.task_id, "claim")]
        return [Delete(path) for path in (*gone, *notes_of(context, current.task_id, current.state))]
    return [Delete(place_of(context, current.state))]


def place_of(context: Context, state: TaskState) -> str:
    """The entry that lists a task which is not claimed."""
    return context.paths.entry(state.place) if state.index is None else context.paths.at(state.index)


def arrival(context: Context, after: TaskState) -> Create:
    """The entry of a task that is listed; in a queue of strict order it holds the place it had from the first."""
    return Create(place_of(context, after), b"" if after.rank is None else str(after.rank).encode())


def membership(context: Context, task_id: str, state: TaskState, *, failed: bool = False) -> list[WriteOp]:
    """What takes a task off its batch's open ones; `failed`: it ended dead or cancelled."""
    if state.batch is None or state.state in ENDED:
        return []
    ops: list[WriteOp] = [Delete(context.paths.batch(state.batch, "open", task_id))]
    if failed:
        ops.append(Create(context.paths.batch(state.batch, "failed", task_id)))
    return ops


def tree_deletes(context: Context, task_id: str, state: TaskState, version: int) -> list[WriteOp]:
    """The deletes of a task's own tree; its claim, if any, is deleted by its departure."""
    task, filters = context.paths.task, bool(state.filters)
    optional = {"metadata": state.metadata, "filters": filters, "result": state.result, "requeue": state.requeue}
    parts = ["data", *(f"filters/{name}" for name in state.filters), *(name for name in optional if optional[name])]
    deletes: list[WriteOp] = [Delete(task(task_id, "state"), version)]
    return [*deletes, *(Delete(task(task_id, part)) for part in parts), Delete(task(task_id))]
