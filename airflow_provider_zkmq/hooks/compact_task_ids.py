"""The ids of many tasks in little room, as a trigger's arguments and events hold them.

Airflow keeps a trigger's arguments, encrypted, in a column that holds 65 535 bytes on MySQL, and logs each event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

#: The ids that a trigger is given take at most so many bytes; encrypted, a third more.
ARGUMENT_BYTES: Final = 32_000
#: An event names the ids where they take at most so many bytes.
EVENT_BYTES: Final = 8_000
#: A quoted id in a list takes so many bytes more than its characters, which are ASCII.
_QUOTED: Final = 4


def series_id(key: str, position: int) -> str:
    """Return the id at a position, from 0, of the series that has this key."""
    return f"{key}.{position:06d}"


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
