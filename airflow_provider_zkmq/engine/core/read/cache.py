"""Cached listings, kept true by watches."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.client.context import CachedRead, Context
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Get, Node, Pipeline, Procedure, Signal, Wait, Watch
from airflow_provider_zkmq.engine.core.read.nodes import restored


@dataclass(slots=True, eq=False)
class _Fan:
    """A signal that wakes those who wait for one entry, and nobody else."""

    entry: CachedRead

    @property
    def count(self) -> int:
        return self.entry.signal.count

    def fire(self) -> None:
        self.entry.signal.fire()
        for subscriber in tuple(self.entry.subscribers):
            subscriber.fire()

    notify = fire

    def notify_one(self, kind: Hashable) -> None:
        """Nobody sits here."""


def listing(context: Context, path: str, *, max_age: float | None = None) -> Procedure[list[str] | None]:
    """The children of `path`, from memory while the watch on them has not fired; None without the znode.

    `max_age`: seconds for which names are good enough although the watch has fired. Several threads that need the same
    listing read it once.
    """
    while True:
        entry = context.listings.at(path)
        young = max_age is not None and context.run.monotonic() - entry.read_at < max_age
        if entry.fresh or (young and entry.watch is not None):
            return entry.value  # type: ignore[no-any-return]
        if not entry.pending:
            return (yield from _list(context, path, entry))
        yield Wait(entry.signal, entry.signal.count, turn=True)


def _list(context: Context, path: str, entry: CachedRead) -> Procedure[list[str] | None]:
    watch, read_at = context.new_watch(), context.run.monotonic()
    entry.pending = True
    try:
        names = yield Children(path, watch)
        if names is None and (yield from restored(context, f"{path}/-")):  # what stays missing can be watched by nobody
            names = yield Children(path, watch)
    finally:
        entry.pending = False
        entry.signal.fire()
    if names is None:  # ZooKeeper sets no watch on the children of what does not exist
        context.listings.forget(path)
        return None
    for gone in set(entry.value or ()) - set(names):
        context.listings.forget(f"{path}/{gone}")
    entry.watch, entry.value, entry.read_at, entry.cached_entries = watch, sorted(names), read_at, None
    context.listings.readings[path] = entry  # another thread may have forgotten it meanwhile
    return entry.value  # type: ignore[no-any-return]


def shared_nodes(context: Context, paths: list[str], mine: Signal) -> Procedure[list[Node | None]]:
    """Read znodes under watches that all waiters of the process share: one watch and one read for each.

    `mine` is fired when one of them changes. A waiter that finds another's read under way waits for its result.
    """
    entries = [context.listings.at(path) for path in paths]
    for entry in entries:
        entry.subscribers[mine] = None
    read: set[int] = set()  # a missing znode bears no watch: what was read of it is never fresh
    while True:
        seen = [entry.signal.count for entry in entries]
        stale = [at for at, entry in enumerate(entries) if not entry.fresh and at not in read]
        if not stale:
            return [entry.value for entry in entries]
        free = [at for at in stale if not entries[at].pending]
        if free:
            yield from _refresh([(paths[at], entries[at]) for at in free])
            read.update(at for at in free if entries[at].value is None)
        else:
            yield Wait(entries[stale[0]].signal, seen[stale[0]], turn=True)


def _refresh(stale: list[tuple[str, CachedRead]]) -> Procedure[None]:
    watches = [Watch(_Fan(entry)) for _, entry in stale]
    for _, entry in stale:
        entry.pending = True
    try:
        nodes = yield Pipeline(tuple(Get(path, watch) for (path, _), watch in zip(stale, watches, strict=True)))
        for (_, entry), watch, node in zip(stale, watches, nodes, strict=True):
            entry.value, entry.watch = node, None if node is None else watch
    except BaseException:
        for watch in watches:
            watch.fired = True  # nobody relies on what was not read
        raise
    finally:
        for _, entry in stale:
            entry.pending = False
            entry.signal.fire()


def unsubscribe(context: Context, paths: list[str], mine: Signal) -> None:
    """End a wait; what nobody waits for any more is forgotten, and its watch on the server goes."""
    for path in paths:
        entry = context.listings.readings.get(path)
        if entry is not None and mine in entry.subscribers:
            del entry.subscribers[mine]
            if not entry.subscribers:
                context.listings.readings.pop(path, None)
                if entry.watch is not None:
                    entry.watch.fired = True  # nobody relies on it, whoever still holds it
                context.run.unwatch(path)
