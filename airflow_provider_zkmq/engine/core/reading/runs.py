"""Runs of the log (`core.reading.log`) as they were when they ended, also those that have left since."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.letters import Ended
from airflow_provider_zkmq.engine.core.model.states import ENDED
from airflow_provider_zkmq.engine.core.protocol.ops import Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.inspect import Task, assemble
from airflow_provider_zkmq.engine.core.reading.letters import list_letters, read_letters, versions_of
from airflow_provider_zkmq.engine.core.reading.log import version_of
from airflow_provider_zkmq.engine.core.reading.nodes import Record, chunked, record_of
from airflow_provider_zkmq.engine.core.reading.trees import PARTS, Part, at_once, checked_parts, read_trees

_Key = tuple[str, int]


def read_ended(context: Context, ended: Sequence[Ended], *, parts: Collection[Part] = PARTS) -> Procedure[list[Task]]:
    """Runs that have ended, each as it was then, in the order asked for: what `ended_between` told.

    `Task.version` is the transaction in which the run ended. One that has left since is read from where it is kept.
    What is gone, dropped from a queue that nobody follows or trimmed, is left out; so is what is damaged, which is
    reported. `parts` as in `read_many`; a run that has left is read whole. All of them are in memory together.
    Raises `ConfigError` for an unknown part, and `QueueNotFound`.
    """
    yield from read_conf(context)
    chosen = checked_parts(parts)
    runs: dict[_Key, Task] = {}
    yield from _add_departed(context, [each for each in ended if each.place is not None], runs)
    standing = [each for each in ended if each.place is None]
    yield from _add_standing(context, standing, chosen, runs, torn=False)
    missing = [each for each in standing if _key(each) not in runs]
    if missing:
        yield Sync(context.paths.base)  # the server that we read from may lag behind
        yield from _add_departed(context, (yield from _letters_of(context, missing)), runs)
        left = [each for each in missing if _key(each) not in runs]
        yield from _add_standing(context, left, chosen, runs, torn=True)
    return [runs[key] for key in dict.fromkeys(map(_key, ended)) if key in runs]


def _key(ended: Ended) -> _Key:
    return (ended.id, ended.version)


def _add_standing(
    context: Context, ended: Sequence[Ended], parts: Collection[str], runs: dict[_Key, Task], *, torn: bool
) -> Procedure[None]:
    """Add the runs whose tasks stand as they ended. `torn`: also one that lacks a part, and will go on to."""
    versions = {each.id: each.version for each in ended}
    for chunk in chunked(list(versions), at_once(parts)):
        for task_id, nodes in (yield from read_trees(context, chunk, parts)):
            if _version(context, task_id, nodes) == versions[task_id] and (torn or _whole(nodes)):
                task = yield from assemble(context, task_id, nodes, strict=False)
                # The transaction that ends a run may insert the one that was in escrow: that is not the run that ended.
                if task is not None and task.state in ENDED:
                    runs[task_id, versions[task_id]] = replace(task, version=versions[task_id])


def _version(context: Context, task_id: str, nodes: Sequence[Node | None]) -> int | None:
    """The transaction in which the run ended that stands."""
    node = nodes[0]
    if node is None or b'"ended_zxid"' not in node.data:
        return None if node is None else node.stat.mzxid
    record = record_of(context, task_id, node)
    return version_of(record) if isinstance(record, Record) else None


def _whole(nodes: Sequence[Node | None]) -> bool:
    """Whether all was read of the same run: reads are no snapshot, and the next run may have come between them."""
    record, data, *_ = nodes
    return (
        data is not None
        and record is not None
        and all(node is None or node.stat.mzxid <= record.stat.mzxid for node in nodes)
    )


def _letters_of(context: Context, ended: Sequence[Ended]) -> Procedure[list[Ended]]:
    """Where runs are kept that have left: they left after they had ended."""
    wanted = set(map(_key, ended))
    letters = yield from list_letters(context, min(each.version for each in ended) - 1)
    ids = {each.id for each in ended}
    kept = yield from versions_of(context, [each for each in letters if each.name.task_id in ids])
    return [each for each in kept if _key(each) in wanted]


def _add_departed(context: Context, ended: Sequence[Ended], runs: dict[_Key, Task]) -> Procedure[None]:
    """Add runs that have left. What stands at a place may be damaged, and would not tell which run it is."""
    tasks = yield from read_letters(context, [each.place or "" for each in ended])
    for each, task in zip(ended, tasks, strict=True):
        if task is not None:
            runs[_key(each)] = replace(task, id=each.id, version=each.version)
