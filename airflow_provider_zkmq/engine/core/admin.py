"""What an operator does to single tasks: cancel and redrive."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.enqueue import open_segment
from airflow_provider_zkmq.engine.core.lanes import Lane
from airflow_provider_zkmq.engine.core.moves import move, moved
from airflow_provider_zkmq.engine.core.ops import Failure, Get, Node, Procedure
from airflow_provider_zkmq.engine.core.paths import check_name
from airflow_provider_zkmq.engine.core.records import TaskState
from airflow_provider_zkmq.engine.core.states import Event
from airflow_provider_zkmq.engine.core.transact import refused, server_time
from airflow_provider_zkmq.engine.errors import TaskNotFound


def read_state(context: Context, task_id: str) -> Procedure[tuple[TaskState, Node]]:
    """A task's record. Raises `ConfigError` for a bad id, `TaskNotFound`, `CorruptRecord`."""
    path = context.paths.task(check_name("task id", task_id), "state")
    node: Node | None = yield Get(path)
    if node is None:
        msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    return TaskState.decode(path, node.data), node


def cancel(context: Context, task_id: str) -> Procedure[None]:
    """Withdraw a pending task. Raises `TaskNotFound`, or `IllegalTransition` when it is not pending any more."""
    yield from _change(context, task_id, Event.CANCEL)


def redrive(context: Context, task_id: str) -> Procedure[None]:
    """Put a dead or cancelled task back into its lane, its attempts reset, its history kept.

    Raises `TaskNotFound`, or `IllegalTransition` for a task in any other state.
    """
    yield from _change(context, task_id, Event.REDRIVE)


def _change(context: Context, task_id: str, event: Event) -> Procedure[None]:
    """Read, decide by the table, write under the version read; again if somebody was faster."""
    while True:
        state, node = yield from read_state(context, task_id)
        now = yield from server_time(context)
        after = moved(context, task_id, state, event, now=now)
        if event is Event.REDRIVE:
            lane, segment, _ = yield from open_segment(context, Lane(state.priority, dict(state.filters)))
            place = f"{lane.name}/{segment}/{state.place.rpartition('/')[2]}"
            after = replace(after, place=place, attempt=0, error=None, claimed=None, ended=None)
        outcome, multi = yield from move(context, task_id, node.stat.version, state, after)
        if outcome.committed:
            return
        if outcome.failure not in {Failure.BAD_VERSION, Failure.NO_NODE}:
            raise refused(f"{event} of task {task_id!r}", outcome, multi)
