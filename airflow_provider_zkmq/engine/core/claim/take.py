"""Taking pending tasks: each is read and judged, then all are claimed in one transaction."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from msgspec import structs

from .. import zk_operations as zk
from ..client_state import Caller, Claimed, Context, ReadAhead, Registered, standing
from ..model.filters import Selector
from ..model.records import TaskState
from ..model.settings import Conf
from ..model.states import State
from ..model.values import load
from ..model.znode_names import entry_task
from ..read import bulk_read, queue_existence, server_clock
from ..tasks.settle import DeferredCompletions, attempts_exhausted, kill_exhausted
from ..transaction_retries import described, refused
from ..write import transitions
from ..write.commit import Change, Plan, Refusal, commit, merge, mergeable
from ..write.transitions import Current
from ..zk_operations import Procedure
from .limits import Limits, filters_of

# --- How many claims may be taken where a queue's leases are bounded: counted in the tree, whoever claims meanwhile.
#
# Whoever claims under a bound reads how many leases there are and the version of their znode in one request, and
# raises that version in the transaction that claims. So of two who saw the same room one is refused, and looks
# again. Claims without a bound raise nothing: they may come on top.


class NoRoom(Exception):
    """There are as many leases as the bound allows."""


def _room_under(context: Context, most: int) -> Procedure[tuple[int, Change]]:
    """How many may be claimed where `most` leases are allowed, and what others refuse who claim before. Or `NoRoom`."""
    path = context.paths.at("leases")
    node: zk.Node | None = yield zk.Get(path)
    if node is None or node.stat.children >= most:
        yield zk.Sync(path)  # the server that we are connected to may lag behind
        if node is None:
            yield from queue_existence.restored(context, path)
        node = yield zk.Get(path)
    if node is None:
        raise NoRoom
    held = node.stat.children
    if held >= most:  # what is stepped over there would take room for ever, as it never ends
        names = yield zk.Children(path)
        held = sum(f"{path}/{name}" not in context.ignored_paths for name in names or ())
    if held >= most:
        raise NoRoom
    return most - held, Change(context, "", [zk.SetData(path, b"", node.stat.version)])


# --- Taking pending tasks: one read of the candidates, one transaction.
#
# A claim is remembered before it is sent (`Handover`). Whatever interrupts the call after that, a lost connection,
# a cancellation, an interrupt from the keyboard, the claim may have happened and nobody would know of it: what its
# caller never got, its client gives back before it claims again (`give_back`).


#: Of which claims of a group the handling begins later.
Prefetch: TypeAlias = Literal["all"] | bool


class Unregistered(Exception):
    """This session is no consumer any more: it is a new one, or was taken for dead. Whoever claims registers again."""


class CallerLeft(Exception):
    """Whoever asked for the claim has gone away: nothing more is taken for it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer asks for. ``lease`` (seconds): the claim outlives the process; None: it ends with its session.

    ``prefetch``: the handling of all but the first, or of all, begins later, see `core.tasks.settle.begin`.
    ``max_leases``: no more are claimed than leave the queue with so many leases. ``task_id``: this task and no other;
    ``attempt``: only as its delivery of that number.
    """

    selector: Selector
    lease: float | None = None
    prefetch: Prefetch = False
    max_leases: int | None = None
    task_id: str | None = None
    attempt: int | None = None

    @property
    def kind(self) -> Hashable:
        """What those have in common who are after the same tasks: where one finds nothing, none does."""
        return str(self.selector)


@dataclass(slots=True)
class Taker:
    """Who claims in one look at the queue: for whom, what is wanted, and what it has got."""

    wanted: Wanted
    caller: Caller
    deferred: DeferredCompletions
    """What has been handled goes with what is claimed."""
    most: int = 1
    read_ahead: ReadAhead | None = None
    """What the claims before it have read, and it may read for those after it."""
    taken: list[Claimed] = field(default_factory=list)
    later: list[RankedEntry] = field(default_factory=list)
    """What comes next, as far as the latest look can tell: it is read with what is tried now."""
    conf: Conf = field(init=False)
    consumer: Registered = field(init=False)
    limits: Limits | None = None
    """None: the queue has none."""

    @property
    def room(self) -> int:
        """How many tasks are wanted still."""
        return self.most - len(self.taken)

    @property
    def view(self) -> int:
        """How many entries are worth to be known: those wanted now, and those that are read ahead."""
        return self.room if self.read_ahead is None else max(self.room, self.read_ahead.most)

    def has_read(self, entries: Sequence[str], now: float) -> bool:
        """Whether nothing has to be read of these any more, or ahead for those after them."""
        return self.read_ahead is None or self.read_ahead.has_read(entries, now)

    def accepts(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters is wanted, and the queue's limit may have room for it."""
        wanted = self.wanted.selector.matches(filters, self.conf.types)
        return wanted and (self.limits is None or not self.limits.blocks(filters))


