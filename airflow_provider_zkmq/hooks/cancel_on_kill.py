"""Cancel on kill: only a user's end of an Airflow task cancels what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_zkmq.engine import IllegalTransition, TaskNotFound

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.engine import AnyQueue, AsyncQueue

# --- Which Airflow task instance enqueued a task: what the task's metadata note of it.

#: What tells a task instance from all others, whichever of its tries it is.
INSTANCE: Final = ("dag_id", "run_id", "task_id", "map_index")
#: What tells a try.
TRY: Final = (*INSTANCE, "try_number")
#: Where a task's metadata note it.
NOTE: Final = "airflow"


def origin_of(context: Context) -> dict[str, object]:
    """Return which task instance enqueues."""
    instance: object = context["ti"]
    return {name: getattr(instance, name, None) for name in TRY}


def is_of(metadata: Mapping[str, object], origin: Mapping[str, object], names: Iterable[str]) -> bool:
    """Whether a task's metadata note this origin, as far as it has these names."""
    noted = metadata.get(NOTE)
    return isinstance(noted, Mapping) and all(noted.get(name) == origin[name] for name in names)


# --- A user's end of an Airflow task, told from all other kills: then, and only then, what it waits for is cancelled.

#: What a user makes of a task that waits. One that is cleared is tried again, and adopts what is there; one that is
#: given to another triggerer is deferred still; one whose worker is shut down is running.
_ENDED: Final = frozenset({"failed", "skipped", "success", "removed"})
#: So many tasks are read together.
_AT_ONCE: Final = 500
_METADATA: Final[tuple[Literal["metadata"]]] = ("metadata",)


def ended_by_user(instance: Mapping[str, Any]) -> bool:
    """Whether Airflow knows the task instance to have ended. Blocks. `instance`: dag, run, task and map index."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states_by_run = RuntimeTaskInstance.get_task_states(
        dag_id=instance["dag_id"],
        run_ids=[instance["run_id"]],
        task_ids=[instance["task_id"]],
        map_index=instance["map_index"],
    )
    states = [str(getattr(state, "value", state)) for run in states_by_run.values() for state in run.values()]
    return bool(states) and _ENDED.issuperset(states)


def cancel_open(queue: AnyQueue, ids: Sequence[str]) -> int:
    """Cancel those of the tasks that have not ended; return how many there were."""
    count = 0
    for task_id in ids:
        try:
            queue.cancel(task_id)
            count += 1
        except (IllegalTransition, TaskNotFound):
            continue
    return count


async def acancel_noted(queue: AsyncQueue, origin: Mapping[str, Any], names: Sequence[str]) -> int:
    """Cancel the tasks that have not ended and note this origin, as far as it has these names; return their number.

    All that has not ended is looked at, a part at a time, and again until there is none of them: one may have come back
    to its queue meanwhile.
    """
    count = 0
    while True:
        before = count
        for state in ("claimed", "inserted"):
            ids = await queue.ids(state=state)
            for at in range(0, len(ids), _AT_ONCE):
                tasks = await queue.read_many(ids[at : at + _AT_ONCE], parts=_METADATA)
                count += await acancel_open(queue, [task.id for task in tasks if is_of(task.metadata, origin, names)])
        if count == before:
            return count


async def acancel_open(queue: AsyncQueue, ids: Sequence[str]) -> int:
    """`cancel_open` on an event loop."""
    count = 0
    for task_id in ids:
        try:
            await queue.cancel(task_id)
            count += 1
        except (IllegalTransition, TaskNotFound):
            continue
    return count
