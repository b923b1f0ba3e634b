"""The content of a message put into a task that is there.

A new task has no znode for what it does not have, of older versions' tasks each has all of them: what stands is read
first (`core.reading.nodes.OPTIONAL`), and the record's version, which is part of every such transaction, says that it
is still so.
"""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.messages import NO_METADATA
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, SetData, WriteOp
from airflow_provider_zkmq.engine.core.writing.draft import Tree


def content_ops(
    context: Context, tree: Tree, before: TaskState, beside: frozenset[str], *, fresh: bool = True
) -> list[WriteOp]:
    """Put what a message holds into a task's tree; `fresh`: the data's znode is made anew: it tells when it came.

    `beside`: what stands there besides.
    """
    paths, at = context.paths, tree.task_id
    data = paths.task(at, "data")
    ops: list[WriteOp] = [Delete(data), Create(data, tree.data)] if fresh else [SetData(data, tree.data)]
    ops += _metadata_ops(paths.task(at, "metadata"), tree, there="metadata" in beside, fresh=fresh)
    if tree.filters and not before.filters and "filters" not in beside:
        ops.append(Create(paths.task(at, "filters")))
    for name in sorted({*before.filters, *tree.filters}):
        path, value = paths.task(at, "filters", name), tree.filters.get(name)
        if value is None:
            ops.append(Delete(path))
        elif name not in before.filters:
            ops.append(Create(path, value.encode()))
        elif before.filters[name] != value:
            ops.append(SetData(path, value.encode()))
    return ops


def _metadata_ops(path: str, tree: Tree, *, there: bool, fresh: bool) -> list[WriteOp]:
    """Write a task's metadata. Those that were written once came with the data, as scans take it to be.

    Without metadata, the data are taken to have come with the record: they are written with data that are made anew,
    even where there are none.
    """
    if there:
        return [SetData(path, tree.metadata)]
    if fresh:
        return [Create(path, tree.metadata)]
    return _later(path, tree.metadata) if tree.metadata != NO_METADATA else []


def _later(path: str, metadata: bytes) -> list[WriteOp]:
    """Metadata that come to older data: written twice, so that nobody takes them to have come together."""
    return [Create(path), SetData(path, metadata)]


def whole_ops(context: Context, task_id: str, beside: frozenset[str]) -> list[WriteOp]:
    """Add what is missing of a task's tree, for a run in escrow.

    A client of an older version that ends the run before it takes these znodes to be there, and would give it up.
    """
    task = context.paths.task
    filters: list[WriteOp] = [] if "filters" in beside else [Create(task(task_id, "filters"))]
    return filters if "metadata" in beside else [*_later(task(task_id, "metadata"), NO_METADATA), *filters]
