"""A user's end of an Airflow task, told from all other kills: then, and only then, what it waits for is cancelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_zkmq.engine import IllegalTransition, TaskNotFound

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue, AsyncQueue

#: What a user makes of a task that waits. One that is cleared is tried again, and adopts what is there; one that is
#: given to another triggerer is deferred still; one whose worker is shut down is running.
_ENDED: Final = frozenset({"failed", "skipped", "success", "removed"})
#: So many tasks are read together.
_AT_ONCE: Final = 500
_METADATA: Final[tuple[Literal["metadata"]]] = ("metadata",)


def ended_by_user(instance: Mapping[str, Any]) -> bool:
    """Whether Airflow knows the task instance to have ended. Blocks. `instance`: dag, run, task and map index."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    told = RuntimeTaskInstance.get_task_states(
        dag_id=instance["dag_id"],
        run_ids=[instance["run_id"]],
        task_ids=[instance["task_id"]],
        map_index=instance["map_index"],
    )
    states = [str(getattr(state, "value", state)) for run in told.values() for state in run.values()]
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
    from airflow_provider_zkmq.hooks.origins import is_of  # hardly any trigger comes here: it is spared the import

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
