"""Where a task goes in its lane: the newest segment, and what must stand in the same transaction.

In a queue of strict order an entry may only go where no later segment exists: every write into a lane checks the
version of the lane's znode, and who opens the next segment bumps it. So all entries of a segment were committed
before all of the next one, and a released task may still come back to an older one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_zkmq.engine.core.memory.slots import OpenSegment
from airflow_provider_zkmq.engine.core.model.lanes import (
    MAX_LANES,
    SEGMENT_ENTRIES,
    Lane,
    is_lane,
    next_segment,
    segments_of,
)
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Procedure, Stat, Wait
from airflow_provider_zkmq.engine.core.protocol.transact import ensure_bucket, failed_at
from airflow_provider_zkmq.engine.core.protocol.writes import Check, Create, Failure, Multi, Outcome, SetData, WriteOp
from airflow_provider_zkmq.engine.core.reading.skeleton import restored
from airflow_provider_zkmq.engine.errors import QueueNotFound, TransportError, ZkmqError

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.core.memory.context import Context


def open_segment(context: Context, wanted: Lane, *, ordered: bool) -> Procedure[OpenSegment]:
    """Where the next entry of a lane goes; `ordered`: the queue hands out in strict order."""
    name = wanted.name
    while name in context.slots.opening:
        yield Wait(context.slots.opening[name], 0, turn=True)  # another call is looking for it
    memory = context.slots.open.get(name)
    if memory is None or memory.count >= SEGMENT_ENTRIES or memory.ordered != ordered:
        memory = yield from _opened(context, wanted, ordered=ordered)
    memory.count += 1
    context.slots.remember(name, memory)
    return memory


def _opened(context: Context, wanted: Lane, *, ordered: bool) -> Procedure[OpenSegment]:
    """Look for it; other calls of this client that need it wait meanwhile, so that one of them opens a segment."""
    context.slots.opening[wanted.name] = looked = context.run.new_signal()
    try:
        lane = yield from _bounded(context, wanted)
        memory = yield from (_newest_ordered(context, lane) if ordered else _newest(context, lane))
        context.slots.remember(wanted.name, memory)
        return memory
    finally:
        del context.slots.opening[wanted.name]
        looked.fire()


def forget_lanes(context: Context, there: Iterable[str]) -> None:
    """Forget lanes that are not there any more; `there`: a listing of the queue's lanes."""
    names = set(there)
    context.slots.keep_lanes(names)
    context.listings.forget_below(context.paths.at("queue"), names)


def _bounded(context: Context, wanted: Lane) -> Procedure[Lane]:
    """The lane itself while there are few, else its priority's mixed lane."""
    if not wanted.filters:
        return wanted
    names = yield Children(context.paths.at("queue"))
    known = set(names or ())
    if wanted.name in known or sum(map(is_lane, known)) < MAX_LANES:
        return wanted
    return wanted.mixed()


def _newest(context: Context, lane: Lane) -> Procedure[OpenSegment]:
    """The newest segment with room, else a new one."""
    path = context.paths.at("queue", lane.name)
    names: list[str] | None = yield Children(path)
    room = yield from _with_room(path, names)
    if room is not None:
        return OpenSegment(lane, room[0], room[1], [], [], ordered=False)
    segment = next_segment(segments_of(names or ()))
    opening: list[WriteOp] = [] if names is not None else [Create(path, lane.encode())]
    return OpenSegment(lane, segment, 0, [*opening, Create(f"{path}/{segment}")], [], ordered=False)


def _newest_ordered(context: Context, lane: Lane) -> Procedure[OpenSegment]:
    """The newest segment with room, or a new one, under the version of the lane's znode."""
    path = context.paths.at("queue", lane.name)
    stat: Stat | None = yield Exists(path)  # before the listing: a later roll-over is refused
    names: list[str] | None = yield Children(path)
    version = 0 if stat is None else stat.version
    room = yield from _with_room(path, names)
    if room is not None:
        checks: list[WriteOp] = [Check(path, version)]
        return OpenSegment(lane, room[0], room[1], checks, checks, ordered=True)
    segment = next_segment(segments_of(names or ()))
    fresh = names is None
    opening = Create(path, lane.encode()) if fresh else SetData(path, lane.encode(), version)
    after = Check(path, version if fresh else version + 1)
    return OpenSegment(lane, segment, 0, [opening, Create(f"{path}/{segment}")], [after], ordered=True)


