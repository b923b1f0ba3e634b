"""Garbage collection: what is over for longer than its lifetime goes, znode by znode."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from .. import zk_operations as zk
from ..client_state import SPAN_SECONDS, Context
from ..model.settings import Conf
from ..model.values import Duration, dump, optional_seconds
from ..model.znode_names import BUCKET_MS, bucket_start, entry_task, entry_time, is_lane, segments_of
from ..read import bulk_read, completion_log, queue_existence, server_clock
from ..read.configuration import known_conf, read_conf
from ..tasks.batches import delete_batch
from ..transaction_retries import refused, transact
from ..write import batch_end, transitions
from ..write.commit import Change, Plan, commit, forget_lanes, merge, mergeable, send_together
from ..write.new_task import WRITING
from ..zk_operations import Procedure
from .due_work import bring_back, give_lock_back, take_lock

# --- What clean-up does beside deleting tasks: idle lanes go, batches are ended, old ones deleted.

LANE_IDLE_MS: Final = 3_600_000


def prune_lanes(context: Context, now: int) -> Procedure[None]:
    """Delete lanes that have been empty for an hour; an enqueue that comes meanwhile creates its lane again.

    In a queue of strict order they stay: their versions must not begin again.
    """
    there: set[str] = set((yield zk.Children(context.paths.at("queue"))) or ())
    for name in sorted(there):
        lane = context.paths.at("queue", name)
        if not is_lane(name):
            context.report(lane, "no lane of ours; stepped over")
            continue
        if (yield from known_conf(context)).ordered:
            continue
        names: list[str] | None = yield zk.Children(lane)
        if names is None or len(names) > 1:
            continue
        if len(segments_of(names)) < len(names):
            context.report(f"{lane}/{names[0]}", "no segment of ours; its lane is kept")
            continue
        segments = [f"{lane}/{segment}" for segment in names]
        stats = yield from bulk_read.read_stats(segments)
        if all(stat and stat.children == 0 and stat.ctime < now - LANE_IDLE_MS for stat in stats):
            outcome = yield zk.Multi((*map(zk.Check, segments), *map(zk.Delete, segments), zk.Delete(lane)))
            if outcome.committed:
                there.discard(name)
    forget_lanes(context, there)


#: What counts claims is kept for so long after it counts no more, for whoever is about to claim.
RATE_IDLE_MS: Final = 60_000


def prune_limits(context: Context, conf: Conf, now: int) -> Procedure[None]:
    """Delete what counted claims that count no more, and on servers without containers keys without slots.

    The version of ``rates`` changes with it: a claim that was prepared on what is deleted is refused.
    """
    top, held = context.paths.at("rates"), context.paths.at("slots")
    (counted, limited) = yield from bulk_read.list_children([top, held])
    paths = [f"{top}/{name}" for name in counted]
    stats = yield from bulk_read.read_stats(paths)
    until = now - RATE_IDLE_MS - (0 if conf.limit is None else conf.limit.period)
    idle = [path for path, stat in zip(paths, stats, strict=True) if stat is not None and stat.mtime < until]
    versions = {path: stat.version for path, stat in zip(paths, stats, strict=True) if stat is not None}
    for chunk in bulk_read.chunked(idle):
        yield zk.Multi((zk.SetData(top, b""), *(zk.Delete(path, versions[path]) for path in chunk)))
    keys = [f"{held}/{name}" for name in limited]
    stats = yield from bulk_read.read_stats(keys)
    empty = [k for k, stat in zip(keys, stats, strict=True) if stat and not stat.children and stat.ctime < until]
    for chunk in bulk_read.chunked(empty):
        yield zk.Pipeline(tuple(zk.Multi((zk.Delete(path),)) for path in chunk))  # refused while a slot is taken


def collect_batches(context: Context, cutoff: int) -> Procedure[None]:
    """Delete what was kept of batches that were done long ago, and end those that a crash left without an end."""
    yield from batch_end.close_batches(context)
    yield from _forsaken(context, cutoff)
    for name in (yield zk.Children(context.paths.at("batches-done"))) or ():
        start, bucket = bucket_start(name), context.paths.at("batches-done", name)
        if start is None:
            context.report(bucket, "no bucket of ours; stepped over")
        if start is None or start > cutoff:
            continue
        for entry in (yield zk.Children(bucket)) or ():
            when = entry_time(entry)
            if when is None:
                context.report(f"{bucket}/{entry}", "no batch of ours; stepped over")
            elif when <= cutoff:
                yield from delete_batch(context, f"{bucket}/{entry}", context.paths.batch(entry_task(entry) or ""))
        if start + 2 * BUCKET_MS < cutoff:
            yield zk.Multi((zk.Delete(bucket),))  # refused while something is kept


def _forsaken(context: Context, cutoff: int) -> Procedure[None]:
    """Delete batches that were never written to their end, once their members have ended and been kept long enough.

    So long after the last of them was written: nobody is writing it any more, and who did would be refused.
    A clean-up that is cut off in between leaves a batch without members and without an end, which the next one deletes.
    """
    for name in (yield zk.Children(context.paths.at("batches"))) or ():
        base = context.paths.batch(name)
        parts = (base, f"{base}/open", f"{base}/open/{WRITING}", f"{base}/then")
        node, members, marker, follow_up = yield from bulk_read.read_nodes(parts)
        alone = members is not None and members.stat.children == 1
        if alone and marker is not None and marker.stat.mtime <= cutoff:
            last = [zk.Delete(f"{base}/then")] if follow_up is not None else []
            unchanged = zk.Delete(f"{base}/open/{WRITING}", marker.stat.version)  # no member was added meanwhile
            outcome: zk.Outcome = yield zk.Multi((unchanged, zk.Delete(f"{base}/open"), *last))
            if outcome.committed:
                yield from delete_batch(context, None, base)
        elif node is not None and members is None:
            record = bulk_read.unless_corrupt(context, base, partial(batch_end.load_batch, base, node.data))
            if record is not None and "total" not in record:
                yield from delete_batch(context, None, base)


# --- Trimming the log of ended runs: followers learn of what goes before it goes; history that nobody wants goes.


def publish_truncation(context: Context, versions: Iterable[int]) -> Procedure[None]:
    """Say that runs which ended in these transactions may be gone; to be called before they are deleted."""
    path, highest = context.paths.at("followed"), max(versions, default=0)
    while highest:
        node: zk.Node | None = yield zk.Get(path)
        if node is None or completion_log.read_truncated_at(context, path, node) >= highest:
            return
        multi = zk.Multi((zk.SetData(path, dump({"truncated_at": highest}), node.stat.version),))
        outcome = yield from transact(multi)
        if outcome.committed:
            return
        if outcome.failure not in {zk.Failure.BAD_VERSION, zk.Failure.NO_NODE}:
            raise refused("saying what clean-up deletes", outcome, multi)


def collect_history(context: Context, conf: Conf, cutoff: int) -> Procedure[None]:
    """Delete the runs that have left and are in the queue's archive by now, or are too old for those who follow it.

    All of them where the queue is neither archived nor followed.
    """
    runs = yield from completion_log.list_history(context)
    if conf.follow:
        runs = [each for each in runs if each.when <= cutoff]
    if conf.archive is not None:
        versions = yield from completion_log.versions_of(context, runs)
        archived = {each.place for each in versions if each.version <= conf.archive}
        runs = [each for each in runs if each.place in archived]
    if conf.follow:
        versions = yield from completion_log.versions_of(context, runs)
        yield from publish_truncation(context, [each.version for each in versions])
    paths = [context.paths.at("unarchived", each.place) for each in runs]
    for chunk in bulk_read.chunked([*paths, *{path.rpartition("/")[0] for path in paths}]):
        yield zk.Pipeline(
            tuple(zk.Multi((zk.Delete(path),)) for path in chunk)
        )  # that of a bucket is refused while it is used


# --- Garbage collection: delete what ended longer ago than ``task_gc_lifetime``, whole trees at a time.
#
# It may run in several places at once and costs by what it deletes. Age is judged by the server's clock and the
# Stat of the task's record, and each tree is deleted under that record's version: a task that changed is kept.
# Where a queue is archived (``configure(archive=True)``), what is not in the archive yet is kept; where streams
# follow it (``configure(follow=True)``), they learn of what goes before it goes. Members of a batch that is
# being written are kept: whoever tries again to write them is to find them.

#: So many trees are deleted by one transaction; those of what was read at once are in flight together.
TREES_PER_MULTI: Final = bulk_read.AT_ONCE // 8


@dataclass(slots=True)
class Collected:
    """What a clean-up did. ``ran`` is False when it was not due or ran elsewhere."""

    ran: bool = True
    collected: int = 0
    kept_unarchived: int = 0
    kept_changed: int = 0
    rescued: int = 0
    kept_for_batches: int = 0


@dataclass(frozen=True, slots=True)
class _Rules:
    """What goes: what ended before a time, is not kept by the configuration, and of no batch that is being written.

    What has changed since the run began is kept: of a batch that was opened since, `batches` does not know.
    """

    cutoff: int
    latest: int
    """Entries up to here are read; with lifetime 0 also those that a client's clock has put a little ahead."""
    began: int
    conf: Conf
    batches: frozenset[str]


