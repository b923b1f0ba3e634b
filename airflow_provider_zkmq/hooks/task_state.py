"""What a task notes for its later tries."""

from __future__ import annotations

from typing import Any, cast

from airflow.sdk import Context, conf
from airflow.sdk.execution_time.context import NEVER_EXPIRE


class TaskStateStore:
    """Notes that outlive a try, and a clear, in Airflow's task state store, by DAG, run, task and map index.

    Nothing is noted where there is none. One that cannot be read fails the try, which would do again what was done.
    """

    def __init__(self, context: Context) -> None:
        self._store = cast("dict[str, Any]", context).get("task_state_store")

    @property
    def fades(self) -> bool:
        """Whether a success wipes out the notes: Airflow is configured so."""
        return self._store is not None and conf.getboolean("state_store", "clear_on_success", fallback=False)

    def read(self, key: str) -> Any:
        """Return what was noted, None if nothing was."""
        return None if self._store is None else self._store.get(key)

    def note(self, key: str, value: object) -> None:
        """Note JSON, not None, in place of what was noted, for as long as Airflow keeps the run: it may be cleared."""
        if self._store is not None:
            self._store.set(key, value, retention=NEVER_EXPIRE)
