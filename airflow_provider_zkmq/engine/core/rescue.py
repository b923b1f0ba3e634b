"""Looking after a queue while claiming: give back the tasks of the dead, and queue what has come due.

All of it is driven by watches and by the clock of the server: where nothing happened, it costs no request. What
it costs otherwise depends on what is in flight, not on the backlog.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Final

from airflow_provider_zkmq.engine.core import again
from airflow_provider_zkmq.engine.core.closing import close_batches
from airflow_provider_zkmq.engine.core.configure import read_conf
from airflow_provider_zkmq.engine.core.consumers import heed
from airflow_provider_zkmq.engine.core.context import Context, listing
from airflow_provider_zkmq.engine.core.lanes import Lane
from airflow_provider_zkmq.engine.core.moves import Moving, move, move_to_lane, moved, notes_of
from airflow_provider_zkmq.engine.core.ops import Children, Delete, GetMany, Multi, Node, Ops, Procedure
from airflow_provider_zkmq.engine.core.paths import SEPARATOR, entry_task
from airflow_provider_zkmq.engine.core.records import TaskState, load
from airflow_provider_zkmq.engine.core.schedule import BUCKET_MS, bucket_start, entry_time
from airflow_provider_zkmq.engine.core.states import Event, State
from airflow_provider_zkmq.engine.core.transact import server_time
from airflow_provider_zkmq.engine.errors import CorruptRecord

#: Consumers promote due tasks of their own share first; after this long, anybody's.
GRACE_MS: Final = 500
CHUNK: Final = 128
LEASE_LISTING_SECONDS: Final = 1.0


def tend(context: Context) -> Procedure[int]:
    """Rescue and promote what is due now; returns how many tasks became claimable. Sets `context.next_due`."""
    yield from heed(context)
    rescued = yield from rescue_dead(context)
    context.next_due = None
    rescued += yield from _expire_leases(context)
    rescued += yield from promote_due(context)
    return rescued


def _wake_at(context: Context, now: int, when: int) -> None:
    """Have a waiting claim look again at a time of the server's clock."""
    _wake_in(context, max(0, when - now) / 1000)


def _wake_in(context: Context, seconds: float) -> None:
    at = context.run.monotonic() + seconds
    context.next_due = at if context.next_due is None else min(at, context.next_due)


# --- dead consumers


def rescue_dead(context: Context) -> Procedure[int]:
    """Give back what consumers without a live session were working on.

    ``consumers`` is listed before ``live``: who registers in between is seen alive.
    """
    watch = context.live_watch
    if watch is not None and not watch.fired:
        return 0
    watch = context.new_watch()
    registered = yield Children(context.paths.at("consumers"))
    live = yield Children(context.paths.at("live"), watch)
    context.live = sorted(live or ())
    count = 0
    for consumer in sorted(set(registered or ()) - set(context.live)):
        count += yield from _bury(context, consumer)
    context.live_watch = watch
    return count


def _bury(context: Context, consumer: str) -> Procedure[int]:
    """Rescue one dead consumer's tasks, then take it off the register."""
    count = 0
    current = yield Children(context.paths.consumer(consumer, "current"))
    for task_id in current or ():
        count += yield from _rescue(context, task_id, context.paths.current(consumer, task_id))
    ops = Ops()
    if current is not None:
        ops.delete(context.paths.consumer(consumer, "current"))
    yield ops.delete(context.paths.consumer(consumer)).multi()  # refused where another buried it first
    yield from close_batches(context)
    return count


def _rescue(context: Context, task_id: str, note: str) -> Procedure[bool]:
    """Give one claimed task back: to its old place, or to the dead letters once its attempts are used up."""
    path, claim_path = context.paths.task(task_id, "state"), context.paths.task(task_id, "claim")
    nodes: list[Node | None] = yield GetMany((path, claim_path))
    node, claim = nodes
    try:
        state = None if node is None else TaskState.decode(path, node.data)
    except CorruptRecord as error:
        context.report(path, str(error))
        state = None
    held = state is not None and state.state is State.CLAIMED and note in notes_of(context, task_id, state)
    if node is None or state is None or not held:
        yield Multi((Delete(note),))  # settled or rescued meanwhile: only the note is left
        return False
    expired = note != context.paths.current(state.consumer or "", task_id)
    return (
        yield from _give_back(context, task_id, node.stat.version, state, expired=expired, claim_gone=claim is None)
    )


def _give_back(
    context: Context, task_id: str, version: int, state: TaskState, *, expired: bool, claim_gone: bool
) -> Procedure[bool]:
    conf = yield from read_conf(context)
    now = yield from server_time(context)
    why = f"its lease ended ({state.consumer})" if expired else f"its consumer died ({state.consumer})"
    final = state.retry(conf.policy).exhausted(state.attempt)
    before = state.with_attempt("rescued", now, why)
    it = Moving(task_id, version, before, claim_gone=claim_gone)
    if final and state.requeue:
        return (yield from again.rerun(context, it)) is not None
    after = moved(context, task_id, before, Event.RESCUE_FINAL if final else Event.RESCUE, now=now)
    outcome, _ = yield from move(context, it, replace(after, error=why))
    return bool(outcome.committed)


# --- leases


