"""Commit: plans and their one guarded write, alone or as a group; where entries go; what a refusal means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import structs

from ...errors import OutcomeUnknown, QueueNotFound, SessionLost, TransportError, Unavailable, ZkmqError
from .. import zk_operations as zk
from ..client_state import Context, GroupMember, GroupQueue, OpenSegment
from ..model.records import TaskState
from ..model.znode_names import MAX_LANES, SEGMENT_ENTRIES, Lane, is_lane, next_segment, segments_of
from ..read.queue_existence import restored
from ..transaction_retries import Proof, Tries, described, ensure_bucket, failed_at, proven, resolved
from ..zk_operations import Procedure

# --- Which transactions can be sent as one: no two may change what another one touches, or one would refuse the other.


#: What is worth putting together, in bytes: a larger request keeps everybody's from being carried out meanwhile.
MOST_BYTES: Final = 256_000


class Group:
    """Transactions that go together, as they are added; the first one is in it whatever it is."""

    def __init__(self, first: zk.Multi | None) -> None:
        self._changed: set[str] = set()
        self._checked: set[str] = set()
        self.room = MOST_BYTES
        self._empty = True
        if first is not None:
            self.takes(first)

    def takes(self, multi: zk.Multi) -> bool:
        """Whether it can go with the others: then it does. The first one can, however large it is."""
        size = zk.request_size(multi.ops)
        checked = {op.path for op in multi.ops if isinstance(op, zk.Check)}
        changed = {op.path for op in multi.ops if not isinstance(op, zk.Check)}
        if not self._empty and size > self.room:
            return False
        if changed & (self._changed | self._checked) or checked & self._changed:
            return False
        self._empty = self._empty and not multi.ops
        self.room -= size
        self._changed |= changed
        self._checked |= checked
        return True


def joined(multis: Sequence[zk.Multi]) -> zk.Multi:
    """Several transactions as one."""
    return multis[0] if len(multis) == 1 else zk.Multi(tuple(op for multi in multis for op in multi.ops))


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


def send(context: Context, make: Callable[[], zk.Multi]) -> Procedure[tuple[zk.Multi, zk.Outcome]]:
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
            if line.on_their_way < ON_THEIR_WAY:
                # Who waits although nobody is on the way was forgotten by a call that was interrupted: this one takes
                # it along.
                line.on_their_way += 1
                member.is_leader = True
            else:
                line.waiting.append(member)
                try:
                    while not (member.is_leader or member.over):
                        yield zk.Wait(member.signal, member.signal.count, turn=True)
                except BaseException as error:
                    if member in line.waiting:
                        line.waiting.remove(member)
                    if isinstance(error, Unavailable) and member.sent is not None:
                        return member.multi, member.outcome or _unknown(member)
                    raise
            outcome = (yield from _lead(context, line, member)) if member.is_leader else member.outcome
        finally:
            if member.is_leader:  # given up by statements: an interrupt that met a call would leave all others in line
                member.is_leader = False
                line.on_their_way -= 1
                _call_next(line)
        if outcome is not None:  # else another call was to send it, and could not
            return member.multi, outcome


def _call_next(line: GroupQueue) -> None:
    """A request is not on its way any more: the first in line sends the next one."""
    if line.waiting and line.on_their_way < ON_THEIR_WAY:
        first = line.waiting.popleft()
        line.on_their_way += 1
        first.is_leader = True
        first.signal.fire()


def _unknown(member: GroupMember) -> zk.Outcome:
    return zk.Outcome(committed=False, unknown=True, sent=member.sent)


def _lead(context: Context, line: GroupQueue, mine: GroupMember) -> Procedure[zk.Outcome]:
    """Send what stands in line together with `mine`. Nothing is taken out of the line before it can be sent."""
    parts = [mine]
    try:
        if line.waiting:
            yield zk.Reconnect()  # who waits for a connection is told that nothing was sent
        mine.multi = mine.make()
        together = Group(mine.multi)
        for member in list(line.waiting):  # what does not go with the first waits for a later one
            if len(parts) >= MOST or together.room <= 0:
                break
            member.multi = member.make()
            if together.takes(member.multi):
                line.waiting.remove(member)
                parts.append(member)
                line.carried += 1
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
            if member.outcome is None and member.sent is not None:
                member.outcome = _unknown(member)  # this call was cut off
            member.over = True
            member.signal.fire()


def _carried_out(parts: Sequence[GroupMember]) -> Procedure[list[zk.Outcome]]:
    """How each ended. An error that stands for all, access denied say, is of one: each finds out by its own."""
    try:
        outcome: zk.Outcome = yield joined([member.multi for member in parts])
        if len(parts) > 1 and outcome.failed is not None:
            outcomes: list[zk.Outcome] = yield zk.Pipeline(tuple(member.multi for member in parts))
            return outcomes
    except TransportError:
        raise
    except ZkmqError:
        if len(parts) == 1:
            raise
        return [_unknown(member) for member in parts]
    return [outcome] * len(parts)


# --- Settlements that go together, and with the claim that follows them, in one transaction.
#
# Several procedures are carried out side by side, each as if it was alone: each has its own transaction, resolves
# its own lost reply and explains its own refusal. Only what is sent first is one request for all of them. A refusal
# is that of one part, at which the server stopped: that part hears of it, nothing else was carried out, and what is
# left is sent again together. Where the reply is lost, the transaction of a part, sent once more, tells what
# happened to it, as the merged one and its parts exclude each other. So does it where an error stands for all,
# access denied say, and is of one.


@dataclass(slots=True, eq=False)
class Settling:
    """A settlement that is due: it goes with the first transaction that is sent for it, or with those beside it.

    ``record``: the znode that tells its transaction from what else it may have to write before.
    """

    procedure: Procedure[Any]
    record: str
    held: zk.Multi | None = None
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

    def answered(self, outcome: zk.Outcome) -> Procedure[None]:
        """Its transaction was sent. One that was refused may have another one to be sent, again beside the others'."""
        refused = not (outcome.committed or outcome.unknown)
        self.held = None
        yield from self._go_on(partial(self.procedure.send, outcome), hold=refused)

    def failed(self, error: Exception) -> Procedure[None]:
        """Its transaction could not be sent, or what became of it cannot be told."""
        self.held = None
        yield from self._go_on(partial(self.procedure.throw, error))

    def _go_on(self, advance: Callable[[], zk.Op], *, hold: bool = False) -> Procedure[None]:
        """Carry it on, to its end, or `hold` its transaction back."""
        try:
            while True:
                op = advance()
                if hold and isinstance(op, zk.Multi) and any(each.path == self.record for each in op.ops):
                    self.held = op
                    return
                try:
                    advance = partial(self.procedure.send, (yield op))
                except Exception as error:  # noqa: BLE001  every failure belongs to the procedure that asked
                    advance = partial(self.procedure.throw, error)
        except StopIteration as stop:
            self.over, self.value = True, stop.value
        except Exception as error:  # noqa: BLE001  whose settlement it is hears of it, once all of them are over
            self.over, self.error = True, error


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

    def send(self, context: Context, make: Callable[[], zk.Multi]) -> Procedure[tuple[zk.Multi, zk.Outcome]]:
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

    def _next(self, mine: zk.Multi | None) -> Procedure[list[Settling]]:
        """What is sent next, with `mine` if that is given: as much of it as goes together."""
        for each in self.settlings:
            yield from each.hold()
        together = Group(mine)
        return [each for each in self.settlings if each.held is not None and together.takes(each.held)]

    def _exchange(
        self, context: Context, parts: Sequence[Settling], mine: zk.Multi | None
    ) -> Procedure[zk.Outcome | None]:
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
            outcome = zk.Outcome(committed=False, unknown=True)
        at = 0
        for each, multi in zip(parts, multis, strict=True):
            share = _share(outcome, at, len(multi.ops))
            at += len(multi.ops)
            if share is not None:
                yield from each.answered(share)
        return None if mine is None else _share(outcome, at, len(mine.ops))


