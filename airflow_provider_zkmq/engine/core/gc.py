"""Garbage collection: delete what ended longer ago than ``task_gc_lifetime``, whole trees at a time.

It may run in several places at once and costs by what it deletes. Age is judged by the server's clock and the
Stat of the task's record, and each tree is deleted under that record's version: a task that changed is kept.
Where an archive is configured, what is not archived yet is kept.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_zkmq.engine.core.batch import WRITING, close_batches
from airflow_provider_zkmq.engine.core.configure import optional_seconds, read_conf
from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.lanes import parse_lane
from airflow_provider_zkmq.engine.core.moves import tree_deletes
from airflow_provider_zkmq.engine.core.ops import (
    Check,
    Children,
    Create,
    Delete,
    Exists,
    Failure,
    GetMany,
    Multi,
    Node,
    Outcome,
    Pipeline,
    Procedure,
    SetData,
    Stat,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.paths import entry_task
from airflow_provider_zkmq.engine.core.records import TaskState, dump
from airflow_provider_zkmq.engine.core.promote import promote_due
from airflow_provider_zkmq.engine.core.rescue import rescue_dead
from airflow_provider_zkmq.engine.core.schedule import BUCKET_MS, bucket_start, entry_time
from airflow_provider_zkmq.engine.core.transact import never, tick, transact
from airflow_provider_zkmq.engine.errors import CorruptRecord

TREES_PER_MULTI: Final = 20
WINDOW: Final = 8
BATCH_CHUNK: Final = 500
LANE_IDLE_MS: Final = 3_600_000
INDEXES: Final = ("finished", "cancelled")


@dataclass(slots=True)
class Collected:
    """What a clean-up did. ``ran`` is False when it was not due or ran elsewhere."""

    ran: bool = True
    collected: int = 0
    kept_unarchived: int = 0
    kept_changed: int = 0
    rescued: int = 0


def collect_garbage(context: Context, lifetime: object = None) -> Procedure[Collected]:
    """Delete the trees of tasks that ended more than `lifetime` seconds ago (default: the queue's task_gc_lifetime).

    Also gives back the tasks of dead consumers. Returns what was done; `Collected.ran` is False if another
    process is cleaning up right now.
    """
    span = optional_seconds("lifetime", lifetime)
    conf = yield from read_conf(context)
    return (yield from _run_locked(context, conf.gc_lifetime if span is None else span, None))


def _run_locked(context: Context, lifetime: float, last: Stat | None) -> Procedure[Collected]:
    """Clean up under the lock; with `last`, only if nobody has done so since that was read."""
    if not (yield from _lock(context)):
        return Collected(ran=False)
    try:
        now: Stat | None = yield Exists(context.paths.at("gc"))
        if last is not None and now is not None and now.version != last.version:
            report = Collected(ran=False)
        else:
            report = yield from _collect(context, lifetime)
    except Exception:
        yield from _unlock(context)
        raise  # an interrupted run leaves the lock to the end of its session: no finally, which could not wait
    yield from _unlock(context)
    return report


def _collect(context: Context, lifetime: float) -> Procedure[Collected]:
    archived = (yield from read_conf(context)).archive
    report = Collected()
    context.live_watch = None  # look again even where no watch fired: whatever an earlier rescue left behind
    report.rescued = (yield from rescue_dead(context)) + (yield from promote_due(context))
    now = (yield from tick(context)).time or 0
    cutoff = now - int(lifetime * 1000)
    for index in INDEXES:
        yield from _collect_index(context, index, cutoff, archived, report)
    yield from _collect_batches(context, cutoff)
    if context.conf is not None and context.conf.order != "fifo":  # its lanes' versions must not begin again
        yield from _prune_lanes(context, now)
    yield from _note_run(context, report)
    return report


def collect_if_due(context: Context) -> Procedure[Collected]:
    """Clean up if ``task_gc_interval`` has passed since anybody last did, judged by the server's clock."""
    conf = yield from read_conf(context)
    last: Stat | None = yield Exists(context.paths.at("gc"))
    now = (yield from tick(context)).time or 0
    if last is not None and last.version > 0 and now - last.mtime < conf.gc_interval * 1000:
        return Collected(ran=False)
    return (yield from _run_locked(context, conf.gc_lifetime, last))


def _note_run(context: Context, report: Collected) -> Procedure[None]:
    yield Multi((SetData(context.paths.at("gc"), dump({"collected": report.collected}), -1),))


def _lock(context: Context) -> Procedure[bool]:
    """Take the maintenance lock, an ephemeral znode: it ends with its holder's session at the latest."""
    nonce = dump({"nonce": context.nonce(), **context.describe})
    path = context.paths.at("lock")

    def ours() -> Procedure[Outcome | None]:
        nodes: list[Node | None] = yield GetMany((path,))
        return Outcome(committed=True) if nodes[0] is not None and nodes[0].data == nonce else None

    outcome = yield from transact(Multi((Create(path, nonce, ephemeral=True),)), ours)
    return bool(outcome.committed)


def _unlock(context: Context) -> Procedure[None]:
    yield from transact(Multi((Delete(context.paths.at("lock")),)), never)


def _collect_index(
    context: Context, index: str, cutoff: int, archived: int | None, report: Collected
) -> Procedure[None]:
    buckets = yield Children(context.paths.at(index))
    for name in sorted(buckets or ()):
        start = bucket_start(name)
        if start is None:
            context.run.report(context.paths.at(index, name), "no bucket of ours; stepped over")
        elif start <= cutoff:
            yield from _collect_bucket(context, context.paths.at(index, name), cutoff, archived, report)
            if start + 2 * BUCKET_MS < cutoff:
                yield Multi((Delete(context.paths.at(index, name)),))  # refused while something is kept


def _collect_bucket(
    context: Context, bucket: str, cutoff: int, archived: int | None, report: Collected
) -> Procedure[None]:
    entries = yield Children(bucket)
    due = [name for name in sorted(entries or ()) if (entry_time(name) or cutoff + 1) <= cutoff]
    size = TREES_PER_MULTI * WINDOW
    for start in range(0, len(due), size):
        chunk = due[start : start + size]
        trees = yield from _judge(context, bucket, chunk, cutoff, archived, report)
        yield from _delete(context, trees, report)


def _judge(
    context: Context, bucket: str, names: list[str], cutoff: int, archived: int | None, report: Collected
) -> Generator[Any, Any, list[list[WriteOp]]]:
    """The deletes of each tree that may go."""
    paths = tuple(context.paths.task(entry_task(name) or "", "state") for name in names)
    nodes: list[Node | None] = yield GetMany(paths)
    trees: list[list[WriteOp]] = []
    for name, path, node in zip(names, paths, nodes, strict=True):
        entry = f"{bucket}/{name}"
        if node is None:
            trees.append([Delete(entry)])  # the tree is gone, only its entry is left
        elif node.stat.mtime <= cutoff and (tree := _tree(context, entry, path, node)):
            if archived is not None and node.stat.mzxid > archived:
                report.kept_unarchived += 1
            else:
                trees.append(tree)
        else:
            report.kept_changed += 1
    return trees


def _tree(context: Context, entry: str, path: str, node: Node) -> list[WriteOp]:
    try:
        state = TaskState.decode(path, node.data)
    except CorruptRecord as error:
        context.run.report(path, str(error))
        return []
    window = state.dedupe is not None and state.dedupe > (context.server_ms() or 0)
    if window or state.index is None or context.paths.at(state.index) != entry:
        return []
    return [*tree_deletes(context, entry_task(entry.rpartition("/")[2]) or "", state, node.stat.version), Delete(entry)]


def _delete(context: Context, trees: list[list[WriteOp]], report: Collected) -> Procedure[None]:
    """Several trees a transaction, several transactions in flight; a refused one is taken apart."""
    groups = [trees[at : at + TREES_PER_MULTI] for at in range(0, len(trees), TREES_PER_MULTI)]
    multis = tuple(Multi(tuple(op for tree in group for op in tree)) for group in groups)
    outcomes: list[Outcome] = yield Pipeline(multis)
    for group, outcome in zip(groups, outcomes, strict=True):
        if outcome.committed:
            report.collected += sum(len(tree) > 1 for tree in group)
        else:
            for tree in group:
                yield from _delete_one(context, tree, report)


def _delete_one(context: Context, tree: list[WriteOp], report: Collected) -> Procedure[None]:
    """One tree alone. Deletes may be repeated: what is gone already was deleted by us or by another clean-up."""
    outcome = yield from transact(Multi(tuple(tree)), never)
    if outcome.committed:
        report.collected += len(tree) > 1
    elif outcome.failure is Failure.NOT_EMPTY and outcome.failed is not None:
        path = tree[outcome.failed].path
        context.run.report(path, "holds znodes that are not ours; the task is kept")
        report.kept_changed += 1
    else:
        report.kept_changed += outcome.failure is Failure.BAD_VERSION


def _prune_lanes(context: Context, now: int) -> Procedure[None]:
    """Delete lanes that have been empty for an hour; an enqueue that comes meanwhile creates its lane again."""
    lanes = yield Children(context.paths.at("queue"))
    for name in lanes or ():
        lane = context.paths.at("queue", name)
        segments = (yield Children(lane)) if parse_lane(name) else None
        if segments is None or len(segments) > 1:
            continue
        stats = yield Pipeline(tuple(Exists(f"{lane}/{segment}") for segment in segments))
        if all(stat and stat.children == 0 and stat.ctime < now - LANE_IDLE_MS for stat in stats):
            deletes = tuple(Delete(f"{lane}/{segment}") for segment in segments)
            yield Multi((*(Check(op.path) for op in deletes), *deletes, Delete(lane)))


def _collect_batches(context: Context, cutoff: int) -> Procedure[None]:
    """Delete what was kept of batches that were done long ago, and end those that a crash left without an end."""
    yield from close_batches(context)
    yield from _forsaken(context, cutoff)
    for bucket in (yield Children(context.paths.at("batches-done"))) or ():
        start = bucket_start(bucket)
        if start is None or start > cutoff:
            continue
        path = context.paths.at("batches-done", bucket)
        for entry in (yield Children(path)) or ():
            when = entry_time(entry)
            if when is not None and when <= cutoff:
                yield from _delete_batch(f"{path}/{entry}", context.paths.batch(entry_task(entry) or ""))
        if start + 2 * BUCKET_MS < cutoff:
            yield Multi((Delete(path),))  # refused while something is kept


def _forsaken(context: Context, cutoff: int) -> Procedure[None]:
    """Delete batches that were never written to their end, once their members have ended and been kept long enough."""
    for name in (yield Children(context.paths.at("batches"))) or ():
        base = context.paths.batch(name)
        nodes: list[Node | None] = yield GetMany((f"{base}/open", f"{base}/open/{WRITING}", f"{base}/then"))
        members, marker, then = nodes
        alone = members is not None and members.stat.children == 1
        if alone and marker is not None and marker.stat.ctime <= cutoff:
            last = [Delete(f"{base}/then")] if then is not None else []
            yield Multi((Delete(f"{base}/open/{WRITING}"), Delete(f"{base}/open"), *last))
            yield from _delete_batch(None, base)


def _delete_batch(entry: str | None, base: str) -> Procedure[None]:
    failed = (yield Children(f"{base}/failed")) or []
    for start in range(0, len(failed), BATCH_CHUNK):
        yield Multi(tuple(Delete(f"{base}/failed/{name}") for name in failed[start : start + BATCH_CHUNK]))
    listed = [] if entry is None else [Delete(entry)]
    yield from transact(Multi((Delete(f"{base}/failed"), Delete(base), *listed)), never)
