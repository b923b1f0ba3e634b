"""Many tasks by their ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Sync
from airflow_provider_zkmq.engine.core.reading import inspect
from airflow_provider_zkmq.engine.core.reading.existence import refuse_missing
from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.core.reading.trees import PARTS, Part, checked_parts
from airflow_provider_zkmq.engine.errors import ConfigError


def read_many(context: Context, task_ids: Sequence[str], *, parts: Collection[Part] = PARTS) -> Procedure[list[Task]]:
    """The tasks among `task_ids` that exist, each once, in the order of the ids. Not a snapshot of one moment.

    A task that was never enqueued, or has been collected, is left out; so is one whose record cannot be read, which
    is reported in the log. `parts`: which of ``data``, ``metadata``, ``result`` and ``progress`` (with its note) are
    read; what is not is empty in the tasks (``b""``, ``{}``, None), and costs nothing but, for ``data``, one small
    request for each task. All tasks are in memory together: read many large ones in several calls.
    Raises `ConfigError` for a bad id or an unknown part, and `QueueNotFound`.
    """
    ids = checked_ids(task_ids)
    chosen = checked_parts(parts)
    tasks = yield from inspect.read_many(context, ids, parts=chosen)
    known = {task.id: task for task in tasks}
    missing = [each for each in ids if each not in known]
    if missing:
        yield Sync(context.paths.at("tasks"))  # the server that we read from may lag behind
        known |= {task.id: task for task in (yield from inspect.read_many(context, missing, parts=chosen))}
    if not known:
        yield from refuse_missing(context)
    return [known[each] for each in ids if each in known]


def checked_ids(task_ids: Sequence[str]) -> list[str]:
    """Each id once, in order. Raises `ConfigError` for one text instead of a list, and for what is no id."""
    if isinstance(task_ids, str):
        raise ConfigError(f"a list of task ids belongs here, not the text {task_ids!r}")
    return [check_name("task id", each) for each in dict.fromkeys(task_ids)]
