"""Candidates for a claim: what is pending, in which order, judged, and taken in one transaction."""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, Literal, TypeAlias

from msgspec import structs

from .. import protocol as zk
from ..context import PACE_SECONDS, CachedRead, Caller, Claimed, Context, ReadAhead, Registered, Schedule
from ..maintenance.consumers import any_of_the_first, back_off, share
from ..model.names import Lane, entry_task, is_shortened, parse_lane, priority_of
from ..model.policy import Conf
from ..model.records import TaskState
from ..model.selectors import Selector
from ..model.states import State
from ..model.values import MAX_ZXID, load
from ..protocol import Procedure, refused
from ..read.leases import one_stands, server_time
from ..read.nodes import (
    AT_ONCE,
    WHOLE_AT_ONCE,
    Record,
    Unread,
    listing,
    read_nodes,
    read_records,
    restored,
    unless_corrupt,
)
from ..tasks.settle import DeferredCompletions, attempts_exhausted, kill_exhausted
from ..write import transitions
from ..write.commit import Change, Plan, Refusal, commit, merge, mergeable
from ..write.transitions import Current

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
            yield from restored(context, path)
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

    @property
    def room(self) -> int:
        """How many tasks are wanted still."""
        return self.most - len(self.taken)

    @property
    def view(self) -> int:
        """How many entries are worth to be known: those wanted now, and those that are read ahead."""
        return self.room if self.read_ahead is None else max(self.room, self.read_ahead.most)

    def accepts(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters is wanted."""
        return self.wanted.selector.matches(filters, self.conf.types)


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
    Raises `NoRoom` where none may be claimed now.
    """
    now, wanted = (yield from server_time(context)), taker.wanted
    parts: list[tuple[Claimed, Plan]] = []
    for at, claimed in enumerate(candidates):
        claimed.prefetched = wanted.prefetch == "all" or (wanted.prefetch and (at > 0 or bool(taker.taken)))
        span = wanted.lease or claimed.state.lock or taker.conf.lock  # for which it holds, unless extended
        parts.append((claimed, transitions.claim(context, claimed, taker.consumer.id, span, wanted.lease, now)))
    if len(parts) > 1:
        parts = parts[: len(next(mergeable((plan for _, plan in parts), len(parts))))]
    while parts:
        guard: Change | None = None
        if wanted.max_leases is not None:
            room, guard = yield from _room_under(context, wanted.max_leases)
            parts = parts[:room]
        if taker.caller.left:  # its client may have given all of it back already, and claim again
            raise CallerLeft
        claims, plan = [claimed for claimed, _ in parts], merge(plan for _, plan in parts)
        if guard is not None:
            plan.changes.append(guard)
        plan.changes[0].proof = partial(one_stands, context, claims)  # any of them may be taken away meanwhile
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
            return len(parts) == len(candidates)
        context.claims.strike(taker.caller, sending)
        if refusal.change is guard:  # others have claimed since there was room
            continue
        at = next((at for at, each in enumerate(plan.changes) if each is refusal.change), 0)
        _refused(context, taker.consumer, claims[at], refusal)
        parts = parts[:at] + ([] if in_order else parts[at + 1 :])
    return False


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
        context.report(entry, f"it cannot be claimed, {zk.described(refusal.outcome, refusal.multi)}; stepped over")


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
    if context.run.monotonic() - read_ahead.read_at > PACE_SECONDS:  # it may have changed
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
    nodes = yield from read_nodes(paths, len(_PARTS) * WHOLE_AT_ONCE)
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
    records = unless_corrupt(context, entry, partial(_records, parts, node, metadata))
    if records is None or not _is_pending_at(context, entry, records[0]):
        return None
    state, _ = records
    if attempts_exhausted(conf, state):  # its policy was lowered meanwhile
        current = Current(task_id, node.stat.version, state)
        yield from kill_exhausted(context, current, (yield from server_time(context)))
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
    state = None if node is None else unless_corrupt(context, ranked.path, partial(TaskState.decode, path, node.data))
    if state is not None and _is_pending_at(context, ranked.path, state):
        return
    after: zk.Stat | None = yield zk.Exists(ranked.path)
    if after is not None and after.czxid == before.czxid and may_be_tried(context, ranked):
        context.report(ranked.path, "a pending entry of a task that is not pending; stepped over")


def may_be_tried(context: Context, ranked: RankedEntry) -> bool:
    """Whether an entry that was tried certainly stands there still, and is not stepped over."""
    return ranked.path not in context.ignored_paths and context.listings.still_listed(ranked.segment, ranked.entry)


# --- Which lanes and which entries a consumer accepts.

#: Whether a task with these filters is wanted.
Accepts: TypeAlias = Callable[[Mapping[str, str]], bool]


def matching_lanes(context: Context, accepts: Accepts, names: Iterable[str]) -> Procedure[list[tuple[str, bool]]]:
    """The lanes that may hold what is wanted, in the order of their names; whether their entries are judged singly."""
    matching = []
    for name in names:
        lane = parse_lane(name)
        if lane is None and is_shortened(name):
            lane = yield from _read_lane(context, name)
        elif lane is None:
            context.report(context.paths.at("queue", name), "no lane of ours; stepped over")
        if lane is not None and (lane.filters is None or accepts(lane.filters)):
            matching.append((name, lane.filters is None))
    return matching


def _read_lane(context: Context, name: str) -> Procedure[Lane | None]:
    """What a shortened name stands for; None: it is gone, or was reported."""
    path = context.paths.at("queue", name)
    if path in context.ignored_paths:
        return None
    filters = context.listings.at(path).lane
    if filters is None:
        node: zk.Node | None = yield zk.Get(path)
        lane = None if node is None else unless_corrupt(context, path, partial(Lane.decode, path, node.data))
        if lane is None:
            return None
        filters = context.listings.at(path).lane = dict(lane.filters or {})
    return Lane(0, filters)


def judged(context: Context, accepts: Accepts, segment: str, names: list[str]) -> Procedure[list[str]]:
    """The entries of a mixed lane's segment that fit; one whose filters change gets another name: each is read once."""
    known = context.listings.at(segment).entry_filters
    unknown = [name for name in names if name not in known and entry_task(name)]
    if unknown or len(known) > 2 * len(names) + AT_ONCE:
        # What is remembered is replaced, never changed: a thread that reads it meanwhile keeps what it has.
        known = {name: known[name] for name in names if name in known}
        records = yield from read_records(context, [entry_task(name) or "" for name in unknown])
        for name, record in zip(unknown, records, strict=True):
            if record is not Unread.MISSING:  # what is gone, or comes back, is not to be remembered
                known[name] = record.state.filters if isinstance(record, Record) else None
        context.listings.at(segment).entry_filters = known
    return [name for name in names if (filters := known.get(name)) is not None and accepts(filters)]


# --- The default order: priority, then nearly the time of enqueue, each consumer beginning at entries of its own.
#
# The listings of lanes, segments and entries are remembered under watches. While no watch fires, looking for work
# costs no request at all. Two rules keep anybody from sleeping over work: nobody gives up on a listing whose watch
# has fired, and what another thread of this client is trying is looked at again soon, since that try may fail.

#: Names of a listing whose watch has fired are used this long, so that a busy segment is not listed for every claim.
LISTING_SECONDS: Final = 0.25
#: So many of the first entries are looked at where many consumers are, and at the most.
SPREAD_WINDOW: Final = 64
MOST_SPREAD: Final = 256
#: How often one look tries the same entry, which somebody else may be changing, before it is put off.
TRIES_OF_ENTRY: Final = 3
SOON: Final = 0.1


@dataclass(slots=True)
class _DefaultLook:
    """One look at the lanes of a priority: who looks, and how often it has tried what."""

    taker: Taker
    schedule: Schedule
    width: int
    """So many of the first entries are looked at."""
    tried: Counter[str] = field(default_factory=Counter)

    def untouched(self, context: Context) -> bool:
        """Whether neither this look nor another of this client has tried anything yet."""
        return not (self.tried or context.claims.trying)

    def open(self, context: Context, entry: str) -> bool:
        """Whether an entry may be tried by this look: nobody of this client is at it, nor was it tried too often."""
        return entry not in context.claims.trying and self.tried.get(entry, 0) < TRIES_OF_ENTRY


def claim_among(context: Context, taker: Taker, lanes: list[tuple[str, bool]], schedule: Schedule) -> Procedure[None]:
    """Claim the first tasks of some lanes that nobody else is at; of each: its name, whether to judge its entries."""
    # Beside many consumers so many entries are looked at that one's own share is enough. Alone: those that are wanted,
    # and one more, which tells that there is work for another thread, too.
    _, shares = share(context)
    width = taker.view + 1 if shares == 1 else min(MOST_SPREAD, max(SPREAD_WINDOW, shares * taker.view))
    look = _DefaultLook(taker, schedule, width)
    while taker.room:
        lane_heads: list[list[tuple[str, str]]] = []
        for name, judge in lanes:
            lane_head = yield from _lane_head(context, look, context.paths.at("queue", name), judge=judge)
            if lane_head:
                lane_heads.append(lane_head)
        window = lane_heads[0] if len(lane_heads) == 1 else [*islice(heapq.merge(*lane_heads), width)]
        if not look.untouched(context):  # somebody may have begun since it was listed
            window = [pair for pair in window if look.open(context, pair[0])]
        if not window:
            if not lane_heads:
                return
            continue
        if len(window) > taker.room:
            context.signal.notify_one(taker.wanted.kind)  # there is work for another thread of this client, too
        taker.later[:] = _first_of(context, window, taker.view) if taker.read_ahead else []
        picks = _first_of(context, window, taker.room)
        entries = [ranked.entry for ranked in picks]
        look.tried.update(entries)
        context.claims.trying.update(entries)
        try:
            taken = yield from take_all(context, taker, picks)
        finally:
            context.claims.trying.difference_update(entries)
        for ranked in picks:  # if it still stands there, the next listing has it again
            cached = context.listings.at(ranked.segment).cached_entries
            if cached is not None and ranked.entry in cached and not may_be_tried(context, ranked):
                cached.remove(ranked.entry)
        if taken < len(picks) and any(look.tried[entry] >= TRIES_OF_ENTRY for entry in entries):
            schedule.no_later_than(SOON)


def _first_of(context: Context, window: list[tuple[str, str]], most: int) -> list[RankedEntry]:
    """Where to begin: at the entries of this consumer's own share, as far as it has any; then at as many of others'."""
    slot, shares = share(context)
    if shares == 1:
        first = window[:most]
    else:
        mine = [*islice((pair for pair in window if zlib.crc32(pair[0].encode()) % shares == slot), most)]
        start = any_of_the_first(context, len(window))
        first = mine or window[start : start + 1 + (most - 1) // shares]
    return [RankedEntry(*pair) for pair in first]


def _lane_head(context: Context, look: _DefaultLook, lane: str, *, judge: bool) -> Procedure[list[tuple[str, str]]]:
    """The first entries of a lane that can be tried, each with its segment."""
    segments = yield from listing(context, lane)
    for number, name in enumerate(segments or ()):
        segment = f"{lane}/{name}"
        usable = yield from _usable_entries(context, look, segment, judge=judge)
        if usable:
            return [(entry, segment) for entry in usable]
        if number < len(segments or ()) - 1:
            yield from drop_if_empty(context, segment)
    return []


def _usable_entries(context: Context, look: _DefaultLook, segment: str, *, judge: bool) -> Procedure[list[str]]:
    """What can be tried of a segment, less what this client took; none only where its listing is of this moment."""
    while True:
        reading = context.listings.at(segment)
        cached, current = reading.cached_entries, reading.fresh
        young = context.run.monotonic() - reading.read_at < LISTING_SECONDS
        if cached is None or not (current or (cached and young)):
            listed = yield from listing(context, segment)
            cached = [name for name in listed or () if f"{segment}/{name}" not in context.ignored_paths]
            if listed is not None:
                context.listings.at(segment).cached_entries = cached
            current = listed is None or context.listings.at(segment).fresh
        names = (yield from judged(context, look.taker.accepts, segment, cached)) if judge else cached
        if look.untouched(context):  # most looks have tried nothing yet, beside nobody
            usable = names[: look.width]
        else:
            usable = [*islice((name for name in names if look.open(context, name)), look.width)]
        if usable or current:
            if not usable and names:
                look.schedule.no_later_than(SOON)  # another thread of this client is at them
            return usable
        context.listings.at(segment).cached_entries = None
        yield from listing(context, segment)


def drop_if_empty(context: Context, segment: str) -> Procedure[None]:
    """Delete a drained segment that is not its lane's newest; the server refuses if an entry came meanwhile."""
    if context.listings.at(segment).value == []:
        yield zk.Multi((zk.Delete(segment),))
        context.listings.forget(segment)


# --- Strict order: claims happen in the order in which enqueues were committed, within a priority.
#
# The rank of an entry is the transaction that first listed its task; a released, retried or rescued task comes back
# with its rank. Of all fitting lanes the lowest rank is claimed, and nobody passes it by: who loses a race for it
# knows that it was claimed, and only then looks for the next. The default order trades this for less contention.

_Key = tuple[int, str]


def claim_in_order(context: Context, taker: Taker, schedule: Schedule) -> Procedure[None]:
    """Claim the first of the fitting tasks, of the highest priority that has one."""
    tried = Counter[str]()
    while taker.room:
        # The listings, that of the lanes among them, are read one after the other, so that an enqueue may be seen whose
        # predecessor, in a lane read before or not known of, is not. Everything committed up to `seen` is in all of
        # them; and where no watch has fired in the meantime, they are all of one moment.
        seen, read = context.run.zxid(), list[tuple[CachedRead, zk.Watch]]()
        lowest = yield from _lowest(context, taker, read)
        stands = all(reading.fresh and reading.watch is watch for reading, watch in read)
        heads = lowest if stands else [head for head in lowest if _key(head)[0] <= seen]
        if not heads and not stands:
            continue
        if not heads:
            return
        first = heads[0]
        tried[first.entry] += 1
        taken = yield from take_all(context, taker, heads, in_order=True)
        if taken == len(heads):
            continue
        if not taken and tried[first.entry] >= TRIES_OF_ENTRY and first.path not in context.ignored_paths:
            schedule.no_later_than(SOON)  # somebody keeps changing it: it is first all the same
            return
        yield from back_off(context)


def _key(head: RankedEntry) -> _Key:
    """How they are ordered: tasks of one transaction have the same rank, and stand in the order of their entries."""
    return head.rank or 0, head.entry


def _lowest(context: Context, taker: Taker, read: list[tuple[CachedRead, zk.Watch]]) -> Procedure[list[RankedEntry]]:
    """The lowest ranks of the highest priority, in order, as many as are wanted.

    No further than to the end of the first segment of any lane that has later ones. `read`: what was read for it.
    """
    names = yield from _listed(context, read, context.paths.at("queue"))
    lanes = yield from matching_lanes(context, taker.accepts, names)
    for _, group in groupby(lanes, key=lambda lane: priority_of(lane[0])):
        heads: list[RankedEntry] = []
        ends: list[_Key] = []
        for name, judge in group:
            segment, ranked, goes_on = yield from _first_segment(context, taker, read, name, judge=judge)
            ends += [max(ranked)] if goes_on else []
            heads += [RankedEntry(entry, segment, rank) for rank, entry in heapq.nsmallest(taker.view, ranked)]
        if heads:
            taker.later[:] = lowest = heapq.nsmallest(taker.view, heads, key=_key)
            return [head for head in lowest[: taker.room] if _key(head) <= min(ends, default=_key(head))]
    return []


def _listed(context: Context, read: list[tuple[CachedRead, zk.Watch]], path: str) -> Procedure[list[str]]:
    """A listing; `read` gets the reading, and its watch: by the time it is judged another one may stand there."""
    names = yield from listing(context, path)
    reading = context.listings.at(path)
    if names is not None and reading.watch is not None:
        read.append((reading, reading.watch))
    return names or []


def _first_segment(
    context: Context, taker: Taker, read: list[tuple[CachedRead, zk.Watch]], name: str, *, judge: bool
) -> Procedure[tuple[str, list[_Key], bool]]:
    """A lane's first segment that has any, and what; whether there are later ones: all of them committed later."""
    lane = context.paths.at("queue", name)
    segments = yield from _listed(context, read, lane)
    for segment in [f"{lane}/{each}" for each in segments]:
        later = segment != f"{lane}/{segments[-1]}"
        names = yield from _listed(context, read, segment)
        if judge:
            names = yield from judged(context, taker.accepts, segment, names)
        usable = [entry for entry in names if f"{segment}/{entry}" not in context.ignored_paths]
        # An entry keeps its rank, so each is read once. What is remembered of a segment is replaced, never changed.
        known = context.listings.at(segment).ranks
        ranks = {entry: known[entry] for entry in usable if entry in known}
        unknown = [entry for entry in usable if entry not in known]
        nodes = yield from read_nodes([f"{segment}/{entry}" for entry in unknown])
        ranks |= {entry: rank_of(node) for entry, node in zip(unknown, nodes, strict=True) if node is not None}
        context.listings.at(segment).ranks = ranks
        ranked = [(ranks[entry], entry) for entry in usable if entry in ranks]
        if ranked:
            return segment, ranked, later
        if later:
            yield from drop_if_empty(context, segment)
    return "", [], False


def rank_of(node: zk.Node) -> int:
    """What an entry holds as its rank; else it stands where it was committed."""
    held = int(node.data) if node.data.isdigit() and len(node.data) < 20 else 0
    return held if 0 < held <= MAX_ZXID else node.stat.czxid
