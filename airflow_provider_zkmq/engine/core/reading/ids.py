"""The ids of tasks, from where the tasks are listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.filters import FilterTypes
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.selectors import Selector, as_selector
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import GetMany, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.counts import as_state, task_ids
from airflow_provider_zkmq.engine.errors import CorruptRecord

CHUNK: Final = 128


def ids(
    context: Context, state: State | str | None = None, selector: Selector | str | None = None
) -> Procedure[list[str]]:
    """The ids of the tasks in `state` (default: any) that `selector` accepts. Not a snapshot of one moment.

    In the order in which they are listed: pending ones by lane, ended ones by time, the others by name. Without a
    selector no task is read, and one that has just changed its state may be named still; with one each task's record
    is read, and what cannot be read is reported in the log and left out.
    Raises `ConfigError` for an unknown state or selector, or where the queue does not exist.
    """
    wanted = as_state(state)
    conf = yield from read_conf(context)
    chosen = None if selector is None else as_selector(selector).bind(conf.types)
    listed = yield from task_ids(context, wanted)
    if chosen is None:
        return listed
    return (yield from _matching(context, listed, wanted, chosen, conf.types))


def _matching(
    context: Context, listed: Sequence[str], wanted: State | None, chosen: Selector, types: FilterTypes
) -> Procedure[list[str]]:
    matching: list[str] = []
    for start in range(0, len(listed), CHUNK):
        chunk = listed[start : start + CHUNK]
        nodes: list[Node | None] = yield GetMany(tuple(context.paths.task(each, "state") for each in chunk))
        for task_id, node in zip(chunk, nodes, strict=True):
            record = None if node is None else _record(context, task_id, node)
            if record is not None and wanted in {None, record.state} and chosen.matches(record.filters, types):
                matching.append(task_id)
    return matching


def _record(context: Context, task_id: str, node: Node) -> TaskState | None:
    path = context.paths.task(task_id, "state")
    try:
        return TaskState.decode(path, node.data)
    except CorruptRecord as error:
        context.report(path, str(error))
        return None
