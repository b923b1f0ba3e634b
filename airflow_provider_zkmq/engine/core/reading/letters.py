"""Dead letters that have left an archived queue and are kept for its archive (`core.writing.letters`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import bucket_start, entry_time
from airflow_provider_zkmq.engine.core.model.letters import Letter
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.model.records import TaskState, clip
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.inspect import Task, task_of_letter
from airflow_provider_zkmq.engine.core.reading.nodes import (
    chunked,
    list_children,
    read_nodes,
    read_stats,
)
from airflow_provider_zkmq.engine.core.reading.trees import WHOLE_AT_ONCE
from airflow_provider_zkmq.engine.errors import CorruptRecord


class Departed(NamedTuple):
    """A dead letter that has left an archived queue: its id, the transaction in which it left, where it is kept."""

    id: str
    zxid: int
    place: str


def list_letters(context: Context, until: int | None = None) -> Procedure[list[Departed]]:
    """The dead letters that are kept; with `until` not those of the buckets that were made after that transaction."""
    parent = context.paths.at("unarchived")
    names = sorted(name for name in (yield Children(parent)) or () if bucket_start(name) is not None)
    stats = yield from read_stats([f"{parent}/{name}" for name in names])
    buckets = [name for name, stat in zip(names, stats, strict=True) if stat and (until is None or stat.czxid <= until)]
    listings = yield from list_children([f"{parent}/{name}" for name in buckets])
    entries = [
        f"{bucket}/{entry}"
        for bucket, names in zip(buckets, listings, strict=True)
        for entry in names
        if entry_time(entry) is not None
    ]
    stats = yield from read_stats([f"{parent}/{entry}" for entry in entries])
    return [
        Departed(entry_task(entry.rpartition("/")[2]) or "", stat.czxid, entry)
        for entry, stat in zip(entries, stats, strict=True)
        if stat is not None
    ]


def read_departed(context: Context, departed: Sequence[Departed]) -> Procedure[list[Task]]:
    """Dead letters that have left, as the tasks that they were; those that are gone are left out.

    Of the results of earlier runs of their ids none is kept. What is corrupt is reported, and told with its bytes as
    data and the reason as error: there is no other place from which it could be mended. Raises `QueueNotFound`.
    """
    yield from read_conf(context)
    tasks: list[Task] = []
    for chunk in chunked(departed, WHOLE_AT_ONCE):
        paths = [context.paths.at("unarchived", each.place) for each in chunk]
        for each, path, node in zip(chunk, paths, (yield from read_nodes(paths)), strict=True):
            tasks += [] if node is None else [_task(context, each.id, path, node)]
    return tasks


def _task(context: Context, task_id: str, path: str, node: Node) -> Task:
    try:
        return task_of_letter(path, Letter.decode(path, node.data))
    except CorruptRecord as error:
        context.report(path, str(error))
        state, came = TaskState(State.DEAD, "", "", error=clip(str(error))), node.stat.ctime
        return task_of_letter(path, Letter(task_id, node.stat.mzxid, came, came, state, "{}", node.data))
