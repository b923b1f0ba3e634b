"""A task that is about to be written: its record, its znodes, its entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Final

from msgspec import Meta, Struct

from ...errors import ConfigError, TaskTooLarge
from ..client_state import Context
from ..model.filters import parse_filters
from ..model.new_message import NO_METADATA, Message, check_on_conflict, encode_data, encode_metadata
from ..model.records import TaskState
from ..model.settings import Conf, RetryPolicy, checked_policy
from ..model.states import State
from ..model.values import LATEST, Part, Priority, Span, corrupt_unless_read, dump, load, lock_seconds
from ..model.znode_names import Lane, check_name, check_priority, entry_name, index_path
from ..read.configuration import known_conf
from ..read.server_clock import ordering_time, server_time
from ..zk_operations import MAX_REQUEST, Check, Create, Delete, Procedure, SetData, WriteOp, request_size
from .commit import Change, known_bucket, make_bucket, open_segment

# --- A message, validated and ready to be written as the tree of a task.

#: Stands among the open members of a batch while they are being written; no task can have this name.
WRITING: Final = "~writing"
#: Left for the paths of the record, the entry and the segment, and for the record's fields of bounded length.
RECORD_ROOM: Final = 2_000


@dataclass(slots=True)
class NewTask:
    """A validated message, ready to be written."""

    task_id: str
    data: bytes
    metadata: bytes
    filters: dict[str, str]
    lane: Lane
    delay: float | None
    """None: not given, which leaves an update's time as it is."""
    policy: RetryPolicy | None
    lock: float | None
    nonce: str
    generated: bool = False
    update: bool = False
    requeue: bool = False
    stamp: str = ""
    """Its place in the default order, given when it is about to be written, and kept by each later try."""
    batch: str | None = None
    not_before: int | None = None
    """The moment before which it is not to be handled, in milliseconds since 1970."""
    only_new: bool = False
    """Whether it is written only where no task has its id."""
    uncertain: bool = False
    """An earlier call may have written it, see `core.tasks.enqueue`."""
    drops: int = 0
    """Of a member of a batch, see `adding_members`."""
    _fixed: tuple[list[WriteOp], int] | None = None
    """What does not depend on the task's place, and its size: made once."""

    @property
    def timed(self) -> bool:
        """Whether its caller said when it may be handled: a delay of 0 says at once."""
        return self.delay is not None or self.not_before is not None

    @property
    def has_metadata(self) -> bool:
        """Whether there is anything to be written about it: of a new task what is empty is not."""
        return self.metadata != NO_METADATA

    @property
    def entry(self) -> str:
        """The name of its entry, wherever among the pending it stands."""
        return entry_name(self.stamp, self.task_id)

    @property
    def has_own_id(self) -> bool:
        """Whether its id was made for it, so that whatever has it is this task. Others may write a batch's member."""
        return self.generated and self.batch is None

    def has_written(self, state: TaskState) -> bool:
        """Whether a record is this tree's doing: its entry has our stamp, whatever was changed since, or our nonce."""
        return (self.stamp != "" and state.entry.startswith(self.stamp)) or self.nonce in state.settled

    def record(self, place: str, index: str | None = None, due: int | None = None) -> TaskState:
        """The record of a new task."""
        return TaskState(
            State.INSERTED,
            place,
            self.nonce,
            priority=self.lane.priority,
            filters=self.filters,
            due=due,
            index=index,
            policy=self.policy,
            lock=self.lock,
            batch=self.batch,
            metadata=self.has_metadata,
        )

    def ops(self, context: Context, place: str, index: str | None, due: int | None) -> list[WriteOp]:
        """The transaction that writes the tree and its entry."""
        at, paths = self.task_id, context.paths
        return [
            *self._parts(context)[0],
            Create(paths.task(at, "state"), self.record(place, index, due).encode()),
            Create(paths.at(index) if index else paths.entry(place)),
            *([Create(paths.batch(self.batch, "open", at))] if self.batch else []),
        ]

    def size(self, context: Context) -> int:
        """An upper estimate of the bytes that its transaction takes."""
        return self._parts(context)[1]

    def _parts(self, context: Context) -> tuple[list[WriteOp], int]:
        if self._fixed is None:
            at, task = self.task_id, context.paths.task
            parts: list[WriteOp] = [Create(task(at)), Create(task(at, "data"), self.data)]
            if self.has_metadata:
                parts.append(Create(task(at, "metadata"), self.metadata))
            if self.filters:
                parts.append(Create(task(at, "filters")))
            for name, value in self.filters.items():
                parts.append(Create(task(at, "filters", name), value.encode()))
            named = len(self.task_id) + len(self.lane.name) + len(self.batch or "")
            if self.filters or self.policy:
                named += len(dump([self.filters, self.policy]))
            self._fixed = parts, request_size(parts) + 3 * named + RECORD_ROOM
        return self._fixed


