"""How many claims may be taken where a queue's leases are bounded: counted in the tree, whoever claims meanwhile.

Whoever claims under a bound reads how many leases there are and the version of their znode in one request, and raises
that version in the transaction that claims. So of two who saw the same room one is refused, and looks again. Claims
without a bound raise nothing: they may come on top.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Get, Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.protocol.writes import SetData
from airflow_provider_zkmq.engine.core.reading.skeleton import restored
from airflow_provider_zkmq.engine.core.writing.plan import Change


class NoRoom(Exception):
    """There are as many leases as the bound allows."""


@dataclass(frozen=True, slots=True)
class Guard:
    """How many may be claimed (None: as many as are wanted), and what is refused where others claim before it."""

    room: int | None = None
    changes: list[Change] = field(default_factory=list)


def guard_of(context: Context, most: int | None) -> Procedure[Guard]:
    """The guard of a claim that leaves the queue with `most` leases at the most. Raises `NoRoom`."""
    if most is None:
        return Guard()
    path = context.paths.at("leases")
    node: Node | None = yield Get(path)
    if node is None or node.stat.children >= most:
        yield Sync(path)  # the server that we are connected to may lag behind
        if node is None:
            yield from restored(context, path)
        node = yield Get(path)
    room = 0 if node is None else most - (yield from _held(context, path, node, most))
    if node is None or room <= 0:
        raise NoRoom
    return Guard(room, [Change(context, "", [SetData(path, b"", node.stat.version)])])


def _held(context: Context, path: str, node: Node, most: int) -> Procedure[int]:
    """How many leases there are; what is stepped over there would take room for ever, as it never ends."""
    if node.stat.children < most:
        return node.stat.children
    names = yield Children(path)
    return sum(f"{path}/{name}" not in context.quarantine for name in names or ())
