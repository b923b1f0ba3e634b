"""Which Airflow task instance enqueued a task: what the task's metadata note of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk import Context

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
