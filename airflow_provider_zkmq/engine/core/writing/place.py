"""Where a task goes in its lane: the newest segment, and what must stand in the same transaction.

In a queue of strict order an entry may only go where no later segment exists: every write into a lane checks the
version of the lane's znode, and who opens the next segment bumps it. So all entries of a segment were committed
before all of the next one, and a released task may still come back to an older one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_zkmq.engine.core.memory.slots import OpenSegment
from airflow_provider_zkmq.engine.core.model.lanes import (
    MAX_LANES,
    SEGMENT_ENTRIES,
    Lane,
    is_lane,
    next_segment,
    segments_of,
)
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
    from airflow_provider_zkmq.engine.core.memory.context import Context

T = TypeVar("T")


def open_segment(context: Context, wanted: Lane) -> Procedure[OpenSegment]:
    """Where the next entry of a lane goes; the caller has read the queue's configuration."""
    memory = context.slots.open.get(wanted.name)
    if memory is None or memory.count >= SEGMENT_ENTRIES or memory.ordered != ordered(context):
        lane = yield from _bounded(context, wanted)
        memory = yield from _newest(context, lane)
    memory.count += 1
    context.slots.remember(wanted.name, memory)
    return memory


def forget_lanes(context: Context, there: Iterable[str]) -> None:
    """Forget lanes that are not there any more; `there`: a listing of the queue's lanes."""
    names = set(there)
    context.slots.keep_lanes(names)
    context.listings.forget_below(context.paths.at("queue"), names)


def ordered(context: Context) -> bool:
    """Whether the queue, as its configuration was last read, hands out in strict order."""
    return context.configuration.conf is not None and context.configuration.conf.ordered


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
            context.slots.open.clear()
            return True
    return False


def known_bucket(context: Context, index: str) -> Procedure[None]:
    """Have the bucket of an index entry there; one that this client used before is taken to be."""
    bucket = context.paths.at(index).rpartition("/")[0]
    if bucket in context.slots.buckets:
        return
    yield from ensure_bucket(bucket)
    context.slots.add_bucket(bucket)


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
    context.configuration.watch = None
    context.slots.open.clear()
    context.slots.buckets.clear()
    context.unresolved.calls.clear()
    msg = f"queue {context.queue!r} was deleted under {context.root!r}; configure() creates it anew"
    return ConfigError(msg)
