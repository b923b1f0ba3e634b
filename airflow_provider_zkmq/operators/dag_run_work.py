"""The work of a DAG run between claim and settlement: which tasks do it, and what their states make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from airflow.sdk import Context, TaskGroup, XComArg

from ..hooks import xcom_results


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


# --- What became of a DAG run's work, by the states of its tasks: what its claims are settled by.


#: The XCom of a failed task that tells its exception.
ERROR_KEY: Final = "zkmq_error"
#: The XCom of a task that has run to its end; its value is its map index.
END_KEY: Final = "zkmq_ended"
_MOST_TEXT: Final = 2_000
MOST_CHECKED: Final = 5
#: In the place of the state of work that is a success without having run to its end.
MARKED: Final = "marked"


def note_error(context: Context) -> None:
    """Keep the exception's type and text, as an XCom of the task that failed: an ``on_failure_callback``."""
    fields: dict[str, Any] = dict(context)
    error = fields.get("exception")
    if error is None:
        return
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    try:
        fields["ti"].xcom_push(key=ERROR_KEY, value=xcom_results.storable(text)[:_MOST_TEXT])
    except Exception as refused:  # noqa: BLE001  it is a reason less, and no reason to fail
        fields["ti"].task.log.warning("Why it failed is not kept for the queue: %s", refused)


def note_end(context: Context) -> None:
    """Keep that a task has run to its end, as an XCom of it: an ``on_success_callback``, which no user's mark calls."""
    instance: Any = context["ti"]
    try:
        instance.xcom_push(key=END_KEY, value=instance.map_index)
    except Exception as refused:  # noqa: BLE001  what it did is done
        instance.task.log.warning("That it has ended by itself is not kept for the queue: %s", refused)


class Work(NamedTuple):
    """One instance of a task: its id, its map index (-1 if it is not mapped), and its state, None before it ran."""

    task_id: str
    map_index: int
    state: str | None


class SettleResult(NamedTuple):
    """`kind`: ``"complete"``, ``"fail"`` or ``"release"``; `reason`: why, of what failed."""

    kind: str
    reason: str = ""


def apart(task_ids: Iterable[str]) -> list[list[str]]:
    """Return ids in groups that Airflow is asked for one by one.

    It names an instance's state ``task_id_index``; where that is another task's id, too, it has one of both.
    """
    known = sorted(set(task_ids))
    parts = {task_id: task_id.rpartition("_") for task_id in known}
    alone = [task_id for task_id, (head, _, index) in parts.items() if index.isdecimal() and head in parts]
    return [[task_id for task_id in known if task_id not in alone], *([task_id] for task_id in alone)]


def share(work: Sequence[Work], index: int) -> list[Work]:
    """Return the work of one index, and what is not mapped; a mapped task that has no such instance is not done."""
    mine = [each for each in work if each.map_index in {-1, index}]
    missing = {each.task_id for each in work} - {each.task_id for each in mine}
    return mine + [Work(task_id, index, None) for task_id in sorted(missing)]


def instances(states: Mapping[str, str | None], task_ids: Iterable[str]) -> list[Work]:
    """Return the instances of tasks, from states by ``task_id`` or ``task_id_index``; one that is missing has none."""
    found: list[Work] = []
    known = set(task_ids)
    for task_id in sorted(known):
        mine = [Work(task_id, -1, states[task_id])] if task_id in states else []
        for name, state in states.items():
            index = name.removeprefix(f"{task_id}_")
            if name != index and index.isdecimal() and name not in known:
                mine.append(Work(task_id, int(index), state))
        kept = [work for work in mine if work.state != "removed"]  # a mapped task may have had more in an earlier try
        found += kept or [Work(task_id, -1, None)]
    return found


def judge(
    work: Sequence[Work], on_skipped: str, reasons: Mapping[tuple[str, int], str], on_marked: str = "release"
) -> SettleResult:
    """Return what its states mean for a claim: a failure before all, then what a user marked, then what was skipped."""
    explained: list[str] = []
    failed: list[str] = []
    marked: list[str] = []
    skipped: list[str] = []
    for each in work:
        name = each.task_id if each.map_index < 0 else f"{each.task_id}[{each.map_index}]"
        reason = reasons.get((each.task_id, each.map_index))
        if each.state == MARKED:
            marked.append(name)
        elif each.state == "skipped":
            skipped.append(name)
        elif each.state != "success" and reason is not None:
            explained.append(f"{name}: {reason}")
        elif each.state != "success":
            failed.append(f"{name} {each.state or 'not done'}")
    if explained or failed:
        return SettleResult("fail", xcom_results.few(explained + failed))
    if marked:
        return SettleResult(on_marked, f"marked as success, and not done: {xcom_results.few(marked)}")
    return SettleResult(on_skipped, f"skipped: {xcom_results.few(skipped)}") if skipped else SettleResult("complete")
