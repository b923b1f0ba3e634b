"""Garbage collection: delete what ended longer ago than ``task_gc_lifetime``, whole trees at a time.

It may run in several places at once and costs by what it deletes. Age is judged by the server's clock and the
Stat of the task's record, and each tree is deleted under that record's version: a task that changed is kept.
Where a queue is archived (``configure(archive=True)``), what is not in the archive yet is kept; where streams follow it
(``configure(follow=True)``), they are told of what goes before it goes. Members of a batch that is being written are
kept: whoever tries again to write them is to find them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import BUCKET_MS, bucket_start, entry_time
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.durations import Duration, optional_seconds
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.model.stored import dump
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Procedure, Stat
from airflow_provider_zkmq.engine.core.protocol.writes import Delete, Failure, Multi, Outcome, SetData
from airflow_provider_zkmq.engine.core.reading.clock import tick
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.log import version_of
from airflow_provider_zkmq.engine.core.reading.nodes import AT_ONCE, Record, Unread, chunked, read_records
from airflow_provider_zkmq.engine.core.reading.skeleton import restored
from airflow_provider_zkmq.engine.core.upkeep.lock import give_lock_back, take_lock
from airflow_provider_zkmq.engine.core.upkeep.prune import collect_batches, prune_lanes, unsealed
from airflow_provider_zkmq.engine.core.upkeep.rescue import bring_back
from airflow_provider_zkmq.engine.core.upkeep.trim import collect_letters, publish_trimmed
from airflow_provider_zkmq.engine.core.writing.commit import commit, send_together
from airflow_provider_zkmq.engine.core.writing.pieces import tree_deletes
from airflow_provider_zkmq.engine.core.writing.plan import Change, Plan, merge, mergeable, one

#: So many trees are deleted by one transaction; those of what was read at once are in flight together.
TREES_PER_MULTI: Final = AT_ONCE // 8
INDEXES: Final = ("finished", "cancelled")


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
    began: int
    conf: Conf
    batches: frozenset[str]


def collect_garbage(context: Context, lifetime: Duration | None = None) -> Procedure[Collected]:
    """Delete the trees of tasks that ended more than `lifetime` seconds ago (default: the queue's task_gc_lifetime).

    Also gives back the tasks of dead consumers and of claims whose lease or lock has ended, and promotes what is due,
    as claims do: `Collected.rescued` counts both. Returns what was done; `Collected.ran` is False if another process is
    cleaning up right now.
    """
    span = optional_seconds("lifetime", lifetime)
    conf = yield from read_conf(context)
    return (yield from collect_locked(context, conf.gc_lifetime if span is None else span, None))


def collect_locked(context: Context, lifetime: float, last: Stat | None) -> Procedure[Collected]:
    """Clean up under the lock; with `last`, the Stat of ``gc``, only if nobody has done so since that was read."""
    if context.maintenance.busy:
        return Collected(ran=False)  # another thread of this process is at it
    context.maintenance.busy = True
    try:
        return (yield from _lock_and_collect(context, lifetime, last))
    finally:
        context.maintenance.busy = False
        if context.maintenance.left:
            context.run.pay()


def _lock_and_collect(context: Context, lifetime: float, last: Stat | None) -> Procedure[Collected]:
    if not (yield from take_lock(context)):
        return Collected(ran=False)
    try:
        now: Stat | None = yield Exists(context.paths.at("gc"))
        done = last is not None and now is not None and now.version != last.version
        report = Collected(ran=False) if done else (yield from _collect(context, lifetime))
    except Exception:
        yield from give_lock_back(context)
        raise  # one that is broken off leaves the lock to `release_abandoned_lock`: it can wait for nothing here
    yield from give_lock_back(context)
    return report


def _collect(context: Context, lifetime: float) -> Procedure[Collected]:
    report = Collected()
    context.census.watch = None  # look again even where no watch fired: whatever an earlier rescue left behind
    report.rescued = yield from bring_back(context)
    began = yield from tick(context)
    now = began.time
    # The configuration is read after what it is to hold for has ended.
    conf, batches = (yield from read_conf(context)), (yield from unsealed(context))
    rules = _Rules(now - int(lifetime * 1000), began.zxid, conf, batches)
    for index in INDEXES:
        yield from _collect_index(context, index, rules, report)
    if context.maintenance.leaving:
        return report  # it does not say that it has run: whoever looks next goes on
    yield from collect_batches(context, rules.cutoff)
    yield from prune_lanes(context, now)
    yield from collect_letters(context, rules.conf, rules.cutoff)
    yield from _note_run(context, report, lifetime)
    return report


def _note_run(context: Context, report: Collected, lifetime: float) -> Procedure[None]:
    """Say that clean-up has run, and for which lifetime: a shorter one makes the next run due (`core.upkeep.turns`)."""
    path = context.paths.at("gc")
    outcome: Outcome = yield Multi((SetData(path, dump({"collected": report.collected, "lifetime": lifetime}), -1),))
    if not outcome.committed:
        yield from restored(context, path)


def _collect_index(context: Context, index: str, rules: _Rules, report: Collected) -> Procedure[None]:
    buckets = yield Children(context.paths.at(index))
    for name in sorted(buckets or ()):
        start = bucket_start(name)
        if start is None:
            context.report(context.paths.at(index, name), "no bucket of ours; stepped over")
        elif start <= rules.cutoff:
            yield from _collect_bucket(context, context.paths.at(index, name), rules, report)
            if start + 2 * BUCKET_MS < rules.cutoff:
                yield Multi((Delete(context.paths.at(index, name)),))  # refused while something is kept


def _collect_bucket(context: Context, bucket: str, rules: _Rules, report: Collected) -> Procedure[None]:
    entries, after = (yield Children(bucket)), rules.cutoff + 1
    due = [name for name in sorted(entries or ()) if (entry_time(name) or after) < after]
    for chunk in chunked(due):
        if context.maintenance.leaving:
            return
        trees = yield from _judge(context, bucket, chunk, rules, report)
        yield from _delete(context, trees, report)


def _judge(
    context: Context, bucket: str, names: Sequence[str], rules: _Rules, report: Collected
) -> Procedure[list[Plan]]:
    """A plan for each tree that may go, which those who follow the queue have been told of."""
    records = yield from read_records(context, [entry_task(name) or "" for name in names])
    plans: list[Plan] = []
    versions: list[int] = []
    for name, record in zip(names, records, strict=True):
        entry = f"{bucket}/{name}"
        if record is Unread.MISSING:
            plans.append(one(Change(context, name, [Delete(entry)])))  # the tree is gone, only its entry is left
        elif (
            not isinstance(record, Record)
            or record.stat.mtime > rules.cutoff
            or record.stat.mzxid > rules.began
            or not _listed_by(context, record, entry)
        ):
            report.kept_changed += 1
        elif rules.conf.archive is not None and record.stat.mzxid > rules.conf.archive:
            report.kept_unarchived += 1
        elif record.state.batch in rules.batches:
            report.kept_for_batches += 1
        else:
            plans.append(_deletion(context, record, entry))
            versions.append(version_of(record))
    if rules.conf.follow:
        yield from publish_trimmed(context, versions)
    return plans


def _listed_by(context: Context, record: Record, entry: str) -> bool:
    """Whether a task is what its entry says, and its id is not to be refused any longer."""
    index, dedupe = record.state.index, record.state.dedupe
    window = dedupe is not None and dedupe > context.clock.certainly_past(context.clock.now() or 0)
    return not window and index is not None and context.paths.at(index) == entry


def _deletion(context: Context, record: Record, entry: str) -> Plan:
    tree = tree_deletes(context, record.task_id, record.state, record.stat.version)
    return one(Change(context, record.task_id, [*tree, Delete(entry)]))


def _delete(context: Context, plans: list[Plan], report: Collected) -> Procedure[None]:
    """Several trees a transaction, several transactions in flight; a refused one falls back to its parts."""
    groups = list(mergeable(plans, TREES_PER_MULTI))
    for group, sent in zip(groups, (yield from send_together(list(map(merge, groups)))), strict=True):
        if sent.outcome.committed:
            report.collected += sum(map(_is_tree, group))
        else:
            for plan in group:
                yield from _delete_one(context, plan, report)


def _is_tree(plan: Plan) -> bool:
    """Whether a plan deletes a tree, and not only an entry without one."""
    return len(plan.changes[0].ops) > 1


def _delete_one(context: Context, plan: Plan, report: Collected) -> Procedure[None]:
    """One tree alone. Deletes may be repeated: what is gone already was deleted by us or by another clean-up."""
    refusal = (yield from commit(plan)).refusal
    if refusal is None:
        report.collected += _is_tree(plan)
        return
    failure, record = refusal.outcome.failure, plan.changes[0].ops[0].path
    report.kept_changed += failure in {Failure.BAD_VERSION, Failure.NOT_EMPTY}
    if failure is Failure.NOT_EMPTY:
        context.report(refusal.path, "holds znodes that are not ours; it is kept")
    elif failure is Failure.NO_NODE and refusal.path != record and (yield Exists(record)) is not None:
        report.kept_changed += 1  # the record is there, so that nobody deleted the tree meanwhile
        context.report(refusal.path, "is missing; what is left of its task is kept")
