"""The default order: priority, then nearly the time of enqueue, each consumer beginning at entries of its own.

The listings of lanes, segments and entries are remembered under watches. While no watch fires, looking for work
costs no request at all. Two rules keep anybody from sleeping over work: nobody gives up on a listing whose watch has
fired, and what another thread of this client is trying is looked at again soon, since that try may fail.
"""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from airflow_provider_zkmq.engine.core.claiming.group import take_all
from airflow_provider_zkmq.engine.core.claiming.match import judged
from airflow_provider_zkmq.engine.core.claiming.take import Pick, Taker
from airflow_provider_zkmq.engine.core.memory.agenda import Agenda
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Delete, Multi
from airflow_provider_zkmq.engine.core.reading.watched import listing
from airflow_provider_zkmq.engine.core.upkeep.crowd import any_of_the_first, share

#: Names of a listing whose watch has fired are used this long, so that a busy segment is not listed for every claim.
LISTING_SECONDS: Final = 0.25
#: So many of the first entries are looked at in a crowd, and at the most.
SPREAD_WINDOW: Final = 64
MOST_SPREAD: Final = 256
#: How often one look tries the same entry, which somebody else may be changing, before it is put off.
TRIES: Final = 3
SOON: Final = 0.1


@dataclass(slots=True)
class _Look:
    """One look at the lanes of a priority: who looks, and how often it has tried what."""

    taker: Taker
    agenda: Agenda
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


def claim_among(context: Context, taker: Taker, lanes: list[tuple[str, bool]], agenda: Agenda) -> Procedure[None]:
    """Claim the first tasks of some lanes that nobody else is at; of each: its name, whether to judge its entries."""
    look = _Look(taker, agenda, _width(context, taker))
    while taker.room:
        fronts: list[list[tuple[str, str]]] = []
        for name, judge in lanes:
            front = yield from _front(context, look, context.paths.at("queue", name), judge=judge)
            if front:
                fronts.append(front)
        window = fronts[0] if len(fronts) == 1 else [*islice(heapq.merge(*fronts), look.width)]
        if not look.untouched(context):  # somebody may have begun since it was listed
            window = [pair for pair in window if look.open(context, pair[0])]
        if not window:
            if not fronts:
                return
            continue
        if len(window) > taker.room:
            context.signal.pass_on(taker.wanted.kind)  # there is work for another thread of this client, too
        taker.later[:] = [Pick(*pair) for pair in _first_of(context, window, taker.view)] if taker.read_ahead else []
        yield from _try(context, look, [Pick(*pair) for pair in _first_of(context, window, taker.room)])


def _width(context: Context, taker: Taker) -> int:
    """How many entries are worth to be looked at: in a crowd, in which one's own share is to be as large as is wanted.

    Alone: those that are wanted, and one more, which tells that there is work for another thread, too.
    """
    _, slots = share(context)
    return taker.view + 1 if slots == 1 else min(MOST_SPREAD, max(SPREAD_WINDOW, slots * taker.view))


def _first_of(context: Context, window: list[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """Where to begin: at the entries of this consumer's own share, as far as it has any; then at as many of others'."""
    slot, slots = share(context)
    if slots == 1:
        return window[:most]
    mine = [*islice((pair for pair in window if zlib.crc32(pair[0].encode()) % slots == slot), most)]
    start = any_of_the_first(context, len(window))
    return mine or window[start : start + 1 + (most - 1) // slots]


def _try(context: Context, look: _Look, picks: list[Pick]) -> Procedure[None]:
    """Try some entries."""
    entries = [pick.entry for pick in picks]
    look.tried.update(entries)
    context.claims.trying.update(entries)
    try:
        taken = yield from take_all(context, look.taker, picks)
    finally:
        context.claims.trying.difference_update(entries)
    for pick in picks:
        _take_off(context, pick.segment, pick.entry)
    if taken < len(picks) and any(look.tried[entry] >= TRIES for entry in entries):
        look.agenda.within(SOON)


def _front(context: Context, look: _Look, lane: str, *, judge: bool) -> Procedure[list[tuple[str, str]]]:
    """The first entries of a lane that can be tried, each with its segment."""
    segments = yield from listing(context, lane)
    for number, name in enumerate(segments or ()):
        segment = f"{lane}/{name}"
        usable = yield from _usable(context, look, segment, judge=judge)
        if usable:
            return [(entry, segment) for entry in usable]
        if number < len(segments or ()) - 1:
            yield from drop_if_empty(context, segment)
    return []


def _usable(context: Context, look: _Look, segment: str, *, judge: bool) -> Procedure[list[str]]:
    """What can be tried of a segment; none only where its listing is of this moment."""
    while True:
        names, current = yield from _stock(context, segment)
        if judge:
            names = yield from judged(context, look.taker, segment, names)
        usable = look.first_open(context, names)
        if usable or current:
            if not usable and names:
                look.agenda.within(SOON)  # another thread of this client is at them
            return usable
        context.listings.at(segment).stock = None
        yield from listing(context, segment)


def _stock(context: Context, segment: str) -> Procedure[tuple[list[str], bool]]:
    """The segment's entries, less what this client took from it; and whether the listing is of this moment."""
    entry = context.listings.at(segment)
    stock = entry.stock
    young = context.run.monotonic() - entry.read_at < LISTING_SECONDS
    if stock is not None and (entry.fresh or (stock and young)):
        return stock, entry.fresh
    names = yield from listing(context, segment)
    stock = [name for name in names or () if f"{segment}/{name}" not in context.quarantine]
    if names is not None:
        context.listings.at(segment).stock = stock
    entry = context.listings.at(segment)
    return stock, names is None or entry.fresh


def drop_if_empty(context: Context, segment: str) -> Procedure[None]:
    """Delete a drained segment that is not its lane's newest; the server refuses if an entry came meanwhile."""
    if context.listings.at(segment).value == []:
        yield Multi((Delete(segment),))
        context.listings.forget(segment)


def _take_off(context: Context, segment: str, entry: str) -> None:
    """An entry that was tried to the end is off the stock; if it still stands there, the next listing has it again."""
    stock = context.listings.at(segment).stock
    if stock is None or entry not in stock:
        return
    if context.listings.still_listed(segment, entry) and f"{segment}/{entry}" not in context.quarantine:
        return
    stock.remove(entry)