def collect_garbage(context: Context, lifetime: Duration | None = None) -> Procedure[Collected]:
    """Delete the trees of tasks that ended `lifetime` seconds ago or earlier.

    The default is the queue's ``task_gc_lifetime``. Raises `ConfigError` for a bad `lifetime`, and `QueueNotFound`.

    Also gives back the tasks of dead consumers and of claims whose lease or lock has ended, and promotes what is due,
    as claims do: `Collected.rescued` counts both. Returns what was done; `Collected.ran` is False if another process is
    cleaning up right now.
    """
    span = optional_seconds("lifetime", lifetime)
    conf = yield from read_conf(context)
    return (yield from collect_locked(context, conf.gc_lifetime if span is None else span, None))


def collect_locked(context: Context, lifetime: float, last: zk.Stat | None) -> Procedure[Collected]:
    """Clean up under the lock; with `last`, the Stat of ``gc``, only if nobody has done so since that was read."""
    if context.maintenance.busy:
        return Collected(ran=False)  # another thread of this process is at it
    context.maintenance.busy = True
    try:
        if not (yield from take_lock(context)):
            return Collected(ran=False)
        try:
            now: zk.Stat | None = yield zk.Exists(context.paths.at("gc"))
            done = last is not None and now is not None and now.version != last.version
            report = Collected(ran=False) if done else (yield from _collect(context, lifetime))
        except Exception:
            yield from give_lock_back(context)
            raise  # one that is broken off leaves the lock to `release_abandoned_lock`: it can wait for nothing here
        yield from give_lock_back(context)
        return report
    finally:
        context.maintenance.busy = False
        if context.maintenance.left:
            context.run.finish_later()


