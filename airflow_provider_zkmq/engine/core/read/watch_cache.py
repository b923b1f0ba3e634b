"""Listings and znodes read once and kept true by watches, for all threads of a client."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from .. import zk_operations as zk
from ..client_state import CachedRead, Context
from ..zk_operations import Procedure
from .queue_existence import restored

T = TypeVar("T")


# --- What all threads of a client need at the same moment is asked for once: when they begin, and when it has changed.


def single_flight(
    context: Context, what: str, is_done: Callable[[], object], procedure: Callable[[], Procedure[T]]
) -> Procedure[T | None]:
    """Carry a procedure out, unless another thread of this client is at it and that will do: None then.

    Who has waited for another in vain, which was refused or cut off, does it by itself, beside whoever else does.
    """
    busy: zk.Signal | None = context.shared.get(what)
    if busy is not None:
        yield zk.Wait(busy, 0, turn=True)
        if is_done():
            return None
    mine = context.run.new_signal()
    try:
        context.shared.setdefault(what, mine)
        return (yield from procedure())
    finally:  # without a call before it is taken off, at which an interrupt could come: all others would wait for ever
        if what in context.shared and context.shared[what] is mine:
            del context.shared[what]
        mine.fire()


# --- Cached listings, kept true by watches.


@dataclass(slots=True, eq=False)
class Relay:
    """The signal of a watch that hands on what happens: that fires a signal, and wakes others."""

    signal: zk.Signal
    hand_on: Callable[[], None]

    @property
    def count(self) -> int:
        """How often the signal has fired."""
        return self.signal.count

    def fire(self) -> None:
        """Hand it on."""
        self.hand_on()

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
            break
        yield zk.Wait(entry.signal, entry.signal.count, turn=True)
    watch, read_at = context.new_watch(), context.run.monotonic()
    entry.pending = True
    try:
        names = yield zk.Children(path, watch)
        if names is None and (yield from restored(context, f"{path}/-")):  # what stays missing can be watched by nobody
            names = yield zk.Children(path, watch)
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


def shared_nodes(context: Context, paths: list[str], mine: zk.Signal) -> Procedure[list[zk.Node | None]]:
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
        if not free:
            yield zk.Wait(entries[stale[0]].signal, seen[stale[0]], turn=True)
            continue
        watches = [zk.Watch(Relay(entries[at].signal, partial(_wake, entries[at]))) for at in free]
        for at in free:
            entries[at].pending = True
        try:
            nodes = yield zk.Pipeline(tuple(zk.Get(paths[at], watch) for at, watch in zip(free, watches, strict=True)))
            for at, watch, node in zip(free, watches, nodes, strict=True):
                entries[at].value, entries[at].watch = node, None if node is None else watch
        except BaseException:
            for watch in watches:
                watch.fired = True  # nobody relies on what was not read
            raise
        finally:
            for at in free:
                entries[at].pending = False
                entries[at].signal.fire()
        read.update(at for at in free if entries[at].value is None)


def _wake(entry: CachedRead) -> None:
    """Wake those who wait for one entry, and nobody else."""
    entry.signal.fire()
    for subscriber in tuple(entry.subscribers):
        subscriber.fire()


def unsubscribe(context: Context, paths: list[str], mine: zk.Signal) -> None:
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
