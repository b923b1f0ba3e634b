"""What clean-up does beside deleting tasks: idle lanes go, batches are ended, old ones deleted."""

from __future__ import annotations

from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import BUCKET_MS, bucket_start, entry_time
from airflow_provider_zkmq.engine.core.model.lanes import is_lane, segments_of
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Node, Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Check, Delete, Multi
from airflow_provider_zkmq.engine.core.reading.configuration import known_conf
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes, read_stats, unless_corrupt
from airflow_provider_zkmq.engine.core.tasks.batches import WRITING, delete_batch
from airflow_provider_zkmq.engine.core.writing.closing import close_batches, load_batch
from airflow_provider_zkmq.engine.core.writing.place import forget_lanes

LANE_IDLE_MS: Final = 3_600_000


def prune_lanes(context: Context, now: int) -> Procedure[None]:
    """Delete lanes that have been empty for an hour; an enqueue that comes meanwhile creates its lane again.

    In a queue of strict order they stay: their versions must not begin again.
    """
    there: set[str] = set((yield Children(context.paths.at("queue"))) or ())
    for name in sorted(there):
        if not is_lane(name):
            context.report(context.paths.at("queue", name), "no lane of ours; stepped over")
        elif not (yield from known_conf(context)).ordered and (yield from _prune(context, name, now)):
            there.discard(name)
    forget_lanes(context, there)


def _prune(context: Context, name: str, now: int) -> Procedure[bool]:
    """Delete one lane if it is idle, and holds nothing but a segment of ours."""
    lane = context.paths.at("queue", name)
    names = yield Children(lane)
    if names is None or len(names) > 1:
        return False
    if len(segments_of(names)) < len(names):
        context.report(f"{lane}/{names[0]}", "no segment of ours; its lane is kept")
        return False
    stats = yield from read_stats([f"{lane}/{segment}" for segment in names])
    if not all(stat and stat.children == 0 and stat.ctime < now - LANE_IDLE_MS for stat in stats):
        return False
    deletes = tuple(Delete(f"{lane}/{segment}") for segment in names)
    outcome = yield Multi((*(Check(op.path) for op in deletes), *deletes, Delete(lane)))
    return bool(outcome.committed)


def unsealed(context: Context) -> Procedure[frozenset[str]]:
    """The batches that are being written."""
    names = (yield Children(context.paths.at("batches"))) or ()
    stats = yield from read_stats([context.paths.batch(name, "open", WRITING) for name in names])
    return frozenset(name for name, stat in zip(names, stats, strict=True) if stat is not None)


def collect_batches(context: Context, cutoff: int) -> Procedure[None]:
    """Delete what was kept of batches that were done long ago, and end those that a crash left without an end."""
    yield from close_batches(context)
    yield from _forsaken(context, cutoff)
    for name in (yield Children(context.paths.at("batches-done"))) or ():
        start, bucket = bucket_start(name), context.paths.at("batches-done", name)
        if start is None:
            context.report(bucket, "no bucket of ours; stepped over")
        elif start <= cutoff:
            yield from _collect_bucket(context, bucket, cutoff)
            if start + 2 * BUCKET_MS < cutoff:
                yield Multi((Delete(bucket),))  # refused while something is kept


def _collect_bucket(context: Context, bucket: str, cutoff: int) -> Procedure[None]:
    for entry in (yield Children(bucket)) or ():
        when = entry_time(entry)
        if when is None:
            context.report(f"{bucket}/{entry}", "no batch of ours; stepped over")
        elif when <= cutoff:
            yield from delete_batch(context, f"{bucket}/{entry}", context.paths.batch(entry_task(entry) or ""))


def _forsaken(context: Context, cutoff: int) -> Procedure[None]:
    """Delete batches that were never written to their end, once their members have ended and been kept long enough.

    So long after the last of them was written: nobody is writing it any more, and who did would be refused.
    A clean-up that is cut off in between leaves a batch without members and without an end, which the next one deletes.
    """
    for name in (yield Children(context.paths.at("batches"))) or ():
        base = context.paths.batch(name)
        parts = (base, f"{base}/open", f"{base}/open/{WRITING}", f"{base}/then")
        node, members, marker, follow_up = yield from read_nodes(parts)
        alone = members is not None and members.stat.children == 1
        if alone and marker is not None and marker.stat.mtime <= cutoff:
            last = [Delete(f"{base}/then")] if follow_up is not None else []
            yield Multi((Delete(f"{base}/open/{WRITING}"), Delete(f"{base}/open"), *last))
            yield from delete_batch(context, None, base)
        elif node is not None and members is None and _has_no_end(context, base, node):
            yield from delete_batch(context, None, base)


def _has_no_end(context: Context, base: str, node: Node) -> bool:
    """Whether a batch was never written to its end."""
    record = unless_corrupt(context, base, partial(load_batch, base, node.data))
    return record is not None and "total" not in record