def _with_room(lane: str, names: Iterable[str] | None) -> Procedure[tuple[str, int] | None]:
    """The lane's newest segment and how many entries it has, if there is one, and it takes more."""
    newest = max(segments_of(names or ()), default=None)
    stat: Stat | None = None if newest is None else (yield Exists(f"{lane}/{newest}"))
    return (newest, stat.children) if newest and stat is not None and stat.children < SEGMENT_ENTRIES else None


def slot_ops(context: Context, slot: OpenSegment, opened: set[str]) -> list[WriteOp]:
    """What goes before an entry; `opened`: segments that an earlier transaction in flight opens, or this one."""
    path = context.paths.at("queue", slot.lane.name, slot.segment)
    if path in opened:
        return slot.then
    if slot.opens:
        opened.add(path)
    return slot.ops


def remember_opened(context: Context, multi: Multi, outcome: Outcome) -> None:
    """Segments that now exist need no create; those of a refused transaction are looked up again."""
    touched = {op.path for op in multi.ops}
    for name, memory in list(context.slots.open.items()):
        if not any(op.path in touched for op in memory.ops):
            continue
        if outcome.committed:
            memory.ops = memory.then
        else:
            context.slots.open.pop(name, None)


def reopens(context: Context, slot: OpenSegment, multi: Multi, outcome: Outcome) -> bool:
    """Whether a refusal is a segment that came or went meanwhile, so that another try makes sense.

    A lane that cannot be created has nothing to stand under: the queue was deleted.
    """
    path, failure = failed_at(outcome, multi), outcome.failure
    lane = context.paths.at("queue", slot.lane.name)
    if path == lane and failure is Failure.NO_NODE and _creates(multi, outcome):
        return False
    if path.startswith(f"{lane}/{slot.segment}/"):
        return failure is Failure.NO_NODE
    at_slot = path in {lane, f"{lane}/{slot.segment}"}
    return at_slot and failure in {Failure.NO_NODE, Failure.NODE_EXISTS, Failure.BAD_VERSION}


def _creates(multi: Multi, outcome: Outcome) -> bool:
    return outcome.failed is not None and isinstance(multi.ops[outcome.failed], Create)


def known_bucket(context: Context, index: str) -> Procedure[None]:
    """Have the bucket of an index entry there; one that this client used before is taken to be."""
    bucket = context.paths.at(index).rpartition("/")[0]
    if bucket in context.slots.buckets:
        return
    yield from make_bucket(context, bucket)
    context.slots.add_bucket(bucket)


def make_bucket(context: Context, bucket: str) -> Procedure[None]:
    """Create a bucket unless it exists, and the index in which it stands if that is missing."""
    try:
        yield from ensure_bucket(bucket)
    except TransportError:
        raise
    except ZkmqError:
        if not (yield from restored(context, bucket)):
            raise
        yield from ensure_bucket(bucket)


def home_of(context: Context, after: TaskState) -> tuple[Create, ...]:
    """What creates the lane and the segment of a task that goes back to its place, where they were deleted meanwhile.

    They belong into the transaction that creates its entry: whoever meets an empty segment deletes it.
    """
    lane, segment, _ = after.place.split("/")
    own = Lane(after.priority, dict(after.filters))
    path, data = context.paths.at("queue", lane), (own if own.name == lane else own.mixed()).encode()
    return Create(path, data), Create(f"{path}/{segment}")


def queue_deleted(context: Context) -> QueueNotFound:
    """The error for a queue that was deleted under its users; what was known of it is forgotten."""
    context.forget_queue()
    return QueueNotFound(f"queue {context.queue!r} was deleted under {context.root!r}; configure() creates it anew")
