"""Which tasks are the members of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.stored import load
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Get, Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.reading.counts import task_ids
from airflow_provider_zkmq.engine.core.reading.nodes import Record, chunked, read_records
from airflow_provider_zkmq.engine.errors import TaskNotFound


def member_id(batch: str, number: int) -> str:
    """The id of a member that was given none."""
    return f"{batch}.{number:06d}"


def member_ids(context: Context, batch: str) -> Procedure[list[str]]:
    """The members of a batch that are there, sorted; those that were collected, dropped or cleared are not.

    The batch itself names those that are open or have failed. Of the others it knows how many there are: the names
    that members get are tried first, and the record of each task is read only where these are not all of them.
    Raises `TaskNotFound` for a batch that does not exist.
    """
    base = context.paths.batch(check_name("batch", batch))
    node: Node | None = yield Get(base)
    if node is None:
        yield Sync(base)  # the server that we read from may lag behind
        node = yield Get(base)
    if node is None:
        msg = f"batch {batch!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    total = load(base, node.data).get("total")
    named = set((yield Children(f"{base}/open")) or ())
    named.update((yield Children(f"{base}/failed")) or ())
    there = yield from task_ids(context, None)
    if isinstance(total, int):
        named.update(member_id(batch, number) for number in range(min(total, len(there))))
    members = yield from _of(context, batch, sorted(named.intersection(there)))
    if len(members) != total:
        members += yield from _of(context, batch, [each for each in there if each not in named])
    return sorted(members)


def _of(context: Context, batch: str, ids: Sequence[str]) -> Procedure[list[str]]:
    """Those of these tasks that are the batch's."""
    members: list[str] = []
    for chunk in chunked(ids):
        records = yield from read_records(context, chunk)
        members += [each.task_id for each in records if isinstance(each, Record) and each.state.batch == batch]
    return members
