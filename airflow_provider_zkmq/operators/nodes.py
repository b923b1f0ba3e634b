"""The tasks of a DAG that are a run's work: as its author names them, and what must have ended before they have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk import TaskGroup, XComArg


def work_ids(node: Any) -> Iterable[str]:
    """Return the ids of the tasks that a node stands for; teardown tasks count where their failure fails the run.

    Raises `ValueError` for what is no task, group, XCom or id.
    """
    return [node] if isinstance(node, str) else [task.task_id for task in work_tasks(node)]


def work_tasks(node: Any) -> list[Any]:
    """Return those tasks; none for an id, which tells nothing of its task. Raises `ValueError` as `work_ids` does."""
    if isinstance(node, str):
        return []
    if isinstance(node, XComArg):
        tasks = [operator for operator, _ in node.iter_references()]
    else:
        tasks = list(node) if isinstance(node, TaskGroup) else [node]
    if not all(hasattr(task, "task_id") and hasattr(task, "is_teardown") for task in tasks):
        raise ValueError(f"ZkmqSettleOperator: work {node!r} is no operator, task group or task id, nor a list of them")
    return [task for task in tasks if not task.is_teardown or task.on_failure_fail_dagrun]


def class_of(node: Any) -> Any:
    """Return the class of a task, mapped or not."""
    return node.operator_class if node.is_mapped else type(node)


def ends_of(node: Any) -> Any:
    """Return what must have ended before a node has: of a group, see `waited_for`."""
    return waited_for(work_tasks(node)) if isinstance(node, TaskGroup) else node


def waited_for(tasks: Iterable[Any]) -> list[Any]:
    """Return what must have ended before tasks have: each, as the last one fails at once where another one did.

    Not what sets up for another one of them: Airflow would take the settling for its teardown.
    """
    known = list(tasks)
    inside = {task.task_id for task in known}
    return [task for task in known if not task.is_setup or task.downstream_task_ids.isdisjoint(inside)]
