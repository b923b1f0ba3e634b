"""What cannot be mapped: it is refused where the DAG is parsed, rather than run as something else."""

from __future__ import annotations

from typing import Any, NoReturn


class Unmapped:
    """A mixin for operators that are setup or teardown tasks by themselves: they cannot be mapped.

    Airflow makes a mapped operator only as it runs: until then it is no setup or teardown task, has another trigger
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
    """Raise `ValueError` for an `each` that is no truth value, and for a true one in a mapped task group.

    There, the index of a task's instance is that of the group's, and tells no claim from another.
    """
    if each is not True and each is not False:
        raise ValueError(f"{what}: each {each!r} is not allowed: give True or False")
    group = next(node.iter_mapped_task_groups(), None) if each else None
    if group is not None:
        raise ValueError(
            f"{what}: each=True has no meaning in the mapped task group {group.group_id!r}, whose instances have its "
            "index, not that of a claim: leave it out, and take one task in each of them (max_tasks=1)"
        )
