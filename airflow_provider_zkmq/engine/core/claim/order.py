"""In which order tasks are claimed: by priority and age, or strictly."""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import Final, Protocol

from airflow_provider_zkmq.engine.core.claim.candidates import RankedEntry, Taker, take_all
from airflow_provider_zkmq.engine.core.client.context import CachedRead, Context, Schedule
from airflow_provider_zkmq.engine.core.maintenance.contention import any_of_the_first, back_off, share
from airflow_provider_zkmq.engine.core.model.codec import MAX_ZXID
from airflow_provider_zkmq.engine.core.model.names import Lane, entry_task, is_shortened, parse_lane, priority_of
from airflow_provider_zkmq.engine.core.protocol.ops import Delete, Get, Multi, Node, Procedure, Watch
from airflow_provider_zkmq.engine.core.read.cache import listing
from airflow_provider_zkmq.engine.core.read.nodes import (
    AT_ONCE,
    Record,
    Unread,
    read_nodes,
    read_records,
    unless_corrupt,
)

# --- Which lanes and which entries a consumer accepts.


class Choosing(Protocol):
    """Whoever wants some of the tasks."""

    def accepts(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters is wanted."""


def matching_lanes(context: Context, taker: Choosing, names: Iterable[str]) -> Procedure[list[tuple[str, bool]]]:
    """The lanes that may hold what is wanted, in the order of their names; whether their entries are judged singly."""
    matching = []
    for name in names:
        fits = yield from lane_fits(context, taker, name)
        if fits is not None:
            matching.append((name, not fits))
    return matching


def lane_fits(context: Context, taker: Choosing, name: str) -> Procedure[bool | None]:
    """True: all of the lane fits; False: its entries are judged singly; None: nothing there fits."""
    lane = parse_lane(name)
    if lane is None and is_shortened(name):
        lane = yield from _read_lane(context, name)
        if lane is None:  # it is gone, or was reported
            return None
    if lane is None:
        context.report(context.paths.at("queue", name), "no lane of ours; stepped over")
        return None
    if lane.filters is None:
        return False
    return True if taker.accepts(lane.filters) else None


def _read_lane(context: Context, name: str) -> Procedure[Lane | None]:
    path = context.paths.at("queue", name)
    if path in context.ignored_paths:
        return None
    filters = context.listings.at(path).lane
    if filters is None:
        node: Node | None = yield Get(path)
        if node is None:
            return None
        lane = unless_corrupt(context, path, partial(Lane.decode, path, node.data))
        if lane is None:
            return None
        filters = dict(lane.filters or {})
        context.listings.at(path).lane = filters
    return Lane(0, filters)


def judged(context: Context, taker: Choosing, segment: str, names: list[str]) -> Procedure[list[str]]:
    """The entries of a mixed lane's segment that fit; one whose filters change gets another name: each is read once.

    What is remembered of a segment is replaced, never changed: a thread that reads it meanwhile keeps what it has.
    """
    known = context.listings.at(segment).entry_filters
    unknown = [name for name in names if name not in known and entry_task(name)]
    if unknown or len(known) > 2 * len(names) + AT_ONCE:
        known = {name: known[name] for name in names if name in known}
        known |= yield from _read_filters(context, unknown)
        context.listings.at(segment).entry_filters = known
    return [name for name in names if (filters := known.get(name)) is not None and taker.accepts(filters)]


def _read_filters(context: Context, names: list[str]) -> Procedure[dict[str, Mapping[str, str] | None]]:
    """The filters of some entries' tasks; what is gone, or comes back, is not to be remembered."""
    records = yield from read_records(context, [entry_task(name) or "" for name in names])
    return {
        name: record.state.filters if isinstance(record, Record) else None
        for name, record in zip(names, records, strict=True)
        if record is not Unread.MISSING
    }


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
TRIES: Final = 3
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
        return entry not in context.claims.trying and self.tried.get(entry, 0) < TRIES

    def first_open(self, context: Context, names: list[str]) -> list[str]:
        """The first of some entries that may be tried; most looks have tried nothing yet, beside nobody."""
        if self.untouched(context):
            return names[: self.width]
        return [*islice((name for name in names if self.open(context, name)), self.width)]


def claim_among(context: Context, taker: Taker, lanes: list[tuple[str, bool]], schedule: Schedule) -> Procedure[None]:
    """Claim the first tasks of some lanes that nobody else is at; of each: its name, whether to judge its entries."""
    look = _DefaultLook(taker, schedule, _width(context, taker))
    while taker.room:
        lane_heads: list[list[tuple[str, str]]] = []
        for name, judge in lanes:
            lane_head = yield from _lane_head(context, look, context.paths.at("queue", name), judge=judge)
            if lane_head:
                lane_heads.append(lane_head)
        window = lane_heads[0] if len(lane_heads) == 1 else [*islice(heapq.merge(*lane_heads), look.width)]
        if not look.untouched(context):  # somebody may have begun since it was listed
            window = [pair for pair in window if look.open(context, pair[0])]
        if not window:
            if not lane_heads:
                return
            continue
        if len(window) > taker.room:
            context.signal.notify_one(taker.wanted.kind)  # there is work for another thread of this client, too
        taker.later[:] = (
            [RankedEntry(*pair) for pair in _first_of(context, window, taker.view)] if taker.read_ahead else []
        )
        yield from _try(context, look, [RankedEntry(*pair) for pair in _first_of(context, window, taker.room)])


def _width(context: Context, taker: Taker) -> int:
    """How many entries are worth to be looked at: beside many consumers, so many that one's own share is enough.

    Alone: those that are wanted, and one more, which tells that there is work for another thread, too.
    """
    _, shares = share(context)
    return taker.view + 1 if shares == 1 else min(MOST_SPREAD, max(SPREAD_WINDOW, shares * taker.view))


def _first_of(context: Context, window: list[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """Where to begin: at the entries of this consumer's own share, as far as it has any; then at as many of others'."""
    slot, shares = share(context)
    if shares == 1:
        return window[:most]
    mine = [*islice((pair for pair in window if zlib.crc32(pair[0].encode()) % shares == slot), most)]
    start = any_of_the_first(context, len(window))
    return mine or window[start : start + 1 + (most - 1) // shares]


def _try(context: Context, look: _DefaultLook, picks: list[RankedEntry]) -> Procedure[None]:
    """Try some entries."""
    entries = [head.entry for head in picks]
    look.tried.update(entries)
    context.claims.trying.update(entries)
    try:
        taken = yield from take_all(context, look.taker, picks)
    finally:
        context.claims.trying.difference_update(entries)
    for head in picks:
        _take_off(context, head.segment, head.entry)
    if taken < len(picks) and any(look.tried[entry] >= TRIES for entry in entries):
        look.schedule.no_later_than(SOON)


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
    """What can be tried of a segment; none only where its listing is of this moment."""
    while True:
        names, current = yield from _cached_entries(context, segment)
        if judge:
            names = yield from judged(context, look.taker, segment, names)
        usable = look.first_open(context, names)
        if usable or current:
            if not usable and names:
                look.schedule.no_later_than(SOON)  # another thread of this client is at them
            return usable
        context.listings.at(segment).cached_entries = None
        yield from listing(context, segment)


def _cached_entries(context: Context, segment: str) -> Procedure[tuple[list[str], bool]]:
    """The segment's entries, less what this client took from it; and whether the listing is of this moment."""
    entry = context.listings.at(segment)
    cached_entries = entry.cached_entries
    young = context.run.monotonic() - entry.read_at < LISTING_SECONDS
    if cached_entries is not None and (entry.fresh or (cached_entries and young)):
        return cached_entries, entry.fresh
    names = yield from listing(context, segment)
    cached_entries = [name for name in names or () if f"{segment}/{name}" not in context.ignored_paths]
    if names is not None:
        context.listings.at(segment).cached_entries = cached_entries
    entry = context.listings.at(segment)
    return cached_entries, names is None or entry.fresh


def drop_if_empty(context: Context, segment: str) -> Procedure[None]:
    """Delete a drained segment that is not its lane's newest; the server refuses if an entry came meanwhile."""
    if context.listings.at(segment).value == []:
        yield Multi((Delete(segment),))
        context.listings.forget(segment)


def _take_off(context: Context, segment: str, entry: str) -> None:
    """An entry that was tried to the end is off the stock; if it still stands there, the next listing has it again."""
    cached_entries = context.listings.at(segment).cached_entries
    if cached_entries is None or entry not in cached_entries:
        return
    if context.listings.still_listed(segment, entry) and f"{segment}/{entry}" not in context.ignored_paths:
        return
    cached_entries.remove(entry)


# --- Strict order: claims happen in the order in which enqueues were committed, within a priority.
#
# The rank of an entry is the transaction that first listed its task; a released, retried or rescued task comes back
# with its rank. Of all fitting lanes the lowest rank is claimed, and nobody passes it by: who loses a race for it
# knows that it was claimed, and only then looks for the next. The default order trades this for less contention.

_Key = tuple[int, str]


@dataclass(slots=True)
class _StrictLook:
    """One look at the queue: what was read for it, and how often it has tried what."""

    taker: Taker
    read: list[tuple[CachedRead, Watch]] = field(default_factory=list)
    """What was read for it."""
    tried: Counter[str] = field(default_factory=Counter)

    def stands(self) -> bool:
        """Whether all that was read for it still stands: then it is all of one moment."""
        return all(reading.fresh and reading.watch is watch for reading, watch in self.read)


def claim_in_order(context: Context, taker: Taker, schedule: Schedule) -> Procedure[None]:
    """Claim the first of the fitting tasks, of the highest priority that has one."""
    look = _StrictLook(taker)
    while taker.room:
        heads = yield from _heads(context, look)
        if not heads:
            return
        first = heads[0]
        look.tried[first.entry] += 1
        taken = yield from take_all(context, taker, heads, in_order=True)
        if taken == len(heads):
            continue
        if not taken and look.tried[first.entry] >= TRIES and first.path not in context.ignored_paths:
            schedule.no_later_than(SOON)  # somebody keeps changing it: it is first all the same
            return
        yield from back_off(context)


def _heads(context: Context, look: _StrictLook) -> Procedure[list[RankedEntry]]:
    """The lowest ranks of the highest priority, in order; certain, not only lowest of what was read.

    The listings, that of the lanes among them, are read one after the other, so that an enqueue may be seen whose
    predecessor, in a lane read before or not known of, is not. Everything committed up to `seen` is in all of them; and
    where no watch has fired in the meantime, they are all of one moment.
    """
    while True:
        seen = context.run.zxid()
        look.read.clear()
        lowest = yield from _lowest(context, look)
        certain = lowest if look.stands() else [head for head in lowest if _key(head)[0] <= seen]
        if certain or look.stands():
            return certain


def _key(head: RankedEntry) -> _Key:
    """How they are ordered: tasks of one transaction have the same rank, and stand in the order of their entries."""
    return head.rank or 0, head.entry


def _lowest(context: Context, look: _StrictLook) -> Procedure[list[RankedEntry]]:
    """As many as are wanted; no further than to the end of the first segment of any lane that has later ones."""
    names = yield from _listed(context, look, context.paths.at("queue"))
    lanes = yield from matching_lanes(context, look.taker, names)
    for _, group in groupby(lanes, key=lambda lane: priority_of(lane[0])):
        heads: list[RankedEntry] = []
        ends: list[_Key] = []
        for name, judge in group:
            segment, ranked, goes_on = yield from _first_segment(
                context, look, context.paths.at("queue", name), judge=judge
            )
            ends += [max(ranked)] if goes_on else []
            heads += [RankedEntry(entry, segment, rank) for rank, entry in heapq.nsmallest(look.taker.view, ranked)]
        if heads:
            look.taker.later[:] = lowest = heapq.nsmallest(look.taker.view, heads, key=_key)
            return [head for head in lowest[: look.taker.room] if _key(head) <= min(ends, default=_key(head))]
    return []


def _listed(context: Context, look: _StrictLook, path: str) -> Procedure[list[str]]:
    """A listing; `look` notes the reading, and the watch under which it was made.

    What is remembered at its path may be another reading by the time the look is judged.
    """
    names = yield from listing(context, path)
    reading = context.listings.at(path)
    if names is not None and reading.watch is not None:
        look.read.append((reading, reading.watch))
    return names or []


def _first_segment(
    context: Context, look: _StrictLook, lane: str, *, judge: bool
) -> Procedure[tuple[str, list[_Key], bool]]:
    """The lane's first segment that has any, and what; whether there are later ones: all of them committed later."""
    segments = yield from _listed(context, look, lane)
    for number, name in enumerate(segments):
        segment = f"{lane}/{name}"
        usable = yield from _usable_keys(context, look, segment, judge=judge)
        ranks = yield from _read_ranks(context, segment, usable)
        ranked = [(ranks[entry], entry) for entry in usable if entry in ranks]
        if ranked:
            return segment, ranked, number < len(segments) - 1
        if number < len(segments) - 1:
            yield from drop_if_empty(context, segment)
    return "", [], False


def _usable_keys(context: Context, look: _StrictLook, segment: str, *, judge: bool) -> Procedure[list[str]]:
    """A segment's entries that fit, less those that are stepped over; `judge`: they are judged singly."""
    names = yield from _listed(context, look, segment)
    if judge:
        names = yield from judged(context, look.taker, segment, names)
    return [entry for entry in names if f"{segment}/{entry}" not in context.ignored_paths]


def rank_of(node: Node) -> int:
    """What an entry holds as its rank; else it stands where it was committed."""
    held = int(node.data) if node.data.isdigit() and len(node.data) < 20 else 0
    return held if 0 < held <= MAX_ZXID else node.stat.czxid


def _read_ranks(context: Context, segment: str, names: list[str]) -> Procedure[dict[str, int]]:
    """Learn the ranks that are not known; an entry keeps its rank, so each is read once.

    What is remembered of a segment is replaced, never changed: a thread that reads it meanwhile keeps what it has.
    """
    known = context.listings.at(segment).ranks
    ranks = {name: known[name] for name in names if name in known}
    unknown = [name for name in names if name not in known]
    nodes = yield from read_nodes([f"{segment}/{name}" for name in unknown])
    for name, node in zip(unknown, nodes, strict=True):
        if node is not None:
            ranks[name] = rank_of(node)
    context.listings.at(segment).ranks = ranks
    return ranks