def _share(outcome: zk.Outcome, first: int, count: int) -> zk.Outcome | None:
    """What a transaction's outcome is for some of its operations; None: others were refused, and it with them."""
    if outcome.failed is None:
        return outcome
    if first <= outcome.failed < first + count:
        return replace(outcome, failed=outcome.failed - first)
    return None


def alone(_context: Context, make: Callable[[], zk.Multi]) -> Procedure[tuple[zk.Multi, zk.Outcome]]:
    """Send a transaction by itself."""
    multi = make()
    outcome: zk.Outcome = yield multi
    return multi, outcome


# --- Where a task goes in its lane: the newest segment, and what must stand in the same transaction.
#
# In a queue of strict order an entry may only go where no later segment exists: every write into a lane checks the
# version of the lane's znode, and who opens the next segment bumps it. So all entries of a segment were committed
# before all of the next one, and a released task may still come back to an older one.


def open_segment(context: Context, wanted: Lane, *, ordered: bool) -> Procedure[OpenSegment]:
    """Where the next entry of a lane goes; `ordered`: the queue hands out in strict order.

    While there are few lanes it goes to the one that is wanted, else to its priority's mixed lane.
    """
    name = wanted.name
    while name in context.segments.searching:
        yield zk.Wait(context.segments.searching[name], 0, turn=True)  # another call is looking for it
    memory = context.segments.open.get(name)
    if memory is None or memory.count >= SEGMENT_ENTRIES or memory.ordered != ordered:
        # Other calls of this client that need it wait meanwhile, so that one of them opens a segment.
        context.segments.searching[name] = looked = context.run.new_signal()
        try:
            lane = wanted
            if wanted.filters:
                known: set[str] = set((yield zk.Children(context.paths.at("queue"))) or ())
                if name not in known and sum(map(is_lane, known)) >= MAX_LANES:
                    lane = wanted.mixed()
            memory = yield from _newest(context, lane, ordered=ordered)
            context.segments.remember(name, memory)
        finally:
            del context.segments.searching[name]
            looked.fire()
    memory.count += 1
    context.segments.remember(name, memory)
    return memory


