"""What a sensor waits for: checked when the DAG is parsed, and again when its templates are rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.hooks.templating import flat_ids, is_blank, moment

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue


def check_wanted(task_ids: object, selector: object, batch: object) -> None:
    """Raise `ValueError` unless one thing is named; what is rendered later is looked at then."""
    named = [value for value in (task_ids, selector, batch) if value is not None]
    if len(named) != 1:
        raise ValueError("ZkmqTaskSensor: give exactly one of task_ids, selector and batch")
    if is_blank(named[0]):
        raise ValueError("ZkmqTaskSensor: task_ids, selector or batch is blank: there would be nothing to wait for")


def check_search(selector: object, min_tasks: object, since: object) -> None:
    """Raise `ValueError` for a search that would end at once, or that is none."""
    if isinstance(min_tasks, bool) or not isinstance(min_tasks, int) or min_tasks < 1:
        raise ValueError(f"ZkmqTaskSensor: min_tasks {min_tasks!r} is not allowed: a whole number, 1 or more")
    if selector is None and since is not None:
        raise ValueError("ZkmqTaskSensor: since goes with a selector; ids and batches are those that were named")


def named_ids(task_ids: object) -> list[str]:
    """Return the ids after templating. Raises `ConfigError` where there are none, as for an empty list of an XCom."""
    ids = flat_ids(task_ids)
    if not ids:
        raise ConfigError("task_ids is blank after templating: there is nothing to wait for")
    return ids


def matching_ids(queue: AnyQueue, selector: str, least: int, span: float, since: Any) -> list[str]:
    """Return the ids of the tasks that match, waiting at most `span` seconds. Raises `WaitTimeout`, `ConfigError`."""
    since = moment("since", since)
    ids: list[str] = queue.find(selector, least, span, since=since, wait_for_queue=True)
    return ids


def counted(selector: str, least: int, since: object) -> str:
    """Return which tasks a sensor counts, for its log: without a moment, those of earlier runs are among them."""
    age = f"since {since}" if since is not None else "at any time and is still kept, also by an earlier run: see since"
    return f"Waiting for at least {least} task(s) that match {selector}; one counts that was enqueued {age}"
