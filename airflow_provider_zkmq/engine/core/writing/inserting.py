"""New tasks: the constructor of inserts, and what lists something in an index."""

from __future__ import annotations

from functools import partial

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Create
from airflow_provider_zkmq.engine.core.reading.configuration import known_conf
from airflow_provider_zkmq.engine.core.writing.draft import Tree, due_of, scheduled_index, stamped
from airflow_provider_zkmq.engine.core.writing.place import make_bucket, open_segment
from airflow_provider_zkmq.engine.core.writing.plan import Change


def insert(context: Context, tree: Tree) -> Procedure[Change]:
    """Write a new task: its tree, and its entry in its lane, or among the scheduled."""
    yield from stamped(context, tree)
    due = yield from due_of(context, tree)
    if due is not None:
        index = yield from scheduled_index(context, tree.task_id, due)
        change = listed_at(context, tree.task_id, index)
        change.listing = tree.ops(context, f"{tree.lane.name}//{tree.entry}", index, due)
        return change
    slot = yield from open_segment(context, tree.lane, ordered=(yield from known_conf(context)).ordered)
    place = f"{slot.lane.name}/{slot.segment}/{tree.entry}"
    return Change(context, tree.task_id, slot=slot, listing=tree.ops(context, place, None, None))


def listed_at(context: Context, name: str, index: str) -> Change:
    """List something in an index whose bucket may have been cleared away meanwhile."""
    path = context.paths.at(index)
    bucket = partial(make_bucket, context, path.rpartition("/")[0])
    return Change(context, name, listing=[Create(path)], homes={path: bucket})