def forget_lanes(context: Context, there: Iterable[str]) -> None:
    """Forget lanes that are not there any more; `there`: a listing of the queue's lanes."""
    names = set(there)
    context.segments.keep_lanes(names)
    context.listings.forget_below(context.paths.at("queue"), names)


def _newest(context: Context, lane: Lane, *, ordered: bool) -> Procedure[OpenSegment]:
    """The newest segment with room, else a new one; in strict order under the version of the lane's znode."""
    path = context.paths.at("queue", lane.name)
    stat: zk.Stat | None = (
        (yield zk.Exists(path)) if ordered else None
    )  # before the listing: a later roll-over is refused
    version = 0 if stat is None else stat.version
    names: list[str] | None = yield zk.Children(path)
    segments = segments_of(names or ())
    newest = max(segments, default=None)
    there: zk.Stat | None = None if newest is None else (yield zk.Exists(f"{path}/{newest}"))
    if newest and there is not None and there.children < SEGMENT_ENTRIES:
        checks: list[zk.WriteOp] = [zk.Check(path, version)] if ordered else []
        return OpenSegment(lane, newest, there.children, checks, checks, ordered=ordered)
    segment = next_segment(segments)
    ops: list[zk.WriteOp] = [zk.Create(f"{path}/{segment}")]
    if names is None:
        ops.insert(0, zk.Create(path, lane.encode()))
    elif ordered:
        ops.insert(0, zk.SetData(path, lane.encode(), version))
        version += 1
    return OpenSegment(lane, segment, 0, ops, [zk.Check(path, version)] if ordered else [], ordered=ordered)


