"""The nodes of a DAG around which claims are kept and settled: which tasks they are, and which cannot be mapped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from airflow.sdk import TaskGroup, XComArg


def work_ids(node: Any) -> Iterable[str]:
    """Return the ids of the tasks that a node stands for. Raises `ValueError` for no task, group, XCom or id."""
    return [node] if isinstance(node, str) else [task.task_id for task in work_tasks(node)]


def work_tasks(node: Any) -> list[Any]:
    """Return those tasks, teardown tasks where their failure fails the run; none for an id. Raises as `work_ids`."""
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


def waited_for(tasks: Iterable[Any]) -> list[Any]:
    """Return what must have ended before tasks have: each, as the last one fails at once where another one did.

    Not what sets up for another one of them: Airflow would take the settling for its teardown.
    """
    known = list(tasks)
    inside = {task.task_id for task in known}
    return [task for task in known if not task.is_setup or task.downstream_task_ids.isdisjoint(inside)]


class NotMappable:
    """A mixin for operators that are setup or teardown tasks by themselves: they cannot be mapped.

    Airflow makes a mapped operator only as it runs. Until then it is no setup or teardown task, with another trigger
    rule and other retries, so that claims would be settled before the work is done.
    """

    @classmethod
    def partial(cls, **_arguments: object) -> NoReturn:
        """Raises `ValueError`, which says what to map instead."""
        raise ValueError(
            f"{cls.__name__} cannot be mapped (partial, expand): map a task group around ZkmqTaskGroup, or around this "
            "task, with @task_group and expand, so that each of its instances claims, keeps and settles for itself"
        )


def check_each(what: str, each: object, node: Any) -> None:
    """Raise `ValueError` for an `each` that is no truth value, and for a true one in a mapped task group."""
    if each is not True and each is not False:
        raise ValueError(f"{what}: each {each!r} is not allowed: give True or False")
    group = next(node.iter_mapped_task_groups(), None) if each else None
    if group is not None:
        raise ValueError(
            f"{what}: each=True has no meaning in the mapped task group {group.group_id!r}, whose instances have its "
            "index, not that of a claim: leave it out, and take one task in each of them (max_tasks=1)"
        )
