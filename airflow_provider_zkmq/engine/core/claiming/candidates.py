"""The tasks that pending entries stand for, read before they are claimed: each is judged by its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from airflow_provider_zkmq.engine.core.claiming.take import Pick, Taker
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.readahead import ReadAhead
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.stored import load
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes, unless_corrupt
from airflow_provider_zkmq.engine.core.reading.trees import WHOLE_AT_ONCE
from airflow_provider_zkmq.engine.core.tasks.exhaust import bury_exhausted, used_up
from airflow_provider_zkmq.engine.core.writing.record import Current

_PARTS: Final = ("state", "data", "metadata")


def read_candidates(
    context: Context, taker: Taker, picks: Sequence[Pick], *, in_order: bool = False
) -> Procedure[list[Claimed]]:
    """The tasks of entries as they are now, ready to be claimed, less those that cannot be.

    `in_order`: of those before the first one that cannot be.
    """
    ids = [task_of_entry(context, pick) for pick in picks]
    known = [(pick, task_id) for pick, task_id in zip(picks, ids, strict=True) if task_id is not None]
    nodes = yield from _nodes_of(context, taker, [pick.entry for pick, _ in known])
    candidates = []
    for pick, task_id in known:
        claimed = yield from candidate(context, taker, task_id, pick, nodes[pick.entry])
        if claimed is not None:
            candidates.append(claimed)
        elif in_order:
            break
    return candidates


def _nodes_of(context: Context, taker: Taker, entries: Sequence[str]) -> Procedure[dict[str, Sequence[Node | None]]]:
    """The znodes of entries' tasks: as they were read ahead, the first time that they are asked for; else read now."""
    ahead = taker.read_ahead
    if ahead is None:
        return dict(zip(entries, (yield from _read(context, entries)), strict=True))
    ahead.forget_old(context.run.monotonic())
    nodes = {entry: ahead.tasks.pop(entry) for entry in entries if entry in ahead.tasks}
    unread = [entry for entry in entries if entry not in nodes]
    if unread:
        nodes |= yield from _read_on(context, taker, ahead, unread)
    return nodes


def _read_on(
    context: Context, taker: Taker, ahead: ReadAhead, unread: Sequence[str]
) -> Procedure[dict[str, Sequence[Node | None]]]:
    """Read tasks, and those that come after them unless another call is at it."""
    if ahead.busy:
        return dict(zip(unread, (yield from _read(context, unread)), strict=True))
    ahead.busy = True
    try:
        together = [*unread, *_worth_reading(taker, ahead, unread)]
        nodes = dict(zip(together, (yield from _read(context, together)), strict=True))
    finally:
        ahead.busy = False
    size = sum(len(node.data) for of_task in nodes.values() for node in of_task if node is not None)
    ahead.learn(len(nodes), size, context.run.monotonic())
    ahead.tasks |= {entry: nodes.pop(entry) for entry in together[len(unread) :]}
    return nodes


def _worth_reading(taker: Taker, ahead: ReadAhead, unread: Sequence[str]) -> list[str]:
    """The entries that come after those to be read now; what was read ahead of others is forgotten: they are gone.

    Listings of different moments may have the same task in two lanes: it is read once.
    """
    later = {task_id: pick.entry for pick in taker.later if (task_id := entry_task(pick.entry)) is not None}
    for entry in set(ahead.tasks).difference(later.values()):
        del ahead.tasks[entry]
    asked = {entry_task(entry) for entry in unread}
    return [entry for task_id, entry in later.items() if entry not in ahead.tasks and task_id not in asked]


def _read(context: Context, entries: Sequence[str]) -> Procedure[list[Sequence[Node | None]]]:
    return (yield from read_tasks(context, [entry_task(entry) or "" for entry in entries]))


def read_tasks(context: Context, ids: Sequence[str]) -> Procedure[list[Sequence[Node | None]]]:
    """Of each task what a claim needs of it: its record, its payload and its metadata."""
    paths = [context.paths.task(task_id, part) for task_id in ids for part in _PARTS]
    nodes = yield from read_nodes(paths, len(_PARTS) * WHOLE_AT_ONCE)
    return [nodes[at : at + len(_PARTS)] for at in range(0, len(nodes), len(_PARTS))]


def task_of_entry(context: Context, pick: Pick) -> str | None:
    """The task that an entry stands for; None, reported once, for what is no entry of ours."""
    task_id = entry_task(pick.entry)
    if task_id is None:
        context.report(pick.path, "no entry of ours; stepped over")
    return task_id


def candidate(
    context: Context, taker: Taker, task_id: str, pick: Pick, nodes: Sequence[Node | None]
) -> Procedure[Claimed | None]:
    """What `read_tasks` has read of a task as a claim that can be sent; None where it cannot be claimed."""
    records = yield from deliverable(context, taker.conf, task_id, pick.path, nodes)
    node, data, _ = nodes
    if records is None or node is None or data is None:
        return None
    state, extra = records
    state = state if pick.rank is None else replace(state, rank=pick.rank)
    claimed = Claimed(task_id, 0, node.stat.version + 1, state, data.stat.ctime, data.data, extra)
    claimed.session = taker.consumer.session
    return claimed


def deliverable(
    context: Context, conf: Conf, task_id: str, entry: str, nodes: Sequence[Node | None]
) -> Procedure[tuple[TaskState, dict[str, Any]] | None]:
    """A task's record and its metadata, if it may be delivered from this entry; else None.

    What cannot be read is reported. A task whose attempts are used up is buried.
    """
    parts = [context.paths.task(task_id, part) for part in _PARTS]
    node, data, metadata = nodes
    if node is None or data is None:
        missing = parts[0] if node is None else parts[1]
        # else it was claimed, finished and collected meanwhile, or a call that is repeated has written both anew
        if (yield Exists(entry)) is not None and (yield Exists(missing)) is None:
            context.report(entry, "a pending entry without a task; stepped over")
        return None
    records = unless_corrupt(context, entry, partial(_records, parts, node, metadata))
    if records is None or not _is_pending_at(context, entry, records[0]):
        return None
    state, _ = records
    if not conf.may_deliver(state.attempt, state.policy):
        context.quarantine.wait(entry)
        return None
    if used_up(conf, state):  # its policy was lowered meanwhile
        current = Current(task_id, node.stat.version, state)
        yield from bury_exhausted(context, current, (yield from server_time(context)))
        return None
    return records


def _records(parts: list[str], node: Node, metadata: Node | None) -> tuple[TaskState, dict[str, Any]]:
    """A candidate's record and its metadata. Raises `CorruptRecord`."""
    return TaskState.decode(parts[0], node.data), load(parts[2], metadata.data) if metadata is not None else {}


def is_pending_at(context: Context, pick: Pick) -> Procedure[bool]:
    """Whether the task of an entry is pending, and this is its entry, as it is read now; of a damaged one, not."""
    path = context.paths.task(task_of_entry(context, pick) or "", "state")
    node: Node | None = yield Get(path)
    state = None if node is None else unless_corrupt(context, pick.path, partial(TaskState.decode, path, node.data))
    return state is not None and _is_pending_at(context, pick.path, state)


def _is_pending_at(context: Context, entry: str, state: TaskState) -> bool:
    """Whether a task is pending, and this is its entry."""
    return state.state is State.INSERTED and state.index is None and context.paths.entry(state.place) == entry