def known_bucket(context: Context, index: str) -> Procedure[None]:
    """Have the bucket of an index entry there; one that this client used before is taken to be."""
    bucket = context.paths.at(index).rpartition("/")[0]
    if bucket not in context.segments.buckets:
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
            if (yield zk.Exists(context.paths.at("tasks"))) is None:
                raise queue_deleted(context) from error
            raise
        yield from ensure_bucket(bucket)


def queue_deleted(context: Context) -> QueueNotFound:
    """The error for a queue that was deleted under its users; what was known of it is forgotten."""
    context.forget_queue()
    msg, remedy = f"queue {context.queue!r} was deleted under {context.root!r}", "configure() creates it anew"
    return QueueNotFound(msg, queue=context.queue, remedy=remedy)


# --- What one transaction changes, and how its refusal is understood.
#
# A plan is made of changes, each to one task or one batch; plans can be merged. Named constructors, one for each
# row of the state table, fill them (`core.write.transitions`, `core.write.new_task`); `core.write.commit`
# carries them out.


class Why(Enum):
    """What a refusal says."""

    PLACE = "a segment came or went"
    PARENT = "what must hold an entry is not there, or is there already"
    BATCH = "the task is no member of its batch any more"
    CHANGED = "what the plan is based on has changed since it was read"
    OTHER = "the tree is not as its records tell, or an id is in use"