@dataclass(frozen=True, slots=True)
class RankedEntry:
    """An entry that is to be tried; ``rank``: its place in strict order."""

    entry: str
    segment: str
    rank: int | None = None

    @property
    def path(self) -> str:
        """Where it stands."""
        return f"{self.segment}/{self.entry}"


def claim_together(
    context: Context, taker: Taker, candidates: Sequence[Claimed], *, in_order: bool = False
) -> Procedure[bool]:
    """Claim candidates in one transaction, as many as fit; whether all of them are taken.

    Where it is refused at one of them, that one is left out and the others are sent again; `in_order`: those before it.
    What the queue's limit has no room for is left out, too. Raises `NoRoom` where none may be claimed now.
    """
    limits, before = taker.limits, len(taker.taken)
    try:
        admitted = candidates if limits is None else (yield from limits.admit(candidates))
        wanted, parts = taker.wanted, _parts(context, taker, admitted, (yield from server_clock.server_time(context)))
        while parts:
            guards: list[Change] = []
            if wanted.max_leases is not None or limits is not None:
                parts, guards = yield from _bounded(context, wanted, limits, parts)
                if not parts:
                    return False
            if taker.caller.left:  # its client may have given all of it back already, and claim again
                raise CallerLeft
            claims, plan = [claimed for claimed, _ in parts], merge(plan for _, plan in parts)
            plan.changes += guards
            # any of them may be taken away meanwhile
            plan.changes[0].proof = standing(context.paths, claims)
            sending = context.claims.note(taker.caller, tuple(claims), plan.multi())
            registration, heard = context.registration, context.registration.cancel_watch
            committed = yield from commit(plan, by=taker.deferred.send)
            refusal = committed.refusal
            if refusal is None:
                if registration.cancel_watch is not heard:
                    registration.cancel_watch = None  # who listened meanwhile took what came for these to be for others
                for claimed in claims:
                    context.claims.receive(claimed, committed.outcome.zxid or 0, committed.outcome.sent)
                taker.taken.extend(claims)
                if limits is not None:
                    limits.counted(committed.outcome)
                return len(parts) == len(candidates)
            context.claims.strike(taker.caller, sending)
            if refusal.change in guards and refusal.outcome.failure is not zk.Failure.OTHER:
                continue  # others have claimed since there was room
            at = next((at for at, each in enumerate(plan.changes) if each is refusal.change), 0)
            if limits is None or not limits.collided(claims[at], refusal.path):
                _refused(context, taker.consumer, claims[at], refusal)
            parts = parts[:at] + ([] if in_order else parts[at + 1 :])
        return False
    finally:
        if limits is not None:
            limits.release(taker.taken[before:])


def _parts(context: Context, taker: Taker, candidates: Sequence[Claimed], now: int) -> list[tuple[Claimed, Plan]]:
    """The claims of candidates, as many as go together."""
    parts = [(each, _plan_of(context, taker, each, now, first=at == 0)) for at, each in enumerate(candidates)]
    return parts[: len(next(mergeable((plan for _, plan in parts), len(parts))))] if len(parts) > 1 else parts


