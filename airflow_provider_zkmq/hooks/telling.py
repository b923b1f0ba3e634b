"""What a sensor's XCom tells, bounded; and whether a deferred task may end in the triggerer with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import conf

from airflow_provider_zkmq.hooks.naming import first_fitting
from airflow_provider_zkmq.hooks.outcomes import check_batch, check_outcomes, outcome

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_provider_zkmq.engine import Batch, Task

_FAIL_ON: Final = ("any", "none")
#: The least that leaves room for what is told besides ids.
_LEAST: Final = 1_000
#: Whose methods are known here: Airflow's own, and ours.
_KNOWN: Final = ("airflow.sdk.", "airflow_provider_zkmq.")
_CORE_XCOM: Final = "airflow.sdk.execution_time.xcom.BaseXCom"


@dataclass(frozen=True, slots=True)
class Telling:
    """What is told of tasks and batches that have ended.

    results: with the tasks' results, attempts and errors; else their ids and states alone. max_xcom_bytes: where it is
    larger, spelt as JSON, it is references. fail_on: ``"any"`` of them that is dead or cancelled fails the Airflow
    task, or ``"none"`` does.
    """

    results: bool
    max_xcom_bytes: int
    fail_on: str

    def __post_init__(self) -> None:
        if self.fail_on not in _FAIL_ON:
            raise ValueError(f"fail_on {self.fail_on!r} is not known: give {' or '.join(_FAIL_ON)}")
        most = self.max_xcom_bytes
        if isinstance(most, bool) or not isinstance(most, int) or most < _LEAST:
            raise ValueError(f"max_xcom_bytes {most!r} is not allowed: a whole number, {_LEAST} or more")

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments, as a trigger keeps them."""
        return asdict(self)

    def check(self, queue: str, told_of: Sequence[Task] | Batch) -> None:
        """Raise `AirflowException` for tasks, or members, that failed."""
        if self.fail_on == "none":
            return
        if isinstance(told_of, Sequence):
            check_outcomes(queue, told_of)
        else:
            check_batch(queue, told_of)

    def tell(self, queue: str, told_of: Sequence[Task] | Batch) -> Any:
        """Return the XCom."""
        return self._tasks(queue, told_of) if isinstance(told_of, Sequence) else self._batch(told_of)

    def _batch(self, batch: Batch) -> dict[str, Any]:
        failed = first_fitting(batch.failed, self.max_xcom_bytes - _LEAST // 2) if batch.failed else []
        told: dict[str, Any] = {"batch": batch.name, "total": batch.total, "failed": failed}
        more = len(batch.failed) - len(failed)
        return told | {"more_failed": more} if more else told

    def _tasks(self, queue: str, tasks: Sequence[Task]) -> Any:
        told = [outcome(task) if self.results else {"id": task.id, "state": str(task.state)} for task in tasks]
        return told if size(told) <= self.max_xcom_bytes else self._references(queue, tasks)

    def _references(self, queue: str, tasks: Sequence[Task]) -> dict[str, Any]:
        """Return which tasks they are, as far as there is room, and how to read them."""
        ids = first_fitting([task.id for task in tasks], self.max_xcom_bytes - _LEAST)
        return {
            "queue": queue,
            "count": len(tasks),
            "states": dict(Counter(str(task.state) for task in tasks)),
            "ids": ids,
            "more": len(tasks) - len(ids),
            "read": f"ZkmqHook().queue({queue!r}).read_many(ids)",
        }


def size(value: object) -> int:
    """Return how many bytes an XCom's value takes as JSON."""
    return len(json.dumps(value))


def pushed_for(operator: BaseOperator, context: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the task instance whose XCom the triggerer writes, as `XCom.set` takes it; None: there is to be none."""
    if not operator.do_xcom_push:
        return None
    return {name: getattr(context["ti"], name) for name in ("dag_id", "run_id", "task_id", "map_index")}


def may_end_in_triggerer(operator: BaseOperator, context: Mapping[str, Any]) -> bool:
    """Whether nothing is lost where the triggerer ends a deferred task: no worker runs once more then.

    It emits no asset events, writes XComs past a backend of one's own, records no length by which others are mapped,
    splits no value into several XComs, and calls neither a hook of the operator's, or a method of a subclass, nor what
    is to be called when it succeeds.
    """
    backend = conf.get("core", "xcom_backend", fallback=_CORE_XCOM)
    if operator.outlets or operator.on_success_callback or backend != _CORE_XCOM:
        return False
    if operator.multiple_outputs or _has_hook(operator):
        return False
    if context["ti"].map_index is not None and context["ti"].map_index >= 0:
        return True
    return operator.get_dag() is None or next(operator.iter_mapped_dependants(), None) is None


def _has_hook(operator: BaseOperator) -> bool:
    """Whether a worker would call what the triggerer does not know of."""
    if getattr(operator, "_post_execute_hook", None) is not None:
        return True
    methods = (getattr(type(operator), name, None) for name in ("post_execute", "execute_complete"))
    return not all(str(getattr(method, "__module__", "")).startswith(_KNOWN) for method in methods)