@dataclass(slots=True, eq=False)
class Change:
    """What is done to one task or one batch: ``ops``, then what opens the segment, then ``listing``."""

    context: Context
    task_id: str
    ops: list[zk.WriteOp] = field(default_factory=list)
    segment: OpenSegment | None = None
    listing: list[zk.WriteOp] = field(default_factory=list)
    after: TaskState | None = None
    """The record that it writes."""
    before: str | None = None
    """The nonce of the record that it was made from."""
    superseded: bool = False
    """That record is another task's by now: one of the same id that was enqueued after it was dropped."""
    proof: Proof | None = None
    """Looked for where its reply was lost: what shows that it was carried out."""
    preconditions: dict[str, frozenset[zk.Failure]] = field(default_factory=dict)
    """The znodes it is based on, each with the refusals that say that it was changed."""
    make_parent: dict[str, Callable[[], Procedure[None]]] = field(default_factory=dict)
    """Entries of indexes whose buckets may be gone, each with what makes them."""
    parents: tuple[zk.Create, ...] = ()
    """What creates the lane and the segment that it goes back to, which may be gone."""
    missing: tuple[zk.Create, ...] = ()
    """Those of them that are gone, as far as is known: they are created with its entry."""
    upsert: dict[str, bytes] = field(default_factory=dict)
    """Znodes that hold this afterwards, whether they were there before or not: a damaged tree may have lost one."""
    dispensable: str | None = None
    """A znode that it deletes if it is there: a damaged tree may have lost it."""
    batch: str | None = None
    """The batch whose last member it may take off."""
    on_commit: Callable[[], Procedure[None]] | None = None
    """Follows once it is committed; must not fail."""

    def leave_batch(self, path: str) -> None:
        """Go on without the membership, which was refused at `path`: a batch holds up no task.

        One that failed in an earlier run of its id is noted among the failed already.
        """
        paths, batch = self.context.paths, self.batch or ""
        if path == paths.batch(batch, "failed", self.task_id):
            self.drop(path)
            return
        if path == paths.batch(batch, "failed"):
            self.drop(path, f"{path}/{self.task_id}")
            return
        self.context.report(path, f"task {self.task_id!r} is no member of its batch any more; it goes on without it")
        record = paths.task(self.task_id, "state")
        if self.after is not None:
            self.after = after = structs.replace(self.after, batch=None)
            self.ops = [
                zk.SetData(op.path, after.encode(), op.version)
                if isinstance(op, zk.SetData) and op.path == record
                else op
                for op in self.ops
            ]
        inside = f"{paths.batch(batch)}/"
        self.drop(*(op.path for op in (*self.ops, *self.listing) if op.path.startswith(inside)))

    def turns(self, path: str) -> bool:
        """Whether what is written at `path` matters, not what stood there: it is created where it was to be set."""
        data = self.upsert.pop(path, None)
        if data is None:
            return False
        other: dict[type, zk.WriteOp] = {zk.Create: zk.SetData(path, data), zk.SetData: zk.Create(path, data)}
        self.ops = [other.get(type(op), op) if op.path == path else op for op in self.ops]
        return True

    def misjudged(self, path: str, failure: zk.Failure | None) -> zk.Create | None:
        """The parent of its entry that is gone, or there, other than was thought."""
        if failure is zk.Failure.NODE_EXISTS:
            return next((op for op in self.missing if op.path == path), None)
        if failure is not zk.Failure.NO_NODE or not any(op.path == path for op in (*self.missing, *self.listing)):
            return None
        above = path.rpartition("/")[0]
        return next((op for op in self.parents if op.path == above and op not in self.missing), None)

    def lists(self, path: str, failure: zk.Failure | None) -> bool:
        """Whether a listing of the task is gone that was to be deleted, or there that was to be created."""
        if path.startswith(self.context.paths.task(self.task_id) + "/"):
            return False
        kind = {zk.Failure.NO_NODE: zk.Delete, zk.Failure.NODE_EXISTS: zk.Create}.get(failure) if failure else None
        return kind is not None and any(op.path == path and isinstance(op, kind) for op in (*self.ops, *self.listing))

    def touches(self, path: str) -> bool:
        """Whether it does something at `path`."""
        return any(op.path == path for op in (*self.ops, *self.listing))

    def drop(self, *paths: str) -> None:
        """Go on without what is done at these paths."""
        self.ops = [op for op in self.ops if op.path not in paths]
        self.listing = [op for op in self.listing if op.path not in paths]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A transaction that was refused: where, by which change's doing, and what that says.

    ``uncertain``: an earlier try of the same commit had an unknown outcome.
    """

    why: Why
    change: Change
    path: str
    outcome: zk.Outcome
    multi: zk.Multi
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
        return list({id(change.context): change.context for change in self.changes}.values())

    def multi(self, opened: set[str] | None = None) -> zk.Multi:
        """The operations; `opened`: the segments that earlier transactions in flight open."""
        opened = set() if opened is None else opened
        ops: list[zk.WriteOp] = []
        for change in self.changes:
            ops += change.ops
            if (wanted := change.segment) is not None:
                path = change.context.paths.at("queue", wanted.lane.name, wanted.segment)
                before = wanted.then if path in opened else wanted.ops
                if wanted.opens:
                    opened.add(path)
                ops += [op for op in before if op not in ops]
            ops += [op for op in change.missing if op not in ops]
            ops += change.listing
        return zk.Multi(tuple(ops))

    @property
    def proof(self) -> Proof | None:
        """What shows that it was carried out: what became of the first change tells of the whole."""
        return self.changes[0].proof

    def learn(self, multi: zk.Multi, outcome: zk.Outcome) -> None:
        """Remember the server's clock, and which segments are open."""
        opens = any(change.segment is not None for change in self.changes)
        for context in self.contexts:
            context.clock.learn(outcome)
            for name, memory in list(context.segments.open.items()) if opens else ():
                if not (memory.ops and {op.path for op in memory.ops} & {op.path for op in multi.ops}):
                    continue
                if outcome.committed:
                    memory.ops = memory.then  # segments that now exist need no create
                else:
                    context.segments.open.pop(name, None)  # looked up again

    def explain(self, multi: zk.Multi, outcome: zk.Outcome, *, uncertain: bool) -> Refusal:
        """What a refusal says."""
        path = failed_at(outcome, multi)
        for change in self.changes:
            why = _why(change, path, multi, outcome)
            if why is not None:
                return Refusal(why, change, path, outcome, multi, uncertain)
        change = next((change for change in self.changes if change.touches(path)), self.changes[0])
        return Refusal(Why.OTHER, change, path, outcome, multi, uncertain)


