"""An Airflow task instance: its name on the tasks that it enqueues, its state, its notes, and its links to the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from airflow.sdk import BaseOperatorLink, Context, conf
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from .page_address import MOST_TASKS, page_url


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


# --- Extra links: from an Airflow task to its queue and its tasks on the page of queues.


class DealtWith(NamedTuple):
    """What an Airflow task did to which tasks of a queue: ``enqueued``, ``waited for``, ``claimed`` or ``settled``.

    ``failed``: those of them that are dead or cancelled. ``batch``: instead of the ids, where they are a batch.
    """

    queue: str
    how: str
    ids: Sequence[str] = ()
    failed: Sequence[str] = ()
    batch: str | None = None


def link_tasks(
    operator: Any, queue: str, how: str, ids: Sequence[str], failed: Sequence[str] = (), *, batch: Any = None
) -> None:
    """Have the links of an operator lead to the tasks that it has dealt with."""
    operator.dealt_with = DealtWith(queue, how, ids, failed, batch)


def _base_url() -> str:
    return conf.get("api", "base_url", fallback=None) or ""


def page_of(conn_id: str, queue: str | None = None, **more: str | None) -> str | None:
    """Return the whole address of a view of the page; None where Airflow's own, ``[api] base_url``, is not set."""
    base = _base_url()
    return page_url(base, conn_id, queue, **more) if base else None


def _address(operator: Any, queue: str | None, **more: str | None) -> str:
    return page_url(_base_url(), operator.zkmq_conn_id, queue, **more)


class QueueLink(BaseOperatorLink):
    """To the queue."""

    name = "Queue"

    def get_link(self, operator: Any, *, ti_key: object) -> str:
        """Return the address; Airflow asks for it when the task has ended."""
        del ti_key
        dealt: DealtWith | None = getattr(operator, "dealt_with", None)
        return _address(operator, getattr(operator, "zkmq_queue", None) if dealt is None else dealt.queue)


class TaskLink(BaseOperatorLink):
    """To the task: the first that failed, or the only one; else to a list of them."""

    name = "Task"

    def get_link(self, operator: Any, *, ti_key: object) -> str:
        """Return the address, or nothing where no task was dealt with."""
        del ti_key
        dealt: DealtWith | None = getattr(operator, "dealt_with", None)
        if dealt is None or not (dealt.ids or dealt.batch):
            return ""
        named = dict.fromkeys([*dealt.failed, *dealt.ids])
        one = dealt.failed[0] if dealt.failed else dealt.ids[0] if len(dealt.ids) == 1 else None
        return _address(
            operator,
            dealt.queue,
            task=one,
            view=None if one else "tasks",
            batch=dealt.batch,
            how=dealt.how,
            of=",".join(list(named)[:MOST_TASKS]) or None,
        )


LINKS: Final = (QueueLink(), TaskLink())