def prepare(context: Context, conf: Conf, message: Message, batch: str | None = None) -> NewTask:
    """Validate a message against the queue. Raises `ConfigError` or `TaskTooLarge`; nothing is written."""
    if not isinstance(message, Message):
        raise ConfigError(f"enqueue_many takes Message objects, not {type(message).__name__}")
    on_conflict = check_on_conflict(message.on_conflict)
    filters = parse_filters(conf.types, message.filters) if message.filters else {}
    timed = message.delay is not None or message.not_before is not None
    delay, not_before = message.times() if timed else (None, None)
    generated = message.task_id is None
    new = NewTask(
        task_id=context.marks.task_id() if generated else check_name("task id", message.task_id),
        generated=generated,
        data=encode_data("data", message.data),
        metadata=NO_METADATA if message.metadata is None else encode_metadata(message.metadata),
        filters=filters,
        lane=Lane(check_priority(message.priority), filters),
        delay=delay,
        policy=None if message.policy is None else checked_policy(message.policy),
        lock=None if message.lock is None else lock_seconds(message.lock),
        update=message.replaces,
        requeue=message.requeues,
        nonce=context.marks.nonce(),
        batch=batch,
        not_before=not_before,
        only_new=on_conflict == "skip",
    )
    return _fitting(context, new)


def with_filters(context: Context, conf: Conf, new: NewTask, filters: Mapping[str, object]) -> NewTask:
    """A tree that was prepared without filters, with these. Raises `ConfigError` or `TaskTooLarge`."""
    parsed = parse_filters(conf.types, filters)
    return _fitting(context, replace(new, filters=parsed, lane=Lane(new.lane.priority, parsed), _fixed=None))


def _fitting(context: Context, new: NewTask) -> NewTask:
    """Refuse what ZooKeeper would answer by dropping the connection."""
    size = new.size(context)
    if size > MAX_REQUEST:
        raise TaskTooLarge(
            f"task {new.task_id!r} needs {size:,} bytes, ZooKeeper takes {MAX_REQUEST:,} in one request "
            f"(data: {len(new.data):,} bytes); store large data elsewhere and enqueue its address"
        )
    return new


def stamped(context: Context, new: NewTask) -> Procedure[None]:
    """Give it its place in the default order, by the server's clock, unless an earlier try has done so."""
    if not new.stamp:
        new.stamp = context.marks.stamp((yield from ordering_time(context)))


def adding_members(context: Context, batch: str, drops: int) -> list[WriteOp]:
    """What stands in each transaction that adds members to a batch: refused once the batch is sealed.

    Until then clean-up keeps all members; and it knows when one was added last (`core.maintenance.collect`). Refused,
    too, where a member was dropped since `drops` was read: it is not to be written again.
    """
    marker, failed = context.paths.batch(batch, "open", WRITING), context.paths.batch(batch, "failed")
    return [Check(failed, drops), SetData(marker, b"", -1)]


def due_of(context: Context, new: NewTask) -> Procedure[int | None]:
    """When it may be handled first, by the server's clock in milliseconds; None: at once.

    A moment is compared with the server's clock only, whatever the caller's says.
    """
    if new.not_before is None and not new.delay:
        return None
    now = yield from server_time(context)
    if new.not_before is None:
        return now + int((new.delay or 0.0) * 1000)
    return new.not_before if new.not_before > context.clock.certainly_past(now) else None