def _why(change: Change, path: str, multi: zk.Multi, outcome: zk.Outcome) -> Why | None:
    if outcome.failure in change.preconditions.get(path, ()):
        return Why.CHANGED
    if path in change.make_parent and outcome.failure is zk.Failure.NO_NODE:
        return Why.PARENT
    if change.misjudged(path, outcome.failure) is not None:
        return Why.PARENT
    inside = change.batch is not None and path.startswith(f"{change.context.paths.batch(change.batch)}/")
    if inside and change.touches(path):  # a merged plan may take several members off the same batch
        return Why.BATCH
    if change.segment is None:
        return None
    lane, failure = change.context.paths.at("queue", change.segment.lane.name), outcome.failure
    segment, creates = f"{lane}/{change.segment.segment}", isinstance(multi.ops[outcome.failed or 0], zk.Create)
    if path.startswith(f"{segment}/"):
        return Why.PLACE if failure is zk.Failure.NO_NODE else None
    if path == lane and failure is zk.Failure.NO_NODE and creates:
        return None  # a lane that cannot be created has nothing to stand under: the queue was deleted
    moved = path in {lane, segment} and failure in {zk.Failure.NO_NODE, zk.Failure.NODE_EXISTS, zk.Failure.BAD_VERSION}
    return Why.PLACE if moved else None


def mergeable(plans: Iterable[Plan], most: int) -> Iterator[list[Plan]]:
    """Groups of at most so many plans, each of which fits into one of ZooKeeper's transactions."""
    group: list[Plan] = []
    room = zk.MAX_REQUEST
    for plan in plans:
        size = zk.request_size(plan.multi().ops)
        if group and (len(group) >= most or size > room):
            yield group
            group, room = [], zk.MAX_REQUEST
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
Sending: TypeAlias = Callable[[Context, Callable[[], zk.Multi]], Procedure[tuple[zk.Multi, zk.Outcome]]]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """How a commit ended: with the plan that was carried out, or with the refusal of the last one."""

    plan: Plan
    outcome: zk.Outcome
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


class Sent(NamedTuple):
    """A transaction that was sent among others, and how it ended at first."""

    multi: zk.Multi
    outcome: zk.Outcome


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
        record = change.context.paths.task(change.task_id, "state")
        node: zk.Node | None = yield zk.Get(record)
        # Whatever its version says, the record may not be the one that the change was made from.
        if change.before is not None and (node is None or TaskState.decode(record, node.data).nonce != change.before):
            change.superseded = True
            return None
        change.context.warn_once(path, f"{described(refusal.outcome, refusal.multi)}; task {change.task_id!r} goes on")
        change.drop(path)
        return Plan([change])

    return rebuild


