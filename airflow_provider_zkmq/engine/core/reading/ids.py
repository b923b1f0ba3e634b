"""The ids of tasks, from where the tasks are listed."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.reading.chosen import chosen
from airflow_provider_zkmq.engine.core.reading.counts import task_ids
from airflow_provider_zkmq.engine.core.reading.lapsed import lapsed_among
from airflow_provider_zkmq.engine.core.reading.nodes import Record, chunked, read_records


def ids(
    context: Context, state: State | str | None = None, selector: Selector | str | None = None
) -> Procedure[list[str]]:
    """The ids of the tasks in `state` (default: any) that `selector` accepts. Not a snapshot of one moment.

    In the order in which they are listed: pending ones by lane, ended ones by time, the others by name. Without a
    selector no task is read, and one that has just changed its state may be named still; with one each task's record
    is read, and what cannot be read is reported in the log and left out.
    Raises `ConfigError` for an unknown state or selector, or where the queue does not exist.
    """
    wanted = yield from chosen(context, state, selector)
    listed = yield from task_ids(context, wanted.state)
    if wanted.selector is None:
        return listed
    matching: list[str] = []
    for chunk in chunked(listed):
        records = [record for record in (yield from read_records(context, chunk)) if isinstance(record, Record)]
        now = yield from lapsed_among(context, {each.task_id: each.state for each in records})
        for each in records:
            state = now[each.task_id].state if each.task_id in now else each.state.state
            matching += [each.task_id] if wanted.accepts(state, each.state.filters) else []
    return matching