def _expire_leases(context: Context) -> Procedure[int]:
    """Rescue the claims whose lease or lock has ended, judged by the server's clock."""
    names: list[str] = []
    for index in ("leases", "locks"):
        path = context.paths.at(index)
        found = yield from listing(context, path, max_age=LEASE_LISTING_SECONDS)
        if not context.cached(path).fresh:
            _wake_in(context, LEASE_LISTING_SECONDS)  # the names are old by as much: look again
        names += [f"{path}/{name}" for name in found or ()]
    if not names:
        context.lease_ends.clear()
        return 0
    now = yield from server_time(context)
    there = set(names)
    context.lease_ends = {path: end for path, end in context.lease_ends.items() if path in there}
    yield from _read_leases(context, [path for path in names if context.lease_ends.get(path, 0) <= now])
    count = 0
    for path in names:
        end = context.lease_ends.get(path)
        if end is not None and end <= now:
            count += yield from _rescue(context, path.rpartition("/")[2].rpartition(SEPARATOR)[0], path)
        elif end is not None:
            _wake_at(context, now, end)
    return count


def _read_leases(context: Context, paths: list[str]) -> Procedure[None]:
    for start in range(0, len(paths), CHUNK):
        chunk = paths[start : start + CHUNK]
        nodes: list[Node | None] = yield GetMany(tuple(chunk))
        for path, node in zip(chunk, nodes, strict=True):
            context.lease_ends.pop(path, None)
            if node is not None:
                _note_lease(context, path, node)


def _note_lease(context: Context, path: str, node: Node) -> None:
    try:
        context.lease_ends[path] = node.stat.mtime + int(float(load(path, node.data)["seconds"]) * 1000)
    except (CorruptRecord, KeyError, TypeError, ValueError) as error:
        if path not in context.quarantine:
            context.quarantine.add(path)
            context.report(path, f"no lease of ours: {error}")


# --- scheduled tasks


def promote_due(context: Context) -> Procedure[int]:
    """Move what has come due into its lane, and insert the runs in escrow whose time has come."""
    count = 0
    for index in ("scheduled", "requeued"):
        count += yield from _promote_index(context, index)
    return count


def _promote_index(context: Context, index: str) -> Procedure[int]:
    buckets = yield from listing(context, context.paths.at(index))
    if not buckets:
        return 0
    now = yield from server_time(context)
    count = 0
    for name in buckets:
        start = bucket_start(name)
        if start is None:
            context.report(context.paths.at(index, name), "no bucket of ours; stepped over")
        elif start > now:
            _wake_at(context, now, start)
            break
        else:
            count += yield from _promote_bucket(context, context.paths.at(index, name), name, now)
    return count


def _promote_bucket(context: Context, path: str, bucket: str, now: int) -> Procedure[int]:
    entries = yield from listing(context, path)
    if not entries:
        if (bucket_start(bucket) or 0) + 2 * BUCKET_MS < now:
            yield Multi((Delete(path),))  # refused if an entry came meanwhile
            context.buckets.discard(path)
        return 0
    due = []
    for name in entries:
        when = entry_time(name)
        if when is None or f"{path}/{name}" in context.quarantine:
            continue
        when += 0 if _my_share(context, name) else GRACE_MS
        if when <= now:
            due.append(name)
        else:
            _wake_at(context, now, when)
            if when > now + GRACE_MS:
                break  # entries sort by time
    return (yield from _promote(context, path, due))


def _my_share(context: Context, name: str) -> bool:
    slots = len(context.live)
    consumer = context.consumer
    if consumer is None or slots < 2 or consumer.id not in context.live:
        return True
    return zlib.crc32(name.encode()) % slots == context.live.index(consumer.id)


def _promote(context: Context, bucket: str, names: list[str]) -> Procedure[int]:
    count = 0
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        paths = tuple(context.paths.task(entry_task(name) or "", "state") for name in chunk)
        nodes: list[Node | None] = yield GetMany(paths)
        for name, path, node in zip(chunk, paths, nodes, strict=True):
            if node is not None:
                count += yield from _promote_one(context, f"{bucket}/{name}", entry_task(name) or "", path, node)
    return count


def _promote_one(context: Context, entry: str, task_id: str, path: str, node: Node) -> Procedure[bool]:
    try:
        state = TaskState.decode(path, node.data)
    except CorruptRecord as error:
        context.quarantine.add(entry)
        context.report(path, str(error))
        return False
    if state.index is None or context.paths.at(state.index) != entry:
        return False
    it = Moving(task_id, node.stat.version, state)
    if state.state is State.FINISHED:  # its dedupe window has ended, and a run is held in escrow
        before = state.with_attempt("finished", state.ended or 0, None)
        return (yield from again.rerun(context, replace(it, before=before))) is not None
    if state.rank is not None:  # in a queue of strict order it comes back where it was
        outcome, _ = yield from move(context, it, moved(context, task_id, state, Event.PROMOTE))
        return bool(outcome.committed)
    lane = Lane(state.priority, dict(state.filters))
    outcome, _ = yield from move_to_lane(
        context,
        it,
        lane,
        state.place.rpartition("/")[2],
        lambda place: replace(moved(context, task_id, state, Event.PROMOTE), place=place),
    )
    return bool(outcome.committed)