def pack(new: NewTask) -> bytes:
    """A message that waits to be written, and is `stamped`: a line of JSON, then the data as they are."""
    head = _Head(
        new.task_id, new.stamp, new.metadata.decode(), new.filters, new.lane.priority, new.delay, new.policy, new.lock,
        new.not_before,
    )  # fmt: skip
    return dump(head) + b"\n" + new.data


class _Head(Struct, frozen=True, omit_defaults=True):
    """The first line of a message that waits to be written."""

    task_id: str
    stamp: str
    metadata: str
    filters: dict[Part, str] = {}
    priority: Priority = 0
    delay: Span | None = None
    policy: RetryPolicy | None = None
    lock: Span | None = None
    not_before: Annotated[int, Meta(le=LATEST)] | None = None


def unpack(context: Context, path: str, raw: bytes) -> NewTask:
    """Read what `pack` wrote. Raises `CorruptRecord`."""
    line, _, data = raw.partition(b"\n")
    head = load(path, line, _Head, "a message of ours")
    load(path, head.metadata.encode())
    with corrupt_unless_read(path, "a message of ours"):
        return NewTask(
            task_id=check_name("task id", head.task_id),
            data=data,
            metadata=head.metadata.encode(),
            filters=head.filters,
            lane=Lane(head.priority, head.filters),
            delay=head.delay,
            policy=head.policy,
            lock=lock_seconds(head.lock),
            nonce=context.marks.nonce(),
            stamp=check_name("stamp", head.stamp),
            not_before=head.not_before,
        )


# --- The content of a message put into a task that is there; its record tells what stands there.


def content_ops(context: Context, new: NewTask, before: TaskState, *, fresh: bool = True) -> list[WriteOp]:
    """Put what a message holds into a task's tree; `fresh`: the data's znode is made anew: it tells when it came."""
    paths, at = context.paths, new.task_id
    data, filters = paths.task(at, "data"), paths.task(at, "filters")
    ops: list[WriteOp] = [Delete(data), Create(data, new.data)] if fresh else [SetData(data, new.data)]
    # Metadata that were written once came with the data, as scans take it to be; without any, the data came with the
    # record. So they are written with data that are made anew, even where there are none, and twice where they come to
    # older data: nobody is to take them to have come together.
    metadata = paths.task(at, "metadata")
    if before.metadata:
        ops.append(SetData(metadata, new.metadata))
    elif fresh:
        ops.append(Create(metadata, new.metadata))
    elif new.has_metadata:
        ops += [Create(metadata), SetData(metadata, new.metadata)]
    if new.filters and not before.filters:
        ops.append(Create(filters))
    for name in sorted({*before.filters, *new.filters}):
        path, value = f"{filters}/{name}", new.filters.get(name)
        if value is None:
            ops.append(Delete(path))
        elif name not in before.filters:
            ops.append(Create(path, value.encode()))
        elif before.filters[name] != value:
            ops.append(SetData(path, value.encode()))
    if before.filters and not new.filters:
        ops.append(Delete(filters))
    return ops


# --- New tasks: the constructor of inserts, and what lists something in an index.


def insert(context: Context, new: NewTask) -> Procedure[Change]:
    """Write a new task: its tree, and its entry in its lane, or among the scheduled."""
    yield from stamped(context, new)
    due = (yield from due_of(context, new)) if new.delay or new.not_before is not None else None
    if due is not None:
        index = index_path("scheduled", due, new.task_id)
        yield from known_bucket(context, index)
        change = listed_at(context, new.task_id, index)
        change.listing = new.ops(context, f"{new.lane.name}//{new.entry}", index, due)
        return change
    conf = context.configuration.conf or (yield from known_conf(context))
    wanted = yield from open_segment(context, new.lane, ordered=conf.order == "fifo")
    place = f"{wanted.lane.name}/{wanted.segment}/{new.entry}"
    return Change(context, new.task_id, segment=wanted, listing=new.ops(context, place, None, None))


def listed_at(context: Context, name: str, index: str) -> Change:
    """List something in an index whose bucket may have been cleared away meanwhile."""
    path = context.paths.at(index)
    bucket = partial(make_bucket, context, path.rpartition("/")[0])
    return Change(context, name, listing=[Create(path)], make_parent={path: bucket})
