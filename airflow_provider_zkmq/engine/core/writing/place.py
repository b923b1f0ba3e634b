"""Where a task goes in its lane: the newest segment, and what must stand in the same transaction.

In a queue of strict order an entry may only go where no later segment exists: every write into a lane checks the
version of the lane's znode, and who opens the next segment bumps it. So all entries of a segment were committed
before all of the next one, and a released task may still come back to an older one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_provider_zkmq.engine.core.model.lanes import (
    MAX_LANES,
    SEGMENT_ENTRIES,
    Lane,
    is_lane,
    next_segment,
    segments_of,
)
from airflow_provider_zkmq.engine.core.protocol.memory import OpenSegment
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Check,
    Children,
    Create,
    Exists,
    Failure,
    Multi,
    Outcome,
    Procedure,
    SetData,
    Stat,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.protocol.transact import ensure_bucket, failed_at
from airflow_provider_zkmq.engine.errors import ConfigError, ZkmqError

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.core.protocol.memory import Context

T = TypeVar("T")

#: Lanes whose newest segment a client remembers.
MAX_OPEN_SEGMENTS: Final = 256
MAX_BUCKETS: Final = 64


def open_segment(context: Context, wanted: Lane) -> Procedure[OpenSegment]:
    """Where the next entry of a lane goes; the caller has read the queue's configuration."""
    memory = context.open_segments.get(wanted.name)
    if memory is None or memory.count >= SEGMENT_ENTRIES or memory.ordered != ordered(context):
        lane = yield from _bounded(context, wanted)
        memory = yield from _newest(context, lane)
    memory.count += 1
    _remember(context, wanted.name, memory)
    return memory


def _remember(context: Context, name: str, memory: OpenSegment) -> None:
    """Keep what was used last; a producer of ever new filters does not grow."""
    context.open_segments.pop(name, None)
    while len(context.open_segments) >= MAX_OPEN_SEGMENTS:
        del context.open_segments[next(iter(context.open_segments))]
    context.open_segments[name] = memory


def forget_lanes(context: Context, there: Iterable[str]) -> None:
    """Forget lanes that are not there any more; `there`: a listing of the queue's lanes."""
    names = set(there)
    for name, memory in list(context.open_segments.items()):
        if memory.lane.name not in names and not any(isinstance(op, Create) for op in memory.ops):
            context.open_segments.pop(name, None)
    known = context.paths.at("queue") + "/"
    for path in [
        path
        for path in (*context.cache, *context.stock, *context.verdicts, *context.lane_filters)
        if path.startswith(known)
    ]:
        if path[len(known) :].partition("/")[0] not in names:
            context.forget(path)
            context.verdicts.pop(path, None)
            context.lane_filters.pop(path, None)


def ordered(context: Context) -> bool:
    """Whether the queue, as its configuration was last read, hands out in strict order."""
    return context.conf is not None and context.conf.order == "fifo"


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
    path, strict = context.paths.at("queue", lane.name), ordered(context)
    stat: Stat | None = (yield Exists(path)) if strict else None  # before the listing: a later roll-over is refused
    names: list[str] | None = yield Children(path)
    segments = segments_of(names or ())
    version = 0 if stat is None else stat.version
    checks: list[WriteOp] = [Check(path, version)] if strict else []
    if segments:
        newest = max(segments)
        found: Stat | None = yield Exists(f"{path}/{newest}")
        if found is not None and found.children < SEGMENT_ENTRIES:
            return OpenSegment(lane, newest, found.children, checks, checks, strict)
    segment = next_segment(segments)
    create = Create(f"{path}/{segment}")
    if names is None:
        return OpenSegment(lane, segment, 0, [Create(path, lane.encode()), create], checks, strict)
    if not strict:
        return OpenSegment(lane, segment, 0, [create], [], strict)
    return OpenSegment(
        lane, segment, 0, [SetData(path, lane.encode(), version), create], [Check(path, version + 1)], strict
    )


def slot_ops(slot: OpenSegment, opened: set[str]) -> list[WriteOp]:
    """What goes before an entry; `opened`: segments that an earlier transaction in flight opens, or this one."""
    path = f"{slot.lane.name}/{slot.segment}"
    if path in opened:
        return slot.then
    if any(isinstance(op, Create) for op in slot.ops):
        opened.add(path)
    return slot.ops


def remember_opened(context: Context, multi: Multi, outcome: Outcome) -> None:
    """Segments that now exist need no create; those of a refused transaction are looked up again."""
    touched = {op.path for op in multi.ops}
    for name, memory in list(context.open_segments.items()):
        if not any(op.path in touched for op in memory.ops):
            continue
        if outcome.committed:
            memory.ops = memory.then
        else:
            context.open_segments.pop(name, None)


def may_reopen(context: Context, slots: Iterable[OpenSegment], multi: Multi, outcome: Outcome) -> bool:
    """Whether the refusal is a segment that came or went meanwhile, so that another try makes sense.

    A lane that cannot be created has nothing to stand under: the queue was deleted.
    """
    path = failed_at(outcome, multi)
    creating = outcome.failed is not None and isinstance(multi.ops[outcome.failed], Create)
    if path.count("/") == context.paths.base.count("/") + 2 and creating and outcome.failure is Failure.NO_NODE:
        return False
    for slot in slots:
        lane = context.paths.at("queue", slot.lane.name)
        at_slot = path in {lane, f"{lane}/{slot.segment}"}
        gone = path.startswith(f"{lane}/{slot.segment}/") and outcome.failure is Failure.NO_NODE
        if gone or (at_slot and outcome.failure in {Failure.NO_NODE, Failure.NODE_EXISTS, Failure.BAD_VERSION}):
            context.open_segments.clear()
            return True
    return False


def known_bucket(context: Context, index: str) -> Procedure[None]:
    """Have the bucket of an index entry there; one that this client used before is taken to be."""
    bucket = context.paths.at(index).rpartition("/")[0]
    if bucket in context.buckets:
        return
    yield from ensure_bucket(bucket)
    if len(context.buckets) >= MAX_BUCKETS:
        context.buckets.clear()
    context.buckets.add(bucket)


def unless_deleted(context: Context, procedure: Procedure[T]) -> Procedure[T]:
    """Carry out a procedure that writes; what is refused since the queue was deleted meanwhile is a `ConfigError`."""
    try:
        return (yield from procedure)
    except ZkmqError as error:
        if type(error) is not ZkmqError or (yield Exists(context.paths.at("tasks"))) is not None:
            raise
        raise queue_deleted(context) from error


def queue_deleted(context: Context) -> ConfigError:
    """The error for a queue that was deleted under its users; what was known of it is forgotten."""
    context.conf_watch = None
    context.open_segments.clear()
    context.buckets.clear()
    context.unresolved.clear()
    msg = f"queue {context.queue!r} was deleted under {context.root!r}; configure() creates it anew"
    return ConfigError(msg)