def commit(
    plan: Plan,
    rebuild: Rebuild | None = None,
    *,
    first: Sent | None = None,
    requested: bool = False,
    by: Sending = alone,
) -> Procedure[CommitResult]:
    """Carry out a plan; what is missing around it is made, and what it is not a member of any more is left out.

    Every other refusal goes to `rebuild`, or stands. Three refusals alike, of the same operation for the same reason,
    with nothing gained in between, are no race any more: `CorruptRecord` names the path. `first`: how it ended when it
    was sent before, among others. `requested`: an earlier call sent this plan and did not hear of it. `by`: how it is
    sent; by `send`, it may go together with what other calls send at the same time.
    Raises `Unavailable` where nothing was sent, and `OutcomeUnknown`.
    """
    tries, doubted, unproven = None, False, requested
    try:
        while True:
            try:
                multi, outcome = first or (yield from by(plan.changes[0].context, plan.multi))
                if outcome.unknown:
                    doubted = True
                    plan.learn(multi, outcome)  # a segment that it may have opened is looked for again
                    outcome = yield from resolved(multi, outcome, plan.proof)
                elif unproven and not outcome.committed:
                    outcome = (yield from proven(plan.proof)) or outcome
            except BaseException:
                _remember_batches(plan)
                raise
            plan.learn(multi, outcome)
            if outcome.committed:
                try:
                    for change in plan.changes:
                        if change.on_commit is not None:
                            yield from change.on_commit()
                except BaseException:  # cut off at one batch, the client remembers the others, too
                    _remember_batches(plan)
                    raise
                return CommitResult(plan, outcome)
            first, unproven = None, False
            refusal = plan.explain(multi, outcome, uncertain=requested or doubted)
            better = yield from _mend(plan, refusal, rebuild)
            if better is None:
                why = Why.CHANGED if refusal.change.superseded else refusal.why
                return CommitResult(plan, outcome, replace(refusal, why=why))
            tries = tries or Tries(plan)
            yield from tries.refused(outcome, multi, None)
            plan = better
    except (Unavailable, SessionLost) as error:
        if not doubted:
            raise
        raise OutcomeUnknown(f"{plan} was sent, and its outcome is not known: {error}") from error


def remember_batch(context: Context, name: str) -> None:
    """Remember a batch whose last member may have been taken off, to end it later."""
    context.pending.batches.add(name)
    context.run.finish_later()


def _remember_batches(plan: Plan) -> None:
    """Its caller may never ask again what became of a transaction."""
    for change in plan.changes:
        if change.batch is not None:
            remember_batch(change.context, change.batch)


def _mend(plan: Plan, refusal: Refusal, rebuild: Rebuild | None) -> Procedure[Plan | None]:
    outcome, change = refusal.outcome, refusal.change
    gone = outcome.failure is zk.Failure.NO_NODE and refusal.why in {Why.OTHER, Why.PARENT, Why.PLACE}
    if gone and (yield from restored(change.context, refusal.path)):
        return plan
    if refusal.path == change.dispensable and outcome.failure is zk.Failure.NO_NODE:
        change.context.warn_once(refusal.path, f"it is missing; task {change.task_id!r} goes on without")
        change.drop(refusal.path)
        return plan
    if change.turns(refusal.path):
        why = f"{described(outcome, refusal.multi)}, whatever its task's record tells; it is written all the same"
        change.context.warn_once(refusal.path, why)
        return plan
    match refusal.why:
        case Why.PARENT:
            parent = change.misjudged(refusal.path, outcome.failure)
            if parent is None:
                yield from change.make_parent[refusal.path]()
            else:
                change.missing = tuple(op for op in change.parents if (op in change.missing) is not (op == parent))
            return plan
        case Why.BATCH:
            for each in plan.changes:
                if each.batch is not None and each.touches(refusal.path):
                    each.leave_batch(refusal.path)
            return plan
        case Why.PLACE:
            for context in plan.contexts:
                context.segments.open.clear()
    return None if rebuild is None else (yield from rebuild(refusal))


def send_together(plans: Sequence[Plan]) -> Procedure[list[Sent]]:
    """Send several plans in flight together, each a transaction of its own; how each ended, or that it is not known."""
    opened: set[str] = set()  # requests of one session are carried out in order: the first one opens for all
    multis = [plan.multi(opened) for plan in plans]
    outcomes: list[zk.Outcome] = yield zk.Pipeline(tuple(multis))
    sent = list(map(Sent, multis, outcomes))
    for plan, each in zip(plans, sent, strict=True):
        plan.learn(*each)
    return sent
