"""Where a task goes in its lane: the newest segment, and what must stand in the same transaction.

In a queue of strict order an entry may only go where no later segment exists: every write into a lane checks the
version of the lane's znode, and who opens the next segment bumps it. So all entries of a segment were committed
before all of the next one, and a released task may still come back to an older one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_zkmq.engine.core.context import OpenSegment
from airflow_provider_zkmq.engine.core.lanes import MAX_LANES, SEGMENT_ENTRIES, Lane, next_segment, parse_lane
from airflow_provider_zkmq.engine.core.ops import (
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
from airflow_provider_zkmq.engine.core.transact import failed_at

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.core.context import Context


def open_segment(context: Context, wanted: Lane) -> Procedure[OpenSegment]:
    """Where the next entry of a lane goes; the caller has read the queue's configuration."""
    memory = context.open_segments.get(wanted.name)
    if memory is not None and memory.count < SEGMENT_ENTRIES and memory.ordered == _ordered(context):
        memory.count += 1
        return memory
    lane = yield from _bounded(context, wanted)
    memory = yield from _newest(context, lane)
    memory.count += 1
    context.open_segments[wanted.name] = memory
    return memory


def _ordered(context: Context) -> bool:
    return context.conf is not None and context.conf.order == "fifo"


def _bounded(context: Context, wanted: Lane) -> Procedure[Lane]:
    """The lane itself while there are few, else its priority's mixed lane."""
    if not wanted.filters:
        return wanted
    names = yield Children(context.paths.at("queue"))
    known = set(names or ())
    if wanted.name in known or sum(parse_lane(name) is not None for name in known) < MAX_LANES:
        return wanted
    return wanted.mixed()


def _newest(context: Context, lane: Lane) -> Procedure[OpenSegment]:
    """The newest segment with room, else a new one."""
    path, ordered = context.paths.at("queue", lane.name), _ordered(context)
    stat: Stat | None = (yield Exists(path)) if ordered else None  # before the listing: a later roll-over is refused
    names = yield Children(path)
    version = 0 if stat is None else stat.version
    checks: list[WriteOp] = [Check(path, version)] if ordered else []
    if names:
        newest = max(names)
        found: Stat | None = yield Exists(f"{path}/{newest}")
        if found is not None and found.children < SEGMENT_ENTRIES:
            return OpenSegment(lane, newest, found.children, checks, checks, ordered)
    segment = next_segment(names or [])
    create = Create(f"{path}/{segment}")
    if names is None:
        return OpenSegment(lane, segment, 0, [Create(path, lane.encode()), create], checks, ordered)
    if not ordered:
        return OpenSegment(lane, segment, 0, [create], [], ordered)
    return OpenSegment(
        lane, segment, 0, [SetData(path, lane.encode(), version), create], [Check(path, version + 1)], ordered
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
    """Whether the refusal is a segment that came or went meanwhile, so that another try makes sense."""
    path = failed_at(outcome, multi)
    for slot in slots:
        lane = context.paths.at("queue", slot.lane.name)
        at_slot = path in {lane, f"{lane}/{slot.segment}"}
        gone = path.startswith(f"{lane}/{slot.segment}/") and outcome.failure is Failure.NO_NODE
        if gone or (at_slot and outcome.failure in {Failure.NO_NODE, Failure.NODE_EXISTS, Failure.BAD_VERSION}):
            context.open_segments.clear()
            return True
    return False
