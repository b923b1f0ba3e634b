"""Plans and their commit, several transactions of one client in one; and what is done when one is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any, Final, TypeAlias, TypeGuard

from msgspec import structs

from ...errors import QueueNotFound, TransportError, Unavailable, ZkmqError
from ..context import Context, GroupMember, GroupQueue, OpenSegment
from ..model.names import MAX_LANES, SEGMENT_ENTRIES, Lane, is_lane, next_segment, segments_of
from ..model.records import TaskState
from ..protocol import (
    MAX_REQUEST,
    Check,
    Children,
    Create,
    Delete,
    Exists,
    Failure,
    Get,
    Multi,
    Node,
    Op,
    Outcome,
    Pipeline,
    Procedure,
    Reconnect,
    SetData,
    Stat,
    Tries,
    Wait,
    WriteOp,
    described,
    ensure_bucket,
    failed_at,
    never,
    request_size,
    resolved,
)
from ..read.nodes import restored

# --- Which transactions can be sent as one: no two may change what another one touches, or one would refuse the other.

#: What is worth putting together, in bytes: a larger request keeps everybody's from being carried out meanwhile.
MOST_BYTES: Final = 256_000


class Group:
    """Transactions that go together, as they are added; the first ones are in it whatever they are."""

    def __init__(self, first: Sequence[Multi]) -> None:
        self._changed: set[str] = set()
        self._checked: set[str] = set()
        self._room = MOST_BYTES
        self._empty = True
        for multi in first:
            self._add(multi, request_size(multi.ops), *_paths(multi))

    @property
    def full(self) -> bool:
        """Whether there is room for nothing more."""
        return self._room <= 0

    def takes(self, multi: Multi) -> bool:
        """Whether it can go with the others: then it does. The first one can, however large it is."""
        size, (changed, checked) = request_size(multi.ops), _paths(multi)
        if not self._empty and size > self._room:
            return False
        if changed & (self._changed | self._checked) or checked & self._changed:
            return False
        self._add(multi, size, changed, checked)
        return True

    def _add(self, multi: Multi, size: int, changed: set[str], checked: set[str]) -> None:
        self._empty = self._empty and not multi.ops
        self._room -= size
        self._changed |= changed
        self._checked |= checked


def joined(multis: Sequence[Multi]) -> Multi:
    """Several transactions as one."""
    return multis[0] if len(multis) == 1 else Multi(tuple(op for multi in multis for op in multi.ops))


def _paths(multi: Multi) -> tuple[set[str], set[str]]:
    """What a transaction changes, and what it only checks."""
    changed = {op.path for op in multi.ops if not isinstance(op, Check)}
    return changed, {op.path for op in multi.ops if isinstance(op, Check)}


# --- Transactions of several calls of one client, sent as one: those that come while another is on its way go together.
#
# A lone call sends its own at once. Others stand in line meanwhile; the first of them then sends what has gathered,
# as one transaction of the server, and tells each what became of its part. One that is refused falls back to its
# parts, each a transaction of its own. Who is told nothing, since the call that sent its part was cut off, has a
# write of unknown outcome, like one whose reply was lost: its own transaction, sent once more, tells what happened,
# as the two exclude each other.

#: So many transactions go together at the most.
MOST: Final = 32
#: So many requests are on their way together before others stand in line.
ON_THEIR_WAY: Final = 1


def send(context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
    """Send a transaction, alone or together with those of other calls; how it ended, as if it had been sent alone.

    `make` is called when it is sent. Raises `Unavailable` where it was not sent.
    """
    line = context.group
    if line.on_their_way < ON_THEIR_WAY and not line.waiting:  # nobody to wait for, and nobody to take along
        line.on_their_way += 1
        try:
            multi = make()
            outcome = yield multi
        finally:
            line.on_their_way -= 1
            if line.waiting:
                _call_next(line)
        return multi, outcome
    while True:
        member = GroupMember(make, context.run.new_signal())
        try:
            outcome = yield from _sent(context, line, member)
        finally:
            if member.is_leader:  # given up by statements: an interrupt that met a call would leave all others in line
                member.is_leader = False
                line.on_their_way -= 1
                _call_next(line)
        if outcome is not None:
            return member.multi, outcome


def _call_next(line: GroupQueue) -> None:
    """A request is not on its way any more: the first in line sends the next one."""
    if line.waiting and line.on_their_way < ON_THEIR_WAY:
        first = line.waiting.popleft()
        line.on_their_way += 1
        first.is_leader = True
        first.signal.fire()


def _sent(context: Context, line: GroupQueue, member: GroupMember) -> Procedure[Outcome | None]:
    """Send it, or wait until another call has; None: another call was to send it, and could not.

    Who waits although nobody is on the way was forgotten by a call that was interrupted: the next call takes it along.
    """
    if line.on_their_way < ON_THEIR_WAY:
        line.on_their_way += 1
        member.is_leader = True
        return (yield from _lead(context, line, member))
    line.waiting.append(member)
    try:
        while not (member.is_leader or member.over):
            yield Wait(member.signal, member.signal.count, turn=True)
    except BaseException as error:
        if member in line.waiting:
            line.waiting.remove(member)
        if isinstance(error, Unavailable) and member.sent is not None:
            return member.outcome or _unknown(member)
        raise
    return (yield from _lead(context, line, member)) if member.is_leader else member.outcome


def _unknown(member: GroupMember) -> Outcome:
    return Outcome(committed=False, unknown=True, sent=member.sent)


def _lead(context: Context, line: GroupQueue, mine: GroupMember) -> Procedure[Outcome]:
    """Send what stands in line together with `mine`. Nothing is taken out of the line before it can be sent."""
    parts = [mine]
    try:
        if line.waiting:
            yield Reconnect()  # who waits for a connection is told that nothing was sent
        mine.multi = mine.make()
        _join(line, parts)
        for member in parts:
            member.sent = context.run.monotonic()
        outcomes = yield from _carried_out(parts)
        for member, each in zip(parts, outcomes, strict=True):
            member.outcome = each
        return outcomes[0]
    except Unavailable:
        for member in parts:
            member.sent = None
        raise
    finally:
        line.carried -= len(parts) - 1
        for member in parts[1:]:
            _notify(member)


def _carried_out(parts: Sequence[GroupMember]) -> Procedure[list[Outcome]]:
    """How each ended. An error that stands for all, access denied say, is of one: each finds out by its own."""
    try:
        outcome: Outcome = yield _together(parts)
        if len(parts) > 1 and outcome.failed is not None:
            outcomes: list[Outcome] = yield Pipeline(tuple(member.multi for member in parts))
            return outcomes
    except TransportError:
        raise
    except ZkmqError:
        if len(parts) == 1:
            raise
        return [_unknown(member) for member in parts]
    return [outcome] * len(parts)


def _notify(member: GroupMember) -> None:
    """Let the call go on whose part it was; cut off, what was sent is of unknown outcome."""
    if member.outcome is None and member.sent is not None:
        member.outcome = _unknown(member)
    member.over = True
    member.signal.fire()


def _together(parts: Sequence[GroupMember]) -> Multi:
    return joined([member.multi for member in parts])


def _join(line: GroupQueue, parts: list[GroupMember]) -> None:
    """Add what goes with the first; what does not waits for a later one."""
    if not line.waiting:
        return
    together = Group([parts[0].multi])
    for member in list(line.waiting):
        if len(parts) >= MOST or together.full:
            break
        member.multi = member.make()
        if together.takes(member.multi):
            line.waiting.remove(member)
            parts.append(member)
            line.carried += 1


# --- Settlements that go together, and with the claim that follows them, in one transaction.
#
# Several procedures are carried out side by side, each as if it was alone: each has its own transaction, resolves
# its own lost reply and explains its own refusal. Only what is sent first is one request for all of them. A refusal
# is that of one part, at which the server stopped: that part hears of it, nothing else was carried out, and what is
# left is sent again together. Where the reply is lost, the transaction of a part, sent once more, tells what
# happened to it, as the merged one and its parts exclude each other. So does it where an error stands for all,
# access denied say, and is of one.

UNKNOWN: Final = Outcome(committed=False, unknown=True)


@dataclass(slots=True, eq=False)
class Settling:
    """A settlement that is due: it goes with the first transaction that is sent for it, or with those beside it.

    ``record``: the znode that tells its transaction from what else it may have to write before.
    """

    procedure: Procedure[Any]
    record: str
    held: Multi | None = None
    """Its transaction, which is to be sent next."""
    over: bool = False
    value: Any = None
    """What it returned."""
    error: Exception | None = None
    """Why it was not carried out, or that it is not known."""

    def hold(self) -> Procedure[None]:
        """Carry it on to where its transaction is to be sent."""
        if not (self.over or self.held):
            yield from self._go_on(lambda: next(self.procedure), hold=True)

    def answered(self, outcome: Outcome) -> Procedure[None]:
        """Its transaction was sent. One that was refused may have another one to be sent, again beside the others'."""
        refused = not (outcome.committed or outcome.unknown)
        self.held = None
        yield from self._go_on(partial(self.procedure.send, outcome), hold=refused)

    def failed(self, error: Exception) -> Procedure[None]:
        """Its transaction could not be sent, or what became of it cannot be told."""
        self.held = None
        yield from self._go_on(partial(self.procedure.throw, error))

    def _go_on(self, advance: Callable[[], Op], *, hold: bool = False) -> Procedure[None]:
        """Carry it on, to its end, or `hold` its transaction back."""
        try:
            while True:
                op = advance()
                if hold and isinstance(op, Multi) and any(each.path == self.record for each in op.ops):
                    self.held = op
                    return
                advance = yield from self._result_of(op)
        except StopIteration as stop:
            self.over, self.value = True, stop.value
        except Exception as error:  # noqa: BLE001  whose settlement it is hears of it, once all of them are over
            self.over, self.error = True, error

    def _result_of(self, op: Op) -> Procedure[Callable[[], Op]]:
        try:
            return partial(self.procedure.send, (yield op))
        except Exception as error:  # noqa: BLE001  every failure belongs to the procedure that asked
            return partial(self.procedure.throw, error)


