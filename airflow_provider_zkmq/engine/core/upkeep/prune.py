"""What clean-up does beside deleting tasks: idle lanes go, batches without an end are ended, old ones deleted."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import BUCKET_MS, bucket_start, entry_time
from airflow_provider_zkmq.engine.core.model.lanes import is_lane, segments_of
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, never, transact
from airflow_provider_zkmq.engine.core.protocol.writes import Check, Delete, Failure, Multi
from airflow_provider_zkmq.engine.core.reading.configuration import known_conf
from airflow_provider_zkmq.engine.core.reading.nodes import chunked, read_nodes, read_stats
from airflow_provider_zkmq.engine.core.tasks.batches import WRITING
from airflow_provider_zkmq.engine.core.writing.closing import close_batches
from airflow_provider_zkmq.engine.core.writing.place import forget_lanes

DELETES_PER_MULTI: Final = 500
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
            yield from _delete_batch(context, f"{bucket}/{entry}", context.paths.batch(entry_task(entry) or ""))


def _forsaken(context: Context, cutoff: int) -> Procedure[None]:
    """Delete batches that were never written to their end, once their members have ended and been kept long enough."""
    for name in (yield Children(context.paths.at("batches"))) or ():
        base = context.paths.batch(name)
        members, marker, then = yield from read_nodes((f"{base}/open", f"{base}/open/{WRITING}", f"{base}/then"))
        alone = members is not None and members.stat.children == 1
        if alone and marker is not None and marker.stat.ctime <= cutoff:
            last = [Delete(f"{base}/then")] if then is not None else []
            yield Multi((Delete(f"{base}/open/{WRITING}"), Delete(f"{base}/open"), *last))
            yield from _delete_batch(context, None, base)


def _delete_batch(context: Context, entry: str | None, base: str) -> Procedure[None]:
    for names in chunked((yield Children(f"{base}/failed")) or (), DELETES_PER_MULTI):
        yield Multi(tuple(Delete(f"{base}/failed/{name}") for name in names))
    listed = [] if entry is None else [Delete(entry)]
    multi = Multi((Delete(f"{base}/failed"), Delete(base), *listed))
    outcome = yield from transact(multi, never)
    if outcome.committed or (entry is not None and (yield from _entry_alone(entry, base))):
        return
    if outcome.failure is Failure.NOT_EMPTY:
        context.report(failed_at(outcome, multi), "holds znodes that are not ours; the batch is kept")


def _entry_alone(entry: str, base: str) -> Procedure[bool]:
    """Whether the batch itself is gone: then its entry goes as well."""
    if (yield Exists(base)) is not None:
        return False
    yield Multi((Delete(entry),))
    return True
