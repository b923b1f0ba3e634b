"""Whether an earlier try of a transaction whose reply was lost is what stands in the tree."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get, Node, Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Outcome
from airflow_provider_zkmq.engine.core.writing.record import may_have_dropped
from airflow_provider_zkmq.engine.errors import OutcomeUnknown


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