def _collect(context: Context, lifetime: float) -> Procedure[Collected]:
    report = Collected()
    context.known_consumers.watch = None  # look again even where no watch fired: whatever an earlier rescue left behind
    report.rescued = yield from bring_back(context)
    began = yield from server_clock.tick(context)
    now = began.time
    conf = yield from read_conf(context)  # after what it is to hold for has ended
    names = (yield zk.Children(context.paths.at("batches"))) or ()
    stats = yield from bulk_read.read_stats([context.paths.batch(name, "open", WRITING) for name in names])
    batches = frozenset(name for name, stat in zip(names, stats, strict=True) if stat is not None)
    cutoff = now - int(lifetime * 1000)
    latest = cutoff if lifetime else cutoff + int(SPAN_SECONDS * 1000)
    rules = _Rules(cutoff, latest, began.zxid, conf, batches)
    for index in ("finished", "cancelled"):
        yield from _collect_index(context, index, rules, report)
    if context.maintenance.closing:
        return report  # it does not say that it has run: whoever looks next goes on
    yield from collect_batches(context, rules.cutoff)
    yield from prune_lanes(context, now)
    yield from prune_limits(context, conf, now)
    yield from collect_history(context, rules.conf, rules.cutoff)
    # It says for which lifetime it has run: a shorter one makes the next run due (`collect_if_due`).
    path = context.paths.at("gc")
    outcome: zk.Outcome = yield zk.Multi(
        (zk.SetData(path, dump({"collected": report.collected, "lifetime": lifetime}), -1),)
    )
    if not outcome.committed:
        yield from queue_existence.restored(context, path)
    return report


def _collect_index(context: Context, index: str, rules: _Rules, report: Collected) -> Procedure[None]:
    for name in sorted((yield zk.Children(context.paths.at(index))) or ()):
        start, bucket = bucket_start(name), context.paths.at(index, name)
        if start is None:
            context.report(bucket, "no bucket of ours; stepped over")
        if start is None or start > rules.latest:
            continue
        entries, after = (yield zk.Children(bucket)), rules.latest + 1
        due = [entry for entry in sorted(entries or ()) if (entry_time(entry) or after) < after]
        for chunk in bulk_read.chunked(due):
            if context.maintenance.closing:
                break
            plans = yield from _judge(context, bucket, chunk, rules, report)
            yield from _delete(context, plans, report)
        if start + 2 * BUCKET_MS < rules.cutoff:
            yield zk.Multi((zk.Delete(bucket),))  # refused while something is kept