def _plan_of(context: Context, taker: Taker, claimed: Claimed, now: int, *, first: bool) -> Plan:
    """The claim of a candidate, by itself; `first`: of those that go together."""
    wanted, limits = taker.wanted, taker.limits
    claimed.prefetched = wanted.prefetch == "all" or (wanted.prefetch and (not first or bool(taker.taken)))
    span = wanted.lease or claimed.state.lock or taker.conf.lock  # for which it holds, unless extended
    slot = None if limits is None else limits.slot(claimed)
    return transitions.claim(context, claimed, taker.consumer.id, span, wanted.lease, now, slot)


def _bounded(
    context: Context, wanted: Wanted, limits: Limits | None, parts: list[tuple[Claimed, Plan]]
) -> Procedure[tuple[list[tuple[Claimed, Plan]], list[Change]]]:
    """How many may be claimed now, and what others refuse who claim before. Or `NoRoom`."""
    guards: list[Change] = []
    if wanted.max_leases is not None:
        room, guard = yield from _room_under(context, wanted.max_leases)
        parts = parts[:room]
        guards.append(guard)
    if limits is not None:
        counted, counting = yield from limits.count([claimed for claimed, _ in parts])
        parts = [part for part in parts if part[0] in counted]
        guards += counting
        if counting and len(parts) > 1:
            ops = [op for _, plan in parts for op in plan.multi().ops]
            ops += [op for guard in guards for op in guard.ops]
            if zk.request_size(ops) > zk.MAX_REQUEST:  # at a larger one a server drops the connection
                return (yield from _bounded(context, wanted, limits, parts[: len(parts) // 2]))
    return parts, guards


def _refused(context: Context, consumer: Registered, claimed: Claimed, refusal: Refusal) -> None:
    """Another was faster, or the record changed. Raises `Unregistered`, and `ZkmqError` for what nobody expects."""
    failure = refusal.outcome.failure
    own = {context.paths.live(consumer.id), context.paths.current(consumer.id, claimed.task_id)}
    if failure is zk.Failure.NO_NODE and refusal.path in own:
        if context.registration.consumer is consumer:
            context.registration.consumer = None
        raise Unregistered
    if failure is zk.Failure.OTHER:
        raise refused("claim", refusal.outcome, refusal.multi)
    entry, record = context.paths.entry(claimed.state.place), context.paths.task(claimed.task_id, "state")
    if failure in {zk.Failure.NODE_EXISTS, zk.Failure.NOT_EMPTY} or refusal.path not in {entry, record}:
        context.report(entry, f"it cannot be claimed, {described(refusal.outcome, refusal.multi)}; stepped over")


# --- The tasks that pending entries stand for, read before they are claimed: each is judged by its record.


_PARTS: Final = ("state", "data", "metadata")


def read_candidates(
    context: Context, taker: Taker, picks: Sequence[RankedEntry], *, in_order: bool = False
) -> Procedure[list[Claimed]]:
    """The tasks of entries, ready to be claimed, less those that cannot be; `in_order`: those before the first such."""
    ids = [task_of_entry(context, ranked) for ranked in picks]
    known = [(ranked, task_id) for ranked, task_id in zip(picks, ids, strict=True) if task_id is not None]
    nodes = yield from _nodes_of(context, taker, [ranked.entry for ranked, _ in known])
    candidates = []
    for ranked, task_id in known:
        claimed = yield from candidate(context, taker, task_id, ranked, nodes[ranked.entry])
        if claimed is not None:
            candidates.append(claimed)
        elif in_order:
            break
    return candidates


def _nodes_of(context: Context, taker: Taker, entries: Sequence[str]) -> Procedure[dict[str, Sequence[zk.Node | None]]]:
    """The znodes of entries' tasks: as they were read ahead, the first time that they are asked for; else read now."""
    read_ahead = taker.read_ahead
    if read_ahead is None:
        return (yield from _read(context, entries))
    if read_ahead.is_old(context.run.monotonic()):  # it may have changed
        read_ahead.tasks.clear()
    nodes = {entry: read_ahead.tasks.pop(entry) for entry in entries if entry in read_ahead.tasks}
    unread = [entry for entry in entries if entry not in nodes]
    if not unread:
        return nodes
    if read_ahead.busy:  # another call reads those that come after these
        return nodes | (yield from _read(context, unread))
    read_ahead.busy = True
    try:
        # Listings of different moments may have the same task in two lanes: it is read once.
        later = {task_id: ranked.entry for ranked in taker.later if (task_id := entry_task(ranked.entry)) is not None}
        for entry in set(read_ahead.tasks).difference(later.values()):  # they are gone
            del read_ahead.tasks[entry]
        missing = {entry_task(entry) for entry in unread}
        ahead = [entry for task_id, entry in later.items() if entry not in read_ahead.tasks and task_id not in missing]
        fresh = yield from _read(context, [*unread, *ahead])
    finally:
        read_ahead.busy = False
    size = sum(len(node.data) for of_task in fresh.values() for node in of_task if node is not None)
    read_ahead.learn(len(fresh), size, context.run.monotonic())
    read_ahead.tasks |= {entry: fresh.pop(entry) for entry in ahead}
    return nodes | fresh


def _read(context: Context, entries: Sequence[str]) -> Procedure[dict[str, Sequence[zk.Node | None]]]:
    nodes = yield from read_tasks(context, [entry_task(entry) or "" for entry in entries])
    return dict(zip(entries, nodes, strict=True))


def read_tasks(context: Context, ids: Sequence[str]) -> Procedure[list[Sequence[zk.Node | None]]]:
    """Of each task what a claim needs of it: its record, its payload and its metadata."""
    paths = [context.paths.task(task_id, part) for task_id in ids for part in _PARTS]
    nodes = yield from bulk_read.read_nodes(paths, len(_PARTS) * bulk_read.WHOLE_AT_ONCE)
    return [nodes[at : at + len(_PARTS)] for at in range(0, len(nodes), len(_PARTS))]


def task_of_entry(context: Context, ranked: RankedEntry) -> str | None:
    """The task that an entry stands for; None, reported once, for what is no entry of ours."""
    task_id = entry_task(ranked.entry)
    if task_id is None:
        context.report(ranked.path, "no entry of ours; stepped over")
    return task_id


def candidate(
    context: Context, taker: Taker, task_id: str, ranked: RankedEntry, nodes: Sequence[zk.Node | None]
) -> Procedure[Claimed | None]:
    """What `read_tasks` has read of a task as a claim that can be sent; None where it cannot be claimed."""
    records = yield from deliverable(context, taker.conf, task_id, ranked.path, nodes)
    node, data, _ = nodes
    if records is None or node is None or data is None:
        return None
    state, extra = records
    state = state if ranked.rank is None else structs.replace(state, rank=ranked.rank)
    claimed = Claimed(task_id, 0, node.stat.version + 1, state, data.stat.ctime, data.data, extra)
    claimed.session = taker.consumer.session
    return claimed


def deliverable(
    context: Context, conf: Conf, task_id: str, entry: str, nodes: Sequence[zk.Node | None]
) -> Procedure[tuple[TaskState, dict[str, Any]] | None]:
    """A task's record and its metadata, if it may be delivered from this entry. What cannot be read is reported."""
    parts = [context.paths.task(task_id, part) for part in _PARTS]
    node, data, metadata = nodes
    if node is None or data is None:
        missing = parts[0] if node is None else parts[1]
        # else it was claimed, finished and collected meanwhile, or a call that is repeated has written both anew
        if (yield zk.Exists(entry)) is not None and (yield zk.Exists(missing)) is None:
            context.report(entry, "a pending entry without a task; stepped over")
        return None
    records = bulk_read.unless_corrupt(context, entry, partial(_records, parts, node, metadata))
    if records is None or not _is_pending_at(context, entry, records[0]):
        return None
    state, _ = records
    if state.attempt and attempts_exhausted(conf, state):  # its policy was lowered meanwhile
        current = Current(task_id, node.stat.version, state)
        yield from kill_exhausted(context, current, (yield from server_clock.server_time(context)))
        return None
    return records


def _records(parts: list[str], node: zk.Node, metadata: zk.Node | None) -> tuple[TaskState, dict[str, Any]]:
    """A candidate's record and its metadata. Raises `CorruptRecord`."""
    return TaskState.decode(parts[0], node.data), load(parts[2], metadata.data) if metadata is not None else {}


def _is_pending_at(context: Context, entry: str, state: TaskState) -> bool:
    """Whether a task is pending, and this is its entry."""
    return state.state is State.INSERTED and state.index is None and context.paths.entry(state.place) == entry


# --- Taking pending tasks: several with one read and one transaction; what is left of them is tried one by one.


#: How often a candidate whose record changes under our eyes is read again.
TRIES: Final = 4


def take_all(context: Context, taker: Taker, picks: Sequence[RankedEntry], *, in_order: bool = False) -> Procedure[int]:
    """Try to claim entries; returns how many were taken. Raises `Unregistered`, `CallerLeft`.

    `in_order`: none of them is taken unless all before it are. What was not taken and stands there still was changed in
    place (updated, say), or is damaged: it is read again by itself, and what cannot be claimed then is stepped over.
    """
    before, rest = len(taker.taken), picks
    if len(picks) > 1:
        candidates = yield from read_candidates(context, taker, picks, in_order=in_order)
        if candidates:
            yield from claim_together(context, taker, candidates, in_order=in_order)
        taken = {claimed.task_id for claimed in taker.taken}
        rest = [each for each in (picks[:1] if in_order else picks) if entry_task(each.entry) not in taken]
        rest = [ranked for ranked in rest if may_be_tried(context, ranked)]
    for ranked in rest:
        for _ in range(TRIES):
            candidates = yield from read_candidates(context, taker, [ranked])
            if candidates and (yield from claim_together(context, taker, candidates)):
                break
            if not may_be_tried(context, ranked):  # another was faster
                break
            if taker.limits is not None and taker.limits.blocks(filters_of(context, ranked.segment, ranked.entry)):
                break
        else:
            if not candidates:
                yield from step_over_if_there(context, ranked)
    return len(taker.taken) - before


def step_over_if_there(context: Context, ranked: RankedEntry) -> Procedure[None]:
    """An entry whose task cannot be claimed from it: where it stands there all the same, it is reported.

    What was read of the task may be older than the listing that has the entry: the task was in hand then, came back,
    and another thread has listed it since. So the record is read once more, between two looks at the entry, which has
    to be the same one: stepped over is what stood there while its task was not pending, and nothing else.
    """
    before: zk.Stat | None = yield zk.Exists(ranked.path)
    if before is None or not may_be_tried(context, ranked):
        return
    path = context.paths.task(task_of_entry(context, ranked) or "", "state")
    node: zk.Node | None = yield zk.Get(path)
    state = (
        None
        if node is None
        else bulk_read.unless_corrupt(context, ranked.path, partial(TaskState.decode, path, node.data))
    )
    if state is not None and _is_pending_at(context, ranked.path, state):
        return
    after: zk.Stat | None = yield zk.Exists(ranked.path)
    if after is not None and after.czxid == before.czxid and may_be_tried(context, ranked):
        context.report(ranked.path, "a pending entry of a task that is not pending; stepped over")


def may_be_tried(context: Context, ranked: RankedEntry) -> bool:
    """Whether an entry that was tried certainly stands there still, and is not stepped over."""
    return ranked.path not in context.ignored_paths and context.listings.still_listed(ranked.segment, ranked.entry)
