"""Reading znodes, several in one request: data, stats, children, and the records and trees of tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar

from ...errors import ConfigError, CorruptRecord
from .. import zk_operations as zk
from ..client_state import Context
from ..model.records import TaskState
from ..zk_operations import Procedure

# --- Many znodes, read in requests of a bearable size; what does not hold what it should is reported, once.
#
# No other module of the core asks for several znodes in one request, or steps over a corrupt one: what cannot be
# read is told apart here from what is not there, and `Context.report` tells people of it, by its path.

#: So many znodes are read in one request. A record seldom has a kilobyte and never more than twenty or so, so that a
#: reply stays bearable. Payloads do not: whoever reads them asks for so few that each may hold a megabyte (`trees`).
AT_ONCE: Final = 160
T = TypeVar("T")


class Unread(Enum):
    """Why there is no record of a task to go by; a corrupt one was reported."""

    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Record:
    """A task's record as it was read, and the Stat of its znode."""

    task_id: str
    stat: zk.Stat
    state: TaskState


def chunked(items: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """The items, so many at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def read_nodes(paths: Sequence[str], at_once: int = AT_ONCE, in_flight: int = 1) -> Procedure[list[zk.Node | None]]:
    """Znodes in the order of their paths, None for what is missing. Not a snapshot of one moment.

    `at_once`: how many are asked for in one request; `in_flight`: so many requests are on their way together.
    """
    nodes: list[zk.Node | None] = []
    for requests in chunked([zk.GetMany(tuple(chunk)) for chunk in chunked(paths, at_once)], in_flight):
        replies = [(yield requests[0])] if len(requests) == 1 else (yield zk.Pipeline(tuple(requests)))
        for reply in replies:
            nodes += reply
    return nodes


def read_stats(paths: Sequence[str]) -> Procedure[list[zk.Stat | None]]:
    """The Stats of znodes, all requests in flight together."""
    stats: list[zk.Stat | None] = yield zk.Pipeline(tuple(zk.Exists(path) for path in paths))
    return stats


def list_children(paths: Sequence[str]) -> Procedure[list[list[str]]]:
    """The names under each path, sorted, all requests in flight together; none under what is missing."""
    listings: list[list[str] | None] = yield zk.Pipeline(tuple(zk.Children(path) for path in paths))
    return [sorted(names or ()) for names in listings]


def read_records(context: Context, task_ids: Sequence[str], consequence: str = "") -> Procedure[list[Record | Unread]]:
    """The records of tasks in the order of the ids; `consequence`: what becomes of a corrupt one, for the report."""
    nodes = yield from read_nodes([context.paths.task(each, "state") for each in task_ids])
    return [record_of(context, each, node, consequence) for each, node in zip(task_ids, nodes, strict=True)]


def record_of(context: Context, task_id: str, node: zk.Node | None, consequence: str = "") -> Record | Unread:
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


# --- The znodes of several tasks in one request, whole or without what the caller has no use for.

#: What may be left out of a task that is read. Its record, with state, filters, error and history, is always read.
Part: TypeAlias = Literal["data", "metadata", "result", "progress"]
_ZNODE: Final[dict[Part, str]] = {"data": "data", "metadata": "metadata", "result": "result", "progress": "claim"}
PARTS: Final = frozenset(_ZNODE)
#: So many tasks are read in one request: a reply stays bearable when each holds a megabyte, or has nothing large.
WHOLE_AT_ONCE: Final = 32
SLIM_AT_ONCE: Final = 128


def checked_parts(parts: Collection[str]) -> frozenset[str]:
    """The names of parts, or `ConfigError` naming those that are unknown."""
    if isinstance(parts, str) or not PARTS.issuperset(parts):
        raise ConfigError(f"parts {parts!r} are not understood: a list of some of {', '.join(sorted(PARTS))}")
    return frozenset(parts)


def at_once(parts: Collection[str]) -> int:
    """How many tasks to read in one request."""
    return SLIM_AT_ONCE if {"data", "result"}.isdisjoint(parts) else WHOLE_AT_ONCE


def read_trees(
    context: Context, ids: Sequence[str], parts: Collection[str]
) -> Procedure[list[tuple[str, list[zk.Node | None]]]]:
    """Each task's record, data, metadata, result and claim, with None for what is missing or was not asked for."""
    wanted = ["state", *(znode for part, znode in _ZNODE.items() if part in parts)]
    paths = [context.paths.task(each, znode) for each in ids for znode in wanted]
    rows = iter((yield from read_nodes(paths, len(wanted) * at_once(parts))))
    trees = [{znode: next(rows) for znode in wanted} for _ in ids]
    if "data" not in parts:  # without the payloads: it tells when the present run of an id was enqueued
        stats = yield from read_stats([context.paths.task(each, "data") for each in ids])
        for tree, stat in zip(trees, stats, strict=True):
            tree["data"] = None if stat is None else zk.Node(b"", stat)
    return [
        (each, [tree.get(znode) for znode in ("state", *_ZNODE.values())])
        for each, tree in zip(ids, trees, strict=True)
    ]