def _judge(
    context: Context, bucket: str, names: Sequence[str], rules: _Rules, report: Collected
) -> Procedure[list[Plan]]:
    """A plan for each tree that may go, which those who follow the queue have learnt of."""
    records = yield from bulk_read.read_records(context, [entry_task(name) or "" for name in names])
    plans: list[Plan] = []
    versions: list[int] = []
    for name, record in zip(names, records, strict=True):
        entry = f"{bucket}/{name}"
        if record is bulk_read.Unread.MISSING:
            plans.append(Plan([Change(context, name, [zk.Delete(entry)])]))  # the tree is gone, only its entry is left
            continue
        if not isinstance(record, bulk_read.Record):
            report.kept_changed += 1
            continue
        state, stat = record.state, record.stat
        refuses = state.dedupe is not None and state.dedupe > context.clock.certainly_past(context.clock.now() or 0)
        listed = state.index is not None and context.paths.at(state.index) == entry
        if stat.mtime > rules.cutoff or stat.mzxid > rules.began or refuses or not listed:
            report.kept_changed += 1
        elif rules.conf.archive is not None and record.stat.mzxid > rules.conf.archive:
            report.kept_unarchived += 1
        elif record.state.batch in rules.batches:
            report.kept_for_batches += 1
        else:
            deletes = transitions.task_deletes(context, record.task_id, state, stat.version)
            plans.append(Plan([Change(context, record.task_id, [*deletes, zk.Delete(entry)])]))
            versions.append(completion_log.version_of(record))
    if rules.conf.follow:
        yield from publish_truncation(context, versions)
    return plans


def _delete(context: Context, plans: list[Plan], report: Collected) -> Procedure[None]:
    """Several trees a transaction, several transactions in flight; a refused one falls back to its parts.

    Deletes may be repeated: what is gone already was deleted by us or by another clean-up.
    """
    groups = list(mergeable(plans, TREES_PER_MULTI))
    for group, sent in zip(groups, (yield from send_together(list(map(merge, groups)))), strict=True):
        for plan in group:
            ops = plan.changes[0].ops
            refusal = None if sent.outcome.committed else (yield from commit(plan)).refusal
            if refusal is None:
                report.collected += len(ops) > 1  # else there was only an entry, without a tree
                continue
            failure, record = refusal.outcome.failure, ops[0].path
            report.kept_changed += failure in {zk.Failure.BAD_VERSION, zk.Failure.NOT_EMPTY}
            if failure is zk.Failure.NOT_EMPTY:
                context.report(refusal.path, "holds znodes that are not ours; it is kept")
            elif failure is zk.Failure.NO_NODE and refusal.path != record and (yield zk.Exists(record)) is not None:
                report.kept_changed += 1  # the record is there, so that nobody deleted the tree meanwhile
                context.report(refusal.path, "is missing; what is left of its task is kept")


# --- Whose turn it is to clean up, and when: one run an interval, whoever makes it, and one as soon as less is to be
# kept.
#
# When clean-up ran last, and for which lifetime, stands in ZooKeeper: a change of the interval or of the lifetime
# is held against that by whoever looks next, also by a client that has just come.

#: How soon to look again at a clean-up that is due, and which somebody else has under way.
BUSY_SECONDS: Final = 5.0


class Turn(NamedTuple):
    """A look at whether clean-up is due: what it did, and in how many seconds the next run is due."""

    report: Collected
    due_in: float


def collect_if_due(context: Context) -> Procedure[Turn]:
    """Clean up if ``task_gc_interval`` has passed since anybody last did, or less is to be kept than it kept.

    Both are judged by the server's clock and by what the last run left; a look that finds nothing due is one read.
    """
    conf = yield from read_conf(context)
    last: zk.Node | None = yield zk.Get(context.paths.at("gc"))
    if last is not None and not _keeps_less(conf, last):
        now = context.clock.certainly_past((yield from server_clock.server_time(context)))
        wait = (last.stat.mtime - now) / 1000 + conf.gc_interval
        if wait > 0:
            return Turn(Collected(ran=False), wait)
    report = yield from collect_locked(context, conf.gc_lifetime, None if last is None else last.stat)
    return Turn(report, conf.gc_interval if report.ran else min(conf.gc_interval, BUSY_SECONDS))


def _keeps_less(conf: Conf, last: zk.Node) -> bool:
    """Whether clean-up has never run, or for a longer lifetime than there is now."""
    if last.stat.version == 0:
        return True
    try:
        lifetime = json.loads(last.data).get("lifetime")
    except (ValueError, AttributeError, RecursionError):
        return False  # it is no record of ours; the interval decides
    return isinstance(lifetime, int | float) and conf.gc_lifetime < lifetime
