"""Deleting a queue: it is marked first, then emptied in transactions of a bounded size.

A queue whose deletion has begun has ``deleting`` in place of ``conf``, both changed by one transaction. From then on
it is there for nobody: what is asked of it ends in `QueueNotFound`, and who waits for it is told by a watch. A deletion
that was cut off is ended by the same call, from whomever. Each of its transactions checks the mark: one that comes late
harms no queue of the same name that was created since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Check,
    Children,
    Create,
    Delete,
    Exists,
    Failure,
    Multi,
    Outcome,
    Pipeline,
    Procedure,
    Stat,
)
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, never, refused, transact
from airflow_provider_zkmq.engine.core.read.nodes import (
    THERE,
    chunked,
    exists,
    list_children,
    queue_missing,
    read_stats,
)
from airflow_provider_zkmq.engine.errors import ConfigError, QueueError, ZkmqError

DELETES_PER_MULTI: Final = 128
#: How often the queue is gone through again for what others wrote while it was emptied.
PASSES: Final = 20


def delete(context: Context, *, confirm: bool = False, force: bool = False) -> Procedure[int]:
    """Delete the queue with everything in it, unarchived; returns how many tasks that were.

    `confirm`: has to be True, as nothing of it comes back. `force`: also while others consume from it, while tasks are
    claimed, and with what stands in it that is no queue's. Their claims are lost, and they are told that the queue is
    not there. Cut off, or ended by a `TransportError`, it has been carried out in part: nobody can use the queue any
    more, and the same call, here or elsewhere, goes on with it.
    Raises `ConfigError` without `confirm`, `QueueNotFound`, and `QueueError` for what takes `force`.
    """
    if (yield Exists(context.paths.at("deleting"))) is None:
        yield from _refuse_what_is_none(context, force=force)
        if not force:
            yield from _refuse_what_is_used(context)
        if not confirm:
            raise (yield from _unconfirmed(context))
        yield from _mark(context)
    tasks: Stat | None = yield Exists(context.paths.at("tasks"))
    yield from _delete_marked(context)
    context.forget_queue()
    return 0 if tasks is None else tasks.children


# --- what is refused, before anything is written


def _refuse_what_is_none(context: Context, *, force: bool) -> Procedure[None]:
    """Raise unless this is a queue; `force`: it may have lost its configuration, or other parts."""
    if (yield from exists(context)):
        return
    if not (force and context.paths.resembles((yield Children(context.paths.base)) or ())):
        raise (yield from queue_missing(context))


def _refuse_what_is_used(context: Context) -> Procedure[None]:
    """Raise `QueueError` while others consume, while tasks are claimed, and for what is not ours."""
    foreign = context.paths.foreign((yield Children(context.paths.base)) or ())
    if foreign:
        names = ", ".join(foreign[:5])
        raise QueueError(f"{context.paths.base} holds what is no queue's ({names}); it takes force to delete that, too")
    consumers = (yield Children(context.paths.at("consumers"))) or []
    stats = yield from read_stats([context.paths.consumer(name, "current") for name in consumers])
    leases: Stat | None = yield Exists(context.paths.at("leases"))
    claimed = sum(stat.children for stat in (*stats, leases) if stat is not None)
    mine = context.registration.consumer
    live = set((yield Children(context.paths.at("live"))) or ()) - {"" if mine is None else mine.id}
    if live or claimed:
        raise QueueError(
            f"queue {context.queue!r} is in use: {len(live)} other live consumer(s), {claimed} claimed task(s); "
            "stop the workers first, or delete it by force"
        )


def _unconfirmed(context: Context) -> Procedure[ConfigError]:
    tasks: Stat | None = yield Exists(context.paths.at("tasks"))
    count = 0 if tasks is None else tasks.children
    return ConfigError(
        f"deleting queue {context.queue!r} under {context.root!r} loses its {count} task(s) for good; nothing was "
        "deleted: say confirm=True"
    )


# --- the deletion


def _mark(context: Context) -> Procedure[None]:
    """Take the configuration away and set the mark, at once. Raises `QueueNotFound` where others deleted the queue."""
    conf, marker = context.paths.at(THERE), context.paths.at("deleting")

    def proof() -> Procedure[Outcome | None]:
        return None if (yield Exists(marker)) is None else Outcome(committed=True)

    for _ in range(PASSES):
        names: list[str] | None = yield Children(conf)
        values = [f"{conf}/{name}" for name in names or ()]
        gone = [] if names is None else [*values, conf]
        multi = Multi((*map(Delete, gone), Create(marker)))
        outcome = yield from transact(multi, proof)
        if outcome.committed or (yield Exists(marker)) is not None:
            return
        if outcome.failure is Failure.NOT_EMPTY:
            for path in values:
                yield from _delete_below(path, Check(conf))  # somebody else's: a value has no children
        elif outcome.failure is not Failure.NO_NODE or names is None:
            break
    if outcome.failure is Failure.NO_NODE:
        raise (yield from queue_missing(context))
    raise refused("deleting the queue", outcome, multi)


def _delete_marked(context: Context) -> Procedure[None]:
    """Delete everything of a marked queue, the mark and the queue's own znode together as the last."""
    base, marker = context.paths.base, context.paths.at("deleting")
    marked = Check(marker)
    for _ in range(PASSES):
        for name in sorted((yield Children(base)) or ()):
            if name != "deleting":
                yield from _delete_trees([f"{base}/{name}"], marked)
        yield from _delete_below(marker, marked)  # somebody else's: the mark has no children
        last = Multi((Delete(marker), Delete(base)))
        outcome = yield from transact(last, never)
        if outcome.committed or (outcome.failure is Failure.NO_NODE and failed_at(outcome, last) == marker):
            return
        if outcome.failure is not Failure.NOT_EMPTY:
            raise refused("deleting the queue", outcome, last)
    raise ZkmqError(f"{base} is written to faster than it can be deleted: stop its producers, and call this once more")


def _delete_below(path: str, held: Check) -> Procedure[None]:
    """Delete all that is below a znode."""
    below = [f"{path}/{name}" for name in (yield Children(path)) or ()]
    for chunk in chunked(below, DELETES_PER_MULTI):
        yield from _delete_trees(chunk, held)


def _delete_trees(paths: Sequence[str], held: Check) -> Procedure[None]:
    """Delete siblings and all below them, so many in a transaction, while what `held` asks for is so."""
    listings = yield from list_children(paths)
    below = [f"{path}/{name}" for path, names in zip(paths, listings, strict=True) for name in names]
    for chunk in chunked(below, DELETES_PER_MULTI):
        yield from _delete_trees(chunk, held)
    multi = Multi((held, *map(Delete, paths)))
    outcome = yield from transact(multi, never)
    if not outcome.committed and len(paths) > 1:  # one is gone, or has got children, since it was listed
        yield from _delete_singly(held, paths)
    elif outcome.failure is Failure.OTHER:
        raise refused("deleting the queue", outcome, multi)


def _delete_singly(held: Check, paths: Sequence[str]) -> Procedure[None]:
    """Delete each by itself, all in flight together; what is left of them is seen by the next pass."""
    multis = tuple(Multi((held, Delete(path))) for path in paths)
    for multi, outcome in zip(multis, (yield Pipeline(multis)), strict=True):
        if outcome.failure is Failure.OTHER:
            raise refused("deleting the queue", outcome, multi)
