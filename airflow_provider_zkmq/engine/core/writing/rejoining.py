"""A redriven task is a member of its batch again: the batch waits for it, and opens again if it was done.

Whoever waits for the batch from then on waits for this member, too, and is told how it ended this time. The task that
follows the batch was enqueued when it was done first, and is not enqueued again.
"""

from __future__ import annotations

from functools import partial

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import index_path
from airflow_provider_zkmq.engine.core.model.stored import dump
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Node, Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, SetData, WriteOp
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes, unless_corrupt
from airflow_provider_zkmq.engine.core.writing.closing import load_batch
from airflow_provider_zkmq.engine.core.writing.plan import Change
from airflow_provider_zkmq.engine.core.writing.record import Current


def rejoin(context: Context, current: Current) -> Procedure[list[Change]]:
    """What makes a task that has ended an open member of its batch again; nothing where that is gone by now.

    It stands under the batch's znodes as they were read: where the batch ends at the same moment, this is refused.
    """
    if current.state.batch is None:
        return []
    base, task_id = context.paths.batch(current.state.batch), current.task_id
    paths = (base, f"{base}/open", f"{base}/open/{task_id}", f"{base}/failed/{task_id}")
    batch, members, member, failed = yield from read_nodes(paths)
    opening = [] if members is not None else (yield from _reopening(context, current.state.batch, batch))
    if batch is None or opening is None:
        return []
    ops: list[WriteOp] = [] if failed is None else [Delete(paths[3])]
    if member is None:  # one that is there was left by somebody else, and holds up nothing
        ops.append(Create(paths[2]))
    return [Change(context, task_id, [*opening, *ops])]


def _reopening(context: Context, name: str, batch: Node | None) -> Procedure[list[WriteOp] | None]:
    """What opens a batch that is done; None for one that is gone, or was given up before it was written to its end."""
    base = context.paths.batch(name)
    record = None if batch is None else unless_corrupt(context, base, partial(load_batch, base, batch.data))
    if batch is None or record is None or "total" not in record:
        return None
    done = record.pop("done", None)
    ops: list[WriteOp] = [SetData(base, dump(record | {"then": None}), batch.stat.version), Create(f"{base}/open")]
    listed = context.paths.at(index_path("batches-done", done, name)) if isinstance(done, int) else None
    if listed is not None and (yield Exists(listed)) is not None:
        ops.append(Delete(listed))
    return ops