@dataclass(slots=True, eq=False)
class Chain:
    """Settlements that are due; a claim may go with them (`send`), or they go by themselves (`finish`)."""

    settlings: Sequence[Settling]

    def finish(self, context: Context) -> Procedure[None]:
        """Carry out by themselves what has not been carried out yet. Raises nothing: see ``Settling.error``."""
        while not all(each.over for each in self.settlings):
            parts = yield from self._next(None)
            if parts:
                try:
                    yield from self._exchange(context, parts, None)
                except Exception:  # noqa: BLE001, S112  each of them has heard of it
                    continue

    def send(self, context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
        """Send a transaction, with what is due still; how it ended, as if it had been sent alone."""
        while True:
            mine = make()
            parts = yield from self._next(mine)
            if not parts:
                return (yield from send(context, make))
            outcome = yield from self._exchange(context, parts, mine)
            if outcome is not None:
                return mine, outcome

    def close(self) -> None:
        """Nobody goes on with them."""
        for each in self.settlings:
            each.procedure.close()

    def _next(self, mine: Multi | None) -> Procedure[list[Settling]]:
        """What is sent next, with `mine` if that is given: as much of it as goes together."""
        for each in self.settlings:
            yield from each.hold()
        together = Group([] if mine is None else [mine])
        return [each for each in self.settlings if each.held is not None and together.takes(each.held)]

    def _exchange(self, context: Context, parts: Sequence[Settling], mine: Multi | None) -> Procedure[Outcome | None]:
        """Send them in one transaction; what became of `mine`. None: it was not carried out, because of another one."""
        multis = [each.held for each in parts if each.held is not None]
        together = joined([*multis, *([] if mine is None else [mine])])
        try:
            _, outcome = yield from send(context, lambda: together)
        except Exception as error:
            alone = mine is None and len(parts) == 1
            if alone or isinstance(error, TransportError) or not isinstance(error, ZkmqError):
                for each in parts:
                    yield from each.failed(error)
                raise
            outcome = UNKNOWN
        at = 0
        for each, multi in zip(parts, multis, strict=True):
            share = _share(outcome, at, len(multi.ops))
            at += len(multi.ops)
            if share is not None:
                yield from each.answered(share)
        return None if mine is None else _share(outcome, at, len(mine.ops))


def _share(outcome: Outcome, first: int, count: int) -> Outcome | None:
    """What a transaction's outcome is for some of its operations; None: others were refused, and it with them."""
    if outcome.failed is None:
        return outcome
    if first <= outcome.failed < first + count:
        return replace(outcome, failed=outcome.failed - first)
    return None


# --- Where a task goes in its lane: the newest segment, and what must stand in the same transaction.
#
# In a queue of strict order an entry may only go where no later segment exists: every write into a lane checks the
# version of the lane's znode, and who opens the next segment bumps it. So all entries of a segment were committed
# before all of the next one, and a released task may still come back to an older one.


def open_segment(context: Context, wanted: Lane, *, ordered: bool) -> Procedure[OpenSegment]:
    """Where the next entry of a lane goes; `ordered`: the queue hands out in strict order."""
    name = wanted.name
    while name in context.segments.searching:
        yield Wait(context.segments.searching[name], 0, turn=True)  # another call is looking for it
    memory = context.segments.open.get(name)
    if memory is None or memory.count >= SEGMENT_ENTRIES or memory.ordered != ordered:
        memory = yield from _opened(context, wanted, ordered=ordered)
    memory.count += 1
    context.segments.remember(name, memory)
    return memory


def _opened(context: Context, wanted: Lane, *, ordered: bool) -> Procedure[OpenSegment]:
    """Look for it; other calls of this client that need it wait meanwhile, so that one of them opens a segment."""
    context.segments.searching[wanted.name] = looked = context.run.new_signal()
    try:
        lane = yield from _bounded(context, wanted)
        memory = yield from (_newest_ordered(context, lane) if ordered else _newest(context, lane))
        context.segments.remember(wanted.name, memory)
        return memory
    finally:
        del context.segments.searching[wanted.name]
        looked.fire()


def forget_lanes(context: Context, there: Iterable[str]) -> None:
    """Forget lanes that are not there any more; `there`: a listing of the queue's lanes."""
    names = set(there)
    context.segments.keep_lanes(names)
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
    creates: list[WriteOp] = [] if names is not None else [Create(path, lane.encode())]
    return OpenSegment(lane, segment, 0, [*creates, Create(f"{path}/{segment}")], [], ordered=False)


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
    creates = Create(path, lane.encode()) if fresh else SetData(path, lane.encode(), version)
    after = Check(path, version if fresh else version + 1)
    return OpenSegment(lane, segment, 0, [creates, Create(f"{path}/{segment}")], [after], ordered=True)


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
    if slot.ops and slot.opens:
        opened.add(path)
    return slot.ops


def remember_opened(context: Context, multi: Multi, outcome: Outcome) -> None:
    """Segments that now exist need no create; those of a refused transaction are looked up again."""
    for name, memory in list(context.segments.open.items()):
        if not (memory.ops and {op.path for op in memory.ops} & {op.path for op in multi.ops}):
            continue
        if outcome.committed:
            memory.ops = memory.then
        else:
            context.segments.open.pop(name, None)


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
    if bucket in context.segments.buckets:
        return
    yield from make_bucket(context, bucket)
    context.segments.add_bucket(bucket)


def make_bucket(context: Context, bucket: str) -> Procedure[None]:
    """Create a bucket unless it exists, and the index in which it stands if that is missing. Raises `QueueNotFound`."""
    try:
        yield from ensure_bucket(bucket)
    except TransportError:
        raise
    except ZkmqError as error:
        if not (yield from restored(context, bucket)):
            if (yield Exists(context.paths.at("tasks"))) is None:
                raise queue_deleted(context) from error
            raise
        yield from ensure_bucket(bucket)


def parents_of(context: Context, after: TaskState) -> tuple[Create, ...]:
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


# --- What one transaction changes, and how its refusal is understood.
#
# A plan is made of changes, each to one task or one batch; plans can be merged. Named constructors, one for each
# row of the state table, fill them (`core.write.transitions`, `core.write.new_task`); `core.write.commit`
# carries them out.

Proof: TypeAlias = Callable[[], Procedure[Outcome | None]]


class Why(Enum):
    """What a refusal says."""

    PLACE = "a segment came or went"
    PARENT = "what must hold an entry is not there, or is there already"
    BATCH = "the task is no member of its batch any more"
    CHANGED = "what the plan is based on has changed since it was read"
    OTHER = "the tree is not as its records tell, or an id is in use"


@dataclass(slots=True, eq=False)
class Change:
    """What is done to one task or one batch: ``ops``, then what opens the slot, then ``listing``."""

    context: Context
    task_id: str
    ops: list[WriteOp] = field(default_factory=list)
    slot: OpenSegment | None = None
    listing: list[WriteOp] = field(default_factory=list)
    after: TaskState | None = None
    """The record that it writes."""
    before: str | None = None
    """The nonce of the record that it was made from."""
    superseded: bool = False
    """That record is another task's by now: one of the same id that was enqueued after it was dropped."""
    proof: Proof = never
    """Asked where its reply was lost: whether it was carried out."""
    preconditions: dict[str, frozenset[Failure]] = field(default_factory=dict)
    """The znodes it is based on, each with the refusals that say that it was changed."""
    make_parent: dict[str, Callable[[], Procedure[None]]] = field(default_factory=dict)
    """Entries of indexes whose buckets may be gone, each with what makes them."""
    parents: tuple[Create, ...] = ()
    """What creates the lane and the segment that it goes back to, which may be gone."""
    missing: tuple[Create, ...] = ()
    """Those of them that are gone, as far as is known: they are created with its entry."""
    upsert: dict[str, bytes] = field(default_factory=dict)
    """Znodes that hold this afterwards, whether they were there before or not: a damaged tree may have lost one."""
    batch: str | None = None
    """The batch whose last member it may take off."""
    on_commit: Callable[[], Procedure[None]] | None = None
    """Follows once it is committed; must not fail."""

    def leave_batch(self) -> None:
        """Go on without the membership: the task is no member any more, and its record does not say that it is."""
        record = self.context.paths.task(self.task_id, "state")
        if self.after is not None:
            self.after = after = structs.replace(self.after, batch=None)
            self.ops = [SetData(op.path, after.encode(), op.version) if _writes(op, record) else op for op in self.ops]
        self._drop(lambda path: path.startswith(f"{self.context.paths.batch(self.batch or '')}/"))

    def turns(self, path: str) -> bool:
        """Whether what is written at `path` matters, not what stood there: it is created where it was to be set."""
        data = self.upsert.pop(path, None)
        if data is None:
            return False
        other: dict[type, WriteOp] = {Create: SetData(path, data), SetData: Create(path, data)}
        self.ops = [other.get(type(op), op) if op.path == path else op for op in self.ops]
        return True

    def misjudged(self, path: str, failure: Failure | None) -> Create | None:
        """The parent of its entry that is gone, or there, other than was thought."""
        if failure is Failure.NODE_EXISTS:
            return next((op for op in self.missing if op.path == path), None)
        if failure is not Failure.NO_NODE or not any(op.path == path for op in (*self.missing, *self.listing)):
            return None
        above = path.rpartition("/")[0]
        return next((op for op in self.parents if op.path == above and op not in self.missing), None)

    def judge_anew(self, parent: Create) -> None:
        """Create a parent that was thought to be there, or do not create one that was thought to be gone."""
        self.missing = tuple(op for op in self.parents if (op in self.missing) is not (op == parent))

    def lists(self, path: str, failure: Failure | None) -> bool:
        """Whether a listing of the task is gone that was to be deleted, or there that was to be created."""
        if path.startswith(self.context.paths.task(self.task_id) + "/"):
            return False
        kind = {Failure.NO_NODE: Delete, Failure.NODE_EXISTS: Create}.get(failure) if failure else None
        return kind is not None and any(op.path == path and isinstance(op, kind) for op in (*self.ops, *self.listing))

    def touches(self, path: str) -> bool:
        """Whether it does something at `path`."""
        return any(op.path == path for op in (*self.ops, *self.listing))

    def drop(self, path: str) -> None:
        """Go on without what is done at `path`."""
        self._drop(lambda other: other == path)

    def _drop(self, unwanted: Callable[[str], bool]) -> None:
        self.ops = [op for op in self.ops if not unwanted(op.path)]
        self.listing = [op for op in self.listing if not unwanted(op.path)]


def _writes(op: WriteOp, path: str) -> TypeGuard[SetData]:
    return isinstance(op, SetData) and op.path == path


@dataclass(frozen=True, slots=True)
class Refusal:
    """A transaction that was refused: where, by which change's doing, and what that says.

    ``uncertain``: an earlier try of the same commit had an unknown outcome.
    """

    why: Why
    change: Change
    path: str
    outcome: Outcome
    multi: Multi
    uncertain: bool = False


@dataclass(eq=False)
class Plan:
    """One transaction."""

    changes: list[Change]

    def __str__(self) -> str:
        names = ", ".join(repr(change.task_id) for change in self.changes[:3])
        return f"a change of {names}"

    @cached_property
    def contexts(self) -> list[Context]:
        """The memories of the queues that it changes."""
        if len(self.changes) == 1:
            return [self.changes[0].context]
        return list({id(change.context): change.context for change in self.changes}.values())

    def multi(self, opened: set[str] | None = None) -> Multi:
        """The operations; `opened`: the segments that earlier transactions in flight open."""
        opened = set() if opened is None else opened
        ops: list[WriteOp] = []
        for change in self.changes:
            ops += change.ops
            if change.slot is not None:
                for op in slot_ops(change.context, change.slot, opened):
                    if op not in ops:
                        ops.append(op)
            if change.missing:
                ops += [op for op in change.missing if op not in ops]
            ops += change.listing
        return Multi(tuple(ops))

    def proof(self) -> Procedure[Outcome | None]:
        """Whether an earlier try was carried out: what became of the first change tells of the whole."""
        return self.changes[0].proof()

    def learn(self, multi: Multi, outcome: Outcome) -> None:
        """Remember the server's clock, and which segments are open."""
        opens = False
        for change in self.changes:
            opens = opens or change.slot is not None
        for context in self.contexts:
            context.clock.learn(outcome)
            if opens:
                remember_opened(context, multi, outcome)

    def explain(self, multi: Multi, outcome: Outcome, *, uncertain: bool) -> Refusal:
        """What a refusal says."""
        path = failed_at(outcome, multi)
        for change in self.changes:
            why = _why(change, path, multi, outcome)
            if why is not None:
                return Refusal(why, change, path, outcome, multi, uncertain)
        return Refusal(Why.OTHER, self._changed_at(path), path, outcome, multi, uncertain)

    def _changed_at(self, path: str) -> Change:
        """The change that has to do with a path."""
        return next((change for change in self.changes if change.touches(path)), self.changes[0])


def _why(change: Change, path: str, multi: Multi, outcome: Outcome) -> Why | None:
    if outcome.failure in change.preconditions.get(path, ()):
        return Why.CHANGED
    if path in change.make_parent and outcome.failure is Failure.NO_NODE:
        return Why.PARENT
    if change.misjudged(path, outcome.failure) is not None:
        return Why.PARENT
    inside = change.batch is not None and path.startswith(f"{change.context.paths.batch(change.batch)}/")
    if inside and change.touches(path):  # a merged plan may take several members off the same batch
        return Why.BATCH
    if change.slot is not None and reopens(change.context, change.slot, multi, outcome):
        return Why.PLACE
    return None


def one(change: Change) -> Plan:
    """A plan of one change."""
    return Plan([change])


def mergeable(plans: Iterable[Plan], most: int) -> Iterator[list[Plan]]:
    """Groups of at most so many plans, each of which fits into one of ZooKeeper's transactions."""
    group: list[Plan] = []
    room = MAX_REQUEST
    for plan in plans:
        size = request_size(plan.multi().ops)
        if group and (len(group) >= most or size > room):
            yield group
            group, room = [], MAX_REQUEST
        group.append(plan)
        room -= size
    if group:
        yield group


def merge(plans: Iterable[Plan]) -> Plan:
    """One transaction of several; they must not touch the same tasks."""
    return Plan([change for plan in plans for change in plan.changes])


# --- The one guarded write: a plan is sent, an unknown outcome resolved, a refusal explained, and the plan made anew.

#: Makes the plan anew after a refusal; None: the refusal stands.
Rebuild: TypeAlias = Callable[[Refusal], Procedure[Plan | None]]
#: Sends a transaction, which is made when that is due, and tells how it ended, as if it had been sent alone.
Sending: TypeAlias = Callable[[Context, Callable[[], Multi]], Procedure[tuple[Multi, Outcome]]]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """How a commit ended: with the plan that was carried out, or with the refusal of the last one."""

    plan: Plan
    outcome: Outcome
    refusal: Refusal | None = None

    @property
    def committed(self) -> bool:
        """Whether it was carried out."""
        return self.refusal is None

    @property
    def uncertain(self) -> bool:
        """Whether it was refused after a try of unknown outcome, which may have been carried out."""
        return self.refusal is not None and self.refusal.uncertain

    @property
    def after(self) -> TaskState | None:
        """The record of a plan of one change, if it was carried out."""
        return self.plan.changes[0].after if self.refusal is None else None


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that was sent among others, and how it ended at first."""

    multi: Multi
    outcome: Outcome


def give_up(_refusal: Refusal) -> Procedure[Plan | None]:
    """For plans that are not made anew."""
    return None
    yield  # pragma: no cover


def anew(build: Callable[[], Procedure[Plan]]) -> Rebuild:
    """Make the plan anew where a segment came or went, and only there."""

    def rebuild(refusal: Refusal) -> Procedure[Plan | None]:
        return (yield from build()) if refusal.why is Why.PLACE else None

    return rebuild


def mending(build: Callable[[], Procedure[Plan]]) -> Rebuild:
    """`anew` for those who look after a queue: a listing that is missing, or there already, keeps no task where it is.

    The record, whose version is part of the same transaction, says that the task has to leave the one and to come to
    the other. Of its own tree nothing may be missing. A task that was dropped, and enqueued anew by the same id, may
    have that version, too: its record is not the one that was read, and its listing is another one.
    """

    def rebuild(refusal: Refusal) -> Procedure[Plan | None]:
        change, path = refusal.change, refusal.path
        if refusal.why is Why.PLACE:
            return (yield from build())
        if refusal.why is not Why.OTHER or not change.lists(path, refusal.outcome.failure):
            return None
        change.superseded = yield from _is_superseded(change)
        if change.superseded:
            return None
        change.context.warn_once(path, f"{described(refusal.outcome, refusal.multi)}; task {change.task_id!r} goes on")
        change.drop(path)
        return Plan([change])

    return rebuild


def _is_superseded(change: Change) -> Procedure[bool]:
    """Whether the task's record is not the one that a change was made from, whatever its version says."""
    path = change.context.paths.task(change.task_id, "state")
    node: Node | None = yield Get(path)
    return change.before is not None and (node is None or TaskState.decode(path, node.data).nonce != change.before)


def alone(_context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
    """Send a transaction by itself."""
    multi = make()
    outcome: Outcome = yield multi
    return multi, outcome


def commit(
    plan: Plan, rebuild: Rebuild = give_up, *, first: Sent | None = None, requested: bool = False, by: Sending = alone
) -> Procedure[CommitResult]:
    """Carry out a plan; what is missing around it is made, and what it is not a member of any more is left out.

    Every other refusal goes to `rebuild`. Three refusals alike, of the same operation for the same reason, with
    nothing gained in between, are no race any more: `CorruptRecord` names the path. `first`: how it ended when it was
    sent before, among others. `requested`: an earlier call sent this plan and did not hear of it.
    `by`: how it is sent; by `send`, it may go together with what other calls send at the same time.
    Raises `Unavailable` where nothing was sent, and `OutcomeUnknown`.
    """
    tries, uncertain = None, requested
    while True:
        try:
            if first is None:
                multi, outcome = yield from by(plan.changes[0].context, plan.multi)
            else:
                multi, outcome = first.multi, first.outcome
            unknown = outcome.unknown
            if unknown:
                plan.learn(multi, outcome)  # a segment that it may have opened is looked for again
                outcome = yield from resolved(multi, outcome, plan.proof)
            elif requested and not outcome.committed:
                outcome = (yield from plan.proof()) or outcome
        except BaseException:
            _remember_batches(plan)
            raise
        plan.learn(multi, outcome)
        if outcome.committed:
            yield from _follow(plan)
            return CommitResult(plan, outcome)
        first, requested, uncertain = None, False, uncertain or unknown
        refusal = plan.explain(multi, outcome, uncertain=uncertain)
        better = yield from _mend(plan, refusal, rebuild)
        if better is None:
            why = Why.CHANGED if refusal.change.superseded else refusal.why
            return CommitResult(plan, outcome, replace(refusal, why=why))
        tries = tries or Tries(plan)
        yield from tries.refused(outcome, multi, None)
        plan = better


def _remember_batches(plan: Plan) -> None:
    """Remember the batches whose last member a transaction may have taken off: its caller may never ask again."""
    for change in plan.changes:
        if change.batch is not None:
            change.context.pending.batches.add(change.batch)
            change.context.run.finish_later()


def _follow(plan: Plan) -> Procedure[None]:
    """What follows a commit; cut off at one batch, the client remembers the others, too."""
    try:
        for change in plan.changes:
            if change.on_commit is not None:
                yield from change.on_commit()
    except BaseException:
        _remember_batches(plan)
        raise


def _mend(plan: Plan, refusal: Refusal, rebuild: Rebuild) -> Procedure[Plan | None]:
    outcome = refusal.outcome
    gone = outcome.failure is Failure.NO_NODE and refusal.why in {Why.OTHER, Why.PARENT, Why.PLACE}
    if gone and (yield from restored(refusal.change.context, refusal.path)):
        return plan
    if refusal.change.turns(refusal.path):
        why = f"{described(outcome, refusal.multi)}, whatever its task's record tells; it is written all the same"
        refusal.change.context.warn_once(refusal.path, why)
        return plan
    match refusal.why:
        case Why.PARENT:
            parent = refusal.change.misjudged(refusal.path, outcome.failure)
            if parent is None:
                yield from refusal.change.make_parent[refusal.path]()
            else:
                refusal.change.judge_anew(parent)
            return plan
        case Why.BATCH:
            _leave_batch(refusal)
            return plan
        case Why.PLACE:
            for context in plan.contexts:
                context.segments.open.clear()
    return (yield from rebuild(refusal))


def _leave_batch(refusal: Refusal) -> None:
    """A batch holds up no task. One that failed in an earlier run of its id is noted among the failed already."""
    change, path = refusal.change, refusal.path
    if path == change.context.paths.batch(change.batch or "", "failed", change.task_id):
        change.drop(path)
        return
    change.context.report(path, f"task {change.task_id!r} is no member of its batch any more; it goes on without it")
    change.leave_batch()


def send_together(plans: Sequence[Plan]) -> Procedure[list[Sent]]:
    """Send several plans in flight together, each a transaction of its own; how each ended, or that it is not known."""
    opened: set[str] = set()  # requests of one session are carried out in order: the first one opens for all
    multis = [plan.multi(opened) for plan in plans]
    outcomes: list[Outcome] = yield Pipeline(tuple(multis))
    for plan, multi, outcome in zip(plans, multis, outcomes, strict=True):
        plan.learn(multi, outcome)
    return [Sent(multi, outcome) for multi, outcome in zip(multis, outcomes, strict=True)]
