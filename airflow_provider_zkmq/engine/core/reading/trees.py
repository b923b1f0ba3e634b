"""The znodes of several tasks in one request, whole or without what the caller has no use for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.existence import refuse_missing
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes, read_stats
from airflow_provider_zkmq.engine.errors import ConfigError

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
) -> Procedure[list[tuple[str, list[Node | None]]]]:
    """Each task's record, data, metadata, result and claim, with None for what is missing or was not asked for."""
    wanted = ["state", *(znode for part, znode in _ZNODE.items() if part in parts)]
    paths = [context.paths.task(each, znode) for each in ids for znode in wanted]
    rows = iter((yield from read_nodes(paths, len(wanted) * at_once(parts))))
    trees = [{znode: next(rows) for znode in wanted} for _ in ids]
    if "data" not in parts:
        for tree, bare in zip(trees, (yield from _bare_data(context, ids)), strict=True):
            tree["data"] = bare
    return [
        (each, [tree.get(znode) for znode in ("state", *_ZNODE.values())])
        for each, tree in zip(ids, trees, strict=True)
    ]


def _bare_data(context: Context, ids: Sequence[str]) -> Procedure[list[Node | None]]:
    """The Stats of the payloads without the payloads: they tell when the present run of an id was enqueued."""
    stats = yield from read_stats([context.paths.task(each, "data") for each in ids])
    return [None if stat is None else Node(b"", stat) for stat in stats]


@dataclass(frozen=True, slots=True)
class Znode:
    """One znode of a task's tree: its size and the transactions that created and last changed it."""

    path: str
    bytes: int
    czxid: int
    mzxid: int


def read_tree(context: Context, task_id: str) -> Procedure[list[Znode]]:
    """Every znode of a task, to see what one enqueue wrote: equal czxids are one transaction."""
    base = context.paths.task(check_name("task id", task_id))
    parts = sorted((yield Children(base)) or ())
    filters = sorted((yield Children(f"{base}/filters")) or ())
    paths = (base, *(f"{base}/{part}" for part in parts), *(f"{base}/filters/{name}" for name in filters))
    nodes = yield from read_nodes(paths)
    if nodes[0] is None:
        yield from refuse_missing(context)
    return [
        Znode(path, len(node.data), node.stat.czxid, node.stat.mzxid)
        for path, node in zip(paths, nodes, strict=True)
        if node is not None
    ]
