"""The register of consumers: who claims from a queue, who of them lives, and what each has in hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.core.model.stored import load
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.nodes import list_children, read_nodes, unless_corrupt


@dataclass(frozen=True, slots=True)
class Consumer:
    """One client that claims from a queue, in one ZooKeeper session: a process, or one of its connections.

    ``id``: as in `Task.consumer`. ``name``, ``host``, ``pid``: of its process; None where its record cannot be read.
    ``accepts``: the selectors that it has announced, the latest 16 at the most. ``in_hand``: the ids of the tasks that
    it has claimed without a lease; leased claims outlive their consumer and belong to none. ``alive``: its session
    lives; what a dead one has in hand is given back by the next look of any live consumer.
    """

    id: str
    name: str | None
    host: str | None
    pid: int | None
    accepts: tuple[str, ...]
    in_hand: tuple[str, ...]
    alive: bool


def consumers(context: Context) -> Procedure[list[Consumer]]:
    """The queue's consumers by id, the live ones and the dead that nobody has taken off the register yet.

    A client registers with its first claim and leaves when it is closed. Not a snapshot of one moment; costs two small
    requests for each consumer. Raises `ConfigError` where the queue does not exist.
    """
    yield from read_conf(context)
    # The register is listed first: who registers in between is seen alive, and no live consumer is taken for dead.
    registered: list[str] = (yield Children(context.paths.at("consumers"))) or []
    live = frozenset((yield Children(context.paths.at("live"))) or ())
    return (yield from _read(context, sorted(live.union(registered)), live))


def _read(context: Context, names: Sequence[str], live: frozenset[str]) -> Procedure[list[Consumer]]:
    """The consumers of these names; one that left meanwhile is left out."""
    nodes = yield from read_nodes([context.paths.consumer(name) for name in names])
    in_hand = yield from list_children([context.paths.consumer(name, "current") for name in names])
    return [
        _consumer(context, name, node, tuple(tasks), alive=name in live)
        for name, node, tasks in zip(names, nodes, in_hand, strict=True)
        if node is not None
    ]


def _consumer(context: Context, name: str, node: Node, in_hand: tuple[str, ...], *, alive: bool) -> Consumer:
    path = context.paths.consumer(name)
    record: dict[str, Any] = unless_corrupt(context, path, partial(load, path, node.data)) or {}
    pid, accepts = record.get("pid"), record.get("accepts")
    return Consumer(
        id=name,
        name=_text(record.get("name")),
        host=_text(record.get("host")),
        pid=pid if isinstance(pid, int) else None,
        accepts=tuple(checks.shown(each) for each in accepts if isinstance(each, str))
        if isinstance(accepts, list)
        else (),
        in_hand=in_hand,
        alive=alive,
    )


def _text(value: object) -> str | None:
    return checks.shown(value) if isinstance(value, str) else None
