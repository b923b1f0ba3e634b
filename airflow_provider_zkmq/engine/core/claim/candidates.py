"""Candidates for a claim: which lanes and entries fit, and which is next, by default or in strict order."""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby, islice, zip_longest
from typing import Final, TypeAlias

from .. import zk_operations as zk
from ..client_state import CachedRead, Context, Schedule
from ..maintenance.consumer_registry import any_of_the_first, back_off, share
from ..model.values import MAX_ZXID
from ..model.znode_names import Lane, entry_task, is_mixed, is_shortened, parse_lane, priority_of
from ..read.bulk_read import AT_ONCE, Record, Unread, read_nodes, read_records, unless_corrupt
from ..read.watch_cache import listing
from ..zk_operations import Procedure
from .limits import Limits, filters_of
from .take import RankedEntry, Taker, may_be_tried, take_all

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
        lane_heads = yield from _lane_heads(context, look, lanes)
        window = lane_heads[0] if len(lane_heads) == 1 else [*islice(heapq.merge(*lane_heads), width)]
        if not look.untouched(context):  # somebody may have begun since it was listed
            window = [pair for pair in window if look.open(context, pair[0])]
        if not window:
            if not lane_heads:
                return
            continue
        if len(window) > taker.room:
            context.signal.notify_one(taker.wanted.kind)  # there is work for another thread of this client, too
        if taker.limits is not None and taker.limits.limit.by is not None:
            by_key = _by_key(context, taker.limits, lane_heads)
            later = picks = _in_turn(context, look, taker.limits, by_key, taker.room)
            if not taker.has_read([ranked.entry for ranked in picks], context.run.monotonic()):
                later = _in_turn(context, look, taker.limits, by_key, taker.view)
                picks = later[: taker.room]
        else:
            later = _first_of(context, window, taker.view) if taker.read_ahead else []
            picks = _first_of(context, window, taker.room)
        taker.later[:] = later
        if not picks:  # other threads of this client took what there was room for, while this one listed
            schedule.no_later_than(SOON)
            return
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


def _by_key(
    context: Context, limits: Limits, lane_heads: list[list[tuple[str, str]]]
) -> dict[str | None, list[list[tuple[str, str]]]]:
    """The first entries of lanes by the key under which they are limited; those of a mixed lane have many."""
    by_key: dict[str | None, list[list[tuple[str, str]]]] = {}
    for head in lane_heads:
        groups = [head]
        if is_mixed(head[0][1].split("/")[-2]):
            key_of = lambda pair: limits.limit.key(filters_of(context, pair[1], pair[0])) or ""  # noqa: E731
            groups = [list(group) for _, group in groupby(sorted(head, key=key_of), key_of)]
        for pairs in groups:
            entry, segment = pairs[0]
            by_key.setdefault(limits.limit.key(filters_of(context, segment, entry)), []).append(pairs)
    return by_key


def _in_turn(
    context: Context,
    look: _DefaultLook,
    limits: Limits,
    by_key: dict[str | None, list[list[tuple[str, str]]]],
    most: int,
) -> list[RankedEntry]:
    """Where to begin under a limit of each key: at a task of each in turn, as many as it has room for."""
    rows, keys = list[list[RankedEntry]](), limits.in_turn(by_key, most)
    _, shares = share(context)
    for key, room in keys:
        heads, wanted = by_key[key], min(-(-most // len(keys)), room or most)
        pairs: Iterable[tuple[str, str]] = heads[0] if len(heads) == 1 else heapq.merge(*heads)
        if not look.untouched(context):
            pairs = (pair for pair in pairs if look.open(context, pair[0]))
        rows.append(_first_of(context, [*islice(pairs, wanted if shares == 1 else look.width)], wanted))
    return [each for each in chain.from_iterable(zip_longest(*rows)) if each is not None][:most]


def _lane_heads(
    context: Context, look: _DefaultLook, lanes: list[tuple[str, bool]]
) -> Procedure[list[list[tuple[str, str]]]]:
    """The first entries of each lane that has any, less those that the queue's limit has no room for."""
    lane_heads, limits = [], look.taker.limits
    for name, judge in lanes:
        lane = context.paths.at("queue", name)
        tried = bool(look.tried or look.taker.taken)  # else those were left out already when the lanes were listed
        if tried and not judge and limits is not None and limits.blocks(filters_of(context, f"{lane}/", "")):
            continue
        lane_head = yield from _lane_head(context, look, lane, judge=judge)
        if lane_head:
            lane_heads.append(lane_head)
    return lane_heads


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
