"""The znodes of a queue's configuration as a client remembers them, each under a watch of its own."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.listings import Reading
from airflow_provider_zkmq.engine.core.model.paths import Paths
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get, Pipeline, Procedure, Watch

_NAMES: Final = ("filters", "policy", "task_gc_lifetime", "task_gc_interval", "lock", "order")
_MARKS: Final = ("paused", "archive", "followed")
#: Of a queue: it is there as long as this is.
THERE: Final = "conf"
#: Of these it matters only whether they are there.
_BARE: Final = frozenset({"paused", "followed"})


@dataclass(slots=True, eq=False)
class _Whole:
    """The signal of each part's watch: it marks the configuration as a whole and wakes whoever waits for the queue."""

    context: Context

    @property
    def count(self) -> int:
        return self.context.signal.count

    def fire(self) -> None:
        if self.context.configuration.watch is not None:
            self.context.configuration.watch.fired = True
        self.context.configuration.changed()
        self.context.signal.fire()

    nudge = fire

    def pass_on(self, kind: Hashable) -> None:
        """Nobody sits here."""


def watched_parts(context: Context) -> dict[str, Reading]:
    """What was read of each znode, under a watch of its own: one that changes costs no reading of the others."""
    return {name: context.listings.at(path) for name, path in _part_paths(context.paths).items()}


@lru_cache(maxsize=256)
def _part_paths(paths: Paths) -> Mapping[str, str]:
    """Where each part stands: every call of a queue's asks for all of them."""
    return {name: paths.at(name) for name in (THERE, *_MARKS)} | {name: paths.conf(name) for name in _NAMES}


def reread(context: Context, parts: dict[str, Reading]) -> Procedure[None]:
    """Read what has changed. What is missing from a queue is looked for again under a watch that sees it come."""
    context.configuration.watch = context.new_watch()
    stale = [name for name, part in parts.items() if not part.fresh]
    yield from _read(context, parts, stale, _MARKS)
    missing = [name for name in stale if parts[name].value is None and name not in _MARKS]
    if missing and parts[THERE].value is not None:
        yield from _read(context, parts, missing, missing)


def _read(
    context: Context, parts: dict[str, Reading], names: Sequence[str], optional: Sequence[str]
) -> Procedure[None]:
    """Read parts; only the watch of those that are `optional` stands on a missing znode too."""
    ops: list[Get | Exists] = []
    watches, paths = {name: Watch(_Whole(context)) for name in names}, _part_paths(context.paths)
    for name, watch in watches.items():
        path = paths[name]
        if name in optional:
            ops.append(Exists(path, watch))
        if name not in _BARE:
            ops.append(Get(path, watch))
    nodes = dict(zip([op.path for op in ops], (yield Pipeline(tuple(ops))), strict=False))
    for name, watch in watches.items():
        value = nodes[paths[name]]
        parts[name].value, parts[name].watch = value, watch if value is not None or name in optional else None
