"""Many znodes, read in requests of a bearable size; what does not hold what it should is reported, once.

No other module of the core asks for several znodes in one request, or steps over a corrupt one: what cannot be read
is told apart here from what is not there, and `Context.report` tells people of it, by its path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, GetMany, Node, Pipeline, Procedure, Stat
from airflow_provider_zkmq.engine.errors import CorruptRecord

#: So many znodes are read in one request. A record seldom has a kilobyte and never more than twenty or so, so that a
#: reply stays bearable. Payloads do not: whoever reads them asks for so few that each may hold a megabyte (`trees`).
AT_ONCE: Final = 160
T = TypeVar("T")


class Unread(Enum):
    """Why there is no record of a task to go by."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    """It was reported."""


@dataclass(frozen=True, slots=True)
class Record:
    """A task's record as it was read, and the Stat of its znode."""

    task_id: str
    stat: Stat
    state: TaskState


def chunked(items: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """The items, so many at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def read_nodes(paths: Sequence[str], at_once: int = AT_ONCE, in_flight: int = 1) -> Procedure[list[Node | None]]:
    """Znodes in the order of their paths, None for what is missing. Not a snapshot of one moment.

    `at_once`: how many are asked for in one request; `in_flight`: so many requests are on their way together.
    """
    nodes: list[Node | None] = []
    for requests in chunked([GetMany(tuple(chunk)) for chunk in chunked(paths, at_once)], in_flight):
        replies = [(yield requests[0])] if len(requests) == 1 else (yield Pipeline(tuple(requests)))
        for reply in replies:
            nodes += reply
    return nodes


def read_stats(paths: Sequence[str]) -> Procedure[list[Stat | None]]:
    """The Stats of znodes, all requests in flight together."""
    stats: list[Stat | None] = yield Pipeline(tuple(Exists(path) for path in paths))
    return stats


def list_children(paths: Sequence[str]) -> Procedure[list[list[str]]]:
    """The names under each path, sorted, all requests in flight together; none under what is missing."""
    listings: list[list[str] | None] = yield Pipeline(tuple(Children(path) for path in paths))
    return [sorted(names or ()) for names in listings]


def read_records(context: Context, task_ids: Sequence[str], consequence: str = "") -> Procedure[list[Record | Unread]]:
    """The records of tasks in the order of the ids; `consequence`: what becomes of a corrupt one, for the report."""
    nodes = yield from read_nodes([context.paths.task(each, "state") for each in task_ids])
    return [record_of(context, each, node, consequence) for each, node in zip(task_ids, nodes, strict=True)]


def record_of(context: Context, task_id: str, node: Node | None, consequence: str = "") -> Record | Unread:
    """The record that a task's ``state`` holds, as it was read; a corrupt one is reported, with `consequence`."""
    if node is None:
        return Unread.MISSING
    path = context.paths.task(task_id, "state")
    state = unless_corrupt(context, path, partial(TaskState.decode, path, node.data), consequence)
    return Unread.CORRUPT if state is None else Record(task_id, node.stat, state)


def unless_corrupt(context: Context, path: str, read: Callable[[], T], consequence: str = "") -> T | None:
    """What `read` makes of what stands at `path`; None where that is corrupt, which is reported once by the path."""
    try:
        return read()
    except CorruptRecord as error:
        context.report(path, f"{error}; {consequence}" if consequence else str(error), damage=str(error))
        return None
