"""Deferring a wait to the triggerer: what is waited for, until when; many task ids in little room."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from ..engine import IllegalTransition, TaskNotFound
from ..engine.internals import internals

if TYPE_CHECKING:
    from airflow.sdk import Context

    from ..engine import AsyncQueue

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


#: What a user makes of a task that waits. One that is cleared is tried again, and adopts what is there; one that is
#: given to another triggerer is deferred still; one whose worker is shut down is running.
_ENDED: Final = frozenset({"failed", "skipped", "success", "removed"})
#: So many tasks are read together.
_AT_ONCE: Final = 500
_METADATA: Final[tuple[Literal["metadata"]]] = ("metadata",)


def state_of(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """Ask Airflow, in a task or in a thread of a trigger, for a task instance's state; None where there is none."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id, run_ids=[run_id], task_ids=[task_id], map_index=map_index
    )
    state = states.get(run_id, {}).get(task_id if map_index < 0 else f"{task_id}_{map_index}")
    return None if state is None else str(getattr(state, "value", state))


def ended_by_user(instance: Mapping[str, Any]) -> bool:
    """Whether Airflow knows the task instance to have ended. Blocks. `instance`: dag, run, task and map index."""
    return state_of(*(instance[name] for name in INSTANCE)) in _ENDED


async def acancel_noted(queue: AsyncQueue, origin: Mapping[str, Any], names: Sequence[str]) -> int:
    """Cancel the tasks that have not ended and note this origin, as far as it has these names; return their number.

    All that has not ended is looked at, a part at a time, and again until there is none of them: one may have come back
    to its queue meanwhile.
    """
    count = 0
    while True:
        before = count
        for state in ("claimed", "inserted"):
            ids = await internals(queue).ids(state=state)
            for at in range(0, len(ids), _AT_ONCE):
                tasks = await queue.tasks(ids=ids[at : at + _AT_ONCE], parts=_METADATA)
                count += await acancel_open(queue, [task.id for task in tasks if is_of(task.metadata, origin, names)])
        if count == before:
            return count


async def acancel_open(queue: AsyncQueue, ids: Sequence[str]) -> int:
    """Cancel those of the tasks that have not ended; return how many there were."""
    count = 0
    for task_id in ids:
        with suppress(IllegalTransition, TaskNotFound):
            await queue.cancel(task_id)
            count += 1
    return count


# --- The ids of many tasks in little room. Airflow keeps a trigger's arguments, encrypted, in a column that holds
# 65 535 bytes on MySQL, and logs each event.

#: The ids that a trigger is given take at most so many bytes; encrypted, a third more.
ARGUMENT_BYTES: Final = 32_000
#: An event names the ids where they take at most so many bytes.
EVENT_BYTES: Final = 8_000
#: A quoted id in a list takes so many bytes more than its characters, which are ASCII.
_QUOTED: Final = 4


def series_id(key: str, position: int) -> str:
    """Return the id at a position, from 0, of the series that has this key."""
    return f"{key}.{position:06d}"


def typed(conn_id: str, *words: str) -> str:
    """Return what to type in a shell to see more: ``airflow zkmq`` with the connection that an Airflow task has."""
    return shlex.join(["airflow", "zkmq", "--conn-id", conn_id, *words])


def series_ids(key: str, count: int) -> list[str]:
    """Return the ids of a series: its key and their number say all that is to be stored of it."""
    return [series_id(key, position) for position in range(count)]


def first_within(task_ids: Sequence[str], room: int) -> list[str]:
    """Return the first ids that take at most `room` bytes, one at least."""
    for number, task_id in enumerate(task_ids):
        room -= len(task_id) + _QUOTED
        if room < 0:
            return list(task_ids[: max(1, number)])
    return list(task_ids)


def fits(task_ids: Sequence[str], room: int) -> bool:
    """Whether ids take at most `room` bytes."""
    return sum(len(task_id) + _QUOTED for task_id in task_ids) <= room


# --- Deferring a wait to the triggerer. Airflow's scheduler takes the end of the process that deferred for a failure
# where it hears of it when the task runs again already: so no event comes within seconds of the deferral.

#: So many seconds after the deferral an event is told at the earliest.
HELD_BACK: Final = 6.0
#: A deferral lasts so much longer than an event may be held back: Airflow's own time-out must not come before it.
_ROOM: Final = 4.0
#: How a wait that was not in time tells of its limit.
_LIMIT: Final = re.compile(r"\btimeout \([^)]* s\)")


def hold_back(deferred_at: float | None, now: float) -> float:
    """Return for how many seconds an event is held back: at most `HELD_BACK`, however the machines' clocks differ."""
    return 0.0 if deferred_at is None else min(HELD_BACK, max(0.0, deferred_at + HELD_BACK - now))


def deferral_limit(deadline: float | None) -> timedelta | None:
    """Return how long Airflow waits for the trigger, which ends by itself at the `deadline`, in seconds since 1970."""
    if deadline is None:
        return None
    return timedelta(seconds=math.ceil(max(HELD_BACK + _ROOM, deadline - time.time())))


def seconds_left(deadline: float | None) -> float | None:
    """Return how long it is until a deadline, in seconds since 1970: 0 after it; None without one."""
    return None if deadline is None else max(0.0, deadline - time.time())


def wait_limit(operator: Any) -> float | None:
    """Return for how many seconds an operator waits: its timeout, else its `execution_timeout`; None: no bound."""
    timeout, limit = getattr(operator, "timeout", None), operator.execution_timeout
    return limit.total_seconds() if timeout is None and limit is not None else timeout


def naming(message: str, span: float | None) -> str:
    """Return the message of a wait that was not in time, with the seconds that a user gave for those that were left."""
    return message if span is None else _LIMIT.sub(f"timeout ({span:g} s)", message)


def awaited_ids(ids: Sequence[str], key: str | None, left: Sequence[str] = ()) -> dict[str, Any]:
    """Return a trigger's arguments for tasks: few of them by their ids, a series by its key and their number.

    Many others are waited for in rounds: the trigger is given the first of those that are `left`, and when they have
    ended, the Airflow task looks at all of them and defers for the next.
    """
    if fits(ids, EVENT_BYTES):
        return {"task_ids": list(ids)}
    if key is not None and list(ids) == series_ids(key, len(ids)):
        return {"series": [key, len(ids)]}
    return {"task_ids": first_within(left or ids, ARGUMENT_BYTES), "partial": True}
