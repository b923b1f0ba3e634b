"""The content of a message put into a task that is there; its record tells what stands there."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, SetData, WriteOp
from airflow_provider_zkmq.engine.core.writing.draft import Tree


def content_ops(context: Context, tree: Tree, before: TaskState, *, fresh: bool = True) -> list[WriteOp]:
    """Put what a message holds into a task's tree; `fresh`: the data's znode is made anew: it tells when it came."""
    paths, at = context.paths, tree.task_id
    data, filters = paths.task(at, "data"), paths.task(at, "filters")
    ops: list[WriteOp] = [Delete(data), Create(data, tree.data)] if fresh else [SetData(data, tree.data)]
    ops += _metadata_ops(paths.task(at, "metadata"), tree, there=before.metadata, fresh=fresh)
    if tree.filters and not before.filters:
        ops.append(Create(filters))
    for name in sorted({*before.filters, *tree.filters}):
        path, value = f"{filters}/{name}", tree.filters.get(name)
        if value is None:
            ops.append(Delete(path))
        elif name not in before.filters:
            ops.append(Create(path, value.encode()))
        elif before.filters[name] != value:
            ops.append(SetData(path, value.encode()))
    if before.filters and not tree.filters:
        ops.append(Delete(filters))
    return ops


def _metadata_ops(path: str, tree: Tree, *, there: bool, fresh: bool) -> list[WriteOp]:
    """Write a task's metadata. Those that were written once came with the data, as scans take it to be.

    Without metadata, the data are taken to have come with the record: they are written with data that are made anew,
    even where there are none. Metadata that come to older data are written twice: nobody is to take them to have come
    together.
    """
    if there:
        return [SetData(path, tree.metadata)]
    if fresh:
        return [Create(path, tree.metadata)]
    return [Create(path), SetData(path, tree.metadata)] if tree.has_metadata else []
