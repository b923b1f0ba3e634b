"""Administration of a queue: configure, pause, resume, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import structs

from ... import errors
from ...errors import ConfigError, QueueError, ZkmqError
from .. import zk_operations as zk
from ..client_state import Context
from ..model.filters import FilterType, check_types, declare_types
from ..model.records import clip
from ..model.settings import ORDERS, Limit, RetryPolicy, Settings, checked_limit, checked_policy, load_settings
from ..model.values import MAX_ZXID, Duration, abbreviated, dump, interval_seconds, seconds, spell_seconds, whole_number
from ..read import bulk_read, queue_existence
from ..read.configuration import DEFAULT_SETTINGS, DEFAULT_TIMES, Archive
from ..transaction_retries import Holds, Tries, failed_at, refused, transact
from ..zk_operations import Procedure

# --- What an operator does to a queue: configure, pause, resume, publish its archive.


def configure(
    context: Context,
    *,
    filters: Mapping[str, FilterType] | None = None,
    task_gc_lifetime: Duration | None = None,
    task_gc_interval: Duration | None = None,
    policy: RetryPolicy | None = None,
    lock: Duration | None = None,
    order: str | None = None,
    archive: bool | None = None,
    follow: bool | None = None,
    limit: Limit | None = None,
) -> Procedure[None]:
    """Create the queue if it does not exist and set the given values; what is not given stays as it is.

    - ``filters``: the types of filters that tasks may have; replaces the earlier declaration.
    - ``policy``: when failed tasks run again. ``lock``: how long a claim holds without being extended, also while its
      session lives (0: without bound, the default).
    - ``limit``: how many tasks may be claimed at once, or in a period; ``Limit()`` lifts it. It holds for claims from
      now on.
    - ``order``: ``"fifo"``: claims happen in the order in which enqueues were committed; ``"default"``: nearly so,
      consumers keeping out of each other's way.
    - ``task_gc_lifetime``: how long a finished task is kept. ``task_gc_interval``: how often clean-up runs, every
      second at the most.
    - ``archive=True``: the queue is archived, so that clean-up keeps what no archive holds, also before the first run
      of one; ``False``: it is not any more, and clean-up waits for none.
    - ``follow=True``: streams follow what ends here, so that runs which leave before their time (redriven, dropped,
      run anew) are kept for them for as long as ended tasks are.

    Times are seconds or a duration.
    Raises `ConfigError` for values that are refused, `QueueNotFound` while the queue is being deleted; then nothing is
    written.
    """
    changes: dict[str, Any] = {}
    times: dict[str, bytes] = {}
    if filters is not None:
        changes["filters"] = declare_types(check_types(filters))
    if policy is not None:
        changes["policy"] = checked_policy(policy)
    if lock is not None:
        changes["lock"] = seconds("lock", lock)
    if order is not None:
        if order not in ORDERS:
            msg = f"order {order!r} is unknown: use one of {', '.join(ORDERS)}"
            raise errors.ConfigError(msg)
        changes["order"] = order
    if limit is not None:
        changes["limit"] = checked_limit(limit)
        there = yield zk.Exists(context.paths.at(queue_existence.THERE))
        if there is None:  # of one that is there, what it declares is judged with its settings
            limit.check_against(filters or {})
    if task_gc_lifetime is not None:
        times["task_gc_lifetime"] = spell_seconds(seconds("task_gc_lifetime", task_gc_lifetime))
    if task_gc_interval is not None:
        times["task_gc_interval"] = spell_seconds(interval_seconds("task_gc_interval", task_gc_interval))
    marks = {"archive": _checked_flag("archive", archive), "followed": _checked_flag("follow", follow)}
    fresh = structs.replace(DEFAULT_SETTINGS, **changes).encode()
    created = yield from queue_existence.create_skeleton(
        context, fresh, DEFAULT_TIMES | times, [name for name, yes in marks.items() if yes]
    )
    if not created and (yield zk.Exists(context.paths.at("deleting"))) is not None:
        raise (yield from queue_existence.queue_missing(context))
    requested = {name: yes for name, yes in marks.items() if yes is not None}
    if not created and (changes or times or requested):
        yield from _set(context, "configuring the queue", changes, times, requested)


def _checked_flag(name: str, value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise errors.ConfigError(f"{name} {value!r} is not understood: True or False")


def _set(
    context: Context,
    what: str,
    changes: Mapping[str, Any],
    times: Mapping[str, bytes] | None = None,
    marks: Mapping[str, bool] | None = None,
) -> Procedure[Settings]:
    """Write several values at once; one that somebody deleted is created again. `marks`: which are to stand.

    Returns the settings before. Those that are damaged are written over by `configure` only. Raises `ConfigError` for a
    limit by a filter that the queue does not declare, or not any more.
    """
    missing, tries, settings = set[str](), Tries(what), DEFAULT_SETTINGS
    wanted = {context.paths.at(name): (name, yes) for name, yes in (marks or {}).items()}
    while True:
        ops: list[zk.WriteOp] = []
        if changes:
            settings, version = yield from _read_settings(context, anew=marks is not None)
            after = structs.replace(settings, **changes)
            if {"filters", "limit"} & changes.keys():
                after.limit.check_against(after.filters)
            ops.append(zk.SetData(context.paths.at(queue_existence.THERE), after.encode(), version))
        for name, value in (times or {}).items():
            path = context.paths.at("conf", name)
            ops.append(zk.Create(path, value) if path in missing else zk.SetData(path, value))
        for mark, (name, yes) in wanted.items():
            ops.append(zk.Create(mark, queue_existence.MARKS[name]) if yes else zk.Delete(mark))
        if not ops:
            return settings
        multi = zk.Multi(tuple(ops))
        outcome = yield from transact(multi)
        if outcome.committed:
            return settings
        path = failed_at(outcome, multi)
        if path in wanted and outcome.failure in {zk.Failure.NODE_EXISTS, zk.Failure.NO_NODE}:
            del wanted[path]  # it is as it is to be: one that is there tells more, and stays
        elif outcome.failure is zk.Failure.NO_NODE and path not in missing:
            missing.add(path)
        elif outcome.failure is zk.Failure.NODE_EXISTS:
            missing.discard(path)
        else:  # others have changed the settings meanwhile, say
            yield from tries.refused(outcome, multi, None)


def _read_settings(context: Context, *, anew: bool = False) -> Procedure[tuple[Settings, int]]:
    """The settings as they stand now, and the version of their znode; `anew`: the defaults where they are damaged."""
    path = context.paths.at(queue_existence.THERE)
    node: zk.Node | None = yield zk.Get(path)
    if node is None:
        raise (yield from queue_existence.queue_missing(context))
    try:
        settings, _ = load_settings(path, node.data)
    except errors.CorruptRecord as error:
        if not anew:
            raise
        context.warn_once(path, f"{error}; what configure() is not given has its default now")
        settings = DEFAULT_SETTINGS
    return settings, node.stat.version


def pause(context: Context) -> Procedure[bool]:
    """Hand out nothing until `resume`; True if it was not paused before. Raises `QueueNotFound`."""
    return not (yield from _set(context, "pausing the queue", {"paused": True})).paused


def resume(context: Context) -> Procedure[bool]:
    """Hand out tasks again; True if it was paused. Raises `QueueNotFound`."""
    return (yield from _set(context, "resuming the queue", {"paused": False})).paused


def publish_archive(context: Context, reached: Archive) -> Procedure[None]:
    """Say how far the archive has come; clean-up deletes up to there. `reached`: an `archive()` with other values.

    Raises `ConfigError` for a watermark that is no zxid, and where another run has written since ``reached.version``
    was read; `OutcomeUnknown`.
    """
    watermark = whole_number("watermark", reached.watermark)
    if watermark > MAX_ZXID:
        msg = f"watermark {abbreviated(watermark)} is not allowed: no transaction of ZooKeeper has such a number"
        raise errors.ConfigError(msg)
    yield from queue_existence.refuse_missing(context)
    record = dump({"watermark": watermark, "directory": clip(reached.directory), "run": reached.run})
    path, version = context.paths.at("archive"), reached.version
    multi = zk.Multi((zk.Create(path, record) if version is None else zk.SetData(path, record, version),))
    outcome = yield from transact(multi)
    if outcome.committed:
        return
    if outcome.failure not in {zk.Failure.BAD_VERSION, zk.Failure.NODE_EXISTS, zk.Failure.NO_NODE}:
        raise refused("publishing the archive", outcome, multi)
    node: zk.Node | None = yield zk.Get(path)
    if node is None or node.data != record:  # else a first try did it, whose reply was lost
        msg = f"{path} was changed by another archive run; run this one again"
        raise errors.ConfigError(msg)


# --- Deleting a queue: it is marked first, then emptied in transactions of a bounded size.
#
# A queue whose deletion has begun has ``deleting`` in place of ``conf``, both changed by one transaction. From then
# on it is there for nobody: what is asked of it ends in `QueueNotFound`, and who waits for it is told by a watch. A
# deletion that was cut off is ended by the same call, from whomever. Each of its transactions checks the mark: one
# that comes late harms no queue of the same name that was created since.


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
    tasks: zk.Stat | None
    paths = context.paths
    if (yield zk.Exists(paths.at("deleting"))) is None:
        # By force also one that has lost its configuration, or other parts.
        if not (
            (yield from queue_existence.exists(context))
            or (force and paths.resembles((yield zk.Children(paths.base)) or ()))
        ):
            raise (yield from queue_existence.queue_missing(context))
        if not force:
            yield from _refuse_what_is_used(context)
        if not confirm:
            tasks = yield zk.Exists(paths.at("tasks"))
            count = 0 if tasks is None else tasks.children
            raise ConfigError(
                f"deleting queue {context.queue!r} under {context.root!r} loses its {count} task(s) for good; nothing "
                "was deleted: say confirm=True"
            )
        yield from _mark(context)
    tasks = yield zk.Exists(paths.at("tasks"))
    yield from _delete_marked(context)
    context.forget_queue()
    return 0 if tasks is None else tasks.children


def _refuse_what_is_used(context: Context) -> Procedure[None]:
    """Raise `QueueError` while others consume, while tasks are claimed, and for what is not ours."""
    foreign = context.paths.foreign((yield zk.Children(context.paths.base)) or ())
    if foreign:
        names = ", ".join(foreign[:5])
        raise QueueError(f"{context.paths.base} holds what is no queue's ({names}); it takes force to delete that, too")
    consumers = (yield zk.Children(context.paths.at("consumers"))) or []
    stats = yield from bulk_read.read_stats([context.paths.consumer(name, "current") for name in consumers])
    leases: zk.Stat | None = yield zk.Exists(context.paths.at("leases"))
    claimed = sum(stat.children for stat in (*stats, leases) if stat is not None)
    mine = context.registration.consumer
    live = set((yield zk.Children(context.paths.at("live"))) or ()) - {"" if mine is None else mine.id}
    if live or claimed:
        raise QueueError(
            f"queue {context.queue!r} is in use: {len(live)} other live consumer(s), {claimed} claimed task(s); "
            "stop the workers first, or delete it by force"
        )


def _mark(context: Context) -> Procedure[None]:
    """Take the configuration away and set the mark, at once. Raises `QueueNotFound` where others deleted the queue."""
    conf, marker = context.paths.at(queue_existence.THERE), context.paths.at("deleting")
    for _ in range(PASSES):
        names: list[str] | None = yield zk.Children(conf)
        values = [f"{conf}/{name}" for name in names or ()]
        gone = [] if names is None else [*values, conf]
        multi = zk.Multi((*map(zk.Delete, gone), zk.Create(marker)))
        outcome = yield from transact(multi, Holds(((marker, b""),)))
        if outcome.committed or (yield zk.Exists(marker)) is not None:
            return
        if outcome.failure is zk.Failure.NOT_EMPTY:
            yield from _delete_below(values, zk.Check(conf))  # somebody else's: a value has no children
        elif outcome.failure is not zk.Failure.NO_NODE or names is None:
            break
    if outcome.failure is zk.Failure.NO_NODE:
        raise (yield from queue_existence.queue_missing(context))
    raise refused("deleting the queue", outcome, multi)


def _delete_marked(context: Context) -> Procedure[None]:
    """Delete everything of a marked queue, the mark and the queue's own znode together as the last."""
    base, marker = context.paths.base, context.paths.at("deleting")
    marked = zk.Check(marker)
    for _ in range(PASSES):
        for name in sorted((yield zk.Children(base)) or ()):
            if name != "deleting":
                yield from _delete_trees([f"{base}/{name}"], marked)
        yield from _delete_below([marker], marked)  # somebody else's: the mark has no children
        last = zk.Multi((zk.Delete(marker), zk.Delete(base)))
        outcome = yield from transact(last)
        if outcome.committed or (outcome.failure is zk.Failure.NO_NODE and failed_at(outcome, last) == marker):
            return
        if outcome.failure is not zk.Failure.NOT_EMPTY:
            raise refused("deleting the queue", outcome, last)
    raise ZkmqError(f"{base} is written to faster than it can be deleted: stop its producers, and call this once more")


def _delete_below(paths: Sequence[str], held: zk.Check) -> Procedure[None]:
    """Delete all that is below some siblings, so many in a transaction, while what `held` asks for is so."""
    listings = yield from bulk_read.list_children(paths)
    below = [f"{path}/{name}" for path, names in zip(paths, listings, strict=True) for name in names]
    for chunk in bulk_read.chunked(below, DELETES_PER_MULTI):
        yield from _delete_trees(chunk, held)


def _delete_trees(paths: Sequence[str], held: zk.Check) -> Procedure[None]:
    yield from _delete_below(paths, held)
    multis = [zk.Multi((held, *map(zk.Delete, paths)))]
    outcomes: list[zk.Outcome] = [(yield from transact(multis[0]))]
    if not outcomes[0].committed and len(paths) > 1:  # one is gone, or has got children, since it was listed
        multis = [zk.Multi((held, zk.Delete(path))) for path in paths]
        outcomes = yield zk.Pipeline(tuple(multis))  # what is left of them is seen by the next pass
    for multi, outcome in zip(multis, outcomes, strict=True):
        if outcome.failure is zk.Failure.OTHER:
            raise refused("deleting the queue", outcome, multi)
